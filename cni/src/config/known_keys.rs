//! The keys that mean something, by where they stand: what a strict reading accepts, and what a lenient one has an effect of.
//!
//! The tables say nothing of values. A type that is not in them is executed, and its keys are its own.

use super::cluster_network;
use super::sriov::RESOURCE_NAME;

/// The keys that every plugin's configuration may have.
pub(super) const COMMON: &[&str] = &[
    "cniVersion",
    "name",
    "type",
    "capabilities",
    "args",
    "runtimeConfig",
    "prevResult",
    "dns",
    "ipam",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
];

/// The keys by which a meta plugin passes the device that kubelet has allocated to the pod.
pub(super) const DEVICE: &[&str] = &["deviceID", "pciBusID"];

/// The keys that a path may have, by its type.
pub(super) const PATHS: &[(&str, &[&str])] = &[
    ("macvlan", &["master", "mode", "mtu", "mac", "linkInContainer", "bcqueuelen"]),
    ("ipvlan", &["master", "mode", "mtu", "linkInContainer"]),
    ("vlan", &["master", "vlanId", "mtu", "linkInContainer"]),
    ("host-device", &["device", "hwaddr", "kernelpath", "pciBusID"]),
    (
        "sriov",
        &[
            "pool",
            "resourceName",
            "driver",
            "deviceAccess",
            "vlan",
            "vlanQoS",
            "vlanProto",
            "mac",
            "spoofchk",
            "trust",
            "link_state",
            "min_tx_rate",
            "max_tx_rate",
        ],
    ),
    (
        "vhost-user",
        &[
            "switch",
            "bridge",
            "master",
            "network",
            "mode",
            "vlan",
            "trunk",
            "spoofchk",
            "isolated",
            "queues",
            "mtu",
            "max_tx_rate",
            "max_rx_rate",
            "mac",
            "resourceName",
            "volume",
            "directory",
            "mountPath",
        ],
    ),
];

/// The keys of the types that the reference plugins read beside those of a path, and those without a path.
const BESIDE_PATHS: &[(&str, &[&str])] = &[
    ("dummy", &[]),
    ("loopback", &[]),
    ("host-device", &["deviceID"]),
    ("sriov", &["deviceID", "logLevel", "logFile"]),
    ("vhost-user", &["deviceID"]),
];

/// The keys that an IPAM reads, by its type.
const OF_IPAM: &[(&str, &[&str])] = &[
    (
        "host-local",
        &["type", "ranges", "subnet", "rangeStart", "rangeEnd", "gateway", "routes", "dataDir", "resolvConf"],
    ),
    ("static", &["type", "addresses", "routes", "dns"]),
    ("dhcp", &["type", "daemonSocketPath", "request", "provide", "priority"]),
];

/// The keys that mean something in a configuration of this type; `None` for a type that is not known here.
pub fn of_plugin(kind: &str) -> Option<Vec<&'static str>> {
    let of = |table: &[(&str, &'static [&'static str])]| {
        table.iter().find(|(known, _)| *known == kind).map(|(_, keys)| *keys)
    };
    let keys = match (of(PATHS), of(BESIDE_PATHS)) {
        (None, None) => return None,
        (of_path, beside) => [of_path.unwrap_or_default(), beside.unwrap_or_default()].concat(),
    };
    Some([COMMON, &keys, &[RESOURCE_NAME]].concat())
}

/// The keys that mean something in the `ipam` of this type; `None` for a type that is not known here.
pub fn of_ipam(kind: &str) -> Option<&'static [&'static str]> {
    OF_IPAM.iter().find(|(known, _)| *known == kind).map(|(_, keys)| *keys)
}

/// The keys of our own type, in both of its forms.
pub fn of_own_type() -> Vec<&'static str> {
    [COMMON, DEVICE, &["paths", "numa", "clusterNetwork"], cluster_network::KEYS].concat()
}

/// The keys of a path of our own type, by the path's type; `None` for a type that no path has.
pub fn of_path(kind: &str) -> Option<Vec<&'static str>> {
    let (_, keys) = PATHS.iter().find(|(known, _)| *known == kind)?;
    Some([&["type"], *keys].concat())
}

/// The keys of a list of plugins itself.
pub const OF_LIST: &[&str] =
    &["cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins"];

/// The capabilities of the CNI conventions, and those that runtimes and meta plugins pass beside them.
pub const CAPABILITIES: &[&str] = &[
    "portMappings",
    "ipRanges",
    "bandwidth",
    "dns",
    "ips",
    "mac",
    "infinibandGUID",
    "deviceID",
    "aliases",
    "cgroupPath",
    "CNIDeviceInfoFile",
    "io.kubernetes.cri.pod-annotations",
];

/// The keys of `dns`.
pub const OF_DNS: &[&str] = &["nameservers", "domain", "search", "options"];
/// The keys of a range of host-local.
pub const OF_RANGE: &[&str] = &["subnet", "rangeStart", "rangeEnd", "gateway"];
/// The keys of a route of an IPAM.
pub const OF_ROUTE: &[&str] = &["dst", "gw", "mtu", "advmss", "priority", "table", "scope"];
/// The keys of an address of IPAM static.
pub const OF_ADDRESS: &[&str] = &["address", "gateway"];
