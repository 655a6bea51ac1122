//! Pools of vhost-user ports that kubelet allocates to pods: each port has a name and a directory of root's, in which its socket is
//! before a pod asks for it. What an ADD does is to have the switch serve that socket.
//!
//! A directory is one pod's at a time. A pod may still have it open when it is over, and where it makes the socket itself it may have put
//! anything there: so the next pod gets a new directory of the same name (`fairlead_host::renewed_directory`), made as soon as no
//! attachment has the port. The name stays the same because kubelet keeps what Allocate answered, beyond a restart of the node.
//!
//! Every ADD of a port takes the lock of what is known of ports. It is held while directories are made, which are in memory, and never
//! while the state directory is read or written: a disk that hangs keeps no ADD waiting.
//!
//! Whose a port is, the store says. Nothing here knows the switch, the engine or kubelet's interface.

mod definition;
mod mac_addresses;
mod offer;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::socket_file::Access;
use fairlead_host::{Mac, renewed_directory, security_label, socket_file};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use crate::store::Store;

use mac_addresses::MacAddresses;

pub use definition::{OvsSettings, PortMode, PortPoolSettings, SelinuxLabel, VhostUserSettings};
pub(crate) use offer::{OfferedPort, PortAccess, PortOffer};

/// The name of every socket: `Allocate` tells the pod of it before its ADD comes.
pub(crate) const SOCKET: &str = "vhost-user.sock";
/// Where containers see the directories of their ports, each under the port's name.
const IN_CONTAINER: &str = "/run/vhost-user";
/// Where the ports' directories are, in the run directory.
const DIRECTORY: &str = "vhost-user";
/// Of what pods have left, so much is removed at a time.
const SWEPT_AT_ONCE: usize = 4096;
/// So often what is missing is made, and what was left removed.
const MENDS: Duration = Duration::from_secs(1);

/// Why a port is kept from pods that was declared just now.
const NOT_ON_RECORD: &str = "its MAC address is not on record";

/// How a port can stand.
const STATE_NAMES: [&str; 3] = ["ready", "taken", "broken"];

/// The ports of one node.
pub(crate) struct PortPools {
    directory: PathBuf,
    store: Arc<Store>,
    random: Box<dyn Fn() -> u64 + Send + Sync>,
    state: Mutex<State>,
    /// What is on record. Held by whoever reads or writes it, for as long as the disk takes; taken before `state`.
    mac_addresses: Mutex<MacAddresses>,
    /// Of directories that are made.
    label: Mutex<SelinuxLabel>,
}

struct State {
    pools: Vec<PortPoolSettings>,
    /// The ports that are declared.
    ports: BTreeMap<String, Port>,
    /// By the name of the resource.
    offers: BTreeMap<String, Arc<PortOffer>>,
    /// Why the MAC addresses on record cannot be read for now.
    unread: Option<String>,
    /// Why what pods have left cannot be removed, which was said.
    unswept: Option<String>,
    mended: Option<Instant>,
}

struct Port {
    pool: String,
    resource: String,
    mode: PortMode,
    /// Its MAC address, as soon as that is on record. Without one the port has a fault.
    mac: Option<Mac>,
    ready: Option<Ready>,
    /// Why its MAC address is not on record, or its directory could not be made.
    fault: Option<String>,
}

/// The directory is new: no pod has had it.
struct Ready {
    /// The socket in it, where pods connect.
    listener: Option<OwnedFd>,
}

impl PortPools {
    /// Ports with directories in the run directory, and MAC addresses in the state directory, of random numbers. None is declared yet.
    pub(crate) fn new(
        run_dir: &Path,
        state_dir: &Path,
        store: Arc<Store>,
        random: Box<dyn Fn() -> u64 + Send + Sync>,
    ) -> PortPools {
        let mac_addresses = MacAddresses::read(state_dir);
        let state = State {
            pools: Vec::new(),
            ports: BTreeMap::new(),
            offers: BTreeMap::new(),
            unread: mac_addresses.unread().map(ToString::to_string),
            unswept: None,
            mended: None,
        };
        PortPools {
            directory: run_dir.join(DIRECTORY),
            store,
            random,
            state: Mutex::new(state),
            mac_addresses: Mutex::new(mac_addresses),
            label: Mutex::default(),
        }
    }

