//! Type `sriov`: a VF, set up by the driver of its PF and moved into the pod.

use super::NetConf;
use crate::args::Args;
use crate::error::{CniError, Code};
use crate::go_json::folded;

/// The largest VLAN id. 4095 is reserved, though some drivers take it.
const MAX_VLAN: u32 = 4094;

/// The name that `resourceName` has in the annotation of a network attachment definition.
pub(super) const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";

/// The keys by which sriov-cni before 2.0 chose a VF: of a PF by its name, or for DPDK.
const OLD_FORMAT: [&str; 9] =
    ["if0", "if0name", "l2enable", "dpdk", "sharedvf", "cniDir", "deviceinfo", "vf", "master"];

/// The values of `spoofchk` and `trust`. sriov-cni takes all but `on` for off, what means on as well: that is refused.
const ON_OR_OFF: &str = "on or off (sriov-cni takes all but \"on\" for off)";

/// The words for off that are not `off`.
const OFF: [&str; 3] = ["false", "no", "disable"];

/// A configuration of type `sriov`. An attribute that is `None` is left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sriov {
    /// The key `deviceID` of the configuration alone; see [`Sriov::device`].
    pub device_id: Option<String>,
    /// The key `resourceName`, or the annotation of a network attachment definition that stands for it.
    pub resource_name: Option<String>,
    /// The key `mac` of the configuration alone, as written; see [`Sriov::mac`].
    pub mac: Option<String>,
    /// The keys `vlan`, `vlanQoS` and `vlanProto`.
    pub vlan: Option<Vlan>,
    /// The key `spoofchk`: whether the PF drops frames from other source addresses.
    pub spoofchk: Option<bool>,
    /// The key `trust`: whether the VF may, for example, change its MAC address.
    pub trust: Option<bool>,
    /// The key `link_state`.
    pub link_state: Option<LinkState>,
    /// The key `min_tx_rate` in Mbit/s; 0 removes the guarantee.
    pub min_tx_rate: Option<u32>,
    /// The key `max_tx_rate` in Mbit/s; 0 removes the limit.
    pub max_tx_rate: Option<u32>,
    /// The key `pool`, of a path of type `fairlead`: any VF of the pool that is ready will do.
    pub pool: Option<String>,
    /// The key `driver`, of a path of type `fairlead`: the driver that must have the VF.
    pub driver: Option<Driver>,
    /// Whether the key `deviceAccess`, of a path of type `fairlead`, is `host`: the pod sees the host's device nodes, so that it
    /// does not matter who chose the VF.
    pub on_host: bool,
}

/// The drivers that a path can ask for, as the key `driver` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Driver {
    /// Any driver that makes a network interface of the VF, `kernel`.
    Kernel,
    /// The driver `vfio-pci`.
    Vfio,
}

/// Which VF is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// The VF with this PCI address, as it is written.
    Named(String),
    /// One of the VFs of this resource that kubelet has allocated to the pod.
    OfResource(String),
    /// One of the VFs that are ready in this pool of the daemon.
    OfPool(String),
}

/// The port VLAN that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// The VLAN id, from 1 to 4094; 0 removes the VLAN.
    pub id: u16,
    /// The priority in the VLAN tag, from 0 to 7.
    pub qos: u8,
    /// Whether the tag is of 802.1ad instead of 802.1Q.
    pub service: bool,
}

/// The states that the VF's link can be forced to, as the key `link_state` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// The link follows that of the PF, `auto`.
    Auto,
    /// The link is always up, `enable`.
    Enable,
    /// The link is always down, `disable`.
    Disable,
}

impl Sriov {
    /// Reads the type's fields. Code 6 for a wrong type, 7 for a wrong value.
    pub fn parse(conf: &NetConf) -> Result<Sriov, CniError> {
        let fields = conf.fields()?;
        let switch = |key: &str| match fields.text(key)? {
            Some(_) => fields.item(key).map(|item| item.read(ON_OR_OFF, on_or_off)).transpose(),
            None => Ok(None),
        };
        let link_state = match fields.text("link_state")? {
            Some(_) => {
                fields.item("link_state").map(|i| i.read("auto, enable or disable", state)).transpose()?
            }
            None => None,
        };
        let rate = |key: &str| fields.within(key, 0, u32::MAX);
        let (min_tx_rate, max_tx_rate) = (rate("min_tx_rate")?, rate("max_tx_rate")?);
        if let (Some(min), Some(max @ 1..)) = (min_tx_rate, max_tx_rate)
            && min > max
        {
            let allowed = format!("at most \"max_tx_rate\", which is {max}");
            return Err(fields.invalid("min_tx_rate", &min.to_string(), &allowed));
        }
        let driver = match fields.text("driver")? {
            Some(_) => fields.item("driver").map(|i| i.read("kernel or vfio-pci", driver)).transpose()?,
            None => None,
        };
        let on_host = match fields.text("deviceAccess")? {
            Some(_) => fields.item("deviceAccess").map(|i| i.read("host", on_host)).transpose()?,
            None => None,
        };
        Ok(Sriov {
            device_id: fields.text("deviceID")?,
            resource_name: fields.text("resourceName")?.or(fields.text(RESOURCE_NAME)?),
            mac: fields.text("mac")?,
            vlan: vlan(conf)?,
            spoofchk: switch("spoofchk")?,
            trust: switch("trust")?,
            link_state,
            min_tx_rate,
            max_tx_rate,
            pool: fields.text("pool")?,
            driver,
            on_host: on_host.unwrap_or(false),
        })
    }

