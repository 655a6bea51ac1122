//! Memory next to a device: what a piece of work touches first, and what the kernel keeps for the sockets that it opens.
//!
//! The policy (set_mempolicy(2)) is that of a thread which ends with the work, so nothing else of the process goes by it, and nothing has
//! to be put back. Invariant: it is a wish. Where the node has no memory left, or the kernel refuses the policy, the memory is elsewhere.

use std::io;
use std::panic::resume_unwind;
use std::thread;

use nix::errno::Errno;

/// The nodes that a mask has room for: as many as Linux can be built for.
const MOST_NODES: usize = 1_024;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// Does `work` with memory of this NUMA node. The calling thread's namespaces are the work's, too.
///
/// # Errors
/// No thread is to be had.
pub(super) fn with_memory_of<T: Send>(node: Option<u32>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let Some(node) = node else { return Ok(work()) };
    let near = move || {
        match prefer(node) {
            // A kernel without NUMA has nothing to choose from.
            Ok(()) | Err(Errno::ENOSYS) => {}
            Err(error) => tracing::warn!(
                node,
                %error,
                "memory is taken wherever it is: its policy is refused (in a container it needs the capability SYS_NICE)"
            ),
        }
        work()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(format!("memory-n{node}")).spawn_scoped(scope, near)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// The kernel takes memory for the calling thread from this node, as long as it has any.
fn prefer(node: u32) -> Result<(), Errno> {
    let node = usize::try_from(node).map_err(|_| Errno::EINVAL)?;
    let mut nodes: [libc::c_ulong; MOST_NODES / WORD_BITS] = [0; _];
    *nodes.get_mut(node / WORD_BITS).ok_or(Errno::EINVAL)? = 1 << (node % WORD_BITS);
    // SAFETY: the kernel reads a bit less than it is told, which is what the mask has, and only during the call.
    let done = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, nodes.as_ptr(), MOST_NODES + 1)
    };
    Errno::result(done).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calling thread's policy, and the first of its nodes.
    fn policy() -> (libc::c_int, libc::c_ulong) {
        let (mut policy, mut nodes): (libc::c_int, [libc::c_ulong; 17]) = (0, [0; 17]);
        // SAFETY: the kernel writes an integer and as many bits as it is told, of memory that outlives the call.
        let done = unsafe {
            let (policy, nodes) = (&raw mut policy, nodes.as_mut_ptr());
            libc::syscall(libc::SYS_get_mempolicy, policy, nodes, MOST_NODES, 0, 0)
        };
        Errno::result(done).unwrap();
        (policy, nodes[0])
    }

    #[test]
    fn the_work_has_the_policy_and_nobody_else_and_a_node_that_is_not_there_changes_nothing() {
        let before = policy();
        assert_eq!(with_memory_of(Some(0), policy).unwrap(), (libc::MPOL_PREFERRED, 1));
        assert_eq!(with_memory_of(None, policy).unwrap(), before);
        for absent in [1_023, 1_024, u32::MAX] {
            assert_eq!(with_memory_of(Some(absent), policy).unwrap(), before, "{absent}");
        }
        assert_eq!(policy(), before);
    }
}