    /// Directories that are made from now on have this label.
    pub(crate) fn set_label(&self, label: &SelinuxLabel) {
        label.clone_into(&mut self.label.lock());
    }

    /// Takes the pools that the configuration declares, and makes the directories of their ports. A port that a pod has is left alone.
    pub(crate) fn configure(self: &Arc<PortPools>, pools: &[PortPoolSettings]) {
        self.declare(pools);
        self.refill(&mut self.mac_addresses.lock()).show_offers();
    }

    /// Knows these pools and no others from now on. Waits for no disk: a port that is new is kept from pods for now.
    fn declare(self: &Arc<PortPools>, pools: &[PortPoolSettings]) {
        let mut state = self.state.lock();
        let mut before = std::mem::take(&mut state.ports);
        for pool in pools {
            for id in pool.ids() {
                let known = before.remove(&id);
                let mac = known.as_ref().and_then(|port| port.mac);
                // What is ready for the one mode is not for the other.
                let known = known.filter(|port| port.mode == pool.mode);
                let (ready, fault) = known.map_or((None, None), |port| (port.ready, port.fault));
                let fault = fault.or_else(|| mac.is_none().then(|| NOT_ON_RECORD.to_owned()));
                let (pool, resource, mode) = (pool.name.clone(), pool.resource_name.clone(), pool.mode);
                state.ports.insert(id, Port { pool, resource, mode, mac, ready, fault });
            }
        }
        state.pools = pools.to_vec();
        self.discard_undeclared(&state);
        state.arrange_offers(&Arc::downgrade(self));
    }

