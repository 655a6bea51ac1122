//! One VF for each kind of bytes that reach Fairlead from outside: a runtime's configuration, another plugin's
//! result, the executable's request, the kernel's answers, another device plugin's configuration, and the files that a kill or
//! a bad disk may leave.
//!
//! Each takes anything, must not panic, and asserts what holds for whatever was accepted. The guided run
//! (`fuzz_targets/`, `make fuzz`) and the replay of the kept corpus (`tests/corpus.rs`, part of `make test`) call the
//! same VFs. An input that once broke something stays in `corpus/<name>/`.

#![forbid(unsafe_code)]

use fairlead_cni::args::Args;
use fairlead_cni::config::{
    ConfList, HostDevice, HostLocal, Ipvlan, Loopback, Macvlan, NetConf, Sriov, StaticIpam, Vlan,
};
use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, CniResult, CniVersion, spool as entry};
use fairlead_daemon::store::replay;
use fairlead_host::real::decode;
use fairlead_sriov::{DevicePluginConfig, Selectors};

/// A name, which is that of the corpus' directory, and its VF.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 7] = [
    ("config", config),
    ("prev_result", prev_result),
    ("wire", wire),
    ("netlink", netlink),
    ("spool", spool),
    ("journal", journal),
    ("device_plugin", device_plugin),
];

/// A configuration or a list of them. What ADD can read, DEL can read.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = ConfList::parse(text);
    let args = Args::parse("IgnoreUnknown=1;IP=10.0.0.9;MAC=02:00:00:00:00:01").unwrap_or_default();
    let Ok(conf) = NetConf::parse(text) else { return };
    assert!(NetConf::parse_for_removal(text).is_ok(), "ADD takes what DEL refuses");
    let _ = Macvlan::parse(&conf).and_then(|c| c.mac(&conf, &args));
    let _ = Ipvlan::parse(&conf).map(|c| c.master(&conf).map(|_| c.chained_addresses(&conf).is_some()));
    let _ = Vlan::parse(&conf);
    let _ = HostDevice::parse(&conf);
    let _ = Sriov::parse(&conf).map(|c| c.device(&conf, &args).map(|_| c.mac(&conf, &args)));
    let _ = Loopback::parse(&conf);
    let _ = HostLocal::parse(&conf, &args);
    let _ = StaticIpam::parse(&conf, &args);
}

/// Another plugin's result or error, in every version. What was read is written and read again without loss.
pub fn prev_result(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = CniError::from_json(text);
    for version in CniVersion::ALL {
        let Ok(result) = CniResult::parse_text(text, version) else { continue };
        for wanted in CniVersion::ALL {
            let _ = result.to_json(wanted);
        }
        let Ok(written) = result.to_json(CniVersion::LATEST) else { continue };
        let again = CniResult::parse_text(&written, CniVersion::LATEST);
        assert_eq!(again.as_ref().ok(), Some(&result), "{written} is not what was read");
    }
}

/// The executable's request.
pub fn wire(data: &[u8]) {
    let Ok(request) = serde_json::from_slice::<Request>(data) else { return };
    let written = serde_json::to_vec(&request).unwrap_or_default();
    assert_eq!(serde_json::from_slice::<Request>(&written).ok(), Some(request));
}

/// A datagram of the kernel.
pub fn netlink(data: &[u8]) {
    let Ok(answers) = decode(data) else { return };
    assert!(answers.len() <= data.len() / 16, "more messages than headers fit");
}

/// A file of the spool. What is accepted is exactly what is written for it.
pub fn spool(data: &[u8]) {
    let Ok(request) = entry::parse(data) else { return };
    let written = entry::serialise(&request).unwrap_or_default();
    assert_eq!(entry::parse(&written).ok(), Some(request));
}

/// The journal of the store. It ends within the file, and reading up to its end gives the same.
pub fn journal(data: &[u8]) {
    let whole = replay(data);
    assert!(whole.length + whole.damaged <= data.len() + whole.damaged, "it ends behind its end");
    let again = replay(&data[..whole.length]);
    assert_eq!(again.payloads, whole.payloads);
    assert_eq!(again.length, whole.length);
}

/// A configuration file of the SR-IOV network device plugin. Selectors that were read are written and read again without loss.
pub fn device_plugin(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(config) = DevicePluginConfig::read(text) else { return };
    for resource in config.resources {
        let written = serde_json::to_string(&resource.selectors).unwrap_or_default();
        let again = serde_json::from_str::<Selectors>(&written).ok();
        assert_eq!(again, Some(resource.selectors), "{written} is not what was read");
    }
}
