//! What the watches last knew, and the reports that wait, in two files of the state directory: a restart with the API server down
//! answers as before, and a network-status is written after a restart.
//!
//! Both are a memory, never the truth: what is damaged, of a newer version or of another node is told and passed over, and what the
//! API's first list does not have goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crc32fast::Hasher;
use futures_util::FutureExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use super::namespace_shares::Lengths;
use super::object::ApiPod;
use super::reports::Whether;
use super::shared::{Known, Shared};
use crate::cluster::{Definition, LegacyNetwork};
use crate::pod::{Pod, PodRef};

/// The first word of both files, and their version. What cannot be read by the version before raises it.
const MAGIC: &str = "fairlead-cluster";
const VERSION: u32 = 1;
/// A longer file is neither written nor read, in bytes.
const LONGEST: u64 = 64 << 20;
/// What is written of the objects of all namespaces together, in bytes: the rest is the first line, the node, and the lists' names.
const OF_OBJECTS: u64 = LONGEST - (64 << 10);
/// So many namespaces at most are named in a line of the log.
const MOST_NAMED: usize = 10;
/// The names of the files.
const KNOWN: &str = "cluster-snapshot.json";
const REPORTS: &str = "cluster-reports.json";
/// Changes are collected for this long before they are written.
const KNOWN_EVERY: Duration = Duration::from_secs(1);
const REPORTS_EVERY: Duration = Duration::from_millis(50);
/// After a write of what is known there is none for so many times as long as it took: a tenant who changes an object for ever keeps
/// the node's disk busy for a hundredth of the time at most.
const PAUSE_PER_WRITE: u32 = 100;
/// However long a write took, what has changed is written this soon.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// What could not be written is tried again after so many times as long, where nothing changes before.
const TRIED_AGAIN: u32 = 100;

/// What the watches knew.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedKnown {
    node: String,
    pods: Vec<SavedPod>,
    definitions: Vec<Arc<Definition>>,
    legacy_networks: Vec<Arc<LegacyNetwork>>,
    namespaces: BTreeMap<String, Arc<BTreeMap<String, String>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedPod {
    pod: Arc<Pod>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    runtime_uid: Option<String>,
}

/// The reports that wait.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedReports {
    node: String,
    reports: Vec<SavedReport>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedReport {
    pod: PodRef,
    network_status: Arc<str>,
}

/// Takes what the files of a state directory say.
pub(super) fn restore(dir: &Path, shared: &Shared) {
    if let Some(saved) = load::<SavedKnown>(&dir.join(KNOWN)).filter(|saved| of_node(&saved.node, shared)) {
        shared.change(|known| saved.restore(known));
    }
    if let Some(saved) = load::<SavedReports>(&dir.join(REPORTS)).filter(|saved| of_node(&saved.node, shared))
    {
        let mut reports = shared.reports.lock();
        for report in saved.reports {
            reports.push(report.pod, &report.network_status, Whether::InAnyCase);
        }
    }
}

fn of_node(saved: &str, shared: &Shared) -> bool {
    if saved != shared.node {
        tracing::warn!(
            saved,
            node = shared.node,
            "what is saved of the cluster is another node's; it is not used"
        );
    }
    saved == shared.node
}

impl SavedKnown {
    fn of(node: &str, known: &Known) -> SavedKnown {
        let pod = |api: &ApiPod| SavedPod { pod: Arc::clone(&api.pod), runtime_uid: api.runtime_uid.clone() };
        SavedKnown {
            node: node.to_owned(),
            pods: known.pods.all().map(pod).collect(),
            definitions: known.definitions.all().filter_map(|(_, known)| known.clone().ok()).collect(),
            legacy_networks: known
                .legacy_networks
                .all()
                .filter_map(|(_, known)| known.clone().ok())
                .collect(),
            namespaces: known
                .namespaces
                .all()
                .map(|((_, name), labels)| (name.clone(), Arc::clone(labels)))
                .collect(),
        }
    }

