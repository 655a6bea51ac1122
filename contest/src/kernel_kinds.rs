//! Which kinds of links the running kernel can make, found out by trying. Rows that need others are named in the
//! report, never skipped silently.

use std::fmt;

use crate::node_commands::{self, NodeError};
use crate::test_node::TestNode;

/// A kind of link that a row needs and that not every kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Links of the kind `ipvlan`.
    Ipvlan,
    /// Links of the kind `vlan`.
    Vlan,
    /// Links of the kind `dummy`.
    Dummy,
}

impl Kind {
    /// All kinds that are tried.
    pub const ALL: [Kind; 3] = [Kind::Ipvlan, Kind::Vlan, Kind::Dummy];

    fn creation(self) -> &'static str {
        match self {
            Kind::Ipvlan => "link add link eth1 name probe0 type ipvlan",
            Kind::Vlan => "link add link eth1 name probe0 type vlan id 7",
            Kind::Dummy => "link add name probe0 type dummy",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Ipvlan => "ipvlan",
            Kind::Vlan => "vlan",
            Kind::Dummy => "dummy",
        })
    }
}

/// The kinds that this kernel can make. Each is tried on a test node of its own, so call it on a thread made for
/// it.
pub fn probe() -> Result<Vec<Kind>, NodeError> {
    let node = TestNode::create()?;
    let made = Kind::ALL.into_iter().filter(|kind| makes(*kind)).collect();
    drop(node);
    Ok(made)
}

fn makes(kind: Kind) -> bool {
    let made = node_commands::ip(kind.creation()).is_ok();
    if made {
        // The next kind is tried under the same name.
        node_commands::ip("link del probe0").ok();
    }
    made
}
