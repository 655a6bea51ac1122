//! The addresses of one network: which port each of them is behind, in each VLAN.
//!
//! A port's own address is kept once, however many VLANs it is in: it does not age, and no other port takes it over. Others are learnt and
//! forgotten. The table counts nothing against bounds: its caller says whether one more is allowed.
//!
//! Invariant: nothing is learnt that is a port's own.

use std::hash::BuildHasher;

use super::PortIndex;
use super::frame_head::Address;
use super::keyed_hash::{HashKey, KeyedMap};
use super::vlan_membership::{Vlan, VlanMembership};

/// An address in a VLAN, as one number: the VLAN above the 48 bits of the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressKey(u64);

impl AddressKey {
    /// The key of `address` in `vlan`.
    #[inline]
    pub(super) fn new(vlan: Vlan, address: Address) -> AddressKey {
        AddressKey(u64::from(vlan) << 48 | address)
    }

    /// A key that no frame has, since 0xffff is no VLAN.
    pub(super) const NONE: AddressKey = AddressKey(u64::MAX);

    /// The key that has this number.
    pub(super) fn of_number(number: u64) -> AddressKey {
        AddressKey(number)
    }

    /// The key as a number.
    pub(super) fn number(self) -> u64 {
        self.0
    }

    /// VLAN and address.
    #[inline]
    fn parts(self) -> (Vlan, Address) {
        (Vlan::try_from(self.0 >> 48).unwrap_or_default(), self.0 & 0xffff_ffff_ffff)
    }
}

/// A part of all addresses: each of them is in one of `of` slices, and stays in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSlice {
    /// Which slice, below `of`.
    pub at: usize,
    /// How many there are; at least one.
    pub of: usize,
}

/// Where an address is.
#[derive(Debug, Clone, Copy)]
struct Place {
    port: PortIndex,
    /// When a frame came from it last, in seconds since the start.
    seen_s: u32,
}

/// A port, and the VLANs in which an address is its own, if no earlier port has it there.
#[derive(Debug, Clone)]
struct Owner {
    port: PortIndex,
    vlans: VlanMembership,
}

/// The seconds of which the first frame from an address makes it [`Learning::SeenAgain`].
const PERIOD_S: u32 = 10;

/// What became of an address that a frame came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Learning {
    /// It was known to be there.
    Known,
    /// It was known to be there, and this is its first frame in this period of some seconds.
    SeenAgain,
    /// It is new.
    New,
    /// It was learnt behind this port before.
    Moved(PortIndex),
    /// There is no room for it, or it is another port's own.
    Refused,
}

/// The addresses of one network.
#[derive(Clone)]
pub(super) struct AddressTable {
    /// Where what is learnt is, by [`AddressKey`].
    places: KeyedMap<Place>,
    /// The ports that have an address of their own, by that, in the order in which they came.
    owners: KeyedMap<Vec<Owner>>,
    /// Another number after each change that makes a port's note of an address wrong.
    generation: u32,
}

impl AddressTable {
    pub(super) fn new() -> AddressTable {
        let (places, owners) =
            (KeyedMap::with_hasher(HashKey::random()), KeyedMap::with_hasher(HashKey::random()));
        AddressTable { places, owners, generation: 0 }
    }

    /// The number of the table's state: notes that were made at another are void.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Makes room for so many more addresses, so that learning them allocates nothing.
    pub(super) fn reserve(&mut self, addresses: usize) {
        self.places.reserve(addresses);
    }

    /// The port behind which the address is.
    #[inline]
    pub(super) fn port_of(&self, key: AddressKey) -> Option<PortIndex> {
        self.owner_of(key).or_else(|| self.places.get(&key.0).map(|place| place.port))
    }

    /// The port whose own address it is.
    #[inline]
    pub(super) fn owner_of(&self, key: AddressKey) -> Option<PortIndex> {
        let (vlan, address) = key.parts();
        let owners = self.owners.get(&address)?;
        owners.iter().find(|owner| owner.vlans.has_own_in(vlan)).map(|owner| owner.port)
    }

    /// How many addresses are learnt.
    #[inline]
    pub(super) fn learnt(&self) -> usize {
        self.places.len()
    }

