//! The one table from what went wrong inside to what a CNI caller is told.

use std::fmt::Display;
use std::io;
use std::path::Path;

use fairlead_cni::avoid_containerd_phrases;
use fairlead_cni::{CniError, Code};
use fairlead_host::runtime_mounts;
use fairlead_host::shortage;
use fairlead_host::{NetError, NetnsError};
use fairlead_sriov::SettingError;
use fairlead_sriov::wait_out_reset::is_resetting;
use nix::errno::Errno;

use super::netdev::NotConfigured;
use crate::store::StoreError;

/// The remedy where an interface was to get an IPv6 address or route.
const WITHOUT_IPV6: &str = "the interface has no IPv6: leave its IPv6 addresses and routes out, or see that its MTU is at least 1280 and that the node's kernel runs with IPv6";

/// A namespace that could not be opened (K4: gone is code 3; no namespace 4; the host's own 8).
pub(crate) fn netns(error: &NetnsError) -> CniError {
    let short = match error {
        NetnsError::Io { source, .. } => shortage::remedy_of(source),
        NetnsError::Net { source, .. } => source.errno().and_then(shortage::remedy),
        NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. } => None,
    };
    let told = CniError::new(
        match error {
            _ if short.is_some() => Code::TryAgain,
            NetnsError::Missing { .. } => Code::UnknownContainer,
            NetnsError::NotANetns { .. } => Code::BadEnvironment,
            NetnsError::Host { .. } => Code::InvalidNetns,
            NetnsError::Io { .. } => Code::Io,
            NetnsError::Net { .. } => Code::Internal,
        },
        // A DEL can be answered with it: containerd would take some phrases of the kernel for success.
        format!("CNI_NETNS: {}", avoid_containerd_phrases(&error.to_string())),
    );
    match error {
        NetnsError::Missing { .. } => told.with(
            "the sandbox is gone, or the daemon does not see the host's mounts: if it runs in a container, mount the \
             directory of the namespaces with mountPropagation: HostToContainer",
        ),
        NetnsError::NotANetns { .. } => told.with(no_netns_remedy(Path::new("/"))),
        NetnsError::Host { .. } => told.with("a pod on the host network needs no CNI call"),
        NetnsError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            told.with("the daemon needs CAP_SYS_ADMIN, and CAP_SYS_PTRACE for the namespace of a process (/proc/<pid>/ns/net)")
        }
        NetnsError::Io { .. } | NetnsError::Net { .. } => told.with(short.unwrap_or_default()),
    }
}

/// What is to be done where `CNI_NETNS` names another file. `root`: of the file system that the daemon sees.
fn no_netns_remedy(root: &Path) -> String {
    enter_kubelets_mounts(root).unwrap_or_else(|| {
        "give the path of a network namespace (/proc/<pid>/ns/net or a bind mount of it)".to_owned()
    })
}

/// What is to be done where kubelet and the runtime have mounts of their own, and the daemon is not among them.
fn enter_kubelets_mounts(root: &Path) -> Option<String> {
    let mounts = runtime_mounts::encapsulated(root).ok()??;
    Some(format!(
        "kubelet and the runtime are in the mount namespace {}, and the daemon is not, so that it sees no namespace of \
         theirs: have its unit enter it (docs/install.md, \"Mounts of kubelet's own\")",
        mounts.path.display()
    ))
}

/// What the kernel refused while something was done for a network.
pub(crate) fn kernel(network: &str, doing: &str, error: &NetError) -> CniError {
    let (code, remedy) = match error.errno().and_then(shortage::remedy) {
        Some(remedy) => (Code::TryAgain, remedy),
        None => {
            let (code, remedy) = refusal(error);
            (code, remedy.to_owned())
        }
    };
    let told = format!("{doing}: {}", avoid_containerd_phrases(&error.to_string()));
    let told = CniError::new(code, told).with(remedy);
    // Where it is not known here, the call's own edge adds it.
    if network.is_empty() { told } else { told.of_network(network) }
}

/// What kept an interface from its addresses and routes.
pub(crate) fn configuring(network: &str, ifname: &str, error: &NotConfigured) -> CniError {
    let doing = format!("setting up {ifname:?}");
    let remedy = match error {
        NotConfigured::Refused(refused) => return kernel(network, &doing, refused),
        NotConfigured::InUse { .. } => {
            "find the host that has it, and give one of the two another address: a retry gets one where the IPAM has more"
        }
        NotConfigured::Unsettled => {
            "a retry may find the node less busy; or set `dad` of the daemon's configuration to fast, which does not wait"
        }
    };
    CniError::new(Code::TryAgain, format!("{doing}: {error}")).with(remedy).of_network(network)
}

/// Settings of a VF that could not be read or set.
pub(crate) fn setting(error: &SettingError) -> CniError {
    let told = match error {
        SettingError::NoInterface { .. } => {
            return CniError::new(Code::InvalidConfig, error.to_string())
                .with("bring the PF's interface back into the host's namespace");
        }
        SettingError::Unread { vf, source } => {
            kernel("", &format!("reading the settings of VF {vf}"), source)
        }
        SettingError::NotReported { .. }
        | SettingError::NoAnswer { .. }
        | SettingError::EndlessReset { .. }
        | SettingError::Unsettled { .. } => return not_settled(error),
        SettingError::NotSet { source, .. } if is_resetting(source) => return not_settled(error),
        SettingError::NoCarrier { .. } => {
            return CniError::new(Code::TryAgain, avoid_containerd_phrases(&error.to_string()))
                .with("this NIC takes rates only while it has a carrier: see that its interface is up and its cable is in");
        }
        SettingError::Lost { .. } => return internal(error.to_string()),
        SettingError::NotSet { vf, physical, setting, source } => {
            kernel("", &format!("setting {setting} for VF {vf} by {physical}"), source)
        }
    };
    match error.is_refusal() {
        true => CniError { code: Code::InvalidConfig, ..told }
            .with("this NIC does not take the setting: leave it out of the network's configuration"),
        false => told,
    }
}

