//! What one connection has agreed on and set up: a state machine without I/O. What it does to running rings goes through [`Rings`].
//!
//! Invariants: a ring runs if and only if features are agreed on, memory is shared, and its size, addresses and kick are set. It is
//! stopped before anything of it changes, and starts again where the used ring ends. Enabling may come at any time, before the
//! features too.
//!
//! Messages that set something twice are taken as they come: frontends do that (SET_OWNER after a reconnect).

use std::sync::Arc;

use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::vhost_user::message::{VhostUserVringAddr, VhostUserVringState};

use super::features::{enables_rings, ring_features};
use super::message::{Header, Request};
use super::vring::Vring;
use super::{Offer, Refusal, Reply};
use crate::memory::{GuestFile, GuestMemory, MAX_REGIONS, MappedRegion, PortAccount, RegionPlace};
use crate::ring::{GuestEvent, RingFault, SplitRing};

/// The rings that are at work. The data plane's are on the poll thread.
pub(crate) trait Rings {
    /// Puts ring `index` to work. Whether it is enabled is told at once: what a guest sends by a disabled one is dropped.
    ///
    /// # Errors
    /// [`Refusal::NoAnswer`].
    fn start(
        &mut self,
        index: usize,
        ring: SplitRing,
        kick: Arc<GuestEvent>,
        enabled: bool,
    ) -> Result<(), Refusal>;

    /// Stops ring `index` and answers its position. It is not touched any more then.
    ///
    /// # Errors
    /// [`Refusal::NoAnswer`].
    fn stop(&mut self, index: usize) -> Result<u16, Refusal>;

    /// Frames go through ring `index`, or don't.
    ///
    /// # Errors
    /// [`Refusal::NoAnswer`].
    fn enable(&mut self, index: usize, enabled: bool) -> Result<(), Refusal>;

    /// The guest of ring `index` is called by `call` from now on.
    ///
    /// # Errors
    /// [`Refusal::NoAnswer`].
    fn set_call(&mut self, index: usize, call: Option<Arc<GuestEvent>>) -> Result<(), Refusal>;
}

/// One connection's state.
#[derive(Debug)]
pub(crate) struct Session {
    offer: Offer,
    /// SET_FEATURES; absent before.
    features: Option<u64>,
    protocol_features: VhostUserProtocolFeatures,
    memory: Arc<GuestMemory>,
    /// What the memory costs; absent: that is not bounded.
    account: Option<Arc<PortAccount>>,
    vrings: Vec<Vring>,
    /// An MTU above the port's, of which the frontend wanted no acknowledgement, until it is taken.
    long_mtu: Option<u64>,
}

impl Session {
    /// A connection on which nothing was said.
    pub(crate) fn new(offer: Offer, account: Option<Arc<PortAccount>>) -> Session {
        let vrings = std::iter::repeat_with(Vring::default).take(offer.rings()).collect();
        let protocol_features = VhostUserProtocolFeatures::empty();
        let (features, memory, long_mtu) = (None, Arc::default(), None);
        Session { offer, features, protocol_features, memory, account, vrings, long_mtu }
    }

    /// An MTU above the port's that the guest may have been told since the last call: the frontend was not told that it is.
    pub(crate) fn take_long_mtu(&mut self) -> Option<u64> {
        self.long_mtu.take()
    }

    /// The virtio features that were agreed on, 0 before.
    pub(crate) fn features(&self) -> u64 {
        self.features.unwrap_or(0)
    }