    /// Leaves out what there is no room for in so many bytes; answers the namespaces of which something is left out.
    fn shorten(&mut self, room: u64) -> BTreeSet<String> {
        let mut lengths = Lengths::default();
        self.pods.iter().for_each(|pod| lengths.add(&pod.pod.id.namespace, pod));
        self.definitions.iter().for_each(|definition| lengths.add(&definition.namespace, definition));
        self.legacy_networks.iter().for_each(|network| lengths.add(&network.namespace, network));
        self.namespaces.iter().for_each(|(name, labels)| lengths.add(name, &(name, labels)));
        let Some(mut shares) = lengths.shares(room) else { return BTreeSet::new() };
        self.pods.retain(|pod| shares.takes(&pod.pod.id.namespace, pod));
        self.definitions.retain(|definition| shares.takes(&definition.namespace, definition));
        self.legacy_networks.retain(|network| shares.takes(&network.namespace, network));
        self.namespaces.retain(|name, labels| shares.takes(name, &(name, &*labels)));
        shares.left_out()
    }

    fn restore(self, known: &mut Known) {
        for SavedPod { pod, runtime_uid } in self.pods {
            known.pods.restore(ApiPod { pod, runtime_uid, network_status: None });
        }
        for definition in self.definitions {
            known.definitions.apply((definition.namespace.clone(), definition.name.clone()), Ok(definition));
        }
        for network in self.legacy_networks {
            known.legacy_networks.apply((network.namespace.clone(), network.name.clone()), Ok(network));
        }
        for (name, labels) in self.namespaces {
            known.namespaces.apply((String::new(), name), labels);
        }
    }
}

/// Saves what the watches know, a second after it changes, or later where writing takes long, until the task is ended.
pub(super) async fn save_known(dir: Arc<Path>, shared: Arc<Shared>) {
    let write = || write_known(Arc::clone(&dir), Arc::clone(&shared));
    save(&shared.wake.snapshot, KNOWN_EVERY, LONGEST_PAUSE, write).await;
}

/// Saves the reports that wait, as soon as they change, until the task is ended.
pub(super) async fn save_reports(dir: Arc<Path>, shared: Arc<Shared>) {
    let write = || write_reports(Arc::clone(&dir), Arc::clone(&shared));
    save(&shared.wake.saved_reports, REPORTS_EVERY, REPORTS_EVERY, write).await;
}

async fn save<F, W>(wake: &Notify, every: Duration, longest_pause: Duration, write: F)
where
    F: Fn() -> W,
    W: FnOnce() -> io::Result<()> + Send + 'static,
{
    let mut told = false;
    let mut not_before = Instant::now();
    loop {
        if told {
            let _ = timeout(every * TRIED_AGAIN, wake.notified()).await;
        } else {
            wake.notified().await;
        }
        sleep_until(not_before.max(Instant::now() + every)).await;
        // What has changed since is in this write, too.
        let _ = wake.notified().now_or_never();
        let begun = Instant::now();
        let written = spawn_blocking(write()).await.unwrap_or_else(|e| Err(io::Error::other(e)));
        not_before = Instant::now() + (begun.elapsed() * PAUSE_PER_WRITE).min(longest_pause);
        if let Err(error) = &written
            && !told
        {
            tracing::warn!(%error, "what is known of the cluster cannot be saved; after a restart it is asked of the API server again");
        }
        told = written.is_err();
    }
}

fn write_known(dir: Arc<Path>, shared: Arc<Shared>) -> impl FnOnce() -> io::Result<()> + Send + 'static {
    move || {
        let path = dir.join(KNOWN);
        let mut saved = SavedKnown::of(&shared.node, &shared.known.lock());
        let left_out = match store(&path, &saved) {
            // Who has how much is counted only then: that takes as long as the writing.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let left_out = saved.shorten(OF_OBJECTS);
                store(&path, &saved).map(|()| left_out)
            }
            stored => stored.map(|()| BTreeSet::new()),
        };
        left_out.map(|namespaces| tell_left_out(&shared, namespaces))
    }
}

/// Tells the namespaces of which not everything is saved, once.
fn tell_left_out(shared: &Shared, now: BTreeSet<String>) {
    let mut told = shared.left_out.lock();
    let news: Vec<_> = now.difference(&told).take(MOST_NAMED).map(String::as_str).collect();
    if !news.is_empty() {
        tracing::warn!(
            namespaces = news.join(", "),
            "these have so much text in annotations of pods and in definitions that not all of it is saved; what is not is unknown \
             after a restart until the API server answers; shorten or delete some"
        );
    }
    *told = now;
}

