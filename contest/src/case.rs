//! A row of the equality table: the configuration of a network and what may differ on it.

use serde_json::Value;

use crate::allowed_differences::{AllowedDifference, When};
use crate::disturbance::Disturbance;
use crate::kernel_kinds::Kind;

const NOTHING_LEFT: &str = "a refused ADD leaves nothing (X5): no link, address, route or allocation; the reference leaves some of them";
const NOTHING_TO_DELETE: &str = "DEL of what was never made succeeds, whatever the configuration";
const ADDRESS_FIRST: &str =
    "the subject may take the address before it makes the link: a refused ADD costs a turn of the range";
/// Files of host-local that are no allocation.
const TURN_TAKEN: [&str; 4] = [
    "added > files > /var/lib/cni/networks/net/lock",
    "added > files > /var/lib/cni/networks/net/last_reserved_ip.0",
    "removed > files > /var/lib/cni/networks/net/lock",
    "removed > files > /var/lib/cni/networks/net/last_reserved_ip.0",
];

/// One plugin of a network, as it stands in a conflist.
#[derive(Debug, Clone)]
pub struct Plugin {
    /// The executable that the runtime starts.
    pub executable: &'static str,
    /// Its configuration as text: what Go's decoder accepts is part of the contract, so nothing is re-serialised.
    pub config: String,
}

/// What the reference is known to do with a row; a row that does something else proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// ADD succeeds.
    Success,
    /// ADD fails.
    Error,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Case {
    /// What it is about, in a few words; unique.
    pub title: String,
    /// The network, first plugin first.
    pub plugins: Vec<Plugin>,
    /// `CNI_IFNAME`
    pub ifname: &'static str,
    /// `CNI_ARGS`
    pub args: &'static str,
    /// A `prevResult` that the first plugin is given.
    pub prev_result: Option<String>,
    /// What the reference does.
    pub expect: Expect,
    /// Kinds of links without which the row can't run.
    pub needs: Vec<Kind>,
    /// `ip` commands on the node before the ADD.
    pub node: Vec<String>,
    /// `ip` commands in the pod before the ADD.
    pub pod: Vec<String>,
    /// Sysctls of the pod before the ADD, as `(path under /proc/sys, value)`.
    pub sysctls: Vec<(&'static str, &'static str)>,
    /// Duplicate address detection in the pod as the kernel's default has it, at a second or two per ADD.
    pub dad: bool,
    /// What is done to further attachments before CHECK looks at them, and garbage collection.
    pub probes: Vec<Disturbance>,
    /// Differences that are meant.
    pub allow: Vec<AllowedDifference>,
}

impl Case {
    /// A row of one plugin.
    pub fn new(title: impl Into<String>, executable: &'static str, config: &Value) -> Case {
        Case::text(title, executable, config.to_string())
    }

    /// A row of one plugin whose configuration is given letter by letter.
    pub fn text(title: impl Into<String>, executable: &'static str, config: impl Into<String>) -> Case {
        Case {
            title: title.into(),
            plugins: vec![Plugin { executable, config: config.into() }],
            ifname: "eth0",
            args: "",
            prev_result: None,
            expect: Expect::Success,
            needs: Vec::new(),
            node: Vec::new(),
            pod: Vec::new(),
            sysctls: Vec::new(),
            dad: false,
            probes: Vec::new(),
            allow: Vec::new(),
        }
    }

    /// Followed by another plugin in the chain.
    #[must_use]
    pub fn then(mut self, executable: &'static str, config: &Value) -> Case {
        self.plugins.push(Plugin { executable, config: config.to_string() });
        self
    }

    /// With this `CNI_ARGS`.
    #[must_use]
    pub fn args(mut self, args: &'static str) -> Case {
        self.args = args;
        self
    }

    /// With this `CNI_IFNAME`.
    #[must_use]
    pub fn ifname(mut self, ifname: &'static str) -> Case {
        self.ifname = ifname;
        self
    }

