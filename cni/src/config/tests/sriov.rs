//! Configurations of type `sriov`.

use super::conf;
use crate::args::Args;
use crate::config::sriov::{Device, Driver, LinkState, Vlan};
use crate::config::*;
use crate::error::Code;

fn read(keys: &str) -> Sriov {
    Sriov::parse(&conf("sriov", keys)).unwrap()
}

#[test]
fn an_sriov_configuration_is_read_with_every_field() {
    let sriov = read(
        r#""deviceID":"0000:21:10.0","vlan":100,"vlanQoS":3,"vlanProto":"802.1AD","mac":"02:00:00:00:00:01","spoofchk":"off",
           "trust":"on","link_state":"enable","min_tx_rate":10,"max_tx_rate":200,"logLevel":"debug","logFile":"/x",
           "pciBusID":"0000:21:10.0","resourceName":"intel.com/igb""#,
    );
    let wanted = Sriov {
        device_id: Some("0000:21:10.0".into()),
        resource_name: Some("intel.com/igb".into()),
        mac: Some("02:00:00:00:00:01".into()),
        vlan: Some(Vlan { id: 100, qos: 3, service: true }),
        spoofchk: Some(false),
        trust: Some(true),
        link_state: Some(LinkState::Enable),
        min_tx_rate: Some(10),
        max_tx_rate: Some(200),
        pool: None,
        driver: None,
        on_host: false,
    };
    assert_eq!(sriov, wanted);
}

