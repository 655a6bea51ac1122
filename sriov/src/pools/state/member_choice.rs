//! Which ready member a draw gives.

use serde::{Deserialize, Serialize};

use super::{Member, MemberState, Pool};
use crate::PciAddr;

/// How draws go over the PFs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// The VFs of one PF are used up before those of the next.
    #[default]
    Packed,
    /// The PF with the fewest lent VFs comes next.
    Spread,
}

impl Pool {
    /// Gives a ready member: of the lowest `rank` (`None`: not that one at all), then by `spread`, then of the lowest address.
    pub fn draw(&mut self, spread: Spread, rank: impl Fn(&Member) -> Option<u32>) -> Option<PciAddr> {
        let lent = |pf: PciAddr| {
            let there = |m: &&Member| m.pf == pf && matches!(m.state, MemberState::Lent { .. });
            self.members().filter(there).count()
        };
        let ready = self.members().filter(|m| m.is_ready()).filter_map(|m| Some((rank(m)?, m)));
        let first = ready.min_by_key(|(rank, member)| {
            let lent = isize::try_from(lent(member.pf)).unwrap_or(isize::MAX);
            let order = if spread == Spread::Packed { -lent } else { lent };
            (*rank, order, member.pf, member.address)
        });
        let address = first.map(|(_, member)| member.address)?;
        self.lend(address).ok().map(|()| address)
    }
}
