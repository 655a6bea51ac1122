//! The daemon's configuration: one YAML file, watched.
//!
//! An absent file means the defaults. An unknown key, a value out of its range, a file that is no YAML are refused
//! by name, with the line; what was in force before goes on. Never reads more than [`LIMIT`] bytes.

mod pools;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing::{error, info};

use crate::metrics::Node;
use crate::reading::text_of;
pub use pools::{Allocator, AtRest, PoolSettings, Profile};

/// A longer file is no configuration of ours.
const LIMIT: u64 = 1 << 20;
/// So many characters of an error, and of the line that it is about, are told.
const TOLD: usize = 200;

/// Why a configuration file is refused.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It is there but can't be read.
    #[error("{path}: the configuration can't be read: {source}; make it a file of at most 1 MiB that root can read, or remove it to get the defaults", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It says something that it may not.
    #[error("{path}{}: {reason}; put it right, or remove it to get the defaults", if *.line == 0 { String::new() } else { format!(":{line}") }, path = .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 where there is none.
        line: u64,
        /// What is wrong there.
        reason: String,
    },
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// Its name, as a filter takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// When DEL is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DelAnswer {
    /// When the interface is silent and its removal on record.
    #[default]
    Early,
    /// When the link is gone.
    Wait,
}

/// What ADD does about duplicate address detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dad {
    /// The address is usable at once; a probe of our own follows the answer.
    #[default]
    Fast,
    /// ADD waits until the kernel has done with it, as the reference plugins do.
    Wait,
}

/// A number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Bounded<const LOW: usize, const HIGH: usize>(usize);

impl<const LOW: usize, const HIGH: usize> Bounded<LOW, HIGH> {
    /// The number.
    pub fn get(self) -> usize {
        self.0
    }
}

impl<'de, const LOW: usize, const HIGH: usize> Deserialize<'de> for Bounded<LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = usize::deserialize(from)?;
        if (LOW..=HIGH).contains(&number) {
            return Ok(Bounded(number));
        }
        Err(D::Error::custom(format!("{number} is not between {LOW} and {HIGH}")))
    }
}

/// A time: a number with `us`, `ms`, `s` or `m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{}s", self.0.as_secs_f64()))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let reason =
            || D::Error::custom(format!("{text:?} is no time like 1.5s, 500ms or 2m, of at most an hour"));
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[number.len()..] {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            _ => return Err(reason()),
        };
        let seconds = number.parse::<f64>().map_err(|_| reason())? * unit;
        Duration::try_from_secs_f64(seconds).ok().filter(|d| d.as_secs() <= 3600).map(Span).ok_or_else(reason)
    }
}

/// Zero would kill every plugin at its start.
fn some_time<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(from)?;
    if span.0.is_zero() {
        return Err(D::Error::custom("a time of 0 would kill every plugin at its start: give one like 30s"));
    }
    Ok(span)
}

/// The daemon's own directory is not the one that is meant.
fn absolute<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(from)?;
    match path.is_absolute() {
        true => Ok(path),
        false => Err(D::Error::custom(format!("{path:?} is no absolute path"))),
    }
}

/// The begin of a text, for an error.
fn cut(text: &str) -> String {
    match text.char_indices().nth(TOLD) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    // A pipe that nobody writes to must not keep the daemon from starting.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    text_of(file, LIMIT)
}

/// The configuration. Every key has a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// `error`, `warn`, `info`, `debug` or `trace`. In force at once.
    pub log_level: LogLevel,
    /// `text` or `json`. In force from the next start.
    pub log_format: LogFormat,
    /// Threads for calls that only talk to the kernel. In force from the next start.
    pub call_threads: Bounded<1, 64>,
    /// Threads at most for calls that start other programs or wait. In force from the next start.
    pub slow_threads: Bounded<1, 1024>,
    /// Calls that may wait for their turn; further ones are told to try again. In force from the next start.
    pub max_calls: Bounded<1, 65536>,
    /// When DEL is answered: `early` or `wait`. In force at once.
    pub del: DelAnswer,
    /// Duplicate address detection: `fast` or `wait`. In force at once.
    pub dad: Dad,
    /// How long another plugin may take. In force at once.
    #[serde(deserialize_with = "some_time")]
    pub delegate_timeout: Span,
    /// The cgroup that other plugins are started in, below the host's cgroup root; absent: the daemon's own parent.
    pub delegate_cgroup: Option<String>,
    /// How long a namespace is given to die with its links before the reaper removes them. In force at once.
    pub reap_after: Span,
    /// How long an ADD waits for a virtual function that is coming home or at work in its pool. In force at once.
    pub function_wait: Span,
    /// Where kubelet is. In force from the next start.
    pub kubelet: Kubelet,
    /// Pools of virtual functions, the first that matches one has it. In force at once; a function that a pod has stays in
    /// its pool until it comes home.
    #[serde(deserialize_with = "pools::sound")]
    pub pools: Vec<PoolSettings>,
    /// The SR-IOV network device plugin's configuration file, whose resources are further pools. Read when this file is.
    pub device_plugin_config: Option<PathBuf>,
}

