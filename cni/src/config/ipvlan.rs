//! Type `ipvlan`: on the master that it names, or chained on the one interface of `prevResult`.

use super::{NetConf, masters, mtu};
use crate::error::{CniError, Code};
use crate::result::CniResult;

/// A configuration of type `ipvlan`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipvlan {
    /// The key `master`; see [`Ipvlan::masters`] and [`super::masters`].
    pub masters: Vec<String>,
    /// The key `mode`.
    pub mode: Mode,
    /// The key `mtu` in bytes; `None` for the master's MTU.
    pub mtu: Option<u32>,
    /// The key `linkInContainer`: whether the master is in the pod's namespace.
    pub link_in_container: bool,
}

/// The modes of ipvlan, as the key `mode` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The default, `l2`: the slaves switch frames.
    #[default]
    L2,
    /// The mode `l3`: the slaves route packets.
    L3,
    /// The mode `l3s`: like `l3`, and the packets pass the netfilter hooks of the master's namespace.
    L3s,
}

impl Mode {
    /// The mode as a configuration writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::L2 => "l2",
            Mode::L3 => "l3",
            Mode::L3s => "l3s",
        }
    }

    fn parse(text: &str) -> Option<Mode> {
        match text {
            "" | "l2" => Some(Mode::L2),
            "l3" => Some(Mode::L3),
            "l3s" => Some(Mode::L3s),
            _ => None,
        }
    }
}

impl Ipvlan {
    /// Reads the type's fields. Code 6 for a wrong type, 7 for a wrong value.
    pub fn parse(conf: &NetConf) -> Result<Ipvlan, CniError> {
        let fields = conf.fields()?;
        let mode = fields.item("mode").map(|mode| mode.read("l2, l3 or l3s", Mode::parse));
        Ok(Ipvlan {
            masters: masters(&fields)?,
            mode: mode.transpose()?.unwrap_or_default(),
            mtu: mtu(&fields)?,
            link_in_container: fields.flag("linkInContainer")?,
        })
    }

    /// The masters at ADD: `master`, else the one named interface of `prevResult` when there is one (code 7 when it does
    /// not have exactly one), else none: the interface of the default route. For ADD alone: `prevResult` of a CHECK or DEL is the answer
    /// of the whole list, which names the ipvlan itself.
    pub fn masters(&self, conf: &NetConf) -> Result<Vec<String>, CniError> {
        let Some(prev) = conf.prev_result.as_ref().filter(|_| self.masters.is_empty()) else {
            return Ok(self.masters.clone());
        };
        match prev.interfaces.as_slice() {
            [one] if !one.name.is_empty() => Ok(vec![one.name.clone()]),
            others => {
                let msg =
                    format!("ipvlan has no \"master\", and \"prevResult\" has {} interfaces", others.len());
                Err(CniError::new(Code::InvalidConfig, msg)
                    .with("name the master, or chain on a plugin that makes exactly one interface"))
            }
        }
    }

    /// The result whose addresses the interface takes over: `prevResult` with addresses, where no IPAM is configured.
    pub fn chained_addresses<'a>(&self, conf: &'a NetConf) -> Option<&'a CniResult> {
        conf.prev_result.as_ref().filter(|prev| conf.ipam_type.is_none() && !prev.ips.is_empty())
    }
}
