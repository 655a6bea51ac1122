//! The addresses of one network: which port each of them is behind, in each VLAN.
//!
//! A port's own address is fixed: it does not age, and no other port takes it over. Others are learnt and forgotten. The table
//! counts nothing against bounds: its caller says whether one more is allowed.

use super::PortIndex;
use super::frame_head::Address;
use super::keyed_hash::{HashKey, KeyedMap};
use super::vlan_membership::Vlan;

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
}

/// Where an address is.
#[derive(Debug, Clone, Copy)]
struct Place {
    port: PortIndex,
    /// It is the port's own.
    fixed: bool,
    /// When a frame came from it last, in seconds since the start.
    seen_s: u32,
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
    places: KeyedMap<Place>,
    /// Another number after each change that makes a port's note of an address wrong.
    generation: u32,
}

impl AddressTable {
    pub(super) fn new() -> AddressTable {
        AddressTable { places: KeyedMap::with_hasher(HashKey::random()), generation: 0 }
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
        self.places.get(&key.0).map(|place| place.port)
    }

    /// True for a port's own address.
    #[inline]
    pub(super) fn is_fixed(&self, key: AddressKey) -> bool {
        self.places.get(&key.0).is_some_and(|place| place.fixed)
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
        let learnt = Place { port, fixed: false, seen_s };
        let Some(place) = self.places.get_mut(&key.0) else {
            if !(may_grow && may_add) {
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
        if place.fixed || !may_grow {
            return Learning::Refused;
        }
        let before = std::mem::replace(place, learnt).port;
        self.generation = self.generation.wrapping_add(1);
        Learning::Moved(before)
    }

    /// Makes an address a port's own, unless it is another port's. Answers the port behind which it was learnt before.
    pub(super) fn fix(&mut self, key: AddressKey, port: PortIndex) -> Option<PortIndex> {
        let own = Place { port, fixed: true, seen_s: 0 };
        let place = self.places.entry(key.0).or_insert(own);
        if place.fixed {
            return None;
        }
        let before = std::mem::replace(place, own).port;
        self.generation = self.generation.wrapping_add(1);
        Some(before)
    }

    /// Forgets all that is behind a port.
    pub(super) fn forget_port(&mut self, port: PortIndex) {
        self.places.retain(|_, place| place.port != port);
        self.generation = self.generation.wrapping_add(1);
    }

    /// Forgets what was seen last before `oldest_s`, and names the port of each address that is forgotten.
    pub(super) fn forget_older(&mut self, oldest_s: u32, mut forgotten: impl FnMut(PortIndex)) {
        let before = self.places.len();
        self.places.retain(|_, place| {
            let stays = place.fixed || place.seen_s >= oldest_s;
            if !stays {
                forgotten(place.port);
            }
            stays
        });
        if self.places.len() != before {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Every address with its VLAN, its port, and when it was seen last; that is absent for a port's own.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Vlan, Address, PortIndex, Option<u32>)> + '_ {
        self.places.iter().map(|(key, place)| {
            let vlan = Vlan::try_from(key >> 48).unwrap_or_default();
            let seen = (!place.fixed).then_some(place.seen_s);
            (vlan, key & 0xffff_ffff_ffff, place.port, seen)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: AddressKey = AddressKey(5 << 48 | 0x0200_0000_0001);
    const ONE: PortIndex = PortIndex(1);
    const TWO: PortIndex = PortIndex(2);

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
        assert_eq!(table.fix(KEY, ONE), Some(TWO));
        assert_eq!(table.fix(KEY, TWO), None);
        assert_eq!(table.learn(KEY, TWO, 9, true, true), Learning::Refused);
        table.forget_older(u32::MAX, |_| panic!("it does not age"));
        assert_eq!(table.port_of(KEY), Some(ONE));
        table.forget_port(ONE);
        assert_eq!(table.port_of(KEY), None);
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
        let left: Vec<_> = table.iter().collect();
        assert_eq!(left, [(0, 2, ONE, Some(20))]);
    }
}
