//! Type `macvlan`: an interface of its own MAC address on a master.

use super::{NetConf, masters, mtu};
use crate::args::Args;
use crate::error::CniError;

/// A configuration of type `macvlan`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Macvlan {
    /// The key `master`; see [`super::masters`].
    pub masters: Vec<String>,
    /// The key `mode`.
    pub mode: Mode,
    /// The key `mtu` in bytes; `None` for the master's MTU.
    pub mtu: Option<u32>,
    /// The key `mac` of the configuration alone, as written; see [`Macvlan::mac`].
    pub mac: Option<String>,
    /// The key `linkInContainer`: whether the master is in the pod's namespace.
    pub link_in_container: bool,
    /// The key `bcqueuelen`, the length of the queue of broadcasts; `None` for the kernel's default.
    pub bcqueuelen: Option<u32>,
}

/// The modes of macvlan, as the key `mode` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The default, `bridge`: interfaces of one master reach each other directly.
    #[default]
    Bridge,
    /// The mode `private`: interfaces of one master do not reach each other.
    Private,
    /// The mode `vepa`: interfaces of one master reach each other by way of the switch outside.
    Vepa,
    /// The mode `passthru`: the master has this one interface, with the master's MAC address.
    Passthru,
}

impl Mode {
    /// The mode as a configuration writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Bridge => "bridge",
            Mode::Private => "private",
            Mode::Vepa => "vepa",
            Mode::Passthru => "passthru",
        }
    }

    fn parse(text: &str) -> Option<Mode> {
        match text {
            "" | "bridge" => Some(Mode::Bridge),
            "private" => Some(Mode::Private),
            "vepa" => Some(Mode::Vepa),
            "passthru" => Some(Mode::Passthru),
            _ => None,
        }
    }
}

impl Macvlan {
    /// Reads the type's fields. Code 6 for a wrong type, 7 for a wrong value.
    pub fn parse(conf: &NetConf) -> Result<Macvlan, CniError> {
        let fields = conf.fields()?;
        let mode =
            fields.item("mode").map(|mode| mode.read("bridge, private, vepa or passthru", Mode::parse));
        Ok(Macvlan {
            masters: masters(&fields)?,
            mode: mode.transpose()?.unwrap_or_default(),
            mtu: mtu(&fields)?,
            mac: fields.text("mac")?,
            link_in_container: fields.flag("linkInContainer")?,
            bcqueuelen: fields.unsigned("bcqueuelen")?.filter(|n| *n != 0),
        })
    }

    /// The MAC address that is asked for, as written: `runtimeConfig.mac`, else `CNI_ARGS` `MAC`, else `mac`.
    /// Code 4 for arguments that macvlan does not know.
    pub fn mac(&self, conf: &NetConf, args: &Args) -> Result<Option<String>, CniError> {
        args.only(&["MAC"])?;
        let asked = conf.runtime.mac.as_deref().or_else(|| args.mac()).or(self.mac.as_deref());
        Ok(asked.map(str::to_owned))
    }
}
