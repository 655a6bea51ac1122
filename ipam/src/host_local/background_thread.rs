//! The thread for what nobody waits for: files are made ready, and what idle directories hold is given up.
//!
//! Its file work may hang like any other's. Then another thread takes over, a few times at most; after that each file is made
//! when it is needed, which only takes longer. An ADD in its pod's namespace may begin that one: it is at home all the same.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::exec::spawn_at_home;
use parking_lot::Mutex;

use super::tmpfile_pool::TmpfilePool;

/// Between two looks at directories that may be idle.
const LOOK: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
/// After the answer of the call that took a file: who asked for that call has the processor first.
const AFTER_AN_ANSWER: Duration = Duration::from_millis(1);
/// File work that takes longer hangs.
const HANGS: Duration = Duration::from_secs(1);
/// So many threads are left behind in file work that hangs.
const MOST_HANGING: usize = 4;

/// Gives up what idle directories hold; true where a later look may find more.
pub(super) type Tidy = Box<dyn Fn() -> bool + Send + Sync>;

enum Task {
    Fill(Arc<TmpfilePool>),
    /// A directory was opened: it will be idle one day.
    Look,
}

/// Hands work to the thread, which ends with the last clone of this.
#[derive(Clone)]
pub(super) struct Background {
    tasks: Sender<Task>,
    threads: Arc<Threads>,
}

struct Threads {
    receiver: Mutex<Receiver<Task>>,
    tidy: Tidy,
    at_work: Mutex<AtWork>,
}

/// What the newest thread does. Those before it hang, or end when they see that they are not the newest.
#[derive(Default)]
struct AtWork {
    newest: usize,
    since: Option<Instant>,
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

impl Background {
    /// Starts the thread.
    pub(super) fn start(tidy: Tidy) -> io::Result<Background> {
        let (tasks, receiver) = channel();
        let threads = Threads { receiver: Mutex::new(receiver), tidy, at_work: Mutex::default() };
        let threads = Arc::new(threads);
        Threads::spawn(&threads, 0)?;
        Ok(Background { tasks, threads })
    }

    /// Has the pool filled.
    pub(super) fn refill(&self, pool: Arc<TmpfilePool>) {
        self.send(Task::Fill(pool));
    }

    /// To be called when a directory was opened.
    pub(super) fn look_later(&self) {
        self.send(Task::Look);
    }

    fn send(&self, task: Task) {
        // It fails only when the thread has ended; then each file is made when it is needed.
        let _ = self.tasks.send(task);
        let mut at_work = self.threads.at_work.lock();
        let hangs = at_work.since.is_some_and(|since| since.elapsed() >= HANGS);
        if hangs && at_work.newest < MOST_HANGING {
            let next = at_work.newest + 1;
            if Threads::spawn(&self.threads, next).is_ok() {
                *at_work = AtWork { newest: next, since: None };
            }
        }
    }
}

impl Threads {
    fn spawn(threads: &Arc<Threads>, number: usize) -> io::Result<()> {
        let threads = Arc::clone(threads);
        spawn_at_home("ipam-tmpfiles", move || threads.serve(number))
    }

    fn serve(&self, number: usize) {
        let mut look = Some(Instant::now() + LOOK);
        while let Ok(task) = self.next(look) {
            if matches!(task, Some(Task::Fill(_))) {
                thread::sleep(AFTER_AN_ANSWER);
            }
            if !self.note(number, Some(Instant::now())) {
                return;
            }
            match task {
                Some(Task::Fill(pool)) => pool.fill(),
                Some(Task::Look) => {
                    look.get_or_insert_with(|| Instant::now() + LOOK);
                }
                None => {}
            }
            if look.is_some_and(|due| Instant::now() >= due) {
                look = (self.tidy)().then(|| Instant::now() + LOOK);
            }
            if !self.note(number, None) {
                return;
            }
        }
    }

    /// The next task, or `None` when the time of the look has come.
    fn next(&self, look: Option<Instant>) -> Result<Option<Task>, RecvTimeoutError> {
        let wait = look.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
        match self.receiver.lock().recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Ok(None),
            task => task.map(Some),
        }
    }

    /// Notes since when this thread is at work; false when another has taken over.
    fn note(&self, number: usize, since: Option<Instant>) -> bool {
        let mut at_work = self.at_work.lock();
        let newest = at_work.newest == number;
        if newest {
            at_work.since = since;
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread::sleep;

    use fairlead_host::NetKernel;
    use fairlead_host::real::RealKernel;
    use fairlead_host::scratch_netns::ScratchNetns;

    use super::*;

    #[test]
    fn a_thread_that_takes_over_while_an_add_is_in_its_pods_namespace_does_not_keep_that() {
        let here = || fs::read_link("/proc/thread-self/ns/net").unwrap();
        let (tells, told) = channel();
        let (ends, hangs) = channel::<()>();
        let hangs = Mutex::new(hangs);
        let tidy = move || {
            let _ = tells.send(here());
            let _ = hangs.lock().recv();
            false
        };
        let background = Background::start(Box::new(tidy)).unwrap();
        let next = || told.recv_timeout(Duration::from_secs(60)).unwrap();
        let home = next();
        sleep(HANGS);
        let directory = tempfile::tempdir().unwrap();
        let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
        let kernel = RealKernel::new().unwrap();
        let visit = kernel.pod(pod.path()).unwrap();
        assert_ne!(here(), home);
        background.look_later();
        drop(visit);
        assert_eq!(next(), home, "of the thread that has taken over");
        drop(ends);
    }
}