#[test]
fn what_is_absent_null_or_empty_is_left_as_it_is_and_a_vlan_of_0_is_not_absent() {
    let untouched =
        read(r#""vlan":null,"spoofchk":"","trust":null,"link_state":"","vlanProto":"","vlanQoS":0,"mac":"""#);
    assert_eq!((untouched.vlan, untouched.spoofchk, untouched.trust), (None, None, None));
    assert_eq!((untouched.link_state, untouched.mac, untouched.min_tx_rate), (None, None, None));
    assert_eq!(read(r#""vlan":0"#).vlan, Some(Vlan { id: 0, qos: 0, service: false }));
    assert_eq!(read(r#""vlan":0,"vlanProto":"802.1q""#).vlan.unwrap().id, 0);
    assert_eq!(read(r#""vlan":4094,"vlanQoS":7"#).vlan.unwrap().qos, 7);
    assert_eq!(read(r#""max_tx_rate":0"#).max_tx_rate, Some(0));
    assert_eq!(read(r#""VLAN":5,"SpoofChk":"on""#).vlan.unwrap().id, 5, "keys match in any case, as in Go");
}

#[test]
fn spoof_check_and_trust_are_off_by_each_word_that_means_off_and_on_by_on_alone() {
    let switches = |value: &str| {
        let keys = format!(r#""spoofchk":"{value}","trust":"{value}""#);
        let read = Sriov::parse(&conf("sriov", &keys));
        read.map(|sriov| (sriov.spoofchk, sriov.trust)).map_err(|e| e.code)
    };
    for (value, told) in [
        ("on", Ok(Some(true))),
        ("off", Ok(Some(false))),
        ("false", Ok(Some(false))),
        ("no", Ok(Some(false))),
        ("disable", Ok(Some(false))),
        ("", Ok(None)),
        ("true", Err(Code::InvalidConfig)),
        ("ON", Err(Code::InvalidConfig)),
        ("yes", Err(Code::InvalidConfig)),
        ("enable", Err(Code::InvalidConfig)),
        ("1", Err(Code::InvalidConfig)),
    ] {
        assert_eq!(switches(value), told.map(|is_on| (is_on, is_on)), "{value:?}");
    }
}

#[test]
fn a_path_of_our_own_type_may_name_pool_driver_and_access() {
    let text = r#""pool":"radio","driver":"vfio-pci","deviceAccess":"host""#;
    let path = read(text);
    assert_eq!((path.pool.as_deref(), path.driver, path.on_host), (Some("radio"), Some(Driver::Vfio), true));
    let device = |keys: &str| read(keys).device(&conf("sriov", keys), &Args::parse("").unwrap()).unwrap();
    assert_eq!(device(text), Device::OfPool("radio".into()));
    let given = r#""pool":"radio","runtimeConfig":{"deviceID":"0000:21:10.0"}"#;
    assert_eq!(device(given), Device::Named("0000:21:10.0".into()), "what the pod was given goes first");
    for (keys, want) in [
        (r#""driver":"igbvf""#, r#""driver" is "igbvf", expected kernel or vfio-pci"#),
        (r#""deviceAccess":"pod""#, r#""deviceAccess" is "pod", expected host"#),
    ] {
        assert_eq!(Sriov::parse(&conf("sriov", keys)).unwrap_err().msg, want);
    }
}

#[test]
fn a_wrong_value_is_refused_with_key_value_and_what_is_allowed() {
    for (keys, code, want) in [
        (r#""vlan":4095"#, Code::InvalidConfig, r#""vlan" is 4095, expected an integer from 0 to 4094"#),
        (r#""vlan":-1"#, Code::InvalidConfig, r#""vlan" is -1, expected an integer from 0 to 4094"#),
        (r#""vlan":"100""#, Code::Decode, r#""vlan" is the string "100", expected an integer"#),
        (
            r#""vlan":5,"vlanQoS":8"#,
            Code::InvalidConfig,
            r#""vlanQoS" is 8, expected an integer from 0 to 7"#,
        ),
        (
            r#""vlanQoS":3"#,
            Code::InvalidConfig,
            r#""vlanQoS" is 3, expected a "vlan" from 1 to 4094 with it"#,
        ),
        (
            r#""vlan":0,"vlanQoS":3"#,
            Code::InvalidConfig,
            r#""vlanQoS" is 3, expected a "vlan" from 1 to 4094 with it"#,
        ),
        (
            r#""vlanProto":"802.1ad""#,
            Code::InvalidConfig,
            r#""vlanProto" is 802.1ad, expected a "vlan" from 1 to 4094 with it"#,
        ),
        (
            r#""vlan":5,"vlanProto":"q""#,
            Code::InvalidConfig,
            r#""vlanProto" is "q", expected 802.1q or 802.1ad"#,
        ),
        (
            r#""spoofchk":"yes""#,
            Code::InvalidConfig,
            r#""spoofchk" is "yes", expected on or off (sriov-cni takes all but "on" for off)"#,
        ),
        (
            r#""trust":"ON""#,
            Code::InvalidConfig,
            r#""trust" is "ON", expected on or off (sriov-cni takes all but "on" for off)"#,
        ),
        (r#""trust":true"#, Code::Decode, r#""trust" is true, expected a string"#),
        (
            r#""link_state":"up""#,
            Code::InvalidConfig,
            r#""link_state" is "up", expected auto, enable or disable"#,
        ),
        (
            r#""max_tx_rate":-5"#,
            Code::InvalidConfig,
            r#""max_tx_rate" is -5, expected an integer from 0 to 4294967295"#,
        ),
        (
            r#""min_tx_rate":9,"max_tx_rate":5"#,
            Code::InvalidConfig,
            r#""min_tx_rate" is 9, expected at most "max_tx_rate", which is 5"#,
        ),
    ] {
        let error = Sriov::parse(&conf("sriov", keys)).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (code, want), "{keys}");
    }
}

#[test]
fn the_runtimes_device_and_mac_come_before_the_arguments_and_these_before_the_configuration() {
    let args = Args::parse("MAC=02:00:00:00:00:02;deviceID=0000:21:10.2").unwrap();
    let none = Args::default();
    let plain = conf("sriov", r#""deviceID":"0000:21:10.0","mac":"02:00:00:00:00:01""#);
    let runtime = conf(
        "sriov",
        r#""deviceID":"0000:21:10.0","mac":"02:00:00:00:00:01",
           "runtimeConfig":{"deviceID":"0000:21:10.4","mac":"02:00:00:00:00:03"}"#,
    );
    let asked = |conf: &NetConf, args: &Args| {
        let sriov = Sriov::parse(conf).unwrap();
        (sriov.device(conf, args).unwrap(), sriov.mac(conf, args).unwrap().unwrap())
    };
    let is = |device: &str, mac: &str| (Device::Named(device.to_owned()), mac.to_owned());
    assert_eq!(asked(&runtime, &args), is("0000:21:10.4", "02:00:00:00:00:03"));
    assert_eq!(asked(&plain, &args), is("0000:21:10.2", "02:00:00:00:00:02"));
    assert_eq!(asked(&plain, &none), is("0000:21:10.0", "02:00:00:00:00:01"));
}

#[test]
fn a_configuration_without_a_device_and_unknown_arguments_are_refused() {
    let conf = conf("sriov", r#""vlan":5"#);
    let sriov = Sriov::parse(&conf).unwrap();
    let error = sriov.device(&conf, &Args::default()).unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (Code::InvalidConfig, "sriov names no device"));
    let unknown = Args::parse("FOO=1").unwrap();
    assert_eq!(sriov.mac(&conf, &unknown).unwrap_err().code, Code::BadEnvironment);
}

#[test]
fn a_format_of_before_2_0_is_told_by_its_key_and_what_to_write_instead() {
    for key in [r#""if0":"eth0""#, r#""L2Enable":true"#, r#""dpdk":{"kernel_driver":"igbvf"}"#, r#""vf":1"#] {
        let conf = conf("sriov", key);
        let error = Sriov::parse(&conf).unwrap().device(&conf, &Args::default()).unwrap_err();
        assert_eq!(error.code, Code::InvalidConfig);
        assert!(error.msg.contains("is of sriov-cni before 2.0"), "{key}: {}", error.msg);
        assert!(
            error.details.contains("deviceID") && error.details.contains("resourceName"),
            "{}",
            error.details
        );
        let named = super::conf("sriov", &format!(r#"{key},"deviceID":"0000:21:10.0""#));
        assert!(Sriov::parse(&named).unwrap().device(&named, &Args::default()).is_ok(), "{key}");
    }
}

#[test]
fn k27_a_resource_counts_where_no_device_is_named_under_both_names_that_it_has() {
    let none = Args::default();
    let asked = |keys: &str| {
        let conf = conf("sriov", keys);
        Sriov::parse(&conf).unwrap().device(&conf, &none).unwrap()
    };
    let of_resource = Device::OfResource("intel.com/igb".into());
    assert_eq!(asked(r#""resourceName":"intel.com/igb""#), of_resource);
    assert_eq!(asked(r#""k8s.v1.cni.cncf.io/resourceName":"intel.com/igb""#), of_resource);
    let named = Device::Named("0000:21:10.0".into());
    assert_eq!(asked(r#""resourceName":"intel.com/igb","deviceID":"0000:21:10.0""#), named);
}