fn not_settled(error: &SettingError) -> CniError {
    CniError::new(Code::TryAgain, avoid_containerd_phrases(&error.to_string()))
        .with("try again; if it stays so, look at the kernel's log for what its driver says")
}

/// Code 999 counts as a fault of the daemon's own: nothing that a configuration can bring about may have it.
fn refusal(error: &NetError) -> (Code, &'static str) {
    match error.errno() {
        Some(Errno::EEXIST) => (
            Code::InvalidConfig,
            "that name, address or route is there already: give the interface another name and each address and route once, or remove what is left in the namespace",
        ),
        Some(Errno::EADDRINUSE) => {
            (Code::TryAgain, "another interface on the same parent has this MAC address")
        }
        Some(Errno::EBUSY) => (
            Code::TryAgain,
            "the parent is in use by another kind of interface (macvlan, ipvlan and bridges exclude each other on one parent)",
        ),
        Some(Errno::EOPNOTSUPP) => (
            Code::InvalidConfig,
            "the node's kernel has no support for it: load the module (modprobe macvlan, ipvlan, 8021q)",
        ),
        Some(Errno::EPERM | Errno::EACCES) => {
            (Code::Internal, "the daemon needs CAP_NET_ADMIN and CAP_SYS_ADMIN")
        }
        // What the kernel says for IPv4, and for IPv6.
        Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH) => {
            (Code::InvalidConfig, "the route's gateway is on none of the interface's networks")
        }
        Some(Errno::EINVAL) => {
            (Code::InvalidConfig, "the kernel does not accept this combination of settings")
        }
        Some(Errno::EADDRNOTAVAIL | Errno::ERANGE) => (
            Code::InvalidConfig,
            "no interface can have this address, MAC address or gateway: correct it in the network's configuration, or what its IPAM gives",
        ),
        // The settings that have to be there are all of IPv6.
        Some(Errno::ENOENT) if matches!(error, NetError::Sysctl { .. }) => {
            (Code::InvalidConfig, WITHOUT_IPV6)
        }
        Some(Errno::EAFNOSUPPORT) => (Code::InvalidConfig, WITHOUT_IPV6),
        Some(Errno::ENETDOWN) => {
            (Code::TryAgain, "the interface below it, its master or a VF's PF, is down: set that one up")
        }
        _ => (Code::Internal, ""),
    }
}

/// The store could not take a record.
pub(crate) fn store(error: &StoreError) -> CniError {
    let short = match error {
        StoreError::Open { source, .. } | StoreError::Append { source, .. } => shortage::remedy_of(source),
        StoreError::Encode(_) => None,
    };
    CniError::new(Code::TryAgain, error.to_string()).with(short.unwrap_or_default())
}

/// A file of the host or of ours could not be had: `code` and `remedy`, unless it is for want of something that comes
/// back.
pub(crate) fn file(what: impl Display, error: &io::Error, code: Code, remedy: &str) -> CniError {
    let told = |code| CniError::new(code, avoid_containerd_phrases(&format!("{what}: {error}")));
    match shortage::remedy_of(error) {
        Some(short) => told(Code::TryAgain).with(short),
        None => told(code).with(remedy),
    }
}

/// A call that cannot be had before its deadline.
pub(crate) fn too_late(waited_for: &str) -> CniError {
    CniError::new(Code::TryAgain, format!("the call's time ended while it waited for {waited_for}"))
        .with("the runtime will try again; `fairleadd status` tells what the daemon is busy with")
}

/// What the executable saw at `CNI_NETNS` is not what the daemon sees there: that is `instead`.
pub(crate) fn other_mounts(path: &Path, instead: &str) -> CniError {
    let path = path.display();
    let told = format!("CNI_NETNS {path}: where the runtime sees a namespace, the daemon sees {instead}");
    let remedy = enter_kubelets_mounts(Path::new("/")).unwrap_or_else(|| {
        "unless the sandbox has gone meanwhile, the two see different mounts: if the daemon runs in a container, mount the \
         directory of the namespaces at its own path, with mountPropagation: HostToContainer; a rootless runtime needs a \
         daemon of its own"
            .to_owned()
    });
    CniError::new(Code::InvalidNetns, told).with(remedy)
}

/// The caller's own namespace is not the daemon's.
pub(crate) fn other_host() -> CniError {
    CniError::new(Code::InvalidNetns, "the runtime runs in another network namespace than the daemon").with(
        "rootless podman and nested runtimes have a network namespace of their own, in which this daemon can make no \
         interface: run the daemon there, or the runtime in the host's namespace",
    )
}

/// Code 999 for what should not happen.
pub(crate) fn internal(what: impl Into<String>) -> CniError {
    CniError::new(Code::Internal, what)
}

#[cfg(test)]
mod tests {
    use fairlead_host::scratch_mounts::with_mounts_bound_at;

    use super::*;

    #[test]
    fn a_path_that_is_no_namespace_is_told_with_kubelets_own_mount_namespace_where_the_daemon_is_outside() {
        let dir = tempfile::tempdir().unwrap();
        let remedy = || no_netns_remedy(dir.path());
        let told = with_mounts_bound_at(&dir.path().join("run/kubens/mnt"), remedy).unwrap();
        assert!(told.contains("the mount namespace /run/kubens/mnt, and the daemon is not"), "{told}");
        assert!(remedy().starts_with("give the path"), "the service has stopped");
    }
}
