//! The list of all directories that Fairlead has ever allocated in, so that after a reboot it knows where to look.
//!
//! One line a directory, `dataDir<TAB>network`, in `<state-dir>/ipam-dirs`, with a third column for the root below which a tenant's has
//! to lie; appended, and on the disk, before the first allocation in the directory is made. Of two lines about one directory the
//! later counts. A namespace has [`MOST_OF_NAMESPACE`] of them; what is not used any more is taken off, and the file written anew.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use fairlead_host::files;
use parking_lot::Mutex;

use super::dir_path::NetworkDir;

/// So many directories a namespace's definitions may have addresses in on one node: they can name any number.
pub(super) const MOST_OF_NAMESPACE: usize = if cfg!(test) { 4 } else { 1024 };

/// The directories by their place, `dataDir` and network, however far the way there is trusted. A tenant may name very many.
type Known = BTreeMap<(String, String), NetworkDir>;

/// The list, in memory and in its file.
#[derive(Debug)]
pub(super) struct UsedDirs {
    path: PathBuf,
    /// What is in the file and on the disk. Every ADD that opens a directory anew asks for it: held for that alone.
    known: Mutex<Known>,
    /// Held by the one thread that writes to the file, for as long as the disk takes.
    writing: Mutex<()>,
}

impl UsedDirs {
    /// Reads the file; there may be none. A line that is not of its form (a torn write) is passed over.
    pub(super) fn open(path: PathBuf) -> io::Result<UsedDirs> {
        let text = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            text => text?,
        };
        let mut known = Known::new();
        for directory in String::from_utf8_lossy(&text).lines().filter_map(parse_line) {
            note(&mut known, directory);
        }
        Ok(UsedDirs { path, known: Mutex::new(known), writing: Mutex::default() })
    }

    /// All directories of the list.
    pub(super) fn all(&self) -> Vec<NetworkDir> {
        self.known.lock().values().cloned().collect()
    }

    /// The directory of the list that is at the same place as this one.
    pub(super) fn at_place_of(&self, directory: &NetworkDir) -> Option<NetworkDir> {
        self.known.lock().get(&place_of(directory)).cloned()
    }

    /// Adds a directory to the list, on the disk too, unless it is in it. A disk that hangs keeps only those waiting that are not.
    pub(super) fn add(&self, directory: &NetworkDir) -> io::Result<()> {
        if self.has(directory) {
            return Ok(());
        }
        let _writing = self.writing.lock();
        // Another thread may have added it meanwhile.
        if self.has(directory) {
            return Ok(());
        }
        self.write_down(directory)?;
        note(&mut self.known.lock(), directory.clone());
        Ok(())
    }

    /// Whether the directory is on the list, or may be: the directories of one namespace are bounded.
    pub(super) fn has_room_for(&self, directory: &NetworkDir) -> bool {
        let Some(namespace) = directory.namespace() else { return true };
        let known = self.known.lock();
        let of_namespace = || known.values().filter(|other| other.namespace() == Some(namespace)).count();
        known.contains_key(&place_of(directory)) || of_namespace() < MOST_OF_NAMESPACE
    }

    /// The directories of the namespace whose this one is.
    pub(super) fn of_namespace_of(&self, directory: &NetworkDir) -> Vec<NetworkDir> {
        let Some(namespace) = directory.namespace() else { return Vec::new() };
        let known = self.known.lock();
        known.values().filter(|other| other.namespace() == Some(namespace)).cloned().collect()
    }

    /// Takes a directory off the list: in memory at once, in the file with the next [`rewrite`](Self::rewrite). A line too many does no
    /// harm.
    pub(super) fn forget(&self, directory: &NetworkDir) {
        self.known.lock().remove(&place_of(directory));
    }

    /// Writes the file anew, with what is on the list. A crash leaves the old one or the new one.
    pub(super) fn rewrite(&self) -> io::Result<()> {
        let _writing = self.writing.lock();
        let lines: String = self.known.lock().values().map(|directory| line_of(directory) + "\n").collect();
        files::replace(&self.path, lines.as_bytes())
    }

    fn has(&self, directory: &NetworkDir) -> bool {
        self.known.lock().get(&place_of(directory)) == Some(directory)
    }

    fn write_down(&self, directory: &NetworkDir) -> io::Result<()> {
        let new = !self.path.exists();
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        // It begins with a line break of its own, in case the last line was torn.
        file.write_all(format!("\n{}\n", line_of(directory)).as_bytes())?;
        file.sync_data()?;
        // The file's own name must be on the disk too, or a crash loses the whole list.
        self.path.parent().filter(|_| new).map_or(Ok(()), files::sync_dir)
    }
}

fn note(known: &mut Known, directory: NetworkDir) {
    known.insert(place_of(&directory), directory);
}

