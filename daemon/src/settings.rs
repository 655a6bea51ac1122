//! The daemon's configuration: one YAML file, watched.
//!
//! An absent file means the defaults. An unknown key, a value out of its range or a file that is no YAML is
//! refused by name, with the line, and what was in force before stays in force. So it does for [`NOTHING_COUNTS_AFTER`]
//! when the file becomes absent or empty. No more than [`LIMIT`] bytes are ever read.

mod known_keys;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fairlead_host::files::text_of;
use fairlead_kube::is_node_name;
use fairlead_sriov::ResourcePrefix;
use fairlead_sriov::pools::{DevicePluginFile, PoolsConfiguration, deserialize_pools};
use parking_lot::{Mutex, RwLock};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing::{error, info, warn};

pub use self::known_keys::keys_of;
use crate::metrics::Node;
pub use crate::metrics_port::{MetricsSettings, TlsFiles};
use crate::policy::PolicySettings;
use crate::port_pools::VhostUserSettings;
pub use fairlead_sriov::pools::{Allocator, AtRest, Bounded, PoolSettings, Profile};

/// The size in bytes above which a file is not read.
const LIMIT: u64 = 1 << 20;
/// After this time a file that has become absent or empty means the defaults. Whoever writes it with `cat >`, scp or an editor empties it
/// or moves it away first, and may be slow to write it again; the defaults would meanwhile lift the policy and take pools away.
const NOTHING_COUNTS_AFTER: Duration = Duration::from_secs(10);
/// The number of characters of an error, and of the line in question, that are shown.
const SHOWN_CHARS: usize = 200;

/// Why a configuration file is refused.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file is there but can't be read.
    #[error("{path}: the configuration can't be read: {source}; make it a file of at most 1 MiB that root can read, or remove it to get the defaults", path = .path.display())]
    Read {
        /// The configuration file.
        path: PathBuf,
        /// Why it can't be read.
        source: std::io::Error,
    },
    /// The file says something that it may not.
    #[error("{path}{}: {reason}; put it right, or remove it to get the defaults", if *.line == 0 { String::new() } else { format!(":{line}") }, path = .path.display())]
    Content {
        /// The configuration file.
        path: PathBuf,
        /// The line, from 1; 0 where there is none.
        line: u64,
        /// What is wrong there.
        reason: String,
    },
}

/// The most verbose lines that are logged.
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
    /// The name of the level, as a filter takes it.
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

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line, for programs.
    Json,
}

/// The moment at which DEL is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DelAnswer {
    /// DEL is answered when the interface is silent and its removal is on record.
    #[default]
    Early,
    /// DEL is answered when the link is gone.
    Wait,
}

/// What ADD does about duplicate address detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dad {
    /// The address is usable at once; our own probe follows the answer.
    #[default]
    Fast,
    /// ADD waits until the kernel has finished its detection, as the reference plugins do.
    Wait,
}

/// What the daemon puts on its node when it is ready, and takes away again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Installation {
    /// Whether the runtime's network is to be Fairlead.
    pub cni: Presence,
    /// The network that every pod gets first, by its name in the conf dir; absent: the one that was the runtime's first
    /// before Fairlead was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_network: Option<String>,
    /// A copy of Multus' `daemon-config.json`, whose keys count before those of Multus' file in the conf dir. On a node its daemon's
    /// own is in its container only.
    #[serde(default, deserialize_with = "optional_absolute_path", skip_serializing_if = "Option::is_none")]
    pub multus_daemon_config: Option<PathBuf>,
}

/// Whether something is to be on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// It is put there, and put back when it is taken away by others.
    Present,
    /// It is taken away.
    Absent,
}

/// A length of time: a number with `us`, `ms`, `s` or `m`.
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

fn delegate_timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
    nonzero_span(from, "a time of 0 would kill every plugin at its start: give one like 30s")
}

fn pod_wait<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
    nonzero_span(from, "with a time of 0 an ADD fails unless its pod is known already: give one like 25s")
}

/// A time that may not be zero, and what it would do.
fn nonzero_span<'de, D: Deserializer<'de>>(from: D, why_not: &str) -> Result<Span, D::Error> {
    let span = Span::deserialize(from)?;
    match span.0.is_zero() {
        true => Err(D::Error::custom(why_not)),
        false => Ok(span),
    }
}

/// A relative path would be looked for in the daemon's own directory, which nobody means.
fn absolute_path<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    absolute(PathBuf::deserialize(from)?)
}

fn optional_absolute_path<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    Option::<PathBuf>::deserialize(from)?.map(absolute).transpose()
}

