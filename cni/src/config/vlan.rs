//! Type `vlan`: a VLAN interface on a master.

use super::{LONGEST_MASTER, NetConf, mtu, too_long};
use crate::error::{CniError, Code};

/// A configuration of type `vlan`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vlan {
    /// The key `master`: the interface that carries the VLAN.
    pub master: String,
    /// The key `vlanId`, from 0 to 4094.
    pub vlan_id: u16,
    /// The key `mtu` in bytes; `None` for the master's MTU.
    pub mtu: Option<u32>,
    /// The key `linkInContainer`: whether the master is in the pod's namespace.
    pub link_in_container: bool,
}

impl Vlan {
    /// Reads the type's fields. Code 6 for a wrong type, 7 for a wrong or missing value.
    pub fn parse(conf: &NetConf) -> Result<Vlan, CniError> {
        let fields = conf.fields()?;
        let master = fields
            .text("master")?
            .ok_or_else(|| fields.missing("master", "the host's interface that carries the VLAN"))?;
        if master.len() > LONGEST_MASTER {
            return Err(CniError::new(Code::InvalidConfig, format!("\"master\" {}", too_long(&master))));
        }
        let vlan_id = fields.within("vlanId", 0, 4094)?.unwrap_or_default();
        Ok(Vlan {
            master,
            vlan_id: u16::try_from(vlan_id).unwrap_or_default(),
            mtu: mtu(&fields)?,
            link_in_container: fields.flag("linkInContainer")?,
        })
    }
}
