//! Type `macvlan`.

use super::{NetConf, mtu};
use crate::args::Args;
use crate::error::CniError;

/// A macvlan configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Macvlan {
    /// `master`; `None`: the interface of the default route.
    pub master: Option<String>,
    /// `mode`
    pub mode: Mode,
    /// `mtu` in bytes; `None`: the master's.
    pub mtu: Option<u32>,
    /// `mac` of the configuration alone, as written; see [`Macvlan::mac`].
    pub mac: Option<String>,
    /// `linkInContainer`: the master is in the pod's namespace.
    pub link_in_container: bool,
    /// `bcqueuelen`; `None`: the kernel's default.
    pub bcqueuelen: Option<u32>,
}

/// `mode`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// `bridge`, the default
    #[default]
    Bridge,
    /// `private`
    Private,
    /// `vepa`
    Vepa,
    /// `passthru`
    Passthru,
}

impl Mode {
    /// As it stands in a configuration.
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
            master: fields.text("master")?,
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
