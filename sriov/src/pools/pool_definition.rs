//! Pools of VFs as the configuration declares them. What is accepted has an effect: a key that would have none is refused, with
//! the reason.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_host::{VfLinkState, VfVlan, VlanProto};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::bounded_number::Bounded;
use super::state::{Spread, Stock};
use crate::{PciAddr, Resource, Selectors, VfProfile, check_resource_name};

/// A pool of the configuration. Its keys are part of the configuration file's format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolSettings {
    /// The name by which networks and the operator know it.
    pub name: String,
    /// Which VFs it is made of; one that an earlier pool has is not this one's.
    pub selectors: Selectors,
    /// The driver that they have while nobody owns them.
    #[serde(default)]
    pub driver: Option<AtRest>,
    /// Their settings while nobody owns them; what is absent stays as it was.
    #[serde(default)]
    pub profile: Profile,
    /// So many VFs are kept ready; absent: all.
    #[serde(default)]
    pub min: Option<usize>,
    /// Never more VFs than this are kept ready.
    #[serde(default)]
    pub max: Option<usize>,
    /// So many VFs are prepared together where too few are ready.
    #[serde(default)]
    pub batch: Option<Bounded<1, 256>>,
    /// How many VFs their PFs are to have.
    #[serde(default)]
    pub numvfs: Option<Bounded<1, 256>>,
    /// Kubelet allocates them, under this resource name.
    #[serde(default)]
    pub resource_name: Option<String>,
    /// Who allocates them to pods.
    #[serde(default)]
    pub allocator: Allocator,
    /// How draws go over the PFs.
    #[serde(default)]
    pub spread: Option<Spread>,
    /// VFs whose PF has no carrier are withdrawn from kubelet.
    #[serde(default)]
    pub withdraw_on_link_down: bool,
    /// VFs behind no IOMMU may be given to pods, though they reach all of the memory.
    #[serde(default)]
    pub allow_no_iommu: bool,
    /// The resource of the SR-IOV network device plugin's configuration that this pool stands for.
    #[serde(skip)]
    pub resource: Option<Resource>,
}

/// The driver of a VF while nobody owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtRest {
    /// The kernel driver that makes an interface of it.
    #[default]
    Kernel,
    /// The driver vfio-pci, which gives it to processes.
    VfioPci,
    /// Whatever driver it had when it became a member, or was given since: somebody else binds it.
    #[serde(skip)]
    Unchanged,
}

/// Who allocates the VFs of a pool to pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// Kubelet does by our own device plugin where there is a `resourceName`, else ADD does.
    #[default]
    Fairlead,
    /// Another device plugin does.
    External,
}

/// The settings of a pool's VFs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Profile {
    vlan: Option<Bounded<0, 4094>>,
    #[serde(rename = "vlanQoS")]
    vlan_qos: Option<Bounded<0, 7>>,
    vlan_proto: Option<VlanProto>,
    spoofchk: Option<Switch>,
    trust: Option<Switch>,
    link_state: Option<VfLinkState>,
    min_tx_rate: Option<u32>,
    max_tx_rate: Option<u32>,
    mtu: Option<Bounded<68, 65535>>,
}

/// `on` or `off`, as networks have it, or YAML's own words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "neither on nor off")]
enum Switch {
    Plain(bool),
    Word(Word),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    On,
    Off,
}

impl Switch {
    fn on(self) -> bool {
        matches!(self, Switch::Plain(true) | Switch::Word(Word::On))
    }
}

impl Profile {
    /// The settings that are written through the PF.
    pub fn settings(&self) -> VfProfile {
        let small = |number: usize| u16::try_from(number).unwrap_or_default();
        let vlan = self.vlan.map(|id| VfVlan {
            id: small(id.get()),
            qos: self.vlan_qos.map_or(0, |qos| u8::try_from(qos.get()).unwrap_or_default()),
            proto: self.vlan_proto.unwrap_or_default(),
        });
        VfProfile {
            mac: None,
            vlan,
            spoofchk: self.spoofchk.map(Switch::on),
            trust: self.trust.map(Switch::on),
            link_state: self.link_state,
            min_rate: self.min_tx_rate,
            max_rate: self.max_tx_rate,
        }
    }

    /// The MTU of the interface.
    pub fn mtu(&self) -> Option<u32> {
        self.mtu.and_then(|mtu| u32::try_from(mtu.get()).ok())
    }

    fn wrong(&self) -> Option<&'static str> {
        let tagged = self.vlan.is_some_and(|vlan| vlan.get() > 0);
        let more =
            self.vlan_qos.is_some_and(|qos| qos.get() > 0) || self.vlan_proto == Some(VlanProto::Dot1ad);
        (more && !tagged).then_some("vlanQoS and vlanProto 802.1ad need a vlan")
    }
}

impl PoolSettings {
    /// The pool that stands for a resource of the SR-IOV network device plugin's own configuration.
    pub fn of_resource(resource: Resource) -> PoolSettings {
        PoolSettings {
            name: resource.name.clone(),
            selectors: resource.selectors.clone(),
            driver: Some(AtRest::Unchanged),
            profile: Profile::default(),
            min: None,
            max: None,
            batch: None,
            numvfs: None,
            resource_name: Some(resource.name.clone()),
            allocator: Allocator::default(),
            spread: None,
            withdraw_on_link_down: false,
            allow_no_iommu: false,
            resource: Some(resource),
        }
    }

    /// The resource name under which our own device plugin offers it to kubelet, if it does.
    pub fn offered_as(&self) -> Option<&str> {
        self.resource_name.as_deref().filter(|_| self.is_only_ours())
    }