    /// Whether a pool or a port has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        let state = self.state.lock();
        state.ports.contains_key(name) || state.pools.iter().any(|pool| pool.name == name)
    }

    /// What kubelet is to be offered.
    pub(crate) fn offers(&self) -> Vec<Arc<PortOffer>> {
        self.state.lock().offers.values().cloned().collect()
    }

    /// The resource of a port that is declared, and the pods' side of its socket.
    pub(crate) fn port(&self, id: &str) -> Option<(String, PortMode)> {
        self.state.lock().ports.get(id).map(|port| (port.resource.clone(), port.mode))
    }

    /// The NUMA node of a port's pool, if that is declared with one.
    pub(crate) fn numa_node(&self, id: &str) -> Option<u32> {
        let state = self.state.lock();
        let pool = &state.ports.get(id)?.pool;
        state.pools.iter().find(|declared| declared.name == *pool)?.numa_node
    }

    /// The MAC address of a port that is declared; none where none is on record.
    ///
    /// # Errors
    /// Why the addresses on record cannot be read for now: the port may have one, and its pod may know it.
    pub(crate) fn mac_address(&self, id: &str) -> Result<Option<Mac>, String> {
        let state = self.state.lock();
        match &state.unread {
            Some(unread) => Err(unread.clone()),
            None => Ok(state.ports.get(id).and_then(|port| port.mac)),
        }
    }

    /// The directory of a port, on the host.
    pub(crate) fn directory(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    /// The directory of a port as its pod's containers see it.
    pub(crate) fn in_container(id: &str) -> String {
        format!("{IN_CONTAINER}/{id}")
    }

    /// Opens the directory that a port has now.
    pub(crate) fn open(&self, id: &str) -> io::Result<OwnedFd> {
        renewed_directory::open(File::open(&self.directory)?, id)
    }

    /// The socket of a port whose record has begun; the directory with it is its pod's from now on. `None`: pods make it, or it was
    /// taken before.
    ///
    /// # Errors
    /// When there is no clean directory, and none can be made.
    pub(crate) fn take(&self, id: &str) -> io::Result<Option<OwnedFd>> {
        let mut state = self.state.lock();
        let Some(port) = state.ports.get_mut(id) else { return Ok(None) };
        match port.ready.take() {
            Some(ready) => Ok(ready.listener),
            None => Ok(self.new_directory(id, port.mode)?.listener),
        }
    }

    /// A port's attachment is over: the next pod gets a new directory. `id`: that of its record, which is still there.
    ///
    /// # Errors
    /// The kernel's. It may be done again.
    pub(crate) fn give_back(&self, port: &str, id: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if self.store.has_port(port, Some(id)) {
            return Ok(());
        }
        let Some(declared) = state.ports.get_mut(port) else { return self.discard(port) };
        declared.ready = None;
        let made = self.new_directory(port, declared.mode);
        declared.note(made.as_ref().err().map(unmade));
        declared.ready = Some(made?);
        state.show_offers();
        Ok(())
    }

    /// [`PortPools::mend`], once a second at most.
    pub(crate) fn mend_when_due(&self) {
        let now = Instant::now();
        let is_due = |last: Instant| now.duration_since(last) >= MENDS;
        let mut state = self.state.lock();
        if state.mended.is_none_or(is_due) {
            state.mended = Some(now);
            drop(state);
            self.mend();
        }
    }

    /// Whether any pool has ports.
    pub(crate) fn has_ports(&self) -> bool {
        !self.state.lock().ports.is_empty()
    }

    /// Makes what is missing, and removes some of what pods have left.
    pub(crate) fn mend(&self) {
        // Whoever has the addresses just now refills too when the disk lets go of it. Nobody waits for that: this thread keeps ports up.
        let state = match self.mac_addresses.try_lock() {
            Some(mut mac_addresses) => self.refill(&mut mac_addresses),
            None => self.with_directories(self.state.lock()),
        };
        state.show_offers();
        drop(state);
        let swept = match File::open(&self.directory) {
            Ok(directory) => renewed_directory::sweep(directory, SWEPT_AT_ONCE).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        let unswept = swept.err().map(|error| error.to_string());
        let mut state = self.state.lock();
        if let Some(error) = unswept.as_deref().filter(|error| state.unswept.as_deref() != Some(*error)) {
            tracing::warn!(directory = %self.directory.display(), error, "what pods have left in directories of ports stays");
        }
        state.unswept = unswept;
    }

    /// The ports for the operator.
    pub(crate) fn table(&self) -> Value {
        let state = self.state.lock();
        let row = |(id, port): (&String, &Port)| {
            let holder = self.store.port_holder_in_words(id);
            let word = port.state_name(holder.is_some());
            json!({"pool": port.pool, "port": id, "resource": port.resource, "mode": port.mode, "mac": port.mac, "state": word,
                "attachment": holder, "reason": port.fault})
        };
        state.ports.iter().map(row).collect()
    }

    /// How many ports each pool has in which state.
    pub(crate) fn census(&self) -> BTreeMap<(String, &'static str), usize> {
        let state = self.state.lock();
        let mut counted = BTreeMap::new();
        for (id, port) in &state.ports {
            let word = port.state_name(self.store.has_port(id, None));
            // Zeroes too, so that a series does not end with its last port.
            for each in STATE_NAMES {
                *counted.entry((port.pool.clone(), each)).or_default() += usize::from(each == word);
            }
        }
        counted
    }

    /// Kubelet gives a port to a pod. One that another pod's attachment still has is cleaned when that is over: its DEL comes before
    /// the containers of the new pod.
    fn allocate(&self, id: &str) -> Result<PortAccess, String> {
        let mut state = self.state.lock();
        let port = state.ports.get_mut(id).ok_or("no pool has it any more")?;
        let mac = port.mac.ok_or(NOT_ON_RECORD)?;
        // A pod may have been given it before without an ADD for it ever coming.
        if !self.store.has_port(id, None) {
            port.ready = None;
            let made = self.new_directory(id, port.mode).map_err(|error| unmade(&error));
            port.note(made.as_ref().err().cloned());
            port.ready = Some(made?);
        }
        Ok(PortAccess {
            mac,
            mode: fairlead_cni::config::vhost_user::Mode::from(port.mode).as_str(),
            host_directory: self.directory(id).to_string_lossy().into_owned(),
            directory: PortPools::in_container(id),
            read_only: port.mode == PortMode::Client,
        })
    }

    /// Puts the MAC addresses of ports on record that have none, and makes the directories that are missing.
    fn refill(&self, mac_addresses: &mut MacAddresses) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.ports.iter_mut().for_each(|(id, port)| port.take_address(mac_addresses.of(id), None));
        let ids: Vec<String> = state.ports.keys().cloned().collect();
        drop(state);
        // ADDs ask for ports meanwhile, and other ports may be declared by the end of it.
        let unrecorded = mac_addresses.record(ids.iter(), &self.random).err();
        let mut state = self.state.lock();
        state.unread = mac_addresses.unread().map(ToString::to_string);
        for (id, port) in &mut state.ports {
            port.take_address(mac_addresses.of(id), unrecorded.as_ref());
        }
        self.with_directories(state)
    }

    /// Makes the directories that are missing of ports whose addresses are on record.
    fn with_directories<'s>(&self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let is_missing = |port: &Port| port.ready.is_none() && port.mac.is_some();
        for (id, port) in state.ports.iter_mut().filter(|(_, port)| is_missing(port)) {
            if self.store.has_port(id, None) {
                continue;
            }
            let made = self.new_directory(id, port.mode).map_err(|error| unmade(&error));
            port.note(made.as_ref().err().cloned());
            port.ready = made.ok();
        }
        state
    }

    /// Discards the directories of ports that are not declared any more, unless a pod still has them.
    fn discard_undeclared(&self, state: &State) {
        let names = File::open(&self.directory).and_then(renewed_directory::names).unwrap_or_default();
        let is_nobodys = |id: &&String| !state.ports.contains_key(*id) && !self.store.has_port(id, None);
        for id in names.iter().filter(is_nobodys) {
            if let Err(error) = self.discard(id) {
                tracing::warn!(port = id, %error, "the directory of a port that no pool has stays");
            }
        }
    }

    fn discard(&self, id: &str) -> io::Result<()> {
        match File::open(&self.directory) {
            Ok(directory) => renewed_directory::discard(directory, id),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A new directory, with a socket that listens where pods connect.
    fn new_directory(&self, id: &str, mode: PortMode) -> io::Result<Ready> {
        // Root's alone, so that no other user of the host reaches a directory in it.
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let all = File::open(&self.directory)?;
        match mode {
            PortMode::Client => {
                let made = renewed_directory::renew(&all, id, 0o755)?;
                self.give_label(&all, &made, id);
                let listener = socket_file::make_listener(made, SOCKET, None, Access::WhoeverSeesIt)?;
                Ok(Ready { listener: Some(listener) })
            }
            // A container of any user makes its socket there; nobody else has the directory.
            PortMode::Server => {
                let made = renewed_directory::renew(&all, id, 0o777)?;
                self.give_label(&all, &made, id);
                Ok(Ready { listener: None })
            }
        }
    }
}

impl PortPools {
    /// Labels a port's directory before anything is in it. A port without its label is of use where containers are not confined.
    fn give_label(&self, all: &File, made: &OwnedFd, id: &str) {
        let SelinuxLabel(label) = self.label.lock().clone();
        if label.is_empty() {
            return;
        }
        if let Err(error) = security_label::label_if_labelled(all, made, &label) {
            tracing::warn!(
                port = id, label, %error,
                "the directory of a port has not its SELinux label: confined containers can't use it; set vhostUser.selinuxLabel"
            );
        }
    }
}

impl Port {
    /// How it stands, in a word for the operator.
    fn state_name(&self, is_taken: bool) -> &'static str {
        let [ready, taken, broken] = STATE_NAMES;
        match (&self.fault, is_taken) {
            (Some(_), _) => broken,
            (None, true) => taken,
            (None, false) => ready,
        }
    }

    /// Has the address that is on record for it; `unrecorded`: why none could be put there.
    fn take_address(&mut self, mac: Option<Mac>, unrecorded: Option<&io::Error>) {
        let is_first = self.mac.is_none() && mac.is_some();
        self.mac = mac;
        match (mac, unrecorded) {
            (Some(_), _) if is_first => self.note(None),
            (None, Some(error)) => {
                self.note(Some(format!("its MAC address cannot be put on record: {error}")));
            }
            _ => {}
        }
    }

    /// Notes why pods are kept from it, or that they are not; what is new is said.
    fn note(&mut self, fault: Option<String>) {
        if fault.is_none() && self.mac.is_none() {
            return; // Whatever was mended: no pod is told of an address that is not on record.
        }
        if let Some(why) = fault.as_deref().filter(|why| self.fault.as_deref() != Some(*why)) {
            tracing::error!(pool = self.pool, why, "a port is kept from pods; it is tried again");
        }
        self.fault = fault;
    }
}

/// Why a port without a directory is kept from pods.
fn unmade(error: &io::Error) -> String {
    format!("its directory cannot be made: {error}")
}

#[cfg(test)]
mod tests;
