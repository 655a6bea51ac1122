//! One function for each kind of bytes that reach Fairlead from outside: a runtime's configuration, another plugin's
//! result, the executable's request, the kernel's answers, another device plugin's configuration, a pod's annotations, and the
//! files that a kill, a bad disk or Multus may leave; what a guest of the switch says and writes, and what its control socket and OVS's database tell.
//!
//! Each takes anything, must not panic, and asserts what holds for whatever was accepted. The guided run
//! (`fuzz_targets/`, `make fuzz`) and the replay of the kept corpus (`tests/corpus.rs`, part of `make test`) call the
//! same functions. An input that once broke something stays in `corpus/<name>/`.

#![forbid(unsafe_code)]

pub mod policy;
mod spelled_definition;

use fairlead_cni::args::Args;
use fairlead_cni::config::{
    ConfList, HostDevice, HostLocal, Ipvlan, Loopback, Macvlan, NetConf, Sriov, StaticIpam, VhostUser, Vlan,
};
use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, CniResult, CniVersion, spool as entry};
use fairlead_daemon::store::replay;
use fairlead_host::real::decode;
use fairlead_kube::multus::{MultusConfig, cached_attachments};
use fairlead_kube::npwg::runtime_config::{of_network, with_cni_args};
use fairlead_kube::npwg::{
    DEFAULT_NETWORK, InterfaceNames, LEGACY_NETWORKS, MAX_NETWORKS, NETWORKS, Requested, selections,
};
use fairlead_sriov::{DevicePluginConfig, ResourcePrefix, Selectors};

/// A name, which is that of the corpus' directory, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 13] = [
    ("config", config),
    ("prev_result", prev_result),
    ("wire", wire),
    ("netlink", netlink),
    ("spool", spool),
    ("journal", journal),
    ("device_plugin", device_plugin),
    ("policy", policy_of_definitions),
    ("annotations", annotations),
    ("vhost_rings", vhost_rings),
    ("vhost_messages", vhost_messages),
    ("vhost_control", vhost_control),
    ("ovsdb_replies", ovsdb_replies),
];

/// A configuration or a list of them. What ADD can read, DEL can read.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = ConfList::parse(text);
    let args = Args::parse("IgnoreUnknown=1;IP=10.0.0.9;MAC=02:00:00:00:00:01").unwrap_or_default();
    let Ok(conf) = NetConf::parse(text) else { return };
    assert!(NetConf::parse_for_removal(text).is_ok(), "ADD takes what DEL refuses");
    let _ = Macvlan::parse(&conf).and_then(|c| c.mac(&conf, &args));
    let _ = Ipvlan::parse(&conf).map(|c| c.masters(&conf).map(|_| c.chained_addresses(&conf).is_some()));
    let _ = Vlan::parse(&conf);
    let _ = HostDevice::parse(&conf);
    let _ = Sriov::parse(&conf).map(|c| c.device(&conf, &args).map(|_| c.mac(&conf, &args)));
    // Of type `userspace` too, which it reads into the same.
    let _ = VhostUser::parse(&conf).map(|c| c.mac(&conf, &args).is_some());
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
    let Ok(config) = DevicePluginConfig::read(text, &ResourcePrefix::default()) else { return };
    for resource in config.resources {
        let written = serde_json::to_string(&resource.selectors).unwrap_or_default();
        let again = serde_json::from_str::<Selectors>(&written).ok();
        assert_eq!(again, Some(resource.selectors), "{written} is not what was read");
    }
}

/// A tenant's definition, or the bytes of which one is made. What the policy allows does nothing that it forbids.
pub fn policy_of_definitions(data: &[u8]) {
    policy::definition(data);
}

/// A pod's annotation, as each of those that are read; what Multus left. What was asked for is within its
/// bounds, has names that can be part of a path, and no two interfaces of one name.
pub fn annotations(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for annotation in [NETWORKS, LEGACY_NETWORKS, DEFAULT_NETWORK] {
        let all = [(annotation.to_owned(), text.to_owned())].into();
        match selections(&all, "shop", "kube-system") {
            Ok(requested) => requested_networks(&requested),
            Err(error) => assert!(error.to_string().len() < 2000, "{error} is too long"),
        }
    }
    let _ = MultusConfig::read(text, Some(text));
    let _ = cached_attachments(text, "c", "eth0");
}

fn requested_networks(requested: &Requested) {
    assert!(requested.networks.len() <= MAX_NETWORKS);
    for network in requested.default_network.iter().chain(&requested.networks) {
        for name in [&network.namespace, &network.name] {
            assert!(!name.contains(['/', '\0']) && name != "." && name != "..", "{name:?} is accepted");
        }
        let told = serde_json::Value::from(of_network(network, None));
        assert!(told.is_object() && with_cni_args("{}", &network.cni_args).is_ok());
    }
    let Ok(mut names) = (InterfaceNames { default: "eth0", added: 1 }).of(requested) else { return };
    assert!(names.iter().all(|name| fairlead_cni::names::ifname(name).is_ok()), "{names:?}");
    names.extend(["eth0".to_owned(), "net1".to_owned()]);
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "two interfaces of one name");
}

/// What a guest does to its rings and its memory, between the switch's reads too. Nothing outside of the memory that it shared is touched, and
/// its neighbours' frames go on.
pub fn vhost_rings(data: &[u8]) {
    fairlead_vhost::fuzzing::rings(data);
}

/// What a guest says on its vhost-user connection, with which descriptors. It loses its own connection at most.
pub fn vhost_messages(data: &[u8]) {
    fairlead_vhost::fuzzing::messages(data);
}

/// Messages of the switch's control socket, in both directions, one on each line.
pub fn vhost_control(data: &[u8]) {
    fairlead_vhost::fuzzing::control_requests(data);
}

/// What an OVSDB server sends. Every request is answered once.
pub fn ovsdb_replies(data: &[u8]) {
    fairlead_vhost::fuzzing::ovsdb_replies(data);
}