    /// True if the guest has shared its memory.
    pub(crate) fn has_memory(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Goes on with the audit of what the memory costs; true if that is done.
    pub(crate) fn audit_memory(&self) -> bool {
        self.memory.audit()
    }

    /// How many pairs of queues run and are enabled.
    pub(crate) fn active_queues(&self) -> u16 {
        let at_work = |index: usize| self.vrings[index].running && self.is_enabled(index);
        let active = (0..self.vrings.len() / 2).filter(|pair| at_work(2 * pair) && at_work(2 * pair + 1));
        u16::try_from(active.count()).unwrap_or(0)
    }

    /// Does what a message asks for, and answers what is to be replied, if anything.
    ///
    /// # Errors
    /// [`Refusal`]: the connection ends.
    pub(crate) fn handle(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: Vec<GuestFile>,
        rings: &mut dyn Rings,
    ) -> Result<Option<Reply>, Refusal> {
        let acknowledge =
            header.need_reply && self.protocol_features.contains(VhostUserProtocolFeatures::REPLY_ACK);
        let done =
            Request::parse(header.message, payload, fds).and_then(|request| self.apply(request, rings));
        match done {
            Ok(None) if acknowledge => Ok(Some(Reply::Number(0))),
            // The frontend waits for an answer, so neither need end the connection.
            Err(Refusal::UnknownMessage(_) | Refusal::LongMtu { .. }) if acknowledge => {
                Ok(Some(Reply::Number(1)))
            }
            // Nobody waits for an answer, and frames that are not too long pass.
            Err(Refusal::LongMtu { mtu, .. }) => {
                self.long_mtu = Some(mtu);
                Ok(None)
            }
            other => other,
        }
    }

    fn apply(&mut self, request: Request, rings: &mut dyn Rings) -> Result<Option<Reply>, Refusal> {
        let number = |number: u64| Ok(Some(Reply::Number(number)));
        match request {
            Request::GetFeatures => return number(self.offer.features()),
            Request::GetProtocolFeatures => return number(self.offer.protocol_features().bits()),
            Request::GetQueueNum => return number(u64::from(self.offer.queues)),
            Request::GetMaxMemSlots => return number(MAX_REGIONS as u64),
            Request::GetVringBase(state) => return self.get_base(state, rings).map(Some),
            Request::SetOwner => {}
            Request::SetFeatures(features) => self.set_features(features, rings)?,
            Request::SetProtocolFeatures(bits) => self.set_protocol_features(bits)?,
            Request::Reset => self.reset(rings)?,
            Request::SetMemTable(places) => self.replace_memory(places, rings)?,
            Request::AddMemReg(place, file) => {
                let region = MappedRegion::bounded(place, file, self.account.as_ref())?;
                self.set_memory(self.memory.with(region)?, rings)?;
            }
            Request::RemMemReg(place) => {
                let memory = self.memory.without(&place).ok_or(Refusal::NoSuchRegion)?;
                self.set_memory(memory, rings)?;
            }
            Request::SetVringNum(state) => self.set_size(state, rings)?,
            Request::SetVringAddr(addresses) => self.set_addresses(addresses, rings)?,
            Request::SetVringBase(state) => {
                let index = self.index(state.index)?;
                self.vrings[index].position = u16::try_from(state.num & 0xffff).unwrap_or(0);
            }
            Request::SetVringEnable(state) => self.set_enabled(state, rings)?,
            Request::SetVringKick(index, fd) => self.set_kick(index, fd, rings)?,
            Request::SetVringCall(index, fd) => self.set_call(index, fd, rings)?,
            Request::SetVringErr(index) => drop(self.index(index)?),
            Request::NetSetMtu(mtu) => self.check_mtu(mtu)?,
        }
        Ok(None)
    }

    /// QEMU tells the guest its own `host_mtu`, and starts no interface whose MTU is refused here.
    fn check_mtu(&self, mtu: u64) -> Result<(), Refusal> {
        let most = self.offer.mtu;
        match mtu {
            68..=65_535 if mtu > u64::from(most) => Err(Refusal::LongMtu { mtu, most }),
            68..=65_535 => Ok(()),
            _ => Err(Refusal::Mtu(mtu)),
        }
    }

    fn table(&self, places: Vec<(RegionPlace, GuestFile)>) -> Result<GuestMemory, Refusal> {
        let map = |(place, file)| MappedRegion::bounded(place, file, self.account.as_ref()).map(Arc::new);
        let regions = places.into_iter().map(map).collect::<Result<_, _>>()?;
        Ok(GuestMemory::new(regions)?)
    }

    fn index(&self, index: u32) -> Result<usize, Refusal> {
        let count = self.vrings.len();
        let known = usize::try_from(index).ok().filter(|known| *known < count);
        known.ok_or(Refusal::NoSuchRing { index, count })
    }

    fn set_features(&mut self, features: u64, rings: &mut dyn Rings) -> Result<(), Refusal> {
        let unknown = features & !self.offer.features();
        if unknown != 0 {
            return Err(Refusal::Features(unknown));
        }
        self.stop_all(rings)?;
        self.features = Some(features);
        self.start_all(rings)
    }

    fn set_protocol_features(&mut self, bits: u64) -> Result<(), Refusal> {
        let unknown = bits & !self.offer.known_protocol_features().bits();
        if unknown != 0 {
            return Err(Refusal::Features(unknown));
        }
        self.protocol_features = VhostUserProtocolFeatures::from_bits_truncate(bits);
        Ok(())
    }

    /// Stops everything and forgets it; memory and protocol features stay, as the specification has it for RESET_DEVICE.
    fn reset(&mut self, rings: &mut dyn Rings) -> Result<(), Refusal> {
        self.stop_all(rings)?;
        self.features = None;
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
        Ok(())
    }

    /// A whole new table. The old one goes first: what both cost together may be more than the port has. A new one that is refused ends the
    /// connection, so nothing is lost with the old one.
    fn replace_memory(
        &mut self,
        places: Vec<(RegionPlace, GuestFile)>,
        rings: &mut dyn Rings,
    ) -> Result<(), Refusal> {
        self.set_memory(GuestMemory::default(), rings)?;
        self.set_memory(self.table(places)?, rings)
    }

    fn set_memory(&mut self, memory: GuestMemory, rings: &mut dyn Rings) -> Result<(), Refusal> {
        self.stop_all(rings)?;
        self.memory = Arc::new(memory);
        // A ring that is outside now waits for its new addresses.
        self.start_all(rings)
    }

    fn set_size(&mut self, state: VhostUserVringState, rings: &mut dyn Rings) -> Result<(), Refusal> {
        let (index, size) = (self.index(state.index)?, state.num);
        let known = u16::try_from(size).ok().filter(|size| size.is_power_of_two());
        let known = known.ok_or(Refusal::RingSize(size))?;
        self.stop(index, rings)?;
        self.vrings[index].size = Some(known);
        self.start_or_refuse(index, rings)
    }

    fn set_addresses(&mut self, new: VhostUserVringAddr, rings: &mut dyn Rings) -> Result<(), Refusal> {
        let index = self.index(new.index)?;
        self.stop(index, rings)?;
        self.vrings[index].addresses = Some((new.descriptor, new.available, new.used));
        self.start_or_refuse(index, rings)
    }

    fn set_kick(&mut self, index: u32, fd: Option<GuestFile>, rings: &mut dyn Rings) -> Result<(), Refusal> {
        let index = self.index(index)?;
        let fd = fd.ok_or(Refusal::NoKick(index))?;
        let kick = GuestEvent::new(fd).map_err(|_| Refusal::NoEventFd(12))?;
        self.stop(index, rings)?;
        self.vrings[index].kick = Some(Arc::new(kick));
        self.start_or_refuse(index, rings)
    }

    fn set_call(&mut self, index: u32, fd: Option<GuestFile>, rings: &mut dyn Rings) -> Result<(), Refusal> {
        let index = self.index(index)?;
        let call = fd.map(GuestEvent::new).transpose().map_err(|_| Refusal::NoEventFd(13))?.map(Arc::new);
        // The eventfd of before goes when the poll thread has let go of it: whoever lets go last has it closed, and that is not its work.
        let before = std::mem::replace(&mut self.vrings[index].call, call.clone());
        let told = if self.vrings[index].running { rings.set_call(index, call) } else { Ok(()) };
        drop(before);
        told
    }

    fn set_enabled(&mut self, state: VhostUserVringState, rings: &mut dyn Rings) -> Result<(), Refusal> {
        let (index, enabled) = (self.index(state.index)?, state.num);
        if enabled > 1 {
            return Err(Refusal::Payload(18));
        }
        self.vrings[index].enabled = enabled == 1;
        if self.vrings[index].running { rings.enable(index, self.is_enabled(index)) } else { Ok(()) }
    }

    /// GET_VRING_BASE stops the ring, which needs a new kick before it runs again.
    fn get_base(&mut self, state: VhostUserVringState, rings: &mut dyn Rings) -> Result<Reply, Refusal> {
        let index = self.index(state.index)?;
        self.stop(index, rings)?;
        self.vrings[index].kick = None;
        Ok(Reply::Ring(state.index, u32::from(self.vrings[index].position)))
    }

    fn is_enabled(&self, index: usize) -> bool {
        self.vrings[index].enabled || !enables_rings(self.features())
    }

    /// Stops ring `index` if it runs.
    fn stop(&mut self, index: usize, rings: &mut dyn Rings) -> Result<(), Refusal> {
        if std::mem::take(&mut self.vrings[index].running) {
            self.vrings[index].position = rings.stop(index)?;
        }
        Ok(())
    }

    /// Stops every ring. The connection ends, or something changes that concerns all.
    ///
    /// # Errors
    /// [`Refusal::NoAnswer`].
    pub(crate) fn stop_all(&mut self, rings: &mut dyn Rings) -> Result<(), Refusal> {
        (0..self.vrings.len()).try_for_each(|index| self.stop(index, rings))
    }

    /// Starts ring `index` if it is complete and lies in memory; true unless it lies elsewhere.
    fn start(&mut self, index: usize, rings: &mut dyn Rings) -> Result<bool, Refusal> {
        let Some(features) = self.features else { return Ok(true) };
        let vring = &self.vrings[index];
        let Some(kick) = vring.kick.clone().filter(|_| vring.is_complete() && self.has_memory()) else {
            return Ok(true);
        };
        let Some(ring) = vring.ring(&self.memory, ring_features(features)) else { return Ok(false) };
        if self.memory.cost_too_much() {
            return Err(RingFault::TooMuchMemory.into());
        }
        if self.memory.lost_pages() {
            return Ok(false);
        }
        // Before it is answered: a ring whose answer does not come in time may run all the same, and is to be stopped.
        self.vrings[index].running = true;
        rings.start(index, ring, kick, self.is_enabled(index))?;
        Ok(true)
    }

    fn start_or_refuse(&mut self, index: usize, rings: &mut dyn Rings) -> Result<(), Refusal> {
        if self.start(index, rings)? { Ok(()) } else { Err(Refusal::RingPlace(index)) }
    }

    fn start_all(&mut self, rings: &mut dyn Rings) -> Result<(), Refusal> {
        (0..self.vrings.len()).try_for_each(|index| self.start(index, rings).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Cloud Hypervisor takes of the virtio features: VERSION_1, PROTOCOL_FEATURES, MQ, CTRL_VQ and MRG_RXBUF.
    const TAKEN: u64 = 1 << 32 | 1 << 30 | 1 << 22 | 1 << 17 | 1 << 15;
    /// The same of the protocol's: MQ, REPLY_ACK and CONFIGURE_MEM_SLOTS.
    const TAKEN_OF_PROTOCOL: u64 = 1 | 1 << 3 | 1 << 15;

    /// Nothing is put to work here.
    struct NoRings;

    impl Rings for NoRings {
        fn start(&mut self, _: usize, _: SplitRing, _: Arc<GuestEvent>, _: bool) -> Result<(), Refusal> {
            Ok(())
        }

        fn stop(&mut self, _: usize) -> Result<u16, Refusal> {
            Ok(0)
        }

        fn enable(&mut self, _: usize, _: bool) -> Result<(), Refusal> {
            Ok(())
        }

        fn set_call(&mut self, _: usize, _: Option<Arc<GuestEvent>>) -> Result<(), Refusal> {
            Ok(())
        }
    }

    fn session(queues: u16) -> Session {
        Session::new(Offer { queues, mtu: 1500 }, None)
    }

    fn say(session: &mut Session, message: u32, payload: &[u8]) -> Option<Reply> {
        let header = Header { message, need_reply: false, payload: payload.len() };
        session.handle(header, payload, Vec::new(), &mut NoRings).unwrap()
    }

    fn ask(session: &mut Session, message: u32) -> u64 {
        match say(session, message, &[]) {
            Some(Reply::Number(number)) => number,
            other => panic!("{other:?}"),
        }
    }

    /// As Cloud Hypervisor begins: answers the rings that it takes the port to have.
    fn rings_for_cloud_hypervisor(queues: u16) -> u64 {
        let mut session = session(queues);
        let features = ask(&mut session, 1) & TAKEN;
        let of_protocol = ask(&mut session, 15) & TAKEN_OF_PROTOCOL;
        say(&mut session, 16, &of_protocol.to_ne_bytes());
        let rings = if of_protocol & 1 == 0 { 2 } else { ask(&mut session, 17) };
        say(&mut session, 2, &features.to_ne_bytes());
        // It has the queue for commands for itself: no ring of ours is meant by it.
        for ring in 0..u32::try_from(rings).unwrap() {
            say(&mut session, 18, &[ring.to_ne_bytes(), 1_u32.to_ne_bytes()].concat());
        }
        rings
    }

    #[test]
    fn cloud_hypervisor_finds_two_rings_of_one_pair_and_of_several_as_many_rings_as_pairs() {
        for (queues, rings) in [(1, 2), (2, 2), (4, 4), (8, 8)] {
            assert_eq!(rings_for_cloud_hypervisor(queues), rings, "{queues}");
        }
    }

    #[test]
    fn a_frontend_that_comes_back_with_what_an_earlier_release_offered_for_one_pair_is_not_refused() {
        let mut session = session(1);
        say(&mut session, 16, &1_u64.to_ne_bytes());
        assert_eq!(ask(&mut session, 17), 1);
    }
}
