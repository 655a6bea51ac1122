//! Makes Fairlead its node's network, as the settings' `install` says, and undoes that.
//!
//! The executable comes first and the configuration that names it last, each whole or not at all, and both only when the
//! daemon is ready: a runtime that finds the configuration finds what it needs. Our configuration sorts before nearly all
//! others, and where one comes before it that is told. It changes none of them, so taking it away is all that it takes to have the old
//! state back. Doing it twice changes nothing. The plugins that other programs append to it stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_cni::config::ConfList;
use fairlead_host::files::{FileError, failed, read_optional, sync_dir, write_synced};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tracing::{info, warn};

use self::first_in_conf_dir::{Contest, must_be_first};
pub(crate) use self::first_in_conf_dir::{conflist_without_executable, renamed_copies};
use self::mounted_directories::MountedDirectories;
pub(crate) use self::mounted_directories::mounts_are_hosts;
use self::multus_settings::MultusSettings;
use self::node_network::NodeNetwork;
pub(crate) use self::node_network::{SeenNetwork, cluster_network_of};
use self::own_conflist::{OwnConflist, own_plugin};
use self::state_file::{LEFT, Remembered};
use crate::call::ChangeOver;
use crate::conf_dir::{Directories, Networks, is_meta};
use crate::engine::OWN_TYPE;
use crate::metrics::Node;
use crate::plugin_installation::{self, InstallError, InstallOutcome, OWN_NAME};
use crate::settings::{Installation, Presence};

mod first_in_conf_dir;
mod mounted_directories;
mod multus_settings;
mod node_network;
mod own_conflist;
mod state_file;

/// Our configuration in the conf dir: a runtime takes the first by name.
pub(crate) const CONFLIST: &str = "00-fairlead.conflist";

/// The same while it is being written. Neither the dot in front nor the ending is read by a runtime.
const CONFLIST_NEW: &str = ".00-fairlead.conflist.fairlead-new";

/// The name of the network that our configuration makes.
const NETWORK: &str = "fairlead";

/// What a runtime may tell us of a pod (containerd's and CRI-O's names); each plugin of the cluster network gets what it
/// declares itself.
const CAPABILITIES: [&str; 5] =
    ["portMappings", "bandwidth", "dns", "cgroupPath", "io.kubernetes.cri.pod-annotations"];

/// How often it is looked whether others have taken away what was installed, or the last pod has gone.
const LOOK: Duration = Duration::from_secs(60);

/// How often it is looked whether the daemon is ready, until it is.
const READY_LOOK: Duration = Duration::from_millis(200);

