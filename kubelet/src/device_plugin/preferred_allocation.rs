//! Which devices kubelet is advised to allocate to a container: all of one NUMA node, there those that are ready before the others, and
//! of these packed on few PFs or spread over many. Pure. Kubelet decides; this is advice.

use std::collections::BTreeMap;

use super::{AllocationPolicy, Device};

/// Chooses `size` of the available devices, or fewer where there are not as many. Those of `must` are always chosen. An
/// available device that is not known counts as one without a NUMA node. `is_ready`: whether one can be allocated at once; the pod of
/// another one waits in kubelet's admission, and may be refused there for good.
pub(super) fn preferred(
    known: &[Device],
    available: &[String],
    must: &[String],
    size: usize,
    policy: AllocationPolicy,
    is_ready: impl Fn(&str) -> bool,
) -> Vec<String> {
    let candidate = |id: &String| {
        let device = known.iter().find(|device| device.id == *id);
        Candidate {
            id: id.clone(),
            node: device.and_then(|d| d.numa_node),
            pf: device.map(|d| d.pf.clone()).unwrap_or_default(),
            is_ready: is_ready(id),
        }
    };
    let mut chosen: Vec<Candidate> = Vec::new();
    for id in must {
        if !chosen.iter().any(|c| c.id == *id) {
            chosen.push(candidate(id));
        }
    }
    let mut free: Vec<Candidate> = available.iter().filter(|id| !must.contains(id)).map(candidate).collect();
    free.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    free.dedup_by(|a, b| a.id == b.id);
    while chosen.len() < size && !free.is_empty() {
        let node = next_node(&chosen, &free, size - chosen.len());
        // One node is used up before the next one is begun.
        while chosen.len() < size
            && let Some(at) = next_of(&chosen, &free, node, size - chosen.len(), policy)
        {
            chosen.push(free.remove(at));
        }
    }
    chosen.into_iter().map(|c| c.id).collect()
}

#[derive(Debug)]
struct Candidate {
    id: String,
    node: Option<u32>,
    pf: String,
    is_ready: bool,
}

/// Counts the candidates by a property of theirs.
fn counted<'c, K: Ord>(
    candidates: impl IntoIterator<Item = &'c Candidate>,
    key: impl Fn(&Candidate) -> K,
) -> BTreeMap<K, usize> {
    let mut counts = BTreeMap::new();
    for candidate in candidates {
        *counts.entry(key(candidate)).or_insert(0) += 1;
    }
    counts
}

/// The NUMA node to take from next: the one that most of the chosen devices are on; else the one that has enough, of ready ones if
/// possible, and the least left over; else the one that has most.
fn next_node(chosen: &[Candidate], free: &[Candidate], wanted: usize) -> Option<u32> {
    let begun = counted(chosen, |c| c.node);
    let ready = counted(free.iter().filter(|c| c.is_ready), |c| c.node);
    let mut nodes: Vec<(Option<u32>, usize)> = counted(free, |c| c.node).into_iter().collect();
    nodes.sort_by_key(|(node, left)| {
        let begun = begun.get(node).copied().unwrap_or(0);
        let (fits, ready) = (*left >= wanted, ready.get(node).copied().unwrap_or(0));
        let left_over = if fits { *left } else { usize::MAX - *left };
        (usize::MAX - begun, !fits, ready < wanted, left_over, node.is_none())
    });
    nodes.first().and_then(|(node, _)| *node)
}