    /// With this result of a plugin before it.
    #[must_use]
    pub fn after(mut self, prev_result: &Value) -> Case {
        self.prev_result = Some(prev_result.to_string());
        self
    }

    /// The reference refuses it.
    #[must_use]
    pub fn fails(mut self) -> Case {
        self.expect = Expect::Error;
        for path in ["added", "at del's answer", "removed"] {
            self.allow.push(AllowedDifference { path, when: When::OnlyReference, reason: NOTHING_LEFT });
        }
        self.allow
            .push(AllowedDifference::any("added > node > interfaces > eth1 > promiscuity", NOTHING_LEFT));
        for path in TURN_TAKEN {
            self.allow.push(AllowedDifference { path, when: When::OnlySubject, reason: ADDRESS_FIRST });
        }
        self.succeeds("del", NOTHING_TO_DELETE).succeeds("del again", NOTHING_TO_DELETE)
    }

    /// Runs only on kernels with this kind of link.
    #[must_use]
    pub fn needs(mut self, kind: Kind) -> Case {
        self.needs.push(kind);
        self
    }

    /// After this `ip` command on the node.
    #[must_use]
    pub fn on_node(mut self, command: &str) -> Case {
        self.node.push(command.to_owned());
        self
    }

    /// After this `ip` command in the pod.
    #[must_use]
    pub fn in_pod(mut self, command: &str) -> Case {
        self.pod.push(command.to_owned());
        self
    }

    /// With this sysctl in the pod.
    #[must_use]
    pub fn sysctl(mut self, path: &'static str, value: &'static str) -> Case {
        self.sysctls.push((path, value));
        self
    }

    /// With the kernel's own duplicate address detection.
    #[must_use]
    pub fn with_dad(mut self) -> Case {
        self.dad = true;
        self
    }

    /// And then these probes, each on an attachment of its own.
    #[must_use]
    pub fn probing(mut self, probes: &[Disturbance]) -> Case {
        self.probes.extend_from_slice(probes);
        self
    }

    /// This difference is meant.
    #[must_use]
    pub fn allow(mut self, path: &'static str, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference::any(path, reason));
        self
    }

    /// The reference answers an error here, the subject succeeds, and that is meant.
    #[must_use]
    pub fn succeeds(mut self, path: &'static str, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference { path, when: When::Succeeds, reason });
        self
    }

    /// The reference succeeds here, the subject answers an error, and that is meant.
    #[must_use]
    pub fn refuses(mut self, path: &'static str, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference { path, when: When::Refuses, reason });
        self
    }

    /// The reference takes it, the subject refuses it as a whole, and that is meant.
    #[must_use]
    pub fn refused(mut self, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference { path: "add > verdict", when: When::Refuses, reason });
        self.allow.push(AllowedDifference { path: "*", when: When::OnlyReference, reason });
        self
    }

    /// Only the subject has something here, and that is meant.
    #[must_use]
    pub fn adds(mut self, path: &'static str, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference { path, when: When::OnlySubject, reason });
        self
    }

    /// The reference refuses it, the subject takes it as a whole, and that is meant.
    #[must_use]
    pub fn taken(self, reason: &'static str) -> Case {
        self.succeeds("add > verdict", reason).adds("*", reason)
    }

    /// With these further keys in its (first) configuration.
    #[must_use]
    pub fn with_config(mut self, more: &Value) -> Case {
        for plugin in self.plugins.iter_mut().take(1) {
            let parsed: Result<Value, _> = serde_json::from_str(&plugin.config);
            if let (Ok(Value::Object(mut config)), Some(more)) = (parsed, more.as_object()) {
                config.extend(more.clone());
                plugin.config = Value::Object(config).to_string();
            }
        }
        self
    }

    /// The version in its first configuration, as far as that is JSON.
    pub fn version(&self) -> String {
        let config: Value =
            self.plugins.first().and_then(|p| serde_json::from_str(&p.config).ok()).unwrap_or(Value::Null);
        config.get("cniVersion").and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}