fn place_of(directory: &NetworkDir) -> (String, String) {
    (directory.data_dir.clone(), directory.network.clone())
}

fn line_of(directory: &NetworkDir) -> String {
    let NetworkDir { data_dir, network, root } = directory;
    match root {
        Some(root) => format!("{data_dir}\t{network}\t{root}"),
        None => format!("{data_dir}\t{network}"),
    }
}

fn parse_line(line: &str) -> Option<NetworkDir> {
    let mut columns = line.split('\t').map(str::to_owned);
    Some(NetworkDir { data_dir: columns.next()?, network: columns.next()?, root: columns.next() })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use fairlead_host::time_limit::within;
    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// What takes longer hangs.
    const HANGS: Duration = Duration::from_secs(20);

    /// How many descriptors of this process are of the file at `path`.
    fn descriptors_of(path: &Path) -> usize {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|fd| fs::read_link(fd.path()).is_ok_and(|of| of == path)).count()
    }

    #[test]
    fn a_directory_is_written_down_once_and_a_torn_line_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let directory = |n: &str| NetworkDir::of_administrator("/var/lib/cni/networks", n);
        let list = UsedDirs::open(path.clone()).unwrap();
        list.add(&directory("a")).unwrap();
        list.add(&directory("a")).unwrap();
        fs::write(&path, [&fs::read(&path).unwrap()[..], b"/var/lib/to"].concat()).unwrap();
        let list = UsedDirs::open(path.clone()).unwrap();
        list.add(&directory("b")).unwrap();
        assert_eq!(UsedDirs::open(path).unwrap().all(), [directory("a"), directory("b")]);
    }

    #[test]
    fn a_disk_that_hangs_under_a_new_directory_keeps_no_known_one_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("ipam-dirs");
        let directory = |n: &str| NetworkDir::of_administrator("/var/lib/cni/networks", n);
        let list = Arc::new(UsedDirs::open(path.clone()).unwrap());
        list.add(&directory("known")).unwrap();
        // A pipe that is full in its place: who writes to it waits, as for a disk.
        fs::remove_file(&path).unwrap();
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let at_once = OFlag::O_NONBLOCK.bits();
        let mut pipe = File::options().read(true).write(true).custom_flags(at_once).open(&path).unwrap();
        while pipe.write_all(&[0; 4096]).is_ok() {}
        let (adds, new) = (Arc::clone(&list), directory("new"));
        let adding = thread::spawn(move || adds.add(&new));
        let until = Instant::now() + HANGS;
        while descriptors_of(&path) < 2 {
            assert!(Instant::now() < until, "nothing is written");
            thread::sleep(Duration::from_millis(1));
        }
        let (asks, known) = (Arc::clone(&list), directory("known"));
        let answered = within("known", HANGS, move || (asks.add(&known).is_ok(), asks.all())).unwrap();
        assert_eq!(answered, Some((true, vec![directory("known")])));
        // What cannot be synced, as a pipe, is not on the list.
        pipe.read_to_end(&mut Vec::new()).unwrap_err();
        adding.join().unwrap().unwrap_err();
        assert_eq!(list.all(), [directory("known")]);
    }

    #[test]
    fn a_directory_that_many_add_at_once_is_written_down_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let list = UsedDirs::open(path.clone()).unwrap();
        let directory = NetworkDir::of_administrator("/var/lib/cni/networks", "pods");
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| list.add(&directory).unwrap());
            }
        });
        assert_eq!(fs::read_to_string(path).unwrap(), "\n/var/lib/cni/networks\tpods\n");
    }

    #[test]
    fn a_file_of_an_earlier_release_is_read_completely_and_only_appended_to() {
        let before = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/testdata/records/0.1.0/state/ipam-dirs");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let directory = |n: &str| NetworkDir::of_administrator("/var/lib/cni/networks", n);
        let list = UsedDirs::open(path.clone()).unwrap();
        list.add(&directory("pods")).unwrap();
        list.add(&directory("cluster")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), fs::read(before).unwrap());
        let earlier = UsedDirs::open(before.into()).unwrap();
        assert_eq!(earlier.all(), [directory("cluster"), directory("pods")]);
    }

    #[test]
    fn a_tenants_directory_is_written_down_with_its_root_and_the_later_root_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let below = |root: &str| NetworkDir {
            root: Some(root.into()),
            ..NetworkDir::of_administrator("/data/radio", "net@a")
        };
        let list = UsedDirs::open(path.clone()).unwrap();
        for root in ["/data", "/data", "/data/radio"] {
            list.add(&below(root)).unwrap();
        }
        assert_eq!(list.all(), [below("/data/radio")]);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "\n/data/radio\tnet@a\t/data\n\n/data/radio\tnet@a\t/data/radio\n");
        assert_eq!(UsedDirs::open(path).unwrap().all(), [below("/data/radio")]);
    }
}