/// A text that is no node's name would keep the next start from watching the API.
fn node_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(from)?;
    match name.as_deref().filter(|name| !is_node_name(name)) {
        Some(other) => Err(D::Error::custom(format!(
            "{other:?} is not the name of a node: give one that `kubectl get nodes` shows, or leave it out"
        ))),
        None => Ok(name),
    }
}

fn absolute<E: serde::de::Error>(path: PathBuf) -> Result<PathBuf, E> {
    match path.is_absolute() {
        true => Ok(path),
        false => Err(E::custom(format!("{path:?} is no absolute path"))),
    }
}

/// The beginning of a text, for an error.
fn truncated(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    // Without this flag a pipe that nobody writes to would keep the daemon from starting.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    text_of(file, LIMIT)
}

/// The daemon's configuration. Every key has a default.
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
    /// Calls that may wait for their turn; a further one is answered with "try again". In force from the next
    /// start.
    pub max_calls: Bounded<1, 65536>,
    /// When DEL is answered: `early` or `wait`. In force at once.
    pub del: DelAnswer,
    /// Duplicate address detection: `fast` or `wait`. In force at once.
    pub dad: Dad,
    /// The time limit of one executed plugin. In force at once.
    #[serde(deserialize_with = "delegate_timeout")]
    pub delegate_timeout: Span,
    /// The cgroup for executed plugins, below the host's cgroup root; absent: beside the daemon's own. In force
    /// from the next start.
    pub delegate_cgroup: Option<String>,
    /// How long a dying namespace may take its links along before they are removed. In force at once.
    pub reap_after: Span,
    /// How long an ADD waits for a VF that is being given back or is at work in its pool. In force at once.
    pub function_wait: Span,
    /// The file by which the API server is reached; absent: the pod's own service account where there is one, else no cluster. In
    /// force from the next start.
    #[serde(deserialize_with = "optional_absolute_path")]
    pub kubeconfig: Option<PathBuf>,
    /// The name of this node in the cluster; absent: `NODE_NAME` in the environment, else the host's name. In force from the next
    /// start.
    #[serde(deserialize_with = "node_name")]
    pub node_name: Option<String>,
    /// How long an ADD waits for its pod, and for the definitions that the pod names, to be seen in the API. In force at once.
    #[serde(deserialize_with = "pod_wait")]
    pub pod_wait: Span,
    /// Where kubelet is. In force from the next start.
    pub kubelet: Kubelet,
    /// Pools of VFs; a VF belongs to the first pool that matches it. In force at once; a VF that a pod has stays
    /// in its pool until it is given back.
    #[serde(deserialize_with = "deserialize_pools")]
    pub pools: Vec<PoolSettings>,
    /// Ports of the switch in user space. In force at once.
    pub vhost_user: VhostUserSettings,
    /// What tenants' definitions may use, and what of the host may be lent. In force at once.
    pub policy: PolicySettings,
    /// What the daemon puts on its node; absent: nothing is put there or taken away. In force at once.
    pub install: Option<Installation>,
    /// Metrics on a TCP port; absent: on the daemon's socket only. In force at once.
    pub metrics: Option<MetricsSettings>,
    /// The configuration file of the SR-IOV network device plugin, whose resources are further pools. In force at
    /// once.
    #[serde(deserialize_with = "optional_absolute_path")]
    pub device_plugin_config: Option<PathBuf>,
    /// The device plugin's `--resource-prefix`, for the resources of that file without a prefix of their own. In force at once.
    pub device_plugin_resource_prefix: ResourcePrefix,
    /// The content of that file, or why it can't be read.
    #[serde(skip)]
    pub device_plugin: Option<Result<String, String>>,
    /// True when the file was refused at the start: these are the defaults, and what the file means is not known.
    #[serde(skip)]
    pub unread: bool,
}

/// What the daemon must know of kubelet on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Kubelet {
    /// Kubelet's directory on the host (`--root-dir`), absolute.
    #[serde(deserialize_with = "absolute_path")]
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
            call_threads: Bounded::clamped(4),
            slow_threads: Bounded::clamped(64),
            max_calls: Bounded::clamped(4096),
            del: DelAnswer::default(),
            dad: Dad::default(),
            delegate_timeout: Span(Duration::from_secs(30)),
            delegate_cgroup: None,
            reap_after: Span(Duration::from_millis(1500)),
            function_wait: Span(Duration::from_secs(10)),
            kubeconfig: None,
            node_name: None,
            pod_wait: Span(Duration::from_secs(25)),
            kubelet: Kubelet::default(),
            pools: Vec::new(),
            vhost_user: VhostUserSettings::default(),
            policy: PolicySettings::default(),
            install: None,
            metrics: None,
            device_plugin_config: None,
            device_plugin_resource_prefix: ResourcePrefix::default(),
            device_plugin: None,
            unread: false,
        }
    }
}

