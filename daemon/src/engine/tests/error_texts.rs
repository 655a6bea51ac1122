//! Errors as a person reads them (X14): what failed, on which network and interface, why, and what to do.

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_host::double::{Call, FakeKernel, KernelRequest};
use fairlead_host::{Kind, Op};
use nix::errno::Errno;

use super::{POD, Rig};
use crate::delegate::script;

fn config(kind: &str, more: &str, ipam: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"lab-net","type":"{kind}",{more}"ipam":{ipam}}}"#)
}

const ETH0: &str = r#""master":"eth0","#;
const ONE_ADDRESS: &str = r#"{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.9"}]]}"#;
const FIXED: &str = r#"{"type":"static","addresses":[{"address":"10.1.0.9/24"}]}"#;

/// One way to fail.
struct Failure {
    what: &'static str,
    fails: fn() -> CniError,
    /// In the message: the device, the address or the plugin that it is about, and the reason.
    says: &'static [&'static str],
    /// In the details.
    remedy: &'static str,
}

fn add(rig: &Rig, config: &str) -> CniError {
    rig.add(config).unwrap_err()
}

const FAILURES: &[Failure] = &[
    Failure {
        what: "a master that is not there",
        fails: || add(&Rig::new(), &config("macvlan", r#""master":"eth7","#, FIXED)),
        says: &["eth7"],
        remedy: "master",
    },
    Failure {
        what: "an MTU above the master's",
        fails: || add(&Rig::new(), &config("macvlan", r#""master":"eth0","mtu":9000,"#, FIXED)),
        says: &["mtu 9000", "1500", "eth0"],
        remedy: "lower `mtu`",
    },
    Failure {
        what: "a device that is not there",
        fails: || add(&Rig::new(), &config("host-device", r#""device":"ens9","#, FIXED)),
        says: &["ens9"],
        remedy: "named wrongly in the configuration",
    },
    Failure {
        what: "a requested address that another has",
        fails: || {
            let rig = Rig::new();
            rig.add(&config("macvlan", ETH0, ONE_ADDRESS)).unwrap();
            let mut request = rig.request(Command::Add, "c2", &config("macvlan", ETH0, ONE_ADDRESS));
            request.args = "IgnoreUnknown=1;IP=10.1.0.9".into();
            request.ifname = "net2".into();
            rig.call(request).unwrap_err()
        },
        says: &["10.1.0.9"],
        remedy: "",
    },
    Failure {
        what: "a range without a free address",
        fails: || {
            let rig = Rig::new();
            rig.add(&config("macvlan", ETH0, ONE_ADDRESS)).unwrap();
            let mut request = rig.request(Command::Add, "c2", &config("macvlan", ETH0, ONE_ADDRESS));
            request.ifname = "net2".into();
            rig.call(request).unwrap_err()
        },
        says: &["10.1.0.9"],
        remedy: "gc --orphans",
    },
    Failure {
        what: "an interface of that name",
        fails: || {
            let rig = Rig::new();
            rig.kernel.add_link(POD, "net1", Kind::Dummy);
            add(&rig, &config("macvlan", ETH0, FIXED))
        },
        says: &["already in the pod's namespace"],
        remedy: "DEL",
    },
    Failure {
        what: "a VLAN id that another has on the master",
        fails: || {
            let rig = Rig::new();
            let vlan = config("vlan", r#""master":"eth0","vlanId":100,"#, FIXED);
            rig.add(&vlan).unwrap();
            let request = rig.request(Command::Add, "c2", &vlan.replace("10.1.0.9", "10.1.0.8"));
            rig.call(crate::engine::tests::Request { ifname: "net2".into(), ..request }).unwrap_err()
        },
        says: &["net2", "VLAN id 100"],
        remedy: "vlanId",
    },
    Failure {
        what: "an attachment that is there already",
        fails: || {
            let rig = Rig::new();
            rig.add(&config("macvlan", ETH0, FIXED)).unwrap();
            add(&rig, &config("macvlan", ETH0, FIXED))
        },
        says: &["container c1 already has"],
        remedy: "DEL it first",
    },
    Failure {
        what: "a namespace that is not there",
        fails: || {
            let rig = Rig::new();
            rig.kernel.kill_namespace(POD);
            add(&rig, &config("macvlan", ETH0, FIXED))
        },
        says: &[POD],
        remedy: "the sandbox is gone",
    },
    Failure {
        what: "a plugin that fails",
        fails: || {
            let plugins = tempfile::tempdir().unwrap();
            script::write(
                &plugins.path().join("fickle"),
                "echo '{\"code\":107,\"msg\":\"no lease\"}'; exit 1",
            );
            let rig = Rig::on_this_host();
            let mut request =
                rig.request(Command::Add, "c1", &config("macvlan", ETH0, r#"{"type":"fickle"}"#));
            request.path = plugins.path().display().to_string();
            rig.call(request).unwrap_err()
        },
        says: &["plugin \"fickle\", ADD", "exit status 1", "no lease"],
        remedy: "the plugin's own words",
    },
    Failure {
        what: "a plugin that is nowhere",
        fails: || add(&Rig::new(), &config("macvlan", ETH0, r#"{"type":"fickle"}"#)),
        says: &["plugin \"fickle\" is in no directory of CNI_PATH", "/opt/cni/bin"],
        remedy: "install the plugin",
    },
    Failure {
        what: "a type that the kernel lacks",
        fails: || add(&Rig::on(FakeKernel::new().without_kind("ipvlan")), &config("ipvlan", ETH0, FIXED)),
        says: &["making \"net1\" on \"eth0\": ", "ipvlan", "not supported"],
        remedy: "modprobe",
    },
    Failure {
        what: "a master that another kind of interface has",
        fails: || {
            let config = config("macvlan", ETH0, FIXED);
            let rig = Rig::new();
            rig.add(&config).unwrap();
            let makes = |call: &Call| matches!(call.request, KernelRequest::Op(Op::CreateLink(_)));
            let number = rig.kernel.calls().iter().position(makes).unwrap();
            let rig = Rig::new();
            rig.kernel.fail_at(number, Errno::EBUSY);
            add(&rig, &config)
        },
        says: &["making \"net1\" on \"eth0\": ", "busy"],
        remedy: "macvlan, ipvlan and bridges exclude each other",
    },
    Failure {
        what: "a macvlan beside one in mode passthru",
        fails: || {
            let passthru = config("macvlan", r#""master":"eth0","mode":"passthru","#, "{}");
            let both = |rig: &Rig| {
                rig.add(&passthru).unwrap();
                let request = rig.request(Command::Add, "c2", &config("macvlan", ETH0, "{}"));
                rig.call(crate::engine::tests::Request { ifname: "net2".into(), ..request })
            };
            let makes = |call: &Call| matches!(call.request, KernelRequest::Op(Op::CreateLink(_)));
            let rig = Rig::new();
            both(&rig).unwrap();
            let number = rig.kernel.calls().iter().rposition(makes).unwrap();
            let rig = Rig::new();
            rig.kernel.fail_at(number, Errno::EINVAL);
            both(&rig).unwrap_err()
        },
        says: &["making \"net2\" on \"eth0\": ", "invalid argument"],
        remedy: "container c1 has another as \"net1\" of network \"lab-net\"",
    },
];

#[test]
fn x14_what_runs_out_and_comes_back_is_told_as_that_and_the_call_is_to_be_tried_again() {
    let config = config("macvlan", ETH0, FIXED);
    for (command, before) in [(Command::Add, false), (Command::Del, false), (Command::Del, true)] {
        for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            let rig = Rig::new();
            if before {
                rig.add(&config).unwrap();
            }
            rig.kernel.forget_calls();
            rig.kernel.fail_from(0, errno);
            let error = rig.call(rig.request(command, "c1", &config)).unwrap_err();
            let remedy = match errno {
                Errno::EMFILE => "raise LimitNOFILE of fairleadd's service (now ",
                Errno::ENFILE => "fs.file-max",
                _ => "MemoryMax",
            };
            assert_eq!(error.code, Code::TryAgain, "{error:?}");
            assert!(error.details.contains(remedy), "{error:?}");
        }
    }
}

#[test]
fn a_namespace_that_is_named_from_the_callers_directory_is_refused_and_its_del_succeeds() {
    let rig = Rig::new();
    let config = config("macvlan", ETH0, FIXED);
    let relative = |command| {
        let mut request = rig.request(command, "c1", &config);
        request.netns = "ns/pod".into();
        rig.call(request)
    };
    for command in [Command::Add, Command::Check] {
        let error = relative(command).unwrap_err();
        assert_eq!(error.code, Code::BadEnvironment, "{error:?}");
        assert!(error.msg.contains("CNI_NETNS must be an absolute path, and is \"ns/pod\""), "{error:?}");
    }
    rig.kernel.forget_calls();
    relative(Command::Del).unwrap();
    assert_eq!(rig.kernel.calls(), []);
}

#[test]
fn x14_an_error_names_network_and_interface_the_reason_and_what_to_do() {
    for Failure { what, fails, says, remedy } in FAILURES {
        let CniError { msg, details, .. } = fails();
        let told = format!("{what}: {msg}\n→ {details}");
        assert!(msg.starts_with("network \"lab-net\""), "{told}");
        assert!(msg.contains("\"net1\"") || msg.contains("\"net2\""), "{told}");
        for part in *says {
            assert!(msg.to_lowercase().contains(&part.to_lowercase()), "{part:?} is not in {told}");
        }
        assert!(!details.is_empty() && details.contains(remedy), "{told}");
    }
}

#[test]
fn check_says_what_has_changed_and_names_network_interface_and_container_once() {
    let (rig, config) = (Rig::new(), config("macvlan", ETH0, FIXED));
    let answer = rig.add(&config).unwrap();
    rig.in_pod(|index| vec![Op::DeleteLink(index)]);
    let error = rig.check(&config, &answer).unwrap_err();
    let told = "network \"lab-net\", interface \"net1\": container c1: the interface is gone";
    assert_eq!((error.code, error.msg.as_str()), (Code::Changed, told));
    assert!(error.details.contains("make it anew"), "{error}");
}

#[test]
fn an_interface_name_in_which_the_kernel_puts_a_number_is_refused_and_its_del_succeeds() {
    for (kind, more) in [("macvlan", ETH0), ("host-device", r#""device":"dev0","#)] {
        let rig = Rig::new();
        let before = rig.state();
        let config = config(kind, more, FIXED);
        let call = |command| {
            let request = rig.request(command, "c1", &config);
            rig.call(crate::engine::tests::Request { ifname: "net%d".into(), ..request })
        };
        let error = call(Command::Add).unwrap_err();
        assert_eq!(error.code, Code::BadEnvironment, "{error:?}");
        assert!(error.msg.contains("CNI_IFNAME \"net%d\" holds '%'"), "{error:?}");
        call(Command::Del).unwrap();
        assert_eq!(rig.state(), before, "{kind}");
    }
}

#[test]
fn a_networks_name_that_no_directory_can_have_is_refused_before_anything_is_on_record() {
    let rig = Rig::new();
    let before = rig.state();
    let long = config("macvlan", ETH0, ONE_ADDRESS).replace("lab-net", &"n".repeat(256));
    let error = rig.add(&long).unwrap_err();
    assert_eq!(error.code, Code::InvalidConfig, "{error}");
    assert!(error.msg.contains("cannot be used as a directory's name"), "{error}");
    assert_eq!(rig.state(), before, "nothing is on record");
    rig.del(&long).unwrap();
    assert_eq!(rig.state(), before);
}