/// The index of the free device of a node that is taken next: a ready one while there is any. The free ones are sorted by address.
fn next_of(
    chosen: &[Candidate],
    free: &[Candidate],
    node: Option<u32>,
    wanted: usize,
    policy: AllocationPolicy,
) -> Option<usize> {
    let begun = counted(chosen, |c| c.pf.clone());
    let has_ready = free.iter().any(|c| c.node == node && c.is_ready);
    let is_in_turn = |c: &Candidate| c.node == node && c.is_ready == has_ready;
    // A PF is packed by those in turn alone: what it has besides would have to be waited for.
    let left = counted(free.iter().filter(|c| is_in_turn(c)), |c| c.pf.clone());
    let in_turn = free.iter().enumerate().filter(|(_, c)| is_in_turn(c));
    let best = in_turn.min_by_key(|(_, candidate)| {
        let begun = begun.get(&candidate.pf).copied().unwrap_or(0);
        let left = left.get(&candidate.pf).copied().unwrap_or(0);
        match policy {
            AllocationPolicy::Spread => (begun, false, usize::MAX - left),
            AllocationPolicy::Packed => {
                let fits = left >= wanted;
                (usize::MAX - begun, !fits, if fits { left } else { usize::MAX - left })
            }
        }
    });
    best.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Health;
    use super::*;

    /// Devices out of words like `pf-index@node`, or `pf-index!@node` of one that is not ready.
    fn devices(list: &str) -> Vec<Device> {
        let device = |text: &str| {
            let (id, node) = text.split_once('@').unwrap();
            Device {
                id: id.to_owned(),
                numa_node: node.parse().ok(),
                health: Health::Healthy,
                pf: id.split('-').next().unwrap().to_owned(),
            }
        };
        list.split_whitespace().map(device).collect()
    }

    fn is_ready(id: &str) -> bool {
        !id.ends_with('!')
    }

    fn choose(list: &str, must: &[&str], size: usize, policy: AllocationPolicy) -> Vec<String> {
        let known = devices(list);
        let available: Vec<String> = known.iter().map(|d| d.id.clone()).collect();
        let must: Vec<String> = must.iter().map(|id| (*id).to_owned()).collect();
        preferred(&known, &available, &must, size, policy, is_ready)
    }

    const TWO_NODES: &str = "a-0@0 a-1@0 b-0@0 b-1@0 b-2@0 c-0@1 c-1@1 c-2@1";

    #[test]
    fn all_are_of_one_node_and_the_one_that_fits_best() {
        assert_eq!(choose(TWO_NODES, &[], 3, AllocationPolicy::Packed), ["c-0", "c-1", "c-2"]);
        assert_eq!(choose(TWO_NODES, &[], 3, AllocationPolicy::Spread), ["c-0", "c-1", "c-2"]);
        assert_eq!(choose(TWO_NODES, &[], 4, AllocationPolicy::Packed), ["b-0", "b-1", "b-2", "a-0"]);
    }

    #[test]
    fn packed_takes_the_pf_with_the_least_left_over_and_spread_takes_turns() {
        let list = "a-0@0 a-1@0 b-0@0 b-1@0 b-2@0";
        assert_eq!(choose(list, &[], 2, AllocationPolicy::Packed), ["a-0", "a-1"]);
        assert_eq!(choose(list, &[], 3, AllocationPolicy::Packed), ["b-0", "b-1", "b-2"]);
        assert_eq!(choose(list, &[], 2, AllocationPolicy::Spread), ["b-0", "a-0"]);
        assert_eq!(choose(list, &[], 4, AllocationPolicy::Spread), ["b-0", "a-0", "b-1", "a-1"]);
    }

    #[test]
    fn those_that_must_be_included_are_and_the_others_are_of_their_node() {
        assert_eq!(choose(TWO_NODES, &["a-1"], 2, AllocationPolicy::Packed), ["a-1", "a-0"]);
        assert_eq!(choose(TWO_NODES, &["a-1"], 2, AllocationPolicy::Spread), ["a-1", "b-0"]);
        assert_eq!(choose(TWO_NODES, &["c-2"], 3, AllocationPolicy::Packed), ["c-2", "c-0", "c-1"]);
    }

    #[test]
    fn of_a_node_those_that_are_ready_come_first_and_the_others_only_when_there_is_no_more() {
        for policy in [AllocationPolicy::Packed, AllocationPolicy::Spread] {
            assert_eq!(choose("a-0!@0 a-1@0", &[], 1, policy), ["a-1"]);
            assert_eq!(choose("a-0!@0 a-1!@0", &[], 1, policy), ["a-0!"]);
            assert_eq!(choose("a-0!@0 a-1@0 b-0@0", &[], 3, policy), ["a-1", "b-0", "a-0!"]);
            assert_eq!(choose("a-0!@0 b-0@1 b-1@1", &[], 1, policy), ["b-0"], "both nodes have enough");
            // What kubelet includes, and its node, come before that.
            assert_eq!(choose("a-0!@0 a-1@0", &["a-0!"], 1, policy), ["a-0!"]);
            assert_eq!(choose("a-0@0 a-1!@0 b-0@1", &["a-0"], 2, policy), ["a-0", "a-1!"]);
        }
        let list = "a-0@0 a-1!@0 b-0@0 b-1@0 b-2@0";
        assert_eq!(choose(list, &[], 2, AllocationPolicy::Packed), ["b-0", "b-1"]);
    }

    #[test]
    fn where_no_node_has_enough_few_nodes_are_used() {
        let list = "a-0@0 b-0@1 b-1@1 c-0@2 d-0@-";
        assert_eq!(choose(list, &[], 3, AllocationPolicy::Packed)[..2], ["b-0", "b-1"]);
        assert_eq!(choose(list, &[], 9, AllocationPolicy::Packed).len(), 5, "no more than there are");
        assert_eq!(
            choose("d-0@- a-0@0", &[], 1, AllocationPolicy::Packed),
            ["a-0"],
            "one without a node is last"
        );
    }

    proptest! {
        #[test]
        fn what_is_preferred_is_available_has_the_size_and_includes_what_it_must(
            nodes in prop::collection::vec((0u32..3, 0u32..3, prop_oneof![Just(""), Just("!")]), 1..24),
            must in 0usize..4,
            size in 0usize..26,
            policy in prop_oneof![Just(AllocationPolicy::Packed), Just(AllocationPolicy::Spread)],
        ) {
            let list: Vec<String> =
                nodes.iter().enumerate().map(|(n, (pf, on, mark))| format!("p{pf}-{n}{mark}@{on}")).collect();
            let known = devices(&list.join(" "));
            let available: Vec<String> = known.iter().map(|d| d.id.clone()).collect();
            let must: Vec<String> = available.iter().take(must).cloned().collect();
            let chosen = preferred(&known, &available, &must, size, policy, is_ready);
            prop_assert!(must.iter().all(|id| chosen.contains(id)));
            prop_assert!(chosen.iter().all(|id| available.contains(id)));
            prop_assert_eq!(chosen.len(), size.min(available.len()).max(must.len()));
            let mut once = chosen.clone();
            once.sort();
            once.dedup();
            prop_assert_eq!(once.len(), chosen.len());
            // All are of one node where one node has enough.
            let of = |id: &String| known.iter().find(|d| d.id == *id).unwrap().numa_node;
            let most = (0..3).map(|n| known.iter().filter(|d| d.numa_node == Some(n)).count()).max().unwrap();
            if must.is_empty() && size > 0 && size <= most {
                prop_assert!(chosen.iter().all(|id| of(id) == of(&chosen[0])));
            }
            // None that is not ready is chosen while a ready one of its node is left.
            let unready = chosen[must.len()..].iter().filter(|id| !is_ready(id));
            let is_left = |id: &&String| is_ready(id) && !chosen.contains(*id);
            let left: Vec<&String> = available.iter().filter(is_left).collect();
            for id in unready {
                prop_assert!(!left.iter().any(|ready| of(ready) == of(id)), "{id}, and {left:?} are left");
            }
        }
    }
}
