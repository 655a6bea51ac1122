//! One interface that a definition asks for, as far as its text says what it takes of the node.
//!
//! The values are those of the parsers by which the engine validates and acts (`fairlead_cni::config`), never of the raw text:
//! however a key is spelled, what is judged is what would be done.

use std::sync::Arc;

use fairlead_cni::args::Args;
use fairlead_cni::config::{
    Fairlead, HostDevice, HostLocal, Ipvlan, Macvlan, NetConf, Sriov, StaticIpam, VhostUser, Vlan, sriov,
};
use fairlead_cni::{CniError, Code};

/// One interface, or one plugin of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Interface {
    /// Where it stands in the definition: `plugins[1]`, `paths[0]`; empty for the whole of it.
    pub place: String,
    /// Its configuration.
    pub conf: Arc<NetConf>,
    /// What it is made of.
    pub link: Link,
    /// Where its addresses come from.
    pub addresses: Addresses,
    /// The addresses that `CNI_ARGS` ask for, as written.
    pub args_ips: Vec<String>,
}

/// What an interface is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// Type `macvlan`.
    Macvlan(Macvlan),
    /// Type `ipvlan`.
    Ipvlan(Ipvlan),
    /// Type `vlan`.
    Vlan(Vlan),
    /// Type `host-device`; `None` where the runtime is to name the device.
    HostDevice(Option<HostDevice>),
    /// Type `sriov`, and the VF that it would get; `None` where the runtime is to name it.
    Sriov(Sriov, Option<sriov::Device>),
    /// Types `vhost-user` and `userspace`.
    VhostUser(VhostUser),
    /// Types that take nothing of the node: `dummy` and `loopback`.
    Nothing,
    /// `clusterNetwork`: a network of the administrator's, by its name.
    ClusterNetwork(String),
    /// Any other type: a program of `CNI_PATH`, which reads the configuration itself.
    Executed,
}

/// Where the addresses of an interface come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Addresses {
    /// There are none.
    None,
    /// The built-in `host-local`.
    HostLocal(HostLocal),
    /// The built-in `static`.
    Static(StaticIpam),
    /// A program of `CNI_PATH`, by its type.
    Executed(String),
}

impl Interface {
    /// Whether a plugin that is executed executes host-local for its addresses.
    pub(super) fn executes_host_local(&self) -> bool {
        matches!(self.link, Link::Executed)
            && matches!(&self.addresses, Addresses::Executed(kind) if kind == "host-local")
    }

    /// What the configuration of one plugin asks for: one interface, or one for each of `paths` of our own type.
    ///
    /// # Errors
    /// Those of the type's parser.
    pub fn read(place: &str, conf: NetConf, args: &Args) -> Result<Vec<Interface>, CniError> {
        if conf.plugin_type != "fairlead" {
            return Ok(vec![Interface::one(place.to_owned(), conf, args)?]);
        }
        match Fairlead::parse(&conf)? {
            Fairlead::ClusterNetwork(network) => {
                let (link, addresses) = (Link::ClusterNetwork(network.name), Addresses::None);
                let (place, args_ips) = (place.to_owned(), ips_of(args));
                Ok(vec![Interface { place, conf: Arc::new(conf), link, addresses, args_ips }])
            }
            Fairlead::Paths { paths, .. } => {
                let below = if place.is_empty() { String::new() } else { format!("{place}.") };
                let paths = paths.into_iter().enumerate();
                paths.map(|(at, path)| Interface::one(format!("{below}paths[{at}]"), path, args)).collect()
            }
        }
    }

    fn one(place: String, conf: NetConf, args: &Args) -> Result<Interface, CniError> {
        let link = match conf.plugin_type.as_str() {
            "macvlan" => Link::Macvlan(Macvlan::parse(&conf)?),
            "ipvlan" => Link::Ipvlan(Ipvlan::parse(&conf)?),
            "vlan" => Link::Vlan(Vlan::parse(&conf)?),
            "host-device" => Link::HostDevice(HostDevice::read(&conf)?),
            "sriov" => {
                let sriov = Sriov::parse(&conf)?;
                let device = named(sriov.device(&conf, args))?;
                Link::Sriov(sriov, device)
            }
            "vhost-user" | "userspace" => Link::VhostUser(VhostUser::parse(&conf)?),
            "dummy" | "loopback" => Link::Nothing,
            _ => Link::Executed,
        };
        let addresses = match (&link, conf.ipam_type.as_deref()) {
            (_, None) => Addresses::None,
            // It executes its IPAM itself, a file of whatever name.
            (Link::Executed, Some(kind)) => Addresses::Executed(kind.to_owned()),
            (_, Some("host-local")) => Addresses::HostLocal(HostLocal::parse(&conf, args)?),
            (_, Some("static")) => Addresses::Static(StaticIpam::parse(&conf, args)?),
            (_, Some(kind)) => Addresses::Executed(kind.to_owned()),
        };
        Ok(Interface { place, conf: Arc::new(conf), link, addresses, args_ips: ips_of(args) })
    }

    /// The addresses that are asked for of a program or of the administrator's network, by their keys: who reads which of them cannot be
    /// seen. Of what is built in, [`Addresses`] say what it takes.
    pub(super) fn ips_asked_of_others(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let is_read_by_others = matches!(self.link, Link::Executed | Link::ClusterNetwork(_))
            || matches!(self.addresses, Addresses::Executed(_));
        let keys = [
            ("ips", &self.conf.runtime.ips),
            ("args.cni.ips", &self.conf.args_cni_ips),
            ("ips", &self.args_ips),
        ];
        let asked = keys.into_iter().flat_map(|(key, ips)| ips.iter().map(move |ip| (key, ip.as_str())));
        asked.filter(move |_| is_read_by_others)
    }

    /// A key of this interface with its place in the definition.
    pub(super) fn key(&self, key: &str) -> String {
        match self.place.as_str() {
            "" => key.to_owned(),
            place => format!("{place}.{key}"),
        }
    }
}

fn ips_of(args: &Args) -> Vec<String> {
    args.ip().into_iter().map(str::to_owned).collect()
}

/// The device, or `None` where nobody has named one yet.
fn named(device: Result<sriov::Device, CniError>) -> Result<Option<sriov::Device>, CniError> {
    match device {
        Ok(device) => Ok(Some(device)),
        Err(none) if none.code == Code::InvalidConfig => Ok(None),
        Err(error) => Err(error),
    }
}