    /// A frame came from `port` with this source. `may_grow` is whether the port may have one more address than it has, and
    /// `may_add` whether the table may.
    #[inline]
    pub(super) fn learn(
        &mut self,
        key: AddressKey,
        port: PortIndex,
        seen_s: u32,
        may_grow: bool,
        may_add: bool,
    ) -> Learning {
        let learnt = Place { port, seen_s };
        let Some(place) = self.places.get_mut(&key.0) else {
            if !(may_grow && may_add) || self.owner_of(key).is_some() {
                return Learning::Refused;
            }
            self.places.insert(key.0, learnt);
            return Learning::New;
        };
        if place.port == port {
            let before_s = std::mem::replace(&mut place.seen_s, seen_s);
            let is_known = before_s / PERIOD_S == seen_s / PERIOD_S;
            return if is_known { Learning::Known } else { Learning::SeenAgain };
        }
        if !may_grow {
            return Learning::Refused;
        }
        let before = std::mem::replace(place, learnt).port;
        self.generation = self.generation.wrapping_add(1);
        Learning::Moved(before)
    }

    /// Makes an address a port's own in its VLANs; in those where it is an earlier port's, when that is gone. Where it was learnt it is
    /// forgotten, and the port of each is named.
    pub(super) fn add_owner(
        &mut self,
        address: Address,
        port: PortIndex,
        vlans: &VlanMembership,
        mut forgotten: impl FnMut(PortIndex),
    ) {
        self.owners.entry(address).or_default().push(Owner { port, vlans: vlans.clone() });
        self.places.retain(|key, place| {
            let (vlan, learnt) = AddressKey(*key).parts();
            let stays = learnt != address || !vlans.has_own_in(vlan);
            if !stays {
                forgotten(place.port);
            }
            stays
        });
        self.generation = self.generation.wrapping_add(1);
    }

    /// Forgets all that is behind a port.
    pub(super) fn forget_port(&mut self, port: PortIndex) {
        self.places.retain(|_, place| place.port != port);
        self.owners.retain(|_, owners| {
            owners.retain(|owner| owner.port != port);
            !owners.is_empty()
        });
        self.generation = self.generation.wrapping_add(1);
    }

    /// Forgets what was seen last before `oldest_s`, and names the port of each address that is forgotten.
    pub(super) fn forget_older(&mut self, oldest_s: u32, mut forgotten: impl FnMut(PortIndex)) {
        let before = self.places.len();
        self.places.retain(|_, place| {
            let stays = place.seen_s >= oldest_s;
            if !stays {
                forgotten(place.port);
            }
            stays
        });
        if self.places.len() != before {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// What is learnt of a slice: each address with its VLAN, its port, and when it was seen last, in seconds.
    pub(super) fn learnt_of(
        &self,
        slice: TableSlice,
    ) -> impl Iterator<Item = (Vlan, Address, PortIndex, u32)> + '_ {
        let learnt = self.places.iter().filter(move |(key, _)| self.is_in(slice, **key));
        learnt.map(|(key, place)| {
            let (vlan, address) = AddressKey(*key).parts();
            (vlan, address, place.port, place.seen_s)
        })
    }

    /// The ports' own addresses of a slice, each once, with the VLAN of its port's frames without a tag.
    pub(super) fn own_of(
        &self,
        slice: TableSlice,
    ) -> impl Iterator<Item = (Option<Vlan>, Address, PortIndex)> + '_ {
        let own = self.owners.iter().filter(move |(address, _)| self.is_in(slice, **address));
        own.flat_map(move |(address, owners)| {
            let has_it = |owner: &&Owner| {
                let mut keys = owner.vlans.all().map(|vlan| AddressKey::new(vlan, *address));
                keys.any(|key| self.owner_of(key) == Some(owner.port))
            };
            let have = owners.iter().filter(has_it);
            have.map(|owner| (owner.vlans.of_untagged(), *address, owner.port))
        })
    }

    /// Not by the number itself: guests choose addresses, and could choose all of one slice.
    fn is_in(&self, slice: TableSlice, number: u64) -> bool {
        let hash = self.places.hasher().hash_one(number);
        (u128::from(hash) * slice.of as u128) >> 64 == slice.at as u128
    }
}

#[cfg(test)]
mod tests {
    use super::super::PortRules;
    use super::super::test_frames::rules;
    use super::*;

    const KEY: AddressKey = AddressKey(5 << 48 | 0x0200_0000_0001);
    const ONE: PortIndex = PortIndex(1);
    const TWO: PortIndex = PortIndex(2);
    const ALL: TableSlice = TableSlice { at: 0, of: 1 };

    fn trunk(vlans: &[u16]) -> VlanMembership {
        VlanMembership::new(&PortRules { trunk: vlans.to_vec(), ..rules(1) })
    }

