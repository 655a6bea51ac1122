//! Type `ipvlan`: on a master of its own, or chained on the one interface of `prevResult`.

use super::{NetConf, mtu};
use crate::error::{CniError, Code};
use crate::result::CniResult;

/// An ipvlan configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipvlan {
    /// `master`; see [`Ipvlan::master`].
    pub master: Option<String>,
    /// `mode`
    pub mode: Mode,
    /// `mtu` in bytes; `None`: the master's.
    pub mtu: Option<u32>,
    /// `linkInContainer`: the master is in the pod's namespace.
    pub link_in_container: bool,
}

/// `mode`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// `l2`, the default
    #[default]
    L2,
    /// `l3`
    L3,
    /// `l3s`
    L3s,
}

impl Mode {
    /// As it stands in a configuration.
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
            master: fields.text("master")?,
            mode: mode.transpose()?.unwrap_or_default(),
            mtu: mtu(&fields)?,
            link_in_container: fields.flag("linkInContainer")?,
        })
    }

    /// The master: `master`, else the one named interface of `prevResult` when there is one (code 7 when it does
    /// not have exactly one), else `None`: the interface of the default route.
    pub fn master<'a>(&'a self, conf: &'a NetConf) -> Result<Option<&'a str>, CniError> {
        match (&self.master, &conf.prev_result) {
            (Some(master), _) => Ok(Some(master)),
            (None, None) => Ok(None),
            (None, Some(prev)) => match prev.interfaces.as_slice() {
                [one] if !one.name.is_empty() => Ok(Some(&one.name)),
                others => {
                    let msg = format!(
                        "ipvlan has no \"master\", and \"prevResult\" has {} interfaces",
                        others.len()
                    );
                    Err(CniError::new(Code::InvalidConfig, msg)
                        .with("name the master, or chain on a plugin that makes exactly one interface"))
                }
            },
        }
    }

    /// The result whose addresses the interface takes over: `prevResult` with addresses, where no IPAM is configured.
    pub fn chained_addresses<'a>(&self, conf: &'a NetConf) -> Option<&'a CniResult> {
        conf.prev_result.as_ref().filter(|prev| conf.ipam_type.is_none() && !prev.ips.is_empty())
    }
}