fn write_reports(dir: Arc<Path>, shared: Arc<Shared>) -> impl FnOnce() -> io::Result<()> + Send + 'static {
    move || {
        let report = |(pod, status): (&PodRef, &Arc<str>)| SavedReport {
            pod: pod.clone(),
            network_status: Arc::clone(status),
        };
        let reports: Vec<_> = shared.reports.lock().all().map(report).collect();
        let path = dir.join(REPORTS);
        // The usual case in a burst of pods: everything is written to the API before it would be to the disk.
        if reports.is_empty() && !path.exists() {
            return Ok(());
        }
        if reports.is_empty() {
            return fs::remove_file(&path);
        }
        store(&path, &SavedReports { node: shared.node.clone(), reports })
    }
}

/// Saves both at once: the daemon stops.
pub(super) fn save_all(dir: &Arc<Path>, shared: &Arc<Shared>) {
    for written in [
        write_known(Arc::clone(dir), Arc::clone(shared))(),
        write_reports(Arc::clone(dir), Arc::clone(shared))(),
    ] {
        if let Err(error) = written {
            tracing::warn!(%error, "what is known of the cluster cannot be saved");
        }
    }
}

/// Replaces a file as a whole: a crash leaves the old one or the new one. The text is never in memory as a whole: it would be as much
/// again as all that is known. One that would be longer than [`LONGEST`] is an error of the kind `FileTooLarge`.
fn store(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    // The checksum is known last. Its place is as long whatever it is.
    write_first_line(&mut file, 0)?;
    let room = LONGEST - file.stream_position()?;
    let mut body = BufWriter::new(Hashed { file: &mut file, hasher: Hasher::new(), room });
    serde_json::to_writer(&mut body, value)?;
    let checksum = body.into_inner()?.hasher.finalize();
    file.rewind()?;
    write_first_line(&mut file, checksum)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn write_first_line(file: &mut File, checksum: u32) -> io::Result<()> {
    writeln!(file, "{MAGIC} {VERSION} {checksum:08x}")
}

/// A file that is written to, the checksum of what was written, and how many bytes more there is room for.
struct Hashed<'a> {
    file: &'a mut File,
    hasher: Hasher,
    room: u64,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.room {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = self.file.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        self.room -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// What a file says; `None` where there is none or it cannot be used, which is told.
fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    match read(path) {
        Ok(value) => value,
        Err(reason) => {
            let file = path.display();
            tracing::warn!(%file, reason, "what is saved of the cluster is not used; the API server is asked");
            None
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| e.to_string())?,
    };
    let mut text = String::new();
    let read = file.take(LONGEST + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if read as u64 > LONGEST {
        return Err(format!("it is longer than {LONGEST} bytes"));
    }
    let (head, body) = text.split_once('\n').ok_or("it has no first line")?;
    let words: Vec<&str> = head.split(' ').collect();
    let &[MAGIC, version, checksum] = words.as_slice() else {
        return Err("its first line is not ours".to_owned());
    };
    if version != VERSION.to_string() {
        return Err(format!("it has version {version}, and this is {VERSION}"));
    }
    if checksum != format!("{:08x}", crc32fast::hash(body.as_bytes())) {
        return Err("its checksum is wrong".to_owned());
    }
    serde_json::from_str(body).map(Some).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use serde::Serializer;
    use serde::ser::SerializeSeq;

    use super::*;
    use crate::watched::watch_state::Kind;

    const FULL_POD: usize = 256 << 10;

    fn pod(namespace: &str, name: &str, annotation: String) -> ApiPod {
        let id = PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: Some("u".to_owned()) };
        let annotations = BTreeMap::from([("fairlead/x".to_owned(), annotation)]);
        let pod = Arc::new(Pod { id, annotations, is_static: false, shared_dir: None });
        ApiPod { pod, runtime_uid: None, network_status: None }
    }

    #[test]
    fn a_namespace_with_more_than_there_is_room_for_keeps_no_other_from_being_known_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let new = || Arc::new(Shared::new("n".to_owned(), &[Kind::Pods, Kind::Definitions]));
        let shared = new();
        shared.change(|known| {
            for n in 0..44 {
                // JSON has six bytes for each of them.
                known.pods.apply(pod("full", &format!("p{n}"), "\u{1}".repeat(FULL_POD)));
            }
            known.pods.apply(pod("small", "p", "x".to_owned()));
            let net = Definition {
                namespace: "small".to_owned(),
                name: "net".to_owned(),
                config: Some("{}".into()),
                resource: None,
            };
            known.definitions.apply(("small".to_owned(), "net".to_owned()), Ok(Arc::new(net)));
        });
        save_all(&Arc::from(dir.path()), &shared);
        assert_eq!(shared.left_out.lock().iter().collect::<Vec<_>>(), ["full"]);
        let after = new();
        restore(dir.path(), &after);
        let known = after.known.lock();
        let pods_of =
            |namespace: &str| known.pods.all().filter(|api| api.pod.id.namespace == namespace).count();
        assert_eq!((pods_of("small"), known.definitions.len()), (1, 1));
        assert_eq!(pods_of("full"), 42, "as many as there is room for");
    }

    #[test]
    fn a_write_that_takes_long_is_followed_by_a_pause_that_is_longer() {
        let writes = Arc::<AtomicU32>::default();
        let write = || {
            let writes = Arc::clone(&writes);
            move || {
                std::thread::sleep(Duration::from_millis(30));
                writes.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        let wake = Notify::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let every = Duration::from_millis(1);
        let changes = async {
            for _ in 0..10_000 {
                wake.notify_one();
                tokio::time::sleep(every).await;
            }
        };
        let both = async { tokio::join!(save(&wake, every, LONGEST_PAUSE, write), changes) };
        runtime.block_on(async { timeout(Duration::from_secs(1), both).await }).unwrap_err();
        assert_eq!(writes.load(Ordering::Relaxed), 1);
    }

    /// Looks into the file while it is written.
    struct Long<'a>(&'a Path);

    impl Serialize for Long<'_> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            let mut texts = to.serialize_seq(None)?;
            for _ in 0..100 {
                texts.serialize_element(&"x".repeat(10_000))?;
            }
            let written = fs::metadata(self.0.with_extension("new")).unwrap().len();
            assert!(written > 900_000, "only {written} bytes have left the memory");
            texts.end()
        }
    }

    #[test]
    fn what_could_not_be_saved_is_tried_again_without_another_change_and_then_no_more() {
        let tries = Arc::<AtomicU32>::default();
        let write = || {
            let tries = Arc::clone(&tries);
            move || match tries.fetch_add(1, Ordering::Relaxed) {
                0 => Err(io::Error::from(io::ErrorKind::StorageFull)),
                _ => Ok(()),
            }
        };
        let wake = Notify::new();
        wake.notify_one();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (limit, every) = (Duration::from_secs(2), Duration::from_millis(1));
        runtime.block_on(async { timeout(limit, save(&wake, every, every, write)).await }).unwrap_err();
        assert_eq!(tries.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_long_snapshot_is_in_the_file_as_it_is_made_and_not_in_memory_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KNOWN);
        store(&path, &Long(&path)).unwrap();
        let texts = load::<Vec<String>>(&path).unwrap();
        assert_eq!((texts.len(), texts[99].len()), (100, 10_000));
    }

    #[test]
    fn no_longer_file_is_written_than_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KNOWN);
        let text: Arc<str> = "x".repeat(1 << 20).into();
        let refused = store(&path, &vec![text; 64]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert!(fs::metadata(path.with_extension("new")).unwrap().len() <= LONGEST && !path.exists());
    }

    #[test]
    fn what_is_damaged_newer_or_no_file_of_ours_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REPORTS);
        store(&path, &SavedReports { node: "n".into(), reports: Vec::new() }).unwrap();
        assert_eq!(load::<SavedReports>(&path).unwrap().node, "n");
        let whole = fs::read_to_string(&path).unwrap();
        let newer = whole.replacen(" 1 ", " 2 ", 1);
        let half = &whole[..whole.len() - 3];
        for damaged in ["", "{}", half, newer.as_str(), whole.replace("\"n\"", "\"m\"").as_str()] {
            fs::write(&path, damaged).unwrap();
            assert!(load::<SavedReports>(&path).is_none(), "{damaged}");
        }
    }
}