    #[test]
    fn an_address_moves_to_where_its_frames_come_from() {
        let mut table = AddressTable::new();
        assert_eq!(table.learn(KEY, ONE, 1, true, true), Learning::New);
        let generation = table.generation();
        assert_eq!(table.learn(KEY, ONE, 2, false, false), Learning::Known);
        assert_eq!(table.learn(KEY, ONE, 10, false, false), Learning::SeenAgain);
        assert_eq!(table.learn(KEY, ONE, 19, false, false), Learning::Known);
        assert_eq!(table.generation(), generation);
        assert_eq!(table.learn(KEY, TWO, 3, false, true), Learning::Refused, "that port may have no more");
        assert_eq!(
            table.learn(KEY, TWO, 3, true, false),
            Learning::Moved(ONE),
            "a full table has it already"
        );
        assert_ne!(table.generation(), generation);
        assert_eq!(table.port_of(KEY), Some(TWO));
        assert_eq!(table.port_of(AddressKey::new(6, 0x0200_0000_0001)), None);
    }

    #[test]
    fn a_ports_own_address_is_nobody_elses() {
        let mut table = AddressTable::new();
        assert_eq!(table.learn(KEY, TWO, 1, true, true), Learning::New);
        let (generation, mut forgotten) = (table.generation(), Vec::new());
        table.add_owner(KEY.parts().1, ONE, &trunk(&[5, 6]), |port| forgotten.push(port));
        table.add_owner(KEY.parts().1, TWO, &trunk(&[5, 7]), |_| panic!("it is not learnt"));
        assert_eq!(forgotten, [TWO]);
        assert_ne!(table.generation(), generation);
        assert_eq!(table.learn(KEY, TWO, 9, true, true), Learning::Refused);
        table.forget_older(u32::MAX, |_| panic!("it does not age"));
        let ports = |table: &AddressTable| {
            [5, 6, 7, 8].map(|vlan| table.port_of(AddressKey::new(vlan, KEY.parts().1)))
        };
        assert_eq!(ports(&table), [Some(ONE), Some(ONE), Some(TWO), None]);
        table.forget_port(ONE);
        assert_eq!(ports(&table), [Some(TWO), None, Some(TWO), None]);
        table.forget_port(TWO);
        assert_eq!(ports(&table), [None; 4]);
        assert!(table.owners.is_empty());
    }

    #[test]
    fn a_ports_own_address_is_kept_and_told_once_for_all_of_its_vlans() {
        let mut table = AddressTable::new();
        let all: Vec<u16> = (1..=4094).collect();
        for port in 0..100 {
            table.add_owner(u64::from(port), PortIndex(port), &trunk(&all), |_| panic!("nothing is learnt"));
        }
        // Its VLANs are those of the first.
        table.add_owner(7, PortIndex(100), &trunk(&[5]), |_| panic!("nothing is learnt"));
        assert_eq!((table.learnt(), table.owners.len()), (0, 100));
        let mut told: Vec<_> = table.own_of(ALL).map(|(_, _, port)| port.0).collect();
        told.sort_unstable();
        assert_eq!(told, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn each_address_is_in_one_slice_and_slices_are_of_one_size_whoever_chose_the_addresses() {
        // Those of one slice, if it were by the number.
        let numbers: Vec<u64> = (0..4_096).map(|n| 8 * n).collect();
        let mut even = 0;
        for _ in 0..16 {
            let mut table = AddressTable::new();
            for number in &numbers {
                table.learn(AddressKey::new(0, *number), ONE, 0, true, true);
            }
            let slices = (0..8).map(|at| table.learnt_of(TableSlice { at, of: 8 }).collect::<Vec<_>>());
            let slices: Vec<_> = slices.collect();
            even += usize::from(slices.iter().all(|slice| slice.len() < 1_024));
            let mut all: Vec<_> = slices.concat().into_iter().map(|(_, address, ..)| address).collect();
            all.sort_unstable();
            assert_eq!(all, numbers);
        }
        assert!(even >= 14, "with {even} of 16 keys no slice has twice its share");
    }

    #[test]
    fn what_is_too_old_is_forgotten_and_its_port_named() {
        let mut table = AddressTable::new();
        for (address, seen_s) in [(1, 10), (2, 20)] {
            table.learn(AddressKey::new(0, address), ONE, seen_s, true, true);
        }
        let mut named = Vec::new();
        table.forget_older(20, |port| named.push(port));
        assert_eq!(named, [ONE]);
        let left: Vec<_> = table.learnt_of(ALL).collect();
        assert_eq!(left, [(0, 2, ONE, 20)]);
    }
}