    /// The device that is asked for: `runtimeConfig.deviceID`, else `CNI_ARGS` `deviceID`, else `deviceID`, else one of
    /// `resourceName`, else one of `pool`. Code 4 for arguments that sriov does not know, 7 where nobody names a device.
    pub fn device(&self, conf: &NetConf, args: &Args) -> Result<Device, CniError> {
        known(args)?;
        let of_args = args.get("deviceID").filter(|id| !id.is_empty());
        let asked = conf.runtime.device_id.as_deref().or(of_args).or(self.device_id.as_deref());
        let resource = self.resource_name.clone().map(Device::OfResource);
        let any = resource.or_else(|| self.pool.clone().map(Device::OfPool));
        asked.map(|id| Device::Named(id.to_owned())).or(any).ok_or_else(|| {
            if let Some(error) = of_old_format(conf) {
                return error;
            }
            CniError::new(Code::InvalidConfig, "sriov names no device").with(
                "give \"deviceID\", the PCI address of a VF, have the meta plugin or the runtime pass it, or give \"resourceName\" for one that kubelet has given the pod",
            )
        })
    }

    /// The MAC address that is asked for, as written: `runtimeConfig.mac`, else `CNI_ARGS` `MAC`, else `mac`. Code 4 for
    /// arguments that sriov does not know.
    pub fn mac(&self, conf: &NetConf, args: &Args) -> Result<Option<String>, CniError> {
        known(args)?;
        let asked = conf.runtime.mac.as_deref().or_else(|| args.mac()).or(self.mac.as_deref());
        Ok(asked.map(str::to_owned))
    }
}

/// Code 7 for a configuration that only sriov-cni before 2.0 could read.
pub fn of_old_format(conf: &NetConf) -> Option<CniError> {
    let keys = conf.value.as_object()?;
    let old: Vec<String> = OLD_FORMAT
        .iter()
        .filter(|key| keys.contains_key(&folded(key)))
        .map(|key| format!("{key:?}"))
        .collect();
    let verb = match old.len() {
        0 => return None,
        1 => "is",
        _ => "are",
    };
    let msg = format!(
        "{} {verb} of sriov-cni before 2.0, which chose a VF itself; nothing does that by now",
        old.join(", ")
    );
    Some(CniError::new(Code::InvalidConfig, msg).with(
        "leave it out, and name the VF by \"deviceID\", or by \"resourceName\" what kubelet gives the pod; vfio-pci is seen by itself",
    ))
}

/// Whether a key, in any case, is one of those.
pub fn is_of_old_format(key: &str) -> bool {
    OLD_FORMAT.iter().any(|old| folded(old) == folded(key))
}

fn known(args: &Args) -> Result<(), CniError> {
    args.only(&["MAC", "deviceID"])
}

/// Reads the port VLAN. A priority and a tag are refused without a VLAN, where they would have no effect.
fn vlan(conf: &NetConf) -> Result<Option<Vlan>, CniError> {
    let fields = conf.fields()?;
    let id = fields.within("vlan", 0, MAX_VLAN)?;
    let qos = fields.within("vlanQoS", 0, 7)?.unwrap_or(0);
    let service = match fields.text("vlanProto")? {
        Some(_) => fields.item("vlanProto").map(|i| i.read("802.1q or 802.1ad", is_service)).transpose()?,
        None => None,
    };
    let service = service.unwrap_or(false);
    if id.unwrap_or(0) == 0 {
        let alone =
            |key: &str, value: &str| Err(fields.invalid(key, value, "a \"vlan\" from 1 to 4094 with it"));
        if qos > 0 {
            return alone("vlanQoS", &qos.to_string());
        }
        if service {
            return alone("vlanProto", "802.1ad");
        }
    }
    let narrow = |id: u32| Some((u16::try_from(id).ok()?, u8::try_from(qos).ok()?));
    Ok(id.and_then(narrow).map(|(id, qos)| Vlan { id, qos, service }))
}

fn is_service(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "802.1q" => Some(false),
        "802.1ad" => Some(true),
        _ => None,
    }
}

fn on_or_off(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        other => OFF.contains(&other).then_some(false),
    }
}

fn driver(text: &str) -> Option<Driver> {
    match text {
        "kernel" => Some(Driver::Kernel),
        "vfio-pci" => Some(Driver::Vfio),
        _ => None,
    }
}

fn on_host(text: &str) -> Option<bool> {
    (text == "host").then_some(true)
}

fn state(text: &str) -> Option<LinkState> {
    match text {
        "auto" => Some(LinkState::Auto),
        "enable" => Some(LinkState::Enable),
        "disable" => Some(LinkState::Disable),
        _ => None,
    }
}