/// Where kubelet is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Kubelet {
    /// Its directory on the host (`--root-dir`), absolute.
    #[serde(deserialize_with = "absolute")]
    pub dir: PathBuf,
}

impl Default for Kubelet {
    fn default() -> Kubelet {
        Kubelet { dir: "/var/lib/kubelet".into() }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            log_level: LogLevel::default(),
            log_format: LogFormat::default(),
            call_threads: Bounded(4),
            slow_threads: Bounded(64),
            max_calls: Bounded(4096),
            del: DelAnswer::default(),
            dad: Dad::default(),
            delegate_timeout: Span(Duration::from_secs(30)),
            delegate_cgroup: None,
            reap_after: Span(Duration::from_millis(1500)),
            function_wait: Span(Duration::from_secs(10)),
            kubelet: Kubelet::default(),
            pools: Vec::new(),
            device_plugin_config: None,
        }
    }
}

impl Settings {
    /// Reads the file; the defaults where there is none.
    ///
    /// # Errors
    /// When it can't be read, or says something that it may not.
    pub fn load(path: &Path) -> Result<Settings, SettingsError> {
        match read(path) {
            Ok(text) => Settings::parse(path, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Settings::default()),
            Err(source) => Err(SettingsError::Read { path: path.into(), source }),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Settings, SettingsError> {
        // A file of comments alone is an empty document, which YAML reads as null.
        let settings: Option<Settings> = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map_or(0, |l| l.line());
            let there = usize::try_from(line).ok().and_then(|n| text.lines().nth(n.checked_sub(1)?));
            let reason = match (error, there) {
                (serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. }, _) => {
                    format!("the key {:?} is there twice", cut(key))
                }
                (_, Some(there)) => format!("{}, in {:?}", cut(&error.to_string()), cut(there.trim())),
                (_, None) => cut(&error.to_string()),
            };
            SettingsError::Content { path: path.into(), line, reason }
        })?;
        Ok(settings.unwrap_or_default())
    }
}

/// The configuration in force.
#[derive(Debug)]
pub struct Live {
    path: PathBuf,
    current: RwLock<Arc<Settings>>,
    refused: Mutex<Option<String>>,
    node: Node,
}

impl Live {
    /// Reads the file. One that is refused at the start means the defaults, and is told like one that is refused
    /// later: a node without its network is worse than one with the defaults.
    pub fn new(path: &Path, node: Node) -> Live {
        let live = Live { path: path.into(), current: RwLock::default(), refused: Mutex::default(), node };
        live.reload();
        live
    }