/// Why the node could not be brought to what is wanted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeInstallationError {
    /// No configuration of the conf dir can be the cluster network.
    #[error(
        "{dir} has no network that pods could get first, so pods get nothing from Fairlead yet; put the cluster's network there, \
         or name it in `install: {{clusterNetwork: …}}`", dir = .dir.display()
    )]
    NoClusterNetwork {
        /// The conf dir.
        dir: PathBuf,
    },
    /// The network that pods have got first until now is not there any more.
    #[error(
        "the network {name:?}, which pods got first until now, is not in {dir} any more: nothing is changed, and pods get nothing from Fairlead \
         until it is back; if they are to get another one from now on, name it in `install: {{clusterNetwork: …}}` (`fairleadd networks` lists \
         what is there)", dir = .dir.display()
    )]
    Gone {
        /// Its name.
        name: String,
        /// The conf dir.
        dir: PathBuf,
    },
    /// The network that the settings name is not there, or cannot be attached.
    #[error(
        "the network {name:?} that `install: {{clusterNetwork: …}}` names is not in {dir}, or attaches no pod by itself (as Multus and Fairlead, \
         which attach another network); `fairleadd networks` lists what is there", dir = .dir.display()
    )]
    Unknown {
        /// Its name.
        name: String,
        /// The conf dir.
        dir: PathBuf,
    },
    /// A file of somebody else has the name of ours.
    #[error("{file} is there and was not made by Fairlead; rename or remove it", file = .file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// What Multus is told cannot be taken over as it is.
    #[error("Multus' configuration cannot be taken over: {0}")]
    Multus(String),
    /// Multus attaches our own network first. Our files are needed as long as that is so.
    #[error(
        "Multus is told to attach Fairlead's own network first, which it has taken for the cluster network: {file} and the executable {OWN_NAME} \
         stay, also under `install: {{cni: absent}}`, as without them no pod of Multus would start or end; name the cluster network's own file in Multus' \
         settings (`multusMasterCNI` of the thick plugin, `--multus-master-cni-file-name` of the thin one) and restart Multus on this node, \
         so that it writes its configuration anew; where Multus is gone, remove what it has left in the conf dir",
        file = .file.display()
    )]
    NamedByMultus {
        /// Our configuration, which Multus needs.
        file: PathBuf,
    },
    /// The node is installed, and for some pods the change from Multus or to Multus is not complete.
    #[error("pods that live through the change: {0}")]
    Pods(#[source] CniError),
    /// A file of the conf dir sorts before ours.
    #[error(
        "the runtime takes {first} and not Fairlead: its name sorts before {CONFLIST}; rename it so that it comes later, or remove it, and \
         name its network in `install: {{clusterNetwork: …}}` if pods are to get it first", first = .first.display()
    )]
    NotFirst {
        /// That file.
        first: PathBuf,
    },
    /// Our configuration is there, and not the executable that it names.
    #[error(
        "{file} names {OWN_NAME}, which is in no plugin directory: no pod of this node starts; `install: {{cni: present}}` puts it there, \
         `install: {{cni: absent}}` takes that file away; or remove the file", file = .file.display()
    )]
    NoExecutable {
        /// Our configuration, which names it.
        file: PathBuf,
    },
    /// The host has another directory by now than the one that is mounted here.
    #[error(
        "{directory} on the host is not the directory any more that this container has mounted (it was removed and made anew, or a link leads \
         elsewhere): what the runtime takes is not seen, and nothing is installed; restart the container, which mounts it anew, as kubelet does by \
         itself where it asks for `status --alive`", directory = .directory.display()
    )]
    Replaced {
        /// Its path on the host.
        directory: PathBuf,
    },
    /// Another program has taken our configuration away again.
    #[error(
        "{file} was taken away {times} times{renamed} and is written again {pause_s} s after the last time: another program wants to be the node's only \
         network; tell it not to (cilium: `cni.exclusive=false` in its chart, `cni-exclusive: \"false\"` in its ConfigMap)",
        file = .file.display()
    )]
    TakenAway {
        /// Our configuration, which was taken away.
        file: PathBuf,
        /// How often.
        times: u32,
        /// When it is written again.
        pause_s: u64,
        /// What has become of it, where that is seen.
        renamed: String,
    },
    /// Another program has changed our configuration again, and not only appended plugins.
    #[error(
        "{file} was changed {times} times and is written again {pause_s} s after the last time: Fairlead keeps plugins that another program appends \
         to the list, and neither other changes nor plugins that no runtime can run there; tell that program to append its plugin alone, or to use the \
         cluster network's own file",
        file = .file.display()
    )]
    Changed {
        /// Our configuration, which was changed.
        file: PathBuf,
        /// How often it was changed or taken away.
        times: u32,
        /// When it is written again.
        pause_s: u64,
    },
    /// The executable could not be installed or uninstalled.
    #[error(transparent)]
    Executable(#[from] InstallError),
    /// Our configuration, or what is remembered of it, could not be read, written or removed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What of the node was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// What was done about the executable, where something was.
    executable: Option<InstallOutcome>,
    /// The cluster network of a configuration that was written; an empty name: the configuration was removed.
    conflist: Option<String>,
}

/// The node that Fairlead is installed on.
pub(crate) struct NodeInstallation {
    networks: Arc<Networks>,
    program: PathBuf,
    /// Whether pods have something of ours that their DEL must find the executable for.
    in_use: Box<dyn Fn() -> bool + Send>,
    change_over: ChangesOver,
    /// When our configuration was last taken away.
    removed: Mutex<Option<Instant>>,
    told: Mutex<String>,
    remembered: Remembered,
    /// Our configuration as we wrote it last.
    written: Mutex<Option<OwnConflist>>,
    contest: Mutex<Contest>,
    mounted: MountedDirectories,
    /// What the metrics say of it.
    metrics: Node,
    /// What `status` says of it.
    seen: SeenNetwork,
}

