//! Directories of tenants' networks in which no address is taken any more: they go, so that neither the list of directories nor the
//! disk grows with every name that a tenant has ever used.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::used_dirs::MOST_OF_NAMESPACE;
use super::{HostLocal, Make, NetworkDir, store};
use crate::IpamError;

/// Where none of a namespace's was found that could go, nobody looks again for so long: it reads up to [`MOST_OF_NAMESPACE`] directories.
const PAUSE: Duration = Duration::from_secs(5);
/// A look ends after so long: somebody may hold the locks of many directories.
const LOOK: Duration = Duration::from_secs(2);

/// The namespaces of which unused directories were looked for a moment ago in vain, or are just now, with the time until which nobody looks
/// again.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<HashMap<String, Instant>>);

impl Looks {
    /// Whether this thread is to look; the next one is not, for a while.
    fn begin(&self, namespace: &str) -> bool {
        let now = Instant::now();
        let mut until = self.0.lock();
        until.retain(|_, until| *until > now);
        until.insert(namespace.to_owned(), now + PAUSE).is_none()
    }

    /// A look has made room: the next one may do so again.
    fn has_made_room(&self, namespace: &str) {
        self.0.lock().remove(namespace);
    }
}

impl HostLocal {
    /// Removes these directories, as far as they are tenants' and nothing is allocated in them, from the disk and from the list.
    /// Answers how many. One that is not there stays on the list: its file system may not be mounted yet.
    pub fn remove_unused(&self, directories: &[NetworkDir]) -> usize {
        self.remove(directories, |_| Ok(false))
    }

    fn remove(
        &self,
        directories: &[NetworkDir],
        absent: impl Fn(&NetworkDir) -> Result<bool, IpamError>,
    ) -> usize {
        let (mut removed, until) = (0, Instant::now() + LOOK);
        let of_tenants = directories.iter().filter(|directory| directory.namespace().is_some());
        for directory in of_tenants.take_while(|_| Instant::now() < until) {
            let done = self.remove_one(directory).and_then(|done| done.map_or_else(|| absent(directory), Ok));
            match done {
                Ok(gone) => removed += usize::from(gone),
                Err(error) => tracing::debug!(%error, "an unused directory of addresses stays"),
            }
        }
        if removed > 0 {
            // Lines too many do no harm: the next one that is removed takes them off.
            if let Err(error) = self.used_dirs.rewrite() {
                tracing::warn!(path = %self.used_dirs_path.display(), %error, "the list of directories cannot be written anew");
            }
        }
        removed
    }

    /// Refuses a directory that would be one too many of its namespace's.
    pub(super) fn must_have_room(&self, directory: &NetworkDir) -> Result<(), IpamError> {
        match (self.used_dirs.has_room_for(directory), directory.namespace()) {
            (false, Some(namespace)) => Err(IpamError::TooManyDirs {
                network: directory.network.clone(),
                namespace: namespace.to_owned(),
                most: MOST_OF_NAMESPACE,
            }),
            _ => Ok(()),
        }
    }

    /// Removes what is unused of a namespace that has too many directories; false where there is none, or was none just now.
    pub(super) fn make_room(&self, directory: &NetworkDir) -> bool {
        let Some(namespace) = directory.namespace().filter(|namespace| self.looks.begin(namespace)) else {
            return false;
        };
        let all = self.used_dirs.of_namespace_of(directory);
        let made = self.remove(&all, |absent| self.forget_absent(absent)) > 0;
        if made {
            self.looks.has_made_room(namespace);
        }
        made
    }

    /// Whether a directory is gone now; `None` where there was none.
    fn remove_one(&self, directory: &NetworkDir) -> Result<Option<bool>, IpamError> {
        let removed = self.with(directory, Make::Never, |locked| {
            locked.reread()?;
            if !locked.clear_unused()? {
                return Ok(false);
            }
            directory.trusted(&self.root).remove_empty_directory(&directory.path())?;
            // While its files are this thread's: who wants an address in it next finds it gone, makes it and notes it anew.
            let gone = !locked.exists();
            if gone {
                self.used_dirs.forget(directory);
            }
            Ok(gone)
        })?;
        let removed = removed.transpose().map_err(|e| store(directory, e))?;
        if removed == Some(true) {
            self.remove_empty_parents(directory).map_err(|e| store(directory, e))?;
        }
        Ok(removed)
    }