impl From<&Settings> for PoolsConfiguration {
    fn from(settings: &Settings) -> PoolsConfiguration {
        let file = settings.device_plugin_config.clone().zip(settings.device_plugin.clone());
        let prefix = settings.device_plugin_resource_prefix.clone();
        PoolsConfiguration {
            pools: settings.pools.clone(),
            device_plugin: file.map(|(path, text)| DevicePluginFile { path, text, prefix }),
            unreadable: settings.unread,
        }
    }
}

impl Settings {
    /// Reads the file, and the other one that it names; the defaults where there is none.
    ///
    /// # Errors
    /// When it can't be read, or says something that it may not.
    pub fn load(path: &Path) -> Result<Settings, SettingsError> {
        Ok(Settings::stated(path)?.unwrap_or_default())
    }

    /// The same; `None` where there is no file, and where it is an empty document.
    fn stated(path: &Path) -> Result<Option<Settings>, SettingsError> {
        match read(path) {
            Ok(text) => Ok(Settings::stated_in(path, &text)?.map(Settings::with_device_plugin)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SettingsError::Read { path: path.into(), source }),
        }
    }

    /// The same with the content of the other file that it names.
    pub(crate) fn with_device_plugin(self) -> Settings {
        let other = self.device_plugin_config.as_deref();
        let device_plugin = other.map(|other| read(other).map_err(|e| e.to_string()));
        Settings { device_plugin, ..self }
    }

    /// The configuration in a text that stands in a file.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Settings, SettingsError> {
        Ok(Settings::stated_in(path, text)?.unwrap_or_default())
    }

    fn stated_in(path: &Path, text: &str) -> Result<Option<Settings>, SettingsError> {
        // A file of comments alone is an empty document, which YAML reads as null.
        let settings: Option<Settings> = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map_or(0, |l| l.line());
            let there = usize::try_from(line).ok().and_then(|n| text.lines().nth(n.checked_sub(1)?));
            // Before it is cut: of many known words the one that was meant may come late.
            let whole = error.to_string();
            let asked = known_keys::meant(&whole)
                .map_or_else(String::new, |meant| format!(" (did you mean {meant:?}?)"));
            let reason = match (error, there) {
                (serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. }, _) => {
                    format!("the key {:?} is there twice", truncated(key))
                }
                (serde_saphyr::Error::MultipleDocuments { .. }, _) => {
                    "it has several YAML documents, divided by ---, and the configuration is one".to_owned()
                }
                (_, Some(there)) => {
                    format!("{}, in {:?}{asked}", truncated(&whole), truncated(there.trim()))
                }
                (_, None) => format!("{}{asked}", truncated(&whole)),
            };
            SettingsError::Content { path: path.into(), line, reason }
        })?;
        match settings.as_ref().and_then(Settings::resource_of_both) {
            Some(of_both) => {
                let reason = format!("resource {of_both:?} is of a pool of VFs and of one of ports");
                Err(SettingsError::Content { path: path.into(), line: 0, reason })
            }
            None => Ok(settings),
        }
    }

    /// The keys in which this one differs from that of the start, and that count from the next start only.
    fn awaiting_a_restart(&self, start: &Settings) -> Vec<&'static str> {
        let same = [
            ("logFormat", self.log_format == start.log_format),
            ("callThreads", self.call_threads == start.call_threads),
            ("slowThreads", self.slow_threads == start.slow_threads),
            ("maxCalls", self.max_calls == start.max_calls),
            ("delegateCgroup", self.delegate_cgroup == start.delegate_cgroup),
            ("kubeconfig", self.kubeconfig == start.kubeconfig),
            ("nodeName", self.node_name == start.node_name),
            ("kubelet", self.kubelet == start.kubelet),
            ("vhostUser.ovs", self.vhost_user.ovs == start.vhost_user.ovs),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }

    /// A resource that pools of VFs and pools of ports have: kubelet takes one device plugin for it.
    fn resource_of_both(&self) -> Option<&str> {
        let of_vfs = |name: &str| self.pools.iter().any(|pool| pool.resource_name.as_deref() == Some(name));
        let ports = self.vhost_user.pools.iter().map(|pool| pool.resource_name.as_str());
        ports.into_iter().find(|name| of_vfs(name))
    }
}

/// The configuration in force, and the file that it is read from.
#[derive(Debug)]
pub struct LiveSettings {
    path: PathBuf,
    current: RwLock<Arc<Settings>>,
    /// What was in force at the start; not there before that.
    at_start: OnceLock<Arc<Settings>>,
    refused: Mutex<Option<String>>,
    /// Since when the file is absent or empty without being taken for the defaults.
    nothing_since: Mutex<Option<Instant>>,
    nothing_counts_after: Duration,
    node: Node,
}

