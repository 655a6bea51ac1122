//! Which ready member a draw gives.

use super::{Condition, Member, Pool};
use crate::PciAddr;

/// How draws go over the physical functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// One is used up before the next is begun.
    #[default]
    Packed,
    /// The one with the fewest lent comes next.
    Spread,
}

impl Pool {
    /// Gives a ready member: of the lowest `rank` (`None`: not that one at all), then by `spread`, then of the lowest address.
    pub fn draw(&mut self, spread: Spread, rank: impl Fn(&Member) -> Option<u32>) -> Option<PciAddr> {
        let lent = |physical: PciAddr| {
            let there = |m: &&Member| m.physical == physical && m.condition == Condition::Lent;
            self.members().filter(there).count()
        };
        let ready = self.members().filter(|m| m.is_ready()).filter_map(|m| Some((rank(m)?, m)));
        let first = ready.min_by_key(|(rank, member)| {
            let lent = isize::try_from(lent(member.physical)).unwrap_or(isize::MAX);
            let order = if spread == Spread::Packed { -lent } else { lent };
            (*rank, order, member.physical, member.address)
        });
        let address = first.map(|(_, member)| member.address)?;
        self.lend(address).ok().map(|()| address)
    }
}
