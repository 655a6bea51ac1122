//! What udev on the host is to do first with an interface that a driver has just made: it gives it the name by which the host's
//! configuration knows it.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long udev may take for an interface: while a node boots, hundreds of devices are before it.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// The host's udev, if one runs there.
#[derive(Debug, Clone)]
pub(crate) struct Udev {
    dir: PathBuf,
    limit: Duration,
}

impl Udev {
    /// The udev that has this directory, `/run/udev` on the host.
    pub(crate) fn new(dir: PathBuf) -> Udev {
        Udev { dir, limit: LIMIT }
    }

    /// Waits until udev is done with an interface of the host's namespace, for 5 s at most. Where none runs nobody is waited for.
    pub(crate) fn wait_until_done(&self, index: u32) {
        let until = Instant::now() + self.limit;
        while self.is_running() && !self.is_done(index) {
            if Instant::now() >= until {
                tracing::warn!(
                    index,
                    "udev is not done with an interface; the name that it has now is taken for its own"
                );
                return;
            }
            sleep(LOOK);
        }
    }

    fn is_running(&self) -> bool {
        self.dir.join("control").exists()
    }

    /// udev's database has a file for each device that it is done with, named by the index where that is an interface
    /// (`sd_device_get_is_initialized(3)`).
    fn is_done(&self, index: u32) -> bool {
        self.dir.join("data").join(format!("n{index}")).exists()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_interface_is_waited_for_while_udev_runs_and_is_not_done_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let waited = |limit| {
            let before = Instant::now();
            Udev { dir: dir.path().to_owned(), limit }.wait_until_done(7);
            before.elapsed()
        };
        let (short, long) = (Duration::from_millis(30), Duration::from_secs(3600));
        waited(long); // nobody runs
        fs::write(dir.path().join("control"), "").unwrap();
        assert!(waited(short) >= short);
        fs::create_dir(dir.path().join("data")).unwrap();
        fs::write(dir.path().join("data/n70"), "").unwrap();
        assert!(waited(short) >= short, "another one's");
        fs::write(dir.path().join("data/n7"), "").unwrap();
        waited(long);
    }
}
