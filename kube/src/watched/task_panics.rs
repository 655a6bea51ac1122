//! What becomes of a panic in a task of the cluster's thread.
//!
//! A watch, or a writer, would stand still, and nobody would notice. So the process ends, and whoever supervises it starts it again.

use std::convert::Infallible;

use tokio::task::JoinSet;

/// Waits for one of these tasks to end, and ends the process by SIGABRT. There must be tasks, of which none ends by itself: one that
/// has ended has panicked.
pub(super) async fn end_with_any(tasks: &mut JoinSet<()>) -> Infallible {
    let ended = tasks.join_next().await;
    tracing::error!(
        ?ended,
        "a task of the cluster's thread has panicked; this process ends, to be started again"
    );
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "watched::task_panics::tests::a_process_of_which_one_task_panics";
    const SIGABRT: i32 = 6;

    async fn panics() {
        panic!("as a bug of a watch would");
    }

    #[test]
    #[ignore = "it ends its process: the next test starts one for it"]
    fn a_process_of_which_one_task_panics() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            tasks.spawn(pending::<()>());
            tasks.spawn(panics());
            end_with_any(&mut tasks).await;
        });
    }

    #[test]
    fn a_task_that_panics_ends_the_process() {
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args(["--exact", "--ignored", CHILD]).output().unwrap();
        assert_eq!(ended.status.signal(), Some(SIGABRT), "{ended:?}");
    }
}
