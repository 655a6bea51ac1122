//! Look-ups on threads that may wait, of which only so many are made at once.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

/// The turns of the look-ups of one sort.
#[derive(Debug, Clone)]
pub(super) struct LookUps(Arc<Semaphore>);

impl LookUps {
    /// So many at once.
    pub(super) fn new(at_once: usize) -> LookUps {
        LookUps(Arc::new(Semaphore::new(at_once)))
    }

    /// Looks something up in its turn. One that hangs keeps its turn when its caller has gone, or callers that ask again and again would
    /// take every thread; a caller that goes before its turn has nothing looked up.
    ///
    /// # Errors
    /// The look-up has panicked, or the runtime ends.
    pub(super) async fn look_up<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        // It is never closed.
        let turn = Arc::clone(&self.0).acquire_owned().await;
        let in_turn = move || {
            let found = look();
            drop(turn);
            found
        };
        spawn_blocking(in_turn).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    #[test]
    fn a_look_up_that_hangs_keeps_its_turn_when_its_caller_has_gone_and_nothing_is_looked_up_for_one_that_waited()
     {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let looked = Arc::<AtomicBool>::default();
        let seen = Arc::clone(&looked);
        runtime.block_on(async move {
            let look_ups = LookUps::new(1);
            let (let_go, held) = channel::<()>();
            timeout(SOON, look_ups.look_up(move || held.recv())).await.unwrap_err();
            let late = look_ups.look_up(move || looked.store(true, Ordering::Relaxed));
            timeout(SOON, late).await.unwrap_err();
            drop(let_go);
            assert_eq!(look_ups.look_up(|| 7).await.unwrap(), 7);
        });
        assert!(!seen.load(Ordering::Relaxed));
    }

    #[test]
    fn a_look_up_that_panics_gives_its_turn_back() {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let look_ups = LookUps::new(1);
            assert!(look_ups.look_up::<()>(|| panic!("as a bug would")).await.unwrap_err().is_panic());
            look_ups.look_up(|| ()).await.unwrap();
        });
    }
}