impl LiveSettings {
    /// Reads the file. A file that is refused at the start means the defaults: a node without its network is worse than one with the
    /// defaults. Pools stay as they are on the host until the file can be read, and the daemon is [not ready](LiveSettings::loaded).
    pub fn new(path: &Path, node: Node) -> LiveSettings {
        let live = LiveSettings {
            path: path.into(),
            current: RwLock::default(),
            at_start: OnceLock::new(),
            refused: Mutex::default(),
            nothing_since: Mutex::default(),
            nothing_counts_after: NOTHING_COUNTS_AFTER,
            node,
        };
        live.reload();
        if live.refused().is_some() {
            let unread = Arc::new(Settings { unread: true, ..Settings::default() });
            *live.current.write() = unread;
        }
        // It is set here alone.
        let _ = live.at_start.set(live.current());
        live
    }

    /// The configuration in force.
    pub fn current(&self) -> Arc<Settings> {
        self.current.read().clone()
    }

    /// The reason why the file as it stands is refused; `None` when it is in force.
    pub fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }

    /// The readiness condition: the file has been read, now or earlier. One that is refused from the start on may be a rollout's, which is
    /// to stop here; one that is refused later leaves in force what was.
    ///
    /// # Errors
    /// Why the file is refused, where the defaults are in force instead of it.
    pub fn loaded(&self) -> Result<String, String> {
        match self.refused().filter(|_| self.current().unread) {
            Some(why) => Err(format!("refused since the start, so that the defaults are in force: {why}")),
            None => Ok(String::new()),
        }
    }

    /// The directories to watch: that of the file, and that of the device plugin's file.
    pub fn directories(&self) -> Vec<PathBuf> {
        let current = self.current();
        let files = [Some(&self.path), current.device_plugin_config.as_ref()].into_iter().flatten();
        files.map(|file| file.parent().unwrap_or(Path::new("/")).to_path_buf()).collect()
    }

    /// The time until [`LiveSettings::reload`] is to be called though nobody touches the file: it is absent or empty, and means the
    /// defaults if it still is then.
    pub fn reload_in(&self) -> Option<Duration> {
        let since = *self.nothing_since.lock();
        since.map(|since| self.nothing_counts_after.saturating_sub(since.elapsed()))
    }

    /// Reads the file again; true when something changed. A file that is refused changes nothing, and one that has become absent or empty
    /// nothing [yet](LiveSettings::reload_in).
    pub fn reload(&self) -> bool {
        let stated = Settings::stated(&self.path);
        let mut refused = self.refused.lock();
        if self.may_be_at_work_on(&stated) {
            return false;
        }
        match stated {
            Ok(stated) => {
                let settings = stated.unwrap_or_default();
                *refused = None;
                self.node.settings_refused.set(0);
                let changed = *self.current() != settings;
                if changed {
                    info!(path = %self.path.display(), "the configuration has changed");
                    self.tell_what_awaits_a_restart(&settings);
                    *self.current.write() = Arc::new(settings);
                }
                changed
            }
            Err(why) => {
                let text = why.to_string();
                if refused.as_ref() != Some(&text) {
                    error!(reason = text, "the configuration is refused; what was in force goes on");
                    self.node.settings_refused.set(1);
                    *refused = Some(text);
                }
                false
            }
        }
    }

    /// True while somebody may have emptied the file, or moved it away, to write it again, and the defaults are not in force.
    fn may_be_at_work_on(&self, stated: &Result<Option<Settings>, SettingsError>) -> bool {
        let mut since = self.nothing_since.lock();
        if !matches!(stated, Ok(None)) || *self.current() == Settings::default() {
            *since = None;
            return false;
        }
        let first = *since.get_or_insert_with(|| {
            let after_s = self.nothing_counts_after.as_secs();
            warn!(path = %self.path.display(), after_s, "the configuration is gone or empty, which means the defaults if it stays so; until then what was in force goes on (to have the defaults at once, write {{}} there)");
            Instant::now()
        });
        let still = first.elapsed() < self.nothing_counts_after;
        if !still {
            *since = None;
        }
        still
    }

    fn tell_what_awaits_a_restart(&self, settings: &Settings) {
        let keys = self.at_start.get().map_or_else(Vec::new, |start| settings.awaiting_a_restart(start));
        if !keys.is_empty() {
            let keys = keys.join(", ");
            warn!(keys, "changed keys of the configuration count from the next start: restart the daemon");
        }
    }

    /// Logs the configuration in force.
    pub fn log(&self) {
        let effective = serde_json::to_string(&*self.current()).unwrap_or_default();
        info!(path = %self.path.display(), present = self.path.exists(), effective, "configuration");
    }
}

#[cfg(test)]
mod tests;
