//! Which capabilities (capabilities(7)) the daemon needs and what for, and the readiness condition that it has them.

use std::path::Path;

use fairlead_host::capabilities::EffectiveCapabilities;

use crate::health::Probe;

/// A capability of the kernel, and what the daemon needs it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capability {
    /// The name as capabilities(7) spells it.
    pub(crate) name: &'static str,
    /// The number of the capability (`linux/capability.h`).
    bit: u32,
    /// What the daemon does with it, for an error.
    pub(crate) purpose: &'static str,
}

impl Capability {
    /// Whether a process with this set has it.
    pub(crate) fn is_in(&self, effective: EffectiveCapabilities) -> bool {
        effective.has(self.bit)
    }
}

/// Without one of these no pod gets a network.
pub(crate) const NEEDED: [Capability; 3] = [
    Capability { name: "CAP_NET_ADMIN", bit: 12, purpose: "making links, addresses and routes" },
    Capability { name: "CAP_SYS_ADMIN", bit: 21, purpose: "entering the pods' namespaces" },
    Capability { name: "CAP_DAC_OVERRIDE", bit: 1, purpose: "writing the runtimes' files whoever owns them" },
];

/// Without one of these some things do not work.
pub(crate) const USEFUL: [Capability; 2] = [
    Capability { name: "CAP_SYS_PTRACE", bit: 19, purpose: "namespaces under /proc of other processes" },
    Capability { name: "CAP_NET_RAW", bit: 13, purpose: "announcing addresses to the neighbours" },
];

/// The same for a daemon in a container, whose plugins see what the host's first process sees.
pub(crate) const USEFUL_IN_CONTAINER: [Capability; 1] = [Capability {
    name: "CAP_SYS_CHROOT",
    bit: 18,
    purpose: "executing plugins in the host's mount namespace",
}];

/// The readiness condition: every needed capability is in the effective set.
pub(crate) fn probe(status: &'static Path) -> Probe {
    Box::new(move || {
        let effective =
            EffectiveCapabilities::read(status).map_err(|e| format!("{}: {e}", status.display()))?;
        let missing: Vec<String> = NEEDED
            .iter()
            .filter(|capability| !capability.is_in(effective))
            .map(|capability| format!("{} ({})", capability.name, capability.purpose))
            .collect();
        if missing.is_empty() {
            return Ok(String::new());
        }
        Err(format!(
            "missing: {}; run fairleadd as root and leave them in its capability set (systemd: CapabilityBoundingSet; \
             a container: securityContext.capabilities.add)",
            missing.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fairlead_host::capabilities::OWN_STATUS;

    use super::*;

    fn with(status: &str) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let path: &'static Path = Box::leak(dir.path().join("status").into_boxed_path());
        fs::write(path, status).unwrap();
        probe(path)()
    }

    #[test]
    fn k19_missing_capabilities_are_named_with_their_purpose_and_the_remedy() {
        assert_eq!(with("Name:\tx\nCapEff:\t000001ffffffffff\n"), Ok(String::new()));
        let only_net_admin = with("CapEff:\t0000000000001000\n").unwrap_err();
        assert!(!only_net_admin.contains("CAP_NET_ADMIN"), "{only_net_admin}");
        for part in
            ["CAP_SYS_ADMIN (entering the pods' namespaces)", "CAP_DAC_OVERRIDE", "CapabilityBoundingSet"]
        {
            assert!(only_net_admin.contains(part), "{only_net_admin}");
        }
    }

    #[test]
    fn k19_capabilities_that_can_not_be_known_are_not_there() {
        assert!(with("Name:\tx\n").unwrap_err().contains("no line CapEff"));
        assert!(probe(Path::new("/nowhere/status"))().unwrap_err().starts_with("/nowhere/status: "));
    }

    #[test]
    fn k19_this_test_runs_with_all_that_is_needed() {
        assert_eq!(probe(Path::new(OWN_STATUS))(), Ok(String::new()));
    }
}
