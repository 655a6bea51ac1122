//! Where poll threads run: one for each NUMA node, on processors of that node.
//!
//! To be read before the process is confined, which opens no file afterwards. [`plan`] is pure.

use std::path::Path;

use fairlead_host::topology::{CpuList, Topology, TopologyError, isolated};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Where one poll thread runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PollPlace {
    /// The NUMA node of its processors; absent: it is bound to none.
    pub numa_node: Option<u32>,
    /// Its processors; empty: any.
    pub cpus: Vec<usize>,
}

/// Why it is not known where poll threads can run.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// The NUMA nodes can't be read.
    #[error("the machine's NUMA nodes can't be read")]
    Topology(#[from] TopologyError),
    /// The kernel does not tell which processors the process may use.
    #[error("the processors that the process may use are not known")]
    Allowed(#[source] nix::Error),
}

/// The places of poll threads on this machine, whose sysfs is mounted at `sysfs`.
///
/// Each of `named` is a list of processors, and gets one thread for each NUMA node that it has processors of. Where nothing is named, each
/// node has one thread, on those of its processors that the process may use and that are not isolated; a machine with one node has one
/// thread. A processor that is named and is not there is left out, unless there is no other in its list.
///
/// # Errors
/// [`PlacesError`].
pub fn poll_places(sysfs: &Path, named: &[CpuList]) -> Result<Vec<PollPlace>, PlacesError> {
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(PlacesError::Allowed)?;
    let allowed = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    let allowed: CpuList = allowed.filter_map(|cpu| u32::try_from(cpu).ok()).collect();
    Ok(plan(&Topology::read(sysfs)?, &allowed, &isolated(sysfs)?, named))
}

fn plan(topology: &Topology, allowed: &CpuList, isolated: &CpuList, named: &[CpuList]) -> Vec<PollPlace> {
    if !named.is_empty() {
        return named.iter().flat_map(|cpus| by_node(topology, cpus)).collect();
    }
    // Where all are isolated somebody has given them to this process.
    let shared = allowed.without(isolated);
    by_node(topology, if shared.is_empty() { allowed } else { &shared })
}

/// One place for each node that `cpus` has processors of; one for all of them where none is of a node.
fn by_node(topology: &Topology, cpus: &CpuList) -> Vec<PollPlace> {
    let mut places: Vec<PollPlace> = Vec::new();
    let has_node = cpus.iter().any(|cpu| topology.node_of_cpu(cpu).is_some());
    for cpu in cpus.iter() {
        let numa_node = topology.node_of_cpu(cpu);
        if has_node && numa_node.is_none() {
            continue;
        }
        let at = places.iter().position(|place| place.numa_node == numa_node);
        let at = at.unwrap_or_else(|| {
            places.push(PollPlace { numa_node, cpus: Vec::new() });
            places.len() - 1
        });
        places[at].cpus.extend(usize::try_from(cpu));
    }
    places.sort_by_key(|place| place.numa_node);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    /// Two nodes with the processors 0 to 3 and 4 to 7, and one that is memory alone.
    fn two_nodes() -> Topology {
        let sysfs = tempfile::tempdir().unwrap();
        let nodes = sysfs.path().join("devices/system/node");
        for (node, cpus) in ["0-3", "4-7", ""].iter().enumerate() {
            let dir = nodes.join(format!("node{node}"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cpulist"), cpus).unwrap();
            std::fs::write(dir.join("distance"), "10 21 30").unwrap();
        }
        std::fs::write(nodes.join("online"), "0-2").unwrap();
        Topology::read(sysfs.path()).unwrap()
    }

    fn places(
        topology: &Topology,
        allowed: &str,
        isolated: &str,
        named: &[&str],
    ) -> Vec<(Option<u32>, String)> {
        let named: Vec<CpuList> = named.iter().map(|named| list(named)).collect();
        let planned = plan(topology, &list(allowed), &list(isolated), &named);
        let shown = |place: PollPlace| {
            let cpus: CpuList = place.cpus.iter().map(|cpu| u32::try_from(*cpu).unwrap()).collect();
            (place.numa_node, cpus.to_string())
        };
        planned.into_iter().map(shown).collect()
    }

    #[test]
    fn each_node_has_a_thread_on_what_is_allowed_and_not_isolated() {
        let two = two_nodes();
        let all = places(&two, "0-7", "", &[]);
        assert_eq!(all, [(Some(0), "0-3".into()), (Some(1), "4-7".into())]);
        let some = places(&two, "0-6", "0-1,4", &[]);
        assert_eq!(some, [(Some(0), "2-3".into()), (Some(1), "5-6".into())]);
        assert_eq!(places(&two, "0-7", "4-7", &[]), [(Some(0), "0-3".into())], "a node that is all isolated");
        assert_eq!(
            places(&two, "6", "4-7", &[]),
            [(Some(1), "6".into())],
            "what is isolated was given to it"
        );
    }

    #[test]
    fn a_machine_without_nodes_has_one_thread() {
        assert_eq!(places(&Topology::default(), "0-3", "3", &[]), [(None, "0-2".into())]);
        assert_eq!(places(&Topology::default(), "0-3", "", &["1,3"]), [(None, "1,3".into())]);
    }

    #[test]
    fn each_list_that_is_named_has_a_thread_for_each_of_its_nodes_isolated_or_not() {
        let two = two_nodes();
        assert_eq!(places(&two, "0-7", "2", &["2,5"]), [(Some(0), "2".into()), (Some(1), "5".into())]);
        let several = places(&two, "0-7", "", &["1", "2-3", "1"]);
        assert_eq!(
            places(&two, "0-7", "", &["3,99"]),
            [(Some(0), "3".into())],
            "what is not there is left out"
        );
        assert_eq!(
            places(&two, "0-7", "", &["99"]),
            [(None, "99".into())],
            "and is an error where it is all"
        );
        assert_eq!(several, [(Some(0), "1".into()), (Some(0), "2-3".into()), (Some(0), "1".into())]);
    }

    #[test]
    fn this_machine_has_a_place_for_each_of_its_nodes() {
        let here = poll_places(Path::new("/sys"), &[]).unwrap();
        assert!(!here.is_empty() && here.iter().all(|place| !place.cpus.is_empty()), "{here:?}");
        let bare = tempfile::tempdir().unwrap();
        let without_sysfs = poll_places(bare.path(), &[]).unwrap();
        assert_eq!(without_sysfs.len(), 1, "a kernel without NUMA");
    }
}