    /// What is in force.
    pub fn current(&self) -> Arc<Settings> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the file as it stands is refused.
    pub fn refused(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The directory to watch.
    pub fn directory(&self) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("/")).to_path_buf()
    }

    /// Reads the file again; one that is refused changes nothing. True when something changed.
    pub fn reload(&self) -> bool {
        let loaded = Settings::load(&self.path);
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match loaded {
            Ok(settings) => {
                *refused = None;
                let changed = *self.current() != settings;
                if changed {
                    info!(path = %self.path.display(), "the configuration has changed");
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
                }
                changed
            }
            Err(why) => {
                let text = why.to_string();
                if refused.as_ref() != Some(&text) {
                    error!(reason = text, "the configuration is refused; what was in force goes on");
                    self.node.settings_refused.inc();
                    *refused = Some(text);
                }
                false
            }
        }
    }

    /// Logs what is in force, once, at the start.
    pub fn log(&self) {
        let effective = serde_json::to_string(&*self.current()).unwrap_or_default();
        info!(path = %self.path.display(), present = self.path.exists(), effective, "configuration");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(Path::new("/etc/fairlead/config.yaml"), text).map_err(|e| e.to_string())
    }

    fn pool(text: &str) -> Result<Vec<PoolSettings>, String> {
        parse(&format!("pools: [{{{text}}}]\n")).map(|settings| settings.pools)
    }

    #[test]
    fn every_key_is_read() {
        let text = "logLevel: debug\nlogFormat: json\ncallThreads: 8\nslowThreads: 16\nmaxCalls: 100\ndel: wait\n\
                    dad: wait\ndelegateTimeout: 2m\ndelegateCgroup: system.slice/delegates\nreapAfter: 500ms\nfunctionWait: 20s\n\
                    kubelet:\n  dir: /data/kubelet\n\
                    pools: [{name: radio, selectors: {vendors: ['8086']}}]\ndevicePluginConfig: /etc/pcidp/config.json\n";
        let expected = Settings {
            log_level: LogLevel::Debug,
            log_format: LogFormat::Json,
            call_threads: Bounded(8),
            slow_threads: Bounded(16),
            max_calls: Bounded(100),
            del: DelAnswer::Wait,
            dad: Dad::Wait,
            delegate_timeout: Span(Duration::from_secs(120)),
            delegate_cgroup: Some("system.slice/delegates".into()),
            reap_after: Span(Duration::from_millis(500)),
            function_wait: Span(Duration::from_secs(20)),
            kubelet: Kubelet { dir: "/data/kubelet".into() },
            pools: pool("name: radio, selectors: {vendors: ['8086']}").unwrap(),
            device_plugin_config: Some("/etc/pcidp/config.json".into()),
        };
        assert_eq!(parse(text).unwrap(), expected);
        let again = serde_saphyr::to_string(&expected).unwrap();
        assert_eq!(parse(&again).unwrap(), expected);
    }

    #[test]
    fn an_empty_file_and_an_absent_one_mean_the_defaults() {
        for text in ["", "# nothing\n", "{}"] {
            assert_eq!(parse(text).unwrap(), Settings::default(), "{text:?}");
        }
        assert_eq!(Settings::load(Path::new("/nowhere/config.yaml")).unwrap(), Settings::default());
    }

    #[test]
    fn r08_what_is_refused_is_refused_by_key_and_line() {
        let table = [
            ("logLevel: info\ncolour: red\n", ":2: ", "colour"),
            ("logLevel: loud\n", ":1: ", "loud"),
            ("dad: fast\ncallThreads: 0\n", ":2: ", "0 is not between 1 and 64"),
            ("callThreads: many\n", ":1: ", "many"),
            ("reapAfter: soon\n", ":1: ", "\"soon\" is no time"),
            ("reapAfter: -1s\n", ":1: ", "\"-1s\" is no time"),
            ("del: early\ndel: wait\n", ":2: ", "the key \"del\" is there twice; put it right"),
            ("del: early\ndelegateTimeout: 0s\n", ":2: ", "would kill every plugin at its start"),
            ("delegateTimeout: 0.0us\n", ":1: ", "would kill every plugin at its start"),
            ("kubelet:\n  dir: kubelet\n", ":2: ", "\"kubelet\" is no absolute path"),
            ("kubelet:\n  root: /x\n", ":2: ", "root"),
            ("a: [\n", ":", ""),
        ];
        for (text, line, part) in table {
            let refused = parse(text).unwrap_err();
            assert!(refused.starts_with("/etc/fairlead/config.yaml:"), "{text:?}: {refused}");
            assert!(refused.contains(line) && refused.contains(part), "{text:?}: {refused}");
        }
    }

    #[test]
    fn k25_a_pool_is_read_with_all_it_can_say() {
        let radio = "name: radio, selectors: [{vendors: ['8086'], pfNames: ['ens1f0#0-3']}], driver: kernel, min: 2, max: 7, \
                     batch: 4, numvfs: 7, allocator: fairlead, spread: spread, allowNoIommu: true, profile: {vlan: 7, \
                     vlanQoS: 3, vlanProto: 802.1ad, spoofchk: off, trust: true, linkState: auto, minTxRate: 1, maxTxRate: 9, \
                     mtu: 9000}";
        let read = &pool(radio).unwrap()[0];
        let wanted = read.profile.settings();
        assert_eq!(
            (wanted.vlan.unwrap().id, wanted.vlan.unwrap().qos, read.profile.mtu()),
            (7, 3, Some(9000))
        );
        assert_eq!((wanted.spoofchk, wanted.trust, wanted.max_rate), (Some(false), Some(true), Some(9)));
        assert!(read.is_drawn_from());
        let again = serde_saphyr::to_string(&parse(&format!("pools: [{{{radio}}}]\n")).unwrap()).unwrap();
        assert_eq!(parse(&again).unwrap().pools[0], *read, "{again}");
        let announced =
            &pool("name: a, selectors: {}, driver: vfio-pci, resourceName: intel.com/a").unwrap()[0];
        assert_eq!((announced.is_drawn_from(), announced.at_rest()), (false, AtRest::VfioPci));
        let external = &pool("name: a, selectors: {}, driver: vfio-pci, allocator: external").unwrap()[0];
        assert_eq!((external.is_drawn_from(), external.at_rest()), (false, AtRest::Unchanged));
    }

    #[test]
    fn k25_a_pool_that_cannot_be_is_refused_with_the_reason() {
        let table = [
            ("name: radio", "selectors"),
            ("name: '', selectors: {}", "no name of a pool"),
            ("name: a, selectors: {}, colour: red", "colour"),
            ("name: a, selectors: {vdpaType: vhost}", "vdpaType is not served yet"),
            ("name: a, selectors: {}, driver: igb_uio", "igb_uio"),
            ("name: a, selectors: {}, min: 3, max: 2", "min 3 is more than max 2"),
            ("name: a, selectors: {}, max: 0", "leaves nothing"),
            ("name: a, selectors: {}, resourceName: x/a, min: 1", "all are kept ready"),
            ("name: a, selectors: {}, profile: {vlanQoS: 1}", "need a vlan"),
            ("name: a, selectors: {}, profile: {vlan: 4095}", "4095 is not between"),
            ("name: a, selectors: {}, profile: {trust: maybe}", "neither on nor off"),
            ("name: a, selectors: {}, driver: vfio-pci, profile: {mtu: 9000}", "an interface's"),
            ("name: a, selectors: {}}, {name: a, selectors: {}", "two pools \"a\""),
        ];
        for (text, part) in table {
            let refused = pool(text).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    #[test]
    fn r08_a_huge_file_is_refused_unread_and_a_long_line_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        // Of 64 GiB without a block: who reads it whole ends here.
        File::create(&path).unwrap().set_len(64 << 30).unwrap();
        let refused = Settings::load(&path).unwrap_err().to_string();
        assert!(refused.contains("config.yaml") && refused.contains("more than 1048576 bytes"), "{refused}");
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let refused = Settings::load(&dir.path().join("pipe")).unwrap_err().to_string();
        assert!(refused.contains("no regular file"), "{refused}");
        let long = "ö".repeat(400_000);
        for text in [format!("{long}: 1\n"), format!("logLevel: {long}\n"), format!("{long}: 1\n{long}: 2\n")]
        {
            let refused = parse(&text).unwrap_err();
            assert!(refused.chars().count() < 600 && refused.contains("öö"), "{refused}");
        }
    }

    #[test]
    fn r08_a_broken_file_harms_nothing_and_is_told_until_it_is_put_right() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, "del: wait\n").unwrap();
        let live = Live::new(&path, Node::default());
        assert_eq!(live.current().del, DelAnswer::Wait);
        std::fs::write(&path, "del: maybe\n").unwrap();
        assert!(!live.reload());
        assert!(!live.reload());
        assert_eq!(live.current().del, DelAnswer::Wait);
        assert!(live.refused().unwrap().contains("maybe"));
        assert_eq!(live.node.settings_refused.get(), 1);
        std::fs::write(&path, "del: early\n").unwrap();
        assert!(live.reload());
        assert_eq!((live.current().del, live.refused()), (DelAnswer::Early, None));
    }
}
