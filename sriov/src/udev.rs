//! What udev on the host is to do first with an interface that a driver has just made: it gives it the name by which the host's
//! configuration knows it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long udev may take for an interface: while a node boots, hundreds of devices are before it.
const LIMIT: Duration = Duration::from_secs(20);
/// So much less patience has one who has waited in vain, as for a udev that hangs.
const LESS: u32 = 20;
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// What udev's record of a device has while udev is at work on it (`device_is_renaming`, `device_is_processed` in systemd's source).
const UNDER_WAY: [&str; 2] = ["E:ID_RENAMING=", "E:ID_PROCESSING="];

/// The host's udev, if one runs there.
#[derive(Debug, Clone)]
pub(crate) struct Udev {
    dir: PathBuf,
    limit: Duration,
    /// Whether the last interface was waited for in vain.
    in_vain: Arc<AtomicBool>,
}

impl Udev {
    /// The udev that has this directory, `/run/udev` on the host.
    pub(crate) fn new(dir: PathBuf) -> Udev {
        Udev { dir, limit: LIMIT, in_vain: Arc::default() }
    }

    /// Waits until udev is done with an interface of the host's namespace, for 20 s at most, and 1 s after one that was waited for in
    /// vain. Where none runs nobody is waited for.
    pub(crate) fn wait_until_done(&self, index: u32) {
        let less = if self.in_vain.load(Ordering::Relaxed) { LESS } else { 1 };
        let until = Instant::now() + self.limit / less;
        while self.is_running() && !self.is_done(index) {
            if Instant::now() >= until {
                self.in_vain.store(true, Ordering::Relaxed);
                tracing::warn!(
                    index,
                    "udev is not done with an interface; the name that it has now is taken for its own"
                );
                return;
            }
            sleep(LOOK);
        }
        self.in_vain.store(false, Ordering::Relaxed);
    }

    fn is_running(&self) -> bool {
        self.dir.join("control").exists()
    }

    /// udev's database has a file for each device that it has looked at, named by the index where that is an interface
    /// (`sd_device_get_is_initialized(3)`). It is written before a renaming too, and before udev's work from systemd 258 on; a property
    /// says so until that is over.
    fn is_done(&self, index: u32) -> bool {
        let goes_on = |line: &str| UNDER_WAY.iter().any(|property| line.starts_with(property));
        match fs::read_to_string(self.dir.join("data").join(format!("n{index}"))) {
            Ok(record) => !record.lines().any(goes_on),
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_waited_for_while_udev_runs_and_is_not_done_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let waited = |limit| {
            let before = Instant::now();
            Udev { limit, ..Udev::new(dir.path().to_owned()) }.wait_until_done(7);
            before.elapsed()
        };
        let (short, long) = (Duration::from_millis(30), Duration::from_secs(3600));
        waited(long); // nobody runs
        fs::write(dir.path().join("control"), "").unwrap();
        assert!(waited(short) >= short);
        fs::create_dir(dir.path().join("data")).unwrap();
        fs::write(dir.path().join("data/n70"), "").unwrap();
        assert!(waited(short) >= short, "another one's");
        for under_way in ["I:77\nE:ID_RENAMING=1\nG:systemd\n", "E:ID_PROCESSING=1\n"] {
            fs::write(dir.path().join("data/n7"), under_way).unwrap();
            assert!(waited(short) >= short, "{under_way}");
        }
        fs::write(dir.path().join("data/n7"), "I:77\nE:ID_NET_NAME=enp1s0v0\n").unwrap();
        waited(long);
    }

    #[test]
    fn a_udev_that_hangs_is_waited_for_long_only_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        fs::write(dir.path().join("control"), "").unwrap();
        let limit = Duration::from_secs(2);
        let udev = Udev { limit, ..Udev::new(dir.path().to_owned()) };
        let waited = |index| {
            let before = Instant::now();
            udev.clone().wait_until_done(index);
            before.elapsed()
        };
        assert!(waited(7) >= limit);
        assert!(waited(8) < limit, "the second one");
        fs::write(dir.path().join("data/n7"), "").unwrap();
        waited(7);
        assert!(waited(8) >= limit, "udev works again");
    }
}