    /// Whether kubelet is told RDMA nodes of its VFs.
    pub(super) fn tells_rdma_nodes(&self) -> bool {
        // Under vfio-pci a VF has none.
        self.offered_as().is_some() && self.selectors.want_rdma() && self.at_rest() != AtRest::VfioPci
    }

    /// Whether no other device plugin may announce its VFs.
    pub fn is_only_ours(&self) -> bool {
        self.allocator == Allocator::Fairlead
    }

    /// Whether kubelet is to know the NUMA nodes of its VFs.
    pub fn exposes_topology(&self) -> bool {
        self.resource.as_ref().is_none_or(|resource| !resource.exclude_topology)
    }

    /// Further facts about a VF for its pod.
    pub fn additional_info(&self, address: PciAddr) -> BTreeMap<String, String> {
        self.resource.as_ref().map(|resource| resource.additional_info(address)).unwrap_or_default()
    }

    /// How many VFs are kept ready.
    pub fn stock(&self) -> Stock {
        Stock { min: self.min, max: self.max, batch: self.batch.map_or(1, Bounded::get) }
    }

    /// How draws go over the PFs.
    pub fn spread(&self) -> Spread {
        self.spread.unwrap_or_default()
    }

    /// The driver of its VFs while nobody owns them; those of another allocator keep what they have.
    pub fn at_rest(&self) -> AtRest {
        match self.allocator {
            Allocator::Fairlead => self.driver.unwrap_or_default(),
            Allocator::External => AtRest::Unchanged,
        }
    }

    /// Whether an ADD may choose one of its VFs.
    pub fn is_drawn_from(&self) -> bool {
        self.allocator == Allocator::Fairlead && self.resource_name.is_none()
    }

    fn wrong(&self) -> Option<String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || !self.name.chars().all(plain) {
            return Some(format!("{:?} is no name of a pool (letters, digits, - _ .)", self.name));
        }
        let of = format!("pool {:?}", self.name);
        if let (Some(min), Some(max)) = (self.min, self.max)
            && min > max
        {
            return Some(format!("{of}: min {min} is more than max {max}"));
        }
        if self.max == Some(0) {
            return Some(format!("{of}: a max of 0 leaves nothing to give out"));
        }
        let others = self.resource_name.is_some() || self.allocator == Allocator::External;
        if others && (self.min.is_some() || self.max.is_some()) {
            return Some(format!(
                "{of}: min and max are for pools that ADD draws from; another allocator may give out any of its \
                 VFs, and so all are kept ready"
            ));
        }
        if let Some(Err(bad)) = self.resource_name.as_deref().map(check_resource_name) {
            return Some(format!("{of}: {bad}"));
        }
        if self.profile.mtu.is_some() && self.driver == Some(AtRest::VfioPci) {
            return Some(format!("{of}: an mtu is an interface's, and under vfio-pci there is none"));
        }
        let without_effect = self.without_effect().map(|(key, why)| format!("{key} has no effect: {why}"));
        without_effect.or(self.profile.wrong().map(str::to_owned)).map(|why| format!("{of}: {why}"))
    }

    /// What its selectors ask for and no pod gets. It is told and refuses nothing: whoever wrote it has other VFs, and other pools.
    pub(super) fn unserved(&self) -> Option<String> {
        let has_no_rdma = self.selectors.want_rdma() && self.driver == Some(AtRest::VfioPci);
        let rdma = "isRdma selects VFs by their RDMA devices, and under vfio-pci no pod gets one";
        self.selectors.why_partly_unserved().or_else(|| has_no_rdma.then(|| rdma.to_owned()))
    }

    /// A key that is there and changes nothing, and why: whoever wrote it means something else.
    fn without_effect(&self) -> Option<(&'static str, &'static str)> {
        let external = self.allocator == Allocator::External;
        let table = [
            (
                external && self.driver.is_some(),
                "driver",
                "another allocator's VFs keep the driver that they have; take it out",
            ),
            (
                external && self.batch.is_some(),
                "batch",
                "all VFs of another allocator are kept ready; take it out",
            ),
            (
                external && self.spread.is_some(),
                "spread",
                "the other allocator chooses which VF comes next; take it out",
            ),
            (
                self.withdraw_on_link_down && self.offered_as().is_none(),
                "withdrawOnLinkDown",
                "nothing is offered to kubelet that could be withdrawn; give the pool a resourceName and no other allocator, or \
                 take it out",
            ),
            (
                self.allow_no_iommu && !external && self.driver != Some(AtRest::VfioPci),
                "allowNoIommu",
                "a kernel driver needs no IOMMU; add driver: vfio-pci, or take it out",
            ),
            (
                self.numvfs.is_some() && !self.selectors.name_some(),
                "numvfs",
                "VFs are made only where the selectors name the PF; add pfNames or rootDevices, or take \
                 it out",
            ),
        ];
        table.into_iter().find(|(is_so, _, _)| *is_so).map(|(_, key, why)| (key, why))
    }
}

/// Reads pools; refuses two of one name, and any that could not do what it says.
///
/// # Errors
/// With the pool's name and what is wrong with it.
pub fn deserialize_pools<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PoolSettings>, D::Error> {
    let pools = Vec::<PoolSettings>::deserialize(from)?;
    let mut names = BTreeSet::new();
    for pool in &pools {
        if let Some(why) = pool.wrong() {
            return Err(D::Error::custom(why));
        }
        if !names.insert(&pool.name) {
            return Err(D::Error::custom(format!("there are two pools {:?}", pool.name)));
        }
    }
    Ok(pools)
}
