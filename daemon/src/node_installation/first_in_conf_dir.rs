//! Whether our configuration is the one that the runtime takes, and other programs that keep taking it away or changing it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fairlead_host::files::read_optional;

use super::{CONFLIST, NodeInstallationError, own_plugin};
use crate::conf_dir;
use crate::plugin_installation::OWN_NAME;

/// The endings of files that a runtime reads.
const READ: [&str; 3] = ["conflist", "conf", "json"];
/// After each time it was taken away or changed, our configuration is written again so much later than the time before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Left in peace for so long, the next time counts as the first.
const PEACE: Duration = Duration::from_secs(600);

/// The file that a runtime takes; `None`: there is none, or the conf dir cannot be read.
pub(super) fn first_file(conf_dir: &Path) -> Option<PathBuf> {
    conf_dir::files(conf_dir, &READ).unwrap_or_default().into_iter().next()
}

/// The runtime takes no other file than ours.
///
/// # Errors
/// When another file comes first, or somebody else's has the name of ours.
pub(super) fn must_be_first(conf_dir: &Path) -> Result<(), NodeInstallationError> {
    match first_file(conf_dir) {
        Some(first) if first.file_name() != Some(CONFLIST.as_ref()) => {
            Err(NodeInstallationError::NotFirst { first })
        }
        Some(file) if is_foreign(&file) => Err(NodeInstallationError::Foreign { file }),
        _ => Ok(()),
    }
}

/// Whether somebody else has made the file of our name. Of one that cannot be read nobody says so.
fn is_foreign(file: &Path) -> bool {
    let text = read_optional(file).ok().flatten();
    text.is_some_and(|text| own_plugin(&String::from_utf8_lossy(&text)).is_none())
}

/// Our configuration, where the runtime finds the executable that it names in none of these directories: no pod starts then.
pub(crate) fn conflist_without_executable(conf_dir: &Path, plugins: &[PathBuf]) -> Option<PathBuf> {
    let file = conf_dir.join(CONFLIST);
    // The runtime takes any regular file for an executable, and follows a link that may lead where only the host's own root has it.
    let is_executable = |path: PathBuf| path.is_file() || path.is_symlink();
    let is_there = || plugins.iter().any(|directory| is_executable(directory.join(OWN_NAME)));
    (file.is_file() && !is_foreign(&file) && !is_there()).then_some(file)
}

/// Copies of our configuration under a name by which no runtime reads it, as cilium makes them.
pub(crate) fn renamed_copies(conf_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(conf_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_copy = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.len() > CONFLIST.len() && name.starts_with(CONFLIST)
    };
    let mut copies: Vec<PathBuf> = entries.filter(is_copy).collect();
    copies.sort();
    copies
}

/// How often our configuration was taken away or changed, by whomever.
#[derive(Debug, Default)]
pub(super) struct Contest {
    times: u32,
    last: Option<Instant>,
    /// How long it is not written again after the last time.
    pause: Duration,
    /// Before that it is not written again.
    until: Option<Instant>,
}

impl Contest {
    /// It is gone, or another one (`is_there`), and is to be written again now.
    ///
    /// # Errors
    /// When that is to be waited for.
    pub(super) fn contested(&mut self, conf_dir: &Path, is_there: bool) -> Result<(), NodeInstallationError> {
        let now = Instant::now();
        if self.until.is_some_and(|until| until > now) {
            let (file, pause_s) = (conf_dir.join(CONFLIST), self.pause.as_secs());
            let times = self.times.saturating_add(1);
            return Err(match is_there {
                true => NodeInstallationError::Changed { file, times, pause_s },
                false => NodeInstallationError::TakenAway {
                    file,
                    times,
                    pause_s,
                    renamed: renamed_copies(conf_dir)
                        .first()
                        .map_or_else(String::new, |copy| format!(" (it is {} now)", copy.display())),
                },
            });
        }
        if self.last.is_none_or(|last| now.duration_since(last) > PEACE) {
            self.times = 0;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.times.min(16)).min(LONGEST_PAUSE);
        (self.pause, self.until) = (pause, Some(now + pause));
        (self.times, self.last) = (self.times + 1, Some(now));
        Ok(())
    }

    /// How long nothing is to be done; `None`: there is nothing to wait for.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.until.and_then(|until| until.checked_duration_since(Instant::now()))
    }

    /// As if the pause were over, or so long that no test sees its end.
    #[cfg(test)]
    pub(super) fn set_over(&mut self, over: bool) {
        self.until = (!over).then(|| Instant::now() + LONGEST_PAUSE);
    }

    /// The pause after the last time.
    #[cfg(test)]
    pub(super) fn last_pause(&self) -> Duration {
        self.pause
    }
}