/// What pods need that live through a change from Multus or to Multus; the directory is that of Multus' attachments.
type ChangesOver = Box<dyn Fn(ChangeOver, &str) -> Result<(), CniError> + Send>;

impl NodeInstallation {
    /// `program`: our executable, to be copied. `state_dir`: what was taken over stays there. `seen`: what `status` asks.
    pub(crate) fn new(
        networks: Arc<Networks>,
        (program, state_dir): (PathBuf, &Path),
        (metrics, seen): (Node, SeenNetwork),
        in_use: Box<dyn Fn() -> bool + Send>,
        change_over: ChangesOver,
    ) -> NodeInstallation {
        NodeInstallation {
            networks,
            program,
            in_use,
            change_over,
            removed: Mutex::default(),
            told: Mutex::default(),
            remembered: Remembered::in_dir(state_dir),
            written: Mutex::default(),
            contest: Mutex::default(),
            mounted: MountedDirectories::default(),
            metrics,
            seen,
        }
    }

    /// Brings the node to what `wanted` answers, whenever `news` come, from when `ready` is true until the sender is gone.
    pub(crate) fn keep(
        &self,
        news: &Receiver<()>,
        ready: &dyn Fn() -> bool,
        wanted: &dyn Fn() -> Option<Installation>,
    ) {
        // Here and not where this is made: the directories may be on a disk that hangs.
        self.mounted.at_first(self.networks.directories());
        let mut pause = READY_LOOK;
        loop {
            if pause == LOOK || ready() {
                pause = LOOK;
                self.bring_to(wanted().as_ref());
            }
            let pause = self.contest.lock().pause().map_or(pause, |until| until.min(pause));
            match news.recv_timeout(pause) {
                Ok(()) => while news.try_recv().is_ok() {},
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Brings the node to what is wanted (`None`: it stays as it is), and tells how it stands then.
    fn bring_to(&self, wanted: Option<&Installation>) {
        let directories = self.networks.directories();
        if let Err(replaced) = self.mounted.must_be_hosts(directories) {
            self.tell_of_replaced(replaced);
            return;
        }
        let Directories { conf: conf_dir, plugins, .. } = directories;
        let done = wanted.map_or_else(|| Ok(Changes::default()), |wanted| self.carry_out(wanted));
        // Also where that came to nothing: pods get what the runtime takes meanwhile.
        let in_force = match wanted.map(|wanted| wanted.cni) {
            Some(Presence::Present) => must_be_first(conf_dir),
            Some(Presence::Absent) | None => Ok(()),
        };
        let in_force = in_force.and_then(|()| match conflist_without_executable(conf_dir, plugins) {
            Some(file) => Err(NodeInstallationError::NoExecutable { file }),
            None => Ok(()),
        });
        self.metrics.network_displaced.set(i64::from(in_force.is_err()));
        self.log(&done.and_then(|changes| in_force.map(|()| changes)));
        *self.seen.lock() = Some(NodeNetwork::in_dir(conf_dir, self.failing()));
    }

    /// Nothing is done: nobody would see it.
    fn tell_of_replaced(&self, replaced: NodeInstallationError) {
        self.metrics.network_displaced.set(1);
        self.log(&Err(replaced));
        *self.seen.lock() = Some(NodeNetwork::unknown(self.failing()));
    }

    /// Why the node is not as it should be, as it was told last.
    fn failing(&self) -> Option<String> {
        Some(self.told.lock().clone()).filter(|reason| !reason.is_empty())
    }

    fn log(&self, done: &Result<Changes, NodeInstallationError>) {
        let reason = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let mut told = self.told.lock();
        if *told != reason && !reason.is_empty() {
            warn!(reason, "the node's network is not installed as it should be; it is tried again");
        }
        *told = reason;
        let Ok(changes) = done else { return };
        if let Some(executable) = changes.executable {
            info!(executable = executable.message(), "the executable for the runtime");
        }
        match changes.conflist.as_deref() {
            Some("") => info!("the runtime's network is what it was before Fairlead"),
            Some(network) => info!(cluster_network = network, "the runtime's network is Fairlead"),
            None => {}
        }
    }

    fn carry_out(&self, wanted: &Installation) -> Result<Changes, NodeInstallationError> {
        match wanted.cni {
            Presence::Present => self.install(wanted),
            Presence::Absent => self.uninstall(),
        }
    }

    fn install(&self, wanted: &Installation) -> Result<Changes, NodeInstallationError> {
        let file = self.conflist();
        let there = self.own_conflist()?;
        let of_daemon = wanted.multus_daemon_config.as_deref();
        let multus =
            MultusSettings::on_node(&self.networks, of_daemon).map_err(NodeInstallationError::Multus)?;
        let installed = there.as_ref().and_then(OwnConflist::plugin).cloned();
        let before = self.before(installed, multus.as_ref());
        let network = chosen(&self.networks, wanted.cluster_network.as_deref(), &before, multus.as_ref())?;
        self.tell_of_a_guess(wanted, &before, &network, multus.as_ref());
        let mut changes = Changes::default();
        if let Some(directory) = self.networks.directories().plugins.first() {
            let done = plugin_installation::install(directory, OWN_NAME, &self.program)?;
            changes.executable = (done != InstallOutcome::Unchanged).then_some(done);
        }
        let plugin = plugin(&network, &before, multus.as_ref());
        let dir = multus_settings::cni_dir(&plugin);
        // Before a pod of ours can come, and again: Multus may have made one more meanwhile.
        let _ = (self.change_over)(ChangeOver::FromMultus, &dir);
        let conflist = OwnConflist::new(&network, &plugin, there.as_ref());
        if there.as_ref() != Some(&conflist) {
            self.must_not_be_contested(there.as_ref())?;
            self.remember(&plugin);
            let new = file.with_file_name(CONFLIST_NEW);
            write_synced(&new, conflist.text().as_bytes(), 0o600).map_err(failed(&new, "written"))?;
            fs::rename(&new, &file).map_err(failed(&file, "replaced"))?;
            self.sync_conf_dir()?;
            changes.conflist = Some(network.name.clone());
            *self.written.lock() = Some(conflist);
        } else {
            // That of an earlier release, which kept nothing else.
            self.remember(&plugin);
        }
        (self.change_over)(ChangeOver::FromMultus, &dir).map_err(NodeInstallationError::Pods)?;
        // Told before the node is left: then it has to be put right first.
        must_not_be_named_by_multus(&self.networks, of_daemon)?;
        Ok(changes)
    }

    /// A state directory that cannot be written keeps no node from its network.
    fn remember(&self, plugin: &Map<String, Value>) {
        if let Err(error) = self.remembered.keep(plugin) {
            warn!(%error, "what was taken over is kept in our configuration of the conf dir only");
        }
    }

    /// What an earlier install has taken over and chosen: by our configuration; where that is gone, what is remembered of it. Multus' own
    /// word of today counts more than what is remembered.
    fn before(
        &self,
        installed: Option<Map<String, Value>>,
        multus: Option<&MultusSettings>,
    ) -> Map<String, Value> {
        let remembered = || self.remembered.plugin().filter(|_| multus.is_none());
        installed.or_else(remembered).unwrap_or_default()
    }

    /// On a fresh node the network that is meant may come later than we do, and what is taken stays.
    fn tell_of_a_guess(
        &self,
        wanted: &Installation,
        before: &Map<String, Value>,
        network: &ConfList,
        multus: Option<&MultusSettings>,
    ) {
        let earlier = before.get("clusterNetwork").and_then(Value::as_str);
        let is_new = match earlier {
            Some(name) => before.contains_key(LEFT) && name != network.name,
            None => before.is_empty(),
        };
        if wanted.cluster_network.is_none() && is_new && multus.is_none() {
            warn!(
                cluster_network = network.name,
                "pods get this network first because it is the first of the conf dir now, and it stays so; if another one is meant, name it in `install: {{clusterNetwork: …}}`"
            );
        }
    }

    /// Ours was written by this daemon and is gone or another one by now: somebody else has done that. Appending a plugin changes nothing
    /// of ours.
    fn must_not_be_contested(&self, there: Option<&OwnConflist>) -> Result<(), NodeInstallationError> {
        let written = self.written.lock();
        if written.as_ref().is_none_or(|written| there.is_some_and(|there| there.own == written.own)) {
            return Ok(());
        }
        let conf_dir = &self.networks.directories().conf;
        self.contest.lock().contested(conf_dir, there.is_some())?;
        warn!(
            file = %conf_dir.join(CONFLIST).display(),
            "another program has taken our configuration away or changed it; it is written again"
        );
        Ok(())
    }

    fn uninstall(&self) -> Result<Changes, NodeInstallationError> {
        must_not_be_named_by_multus(&self.networks, None)?;
        let mut changes = Changes::default();
        let file = self.conflist();
        let there = self.own_conflist()?;
        let multus = MultusSettings::on_node(&self.networks, None).ok().flatten();
        let dir = multus.as_ref().map(MultusSettings::cni_dir);
        // A call that began when the runtime still had our configuration may be on its way.
        let change = match there.is_some() || self.removed.lock().is_some_and(|at| at.elapsed() < LOOK) {
            true => ChangeOver::ToMultus,
            false => ChangeOver::StaysWithMultus,
        };
        // Before the runtime calls Multus for pods of ours, and again for those that came meanwhile.
        let hand_over = || match &dir {
            Some(dir) => (self.change_over)(change, dir).map_err(NodeInstallationError::Pods),
            None => Ok(()),
        };
        if there.is_some() {
            let _ = hand_over();
            fs::remove_file(&file).map_err(failed(&file, "removed"))?;
            self.sync_conf_dir()?;
            changes.conflist = Some(String::new());
            *self.written.lock() = None;
            *self.removed.lock() = Some(Instant::now());
        }
        // A runtime that remembers how it attached a pod asks the same executable to detach it, and so does Multus.
        if let Some(directory) = self.networks.directories().plugins.first()
            && !(self.in_use)()
        {
            let done = plugin_installation::uninstall(directory, OWN_NAME)?;
            let changed = !matches!(done, InstallOutcome::NotOurs | InstallOutcome::Absent);
            changes.executable = changed.then_some(done);
        }
        hand_over()?;
        self.remembered.leave()?;
        Ok(changes)
    }

    fn sync_conf_dir(&self) -> Result<(), FileError> {
        let conf_dir = &self.networks.directories().conf;
        sync_dir(conf_dir).map_err(failed(conf_dir, "made durable"))
    }

    fn conflist(&self) -> PathBuf {
        self.networks.directories().conf.join(CONFLIST)
    }

    /// Our configuration, where it is there.
    fn own_conflist(&self) -> Result<Option<OwnConflist>, NodeInstallationError> {
        let file = self.conflist();
        let Some(bytes) = read_optional(&file).map_err(failed(&file, "read"))? else { return Ok(None) };
        match OwnConflist::read(&String::from_utf8_lossy(&bytes)) {
            Some(conflist) => Ok(Some(conflist)),
            None => Err(NodeInstallationError::Foreign { file }),
        }
    }
}

/// The network that pods get first: the one that the settings name, else the one of an earlier install, else the one that Multus'
/// settings name, else the runtime's first. The last is for the first install only: an earlier one's network is never replaced by what
/// happens to lie there.
///
/// # Errors
/// When none is there, or not the one that is named or was chosen.
pub(crate) fn cluster_network(
    networks: &Networks,
    named: Option<&str>,
) -> Result<Arc<ConfList>, NodeInstallationError> {
    // A file of somebody else under our name says nothing of an earlier install.
    let there = read_optional(&networks.directories().conf.join(CONFLIST)).ok().flatten();
    let before = there.as_deref().map(String::from_utf8_lossy).as_deref().and_then(own_plugin);
    let multus = MultusSettings::on_node(networks, None).map_err(NodeInstallationError::Multus)?;
    chosen(networks, named, &before.unwrap_or_default(), multus.as_ref())
}

/// `before`: the plugin of our configuration from an earlier install.
fn chosen(
    networks: &Networks,
    named: Option<&str>,
    before: &Map<String, Value>,
    multus: Option<&MultusSettings>,
) -> Result<Arc<ConfList>, NodeInstallationError> {
    let dir = || networks.directories().conf.clone();
    let find = |name: &str| networks.find(name).filter(attaches);
    if let Some(name) = named {
        return find(name)
            .ok_or_else(|| NodeInstallationError::Unknown { name: name.to_owned(), dir: dir() });
    }
    let earlier = before.get("clusterNetwork").and_then(Value::as_str);
    if let Some(found) = earlier.and_then(find) {
        return Ok(found);
    }
    // An earlier release chose our own network where Multus named that: it never comes back as one that can be attached.
    let earlier = earlier.filter(|name| *name != NETWORK && !before.contains_key(LEFT));
    let of_multus = multus.map(MultusSettings::cluster_network).transpose();
    let of_multus = of_multus.map_err(NodeInstallationError::Multus)?.flatten();
    match (of_multus, earlier) {
        (Some(named), _) => Ok(named),
        // A CNI that is upgraded removes its file for a moment. What else lies there (podman's, CRI-O's own) would stay chosen for good.
        (None, Some(name)) => Err(NodeInstallationError::Gone { name: name.to_owned(), dir: dir() }),
        (None, None) => {
            first_network(networks).ok_or_else(|| NodeInstallationError::NoClusterNetwork { dir: dir() })
        }
    }
}

/// The runtime's first network that attaches pods by itself.
fn first_network(networks: &Networks) -> Option<Arc<ConfList>> {
    networks.in_file_order().into_iter().find(attaches)
}

/// Whether pods can get it first. That of `loopback` alone, which some runtimes' packages bring, attaches no pod to anything.
fn attaches(list: &Arc<ConfList>) -> bool {
    !is_meta(list) && !list.plugin_types().all(|t| t == "loopback")
}

/// The networks of the conf dir that could be the cluster network, by their names.
pub(crate) fn possible_cluster_networks(networks: &Networks) -> Vec<String> {
    networks.in_file_order().iter().filter(|list| attaches(list)).map(|list| list.name.clone()).collect()
}

/// Why the runtime does not take our configuration; `None`: it does, or there is none at all.
pub(crate) fn displaced_by(conf_dir: &Path) -> Option<String> {
    must_be_first(conf_dir).err().map(|why| why.to_string())
}

/// Multus does not attach our own network first. `of_daemon`: the settings of its daemon.
///
/// # Errors
/// When it does.
fn must_not_be_named_by_multus(
    networks: &Networks,
    of_daemon: Option<&Path>,
) -> Result<(), NodeInstallationError> {
    match multus_settings::name_our_network(networks, of_daemon) {
        true => {
            Err(NodeInstallationError::NamedByMultus { file: networks.directories().conf.join(CONFLIST) })
        }
        false => Ok(()),
    }
}

/// Why Multus, by its configuration of the conf dir, needs our files; `None`: it does not.
pub(crate) fn named_by_multus(networks: &Networks) -> Option<String> {
    must_not_be_named_by_multus(networks, None).err().map(|why| why.to_string())
}

/// Our plugin in our configuration. What Multus was told is taken over; where Multus is gone by now, what was taken over stays.
fn plugin(
    network: &ConfList,
    before: &Map<String, Value>,
    multus: Option<&MultusSettings>,
) -> Map<String, Value> {
    let mut plugin = match multus {
        Some(multus) => multus.keys(),
        None => before.clone(),
    };
    plugin.remove(LEFT);
    let taken = plugin.remove("capabilities");
    let taken = taken.as_ref().and_then(Value::as_object).into_iter().flat_map(Map::keys).map(String::as_str);
    let capabilities: Map<String, Value> =
        CAPABILITIES.into_iter().chain(taken).map(|name| (name.to_owned(), Value::Bool(true))).collect();
    plugin.insert("capabilities".to_owned(), Value::Object(capabilities));
    plugin.insert("clusterNetwork".to_owned(), network.name.clone().into());
    plugin.insert("type".to_owned(), OWN_TYPE.into());
    plugin
}

/// Our executable: it lies beside this program.
pub(crate) fn own_program() -> PathBuf {
    std::env::current_exe().unwrap_or_default().parent().unwrap_or(Path::new("/")).join(OWN_NAME)
}

#[cfg(test)]
mod tests;
