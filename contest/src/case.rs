//! One row of the equality table: the configuration of a network, and what may differ on it.

use serde_json::Value;

use crate::allowed_differences::{AllowedDifference, When};
use crate::disturbance::Disturbance;
use crate::kernel_kinds::Kind;

const NOTHING_LEFT: &str = "a refused ADD leaves nothing (X5): no link, address, route or allocation; the reference leaves some of them";
const NOTHING_TO_DELETE: &str = "DEL of what was never made succeeds, whatever the configuration";
const ADDRESS_FIRST: &str =
    "the subject may take the address before it makes the link: a refused ADD costs a turn of the range";
/// The files of host-local that are no allocation.
const TURN_TAKEN: [&str; 4] = [
    "added > files > /var/lib/cni/networks/net/lock",
    "added > files > /var/lib/cni/networks/net/last_reserved_ip.0",
    "removed > files > /var/lib/cni/networks/net/lock",
    "removed > files > /var/lib/cni/networks/net/last_reserved_ip.0",
];

/// One plugin of a network, as it stands in a conflist.
#[derive(Debug, Clone)]
pub struct Plugin {
    /// The name of the executable that the runtime starts.
    pub executable: &'static str,
    /// The configuration as text, never serialised again: what Go's decoder accepts is part of the contract.
    pub config: String,
}

/// What the reference is known to do with a row. A row on which it does something else proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The reference's ADD succeeds.
    Success,
    /// The reference's ADD fails.
    Error,
}

/// One row of the table, with everything that it is run with.
#[derive(Debug, Clone)]
pub struct Case {
    /// What it is about, in a few words; unique.
    pub title: String,
    /// The plugins of the network, in order.
    pub plugins: Vec<Plugin>,
    /// The value of `CNI_IFNAME`.
    pub ifname: &'static str,
    /// The value of `CNI_ARGS`.
    pub args: &'static str,
    /// The `prevResult` that the first plugin gets.
    pub prev_result: Option<String>,
    /// What the reference does with the row.
    pub expect: Expect,
    /// The kinds of links without which the row can't run.
    pub needs: Vec<Kind>,
    /// The `ip` commands that are run on the node before the ADD.
    pub node: Vec<String>,
    /// The `ip` commands that are run in the pod before the ADD.
    pub pod: Vec<String>,
    /// Sysctls of the pod before the ADD, as `(path under /proc/sys, value)`.
    pub sysctls: Vec<(&'static str, &'static str)>,
    /// Whether duplicate address detection in the pod stays as the kernel has it by default, at a second or two
    /// per ADD.
    pub dad: bool,
    /// What is done to further attachments before CHECK looks at them, and GC.
    pub probes: Vec<Disturbance>,
    /// The differences that are intended on this row.
    pub allow: Vec<AllowedDifference>,
}

impl Case {
    /// Makes a row of one plugin.
    pub fn new(title: impl Into<String>, executable: &'static str, config: &Value) -> Case {
        Case::text(title, executable, config.to_string())
    }

    /// Makes a row of one plugin whose configuration is given as text.
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

    /// Adds another plugin to the chain.
    #[must_use]
    pub fn then(mut self, executable: &'static str, config: &Value) -> Case {
        self.plugins.push(Plugin { executable, config: config.to_string() });
        self
    }

    /// Sets `CNI_ARGS`.
    #[must_use]
    pub fn args(mut self, args: &'static str) -> Case {
        self.args = args;
        self
    }

    /// Sets `CNI_IFNAME`.
    #[must_use]
    pub fn ifname(mut self, ifname: &'static str) -> Case {
        self.ifname = ifname;
        self
    }

    /// Gives the first plugin this result of a plugin before it.
    #[must_use]
    pub fn after(mut self, prev_result: &Value) -> Case {
        self.prev_result = Some(prev_result.to_string());
        self
    }

    /// Expects that the reference refuses the row.
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

    /// Allows that the subject's DEL, too, is refused where the reference's is, with a code of its own.
    #[must_use]
    pub fn del_fails(mut self, reason: &'static str) -> Case {
        for path in ["del", "del again"] {
            self.allow.push(AllowedDifference { path, when: When::Unsorted, reason });
        }
        self
    }

    /// Runs the row only on kernels with this kind of link.
    #[must_use]
    pub fn needs(mut self, kind: Kind) -> Case {
        self.needs.push(kind);
        self
    }

    /// Runs this `ip` command on the node first.
    #[must_use]
    pub fn on_node(mut self, command: &str) -> Case {
        self.node.push(command.to_owned());
        self
    }

    /// Runs this `ip` command in the pod first.
    #[must_use]
    pub fn in_pod(mut self, command: &str) -> Case {
        self.pod.push(command.to_owned());
        self
    }

    /// Sets this sysctl in the pod first.
    #[must_use]
    pub fn sysctl(mut self, path: &'static str, value: &'static str) -> Case {
        self.sysctls.push((path, value));
        self
    }

    /// Keeps the kernel's own duplicate address detection in the pod.
    #[must_use]
    pub fn with_dad(mut self) -> Case {
        self.dad = true;
        self
    }

    /// Also applies these disturbances, each to an attachment of its own.
    #[must_use]
    pub fn probing(mut self, probes: &[Disturbance]) -> Case {
        self.probes.extend_from_slice(probes);
        self
    }

    /// Allows a difference here.
    #[must_use]
    pub fn allow(mut self, path: &'static str, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference::any(path, reason));
        self
    }

    /// Allows that the reference answers an error here and the subject succeeds.
    #[must_use]
    pub fn succeeds(mut self, path: &'static str, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference { path, when: When::Succeeds, reason });
        self
    }

    /// Allows that the reference succeeds here and the subject answers an error.
    #[must_use]
    pub fn refuses(mut self, path: &'static str, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference { path, when: When::Refuses, reason });
        self
    }

    /// Allows that the reference accepts the row and the subject refuses it as a whole.
    #[must_use]
    pub fn refused(mut self, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference { path: "add > verdict", when: When::Refuses, reason });
        self.allow.push(AllowedDifference { path: "*", when: When::OnlyReference, reason });
        self
    }

    /// Allows that only the subject has something here.
    #[must_use]
    pub fn adds(mut self, path: &'static str, reason: &'static str) -> Case {
        self.allow.push(AllowedDifference { path, when: When::OnlySubject, reason });
        self
    }

    /// Allows that the reference refuses the row and the subject accepts it as a whole.
    #[must_use]
    pub fn taken(self, reason: &'static str) -> Case {
        self.succeeds("add > verdict", reason).adds("*", reason)
    }

    /// Adds these keys to the first configuration.
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

    /// The version in the first configuration, as far as that is JSON.
    pub fn version(&self) -> String {
        let config: Value =
            self.plugins.first().and_then(|p| serde_json::from_str(&p.config).ok()).unwrap_or(Value::Null);
        config.get("cniVersion").and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}