    /// Takes a directory off the list that somebody else has removed, or that is on it by two spellings.
    fn forget_absent(&self, directory: &NetworkDir) -> Result<bool, IpamError> {
        let (shared, path) = (self.directories.get(directory), directory.path());
        // While its turn is this thread's nobody makes it.
        let _turn = shared.files.take().map_err(|hangs| store(directory, hangs.into_io(&path)))?;
        match directory.trusted(&self.root).directory(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.used_dirs.forget(directory),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Those between the root and the network's directory were made with it.
    fn remove_empty_parents(&self, directory: &NetworkDir) -> io::Result<()> {
        let (Some(root), host) = (&directory.root, directory.trusted(&self.root)) else { return Ok(()) };
        let way = Path::new(&directory.data_dir).ancestors().take_while(|way| *way != Path::new(root));
        for parent in way.filter(|way| *way != Path::new("/")) {
            if !host.remove_empty_directory(parent)? {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::{Host, small};
    use super::*;

    fn of(data_dir: &str, network: &str) -> NetworkDir {
        NetworkDir { root: Some("/data".into()), ..NetworkDir::of_administrator(data_dir, network) }
    }

    /// Takes an address in a directory.
    fn add(host: &Host, directory: &NetworkDir) -> Result<Vec<String>, IpamError> {
        host.add_in(directory, &small(), "a")
    }

    fn lines(host: &Host) -> Vec<String> {
        let text = fs::read_to_string(host.ipam.used_dirs_path.clone()).unwrap();
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn a_namespace_has_so_many_directories_and_those_without_an_address_make_room() {
        let host = Host::new();
        for n in 0..MOST_OF_NAMESPACE {
            add(&host, &of(&format!("/data/{n}"), "net@a")).unwrap();
        }
        let more = of("/data/deep/down", "more@a");
        let error = add(&host, &more).unwrap_err();
        let told = "network \"more@a\": namespace \"a\" has addresses in 4 directories of this node, the most that one may have";
        assert_eq!(error.to_string(), told);
        assert_eq!(error.code(), fairlead_cni::Code::TryAgain);
        assert!(!host.dir.path().join("data/deep").exists(), "nothing is made for it");
        // Nobody else is held up.
        add(&host, &of("/data/0", "net@b")).unwrap();
        add(&host, &NetworkDir::of_administrator("/data", "more")).unwrap();
        add(&host, &of("/data/0", "net@a")).unwrap_err(); // it has one there
        // Another namespace's vain look keeps none of this one's from being made.
        assert!(!host.ipam.looks.begin("a") && host.ipam.looks.begin("b"));
        host.ipam.looks.has_made_room("a"); // as when the pause is over
        // The pod of one network goes, and somebody removes the directory of another.
        assert_eq!(host.ipam.release(&of("/data/1", "net@a"), "a", "eth0").unwrap(), 1);
        fs::remove_dir_all(host.dir.path().join("data/2")).unwrap();
        assert_eq!(add(&host, &more).unwrap(), ["10.0.0.2/29"]);
        for (n, there) in [(0, true), (1, false), (2, false), (3, true)] {
            assert_eq!(host.dir.path().join(format!("data/{n}")).exists(), there, "{n}");
        }
        let mut expected = vec!["/data\tmore", "/data/0\tnet@a\t/data", "/data/0\tnet@b\t/data"];
        expected.extend(["/data/3\tnet@a\t/data", "/data/deep/down\tmore@a\t/data"]);
        let mut found = lines(&host);
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_has_an_address_or_a_file_of_another_or_is_the_administrators_stays() {
        let host = Host::new();
        let (used, strange, unused) =
            (of("/data", "used@a"), of("/data", "strange@a"), of("/data", "unused@a"));
        let (administrators, of_multus) =
            (NetworkDir::of_administrator("/data", "pods"), of("/data", "of-multus"));
        for directory in [&used, &strange, &unused, &administrators, &of_multus] {
            add(&host, directory).unwrap();
        }
        for directory in [&strange, &unused, &administrators, &of_multus] {
            host.ipam.release(directory, "a", "eth0").unwrap();
        }
        fs::write(host.dir.path().join("data/strange@a/notes"), "").unwrap();
        let absent = of("/data", "absent@a");
        host.ipam.used_dirs.add(&absent).unwrap();
        assert_eq!(host.ipam.remove_unused(&host.ipam.places()), 1);
        let expected = [absent, of_multus, administrators, strange, used];
        assert_eq!(host.ipam.places(), expected);
        assert!(host.dir.path().join("data/strange@a/lock").exists());
        assert!(host.dir.path().join("data").exists(), "the root is not the tenant's");
        // What was removed can be used again, and is noted again.
        add(&host, &unused).unwrap();
        assert!(host.ipam.places().contains(&unused));
        assert!(lines(&host).contains(&"/data\tunused@a\t/data".to_owned()));
    }
}
