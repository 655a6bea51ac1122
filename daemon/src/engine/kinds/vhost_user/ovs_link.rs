//! Ports of a running OVS-DPDK: its driver (`fairlead_vhost::ovs_dpdk`), and the directories of sockets as OVS sees them.
//!
//! OVS connects to a path, as root, and again for as long as the port lives; the pod may put anything there. So what OVS is told is no path
//! of the pod's: the directory of the socket is mounted at a short one of ours, and through that no symbolic link is followed.
//!
//! The driver is started when a port is first asked for, and at once where the configuration has a section for it or a record has a port of
//! it: most nodes have no OVS.
//!
//! The run directory is root's alone, and much in it is safe for that reason only. So an OVS of another user has the mounts beside it, in a
//! directory that its group may pass through.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use fairlead_host::{BindMounts, HostRoot, failpoint, group_access};
use fairlead_vhost::ovs_dpdk::{
    DatabaseAddress, Limits, Options, OvsDpdk, OvsError, PortName, PortSpec, PortView, Reconciled, TlsFiles,
    VhostSocket,
};
use parking_lot::{Mutex, RwLock};

use super::socket_dir::unusable;
use crate::engine::errors;
use crate::engine::kinds::Checked;

/// The directories of sockets as OVS sees them, in the run directory.
const DIRECTORY: &str = "ovs";
/// The same for an OVS that is not root's: what is added to the path of the run directory.
const BESIDE_RUN_DIR: &str = "-ovs";
/// So long a connection to the database that was lost is waited for.
const CONNECTS: Duration = Duration::from_millis(500);
/// The same for STATUS: a runtime's call takes the daemon itself for hung when it has no answer after some 95 ms, of which a switch of our
/// own in another path may have had 50.
const STATUS_CONNECTS: Duration = Duration::from_millis(30);
/// So long STATUS does not wait again for a database that it has waited for in vain: each path that needs it would wait as long.
const UNREACHABLE: Duration = Duration::from_secs(1);

/// Where OVS is, and as whom it is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct OvsAccess {
    /// Its database, as the configuration names it.
    pub(crate) database: DatabaseAddress,
    /// What a database that is reached by TLS needs.
    pub(crate) tls: Option<TlsFiles>,
    /// The configuration has a section for it.
    pub(crate) is_configured: bool,
    /// The group that its processes are of, by name or number, where they are not root's.
    pub(crate) group: Option<String>,
    /// This node's name: ports with it are ours, beside those on record.
    pub(crate) node: String,
}

/// The ports of OVS, and what they need on the host.
pub(super) struct OvsLink {
    access: OvsAccess,
    root: Arc<HostRoot>,
    in_run_dir: PathBuf,
    beside_run_dir: PathBuf,
    mounts: BindMounts,
    driver: Mutex<Option<Arc<OvsDpdk>>>,
    /// When STATUS last waited for the database in vain.
    unreachable: Mutex<Option<Instant>>,
    /// Shared by whoever makes or removes a port: while the ports are compared with the records nobody does.
    turn: RwLock<()>,
}

impl OvsLink {
    pub(super) fn new(access: OvsAccess, root: Arc<HostRoot>, run_dir: &Path) -> OvsLink {
        let mounts = BindMounts::new(&root.seen_at(Path::new("/")));
        let in_run_dir = run_dir.join(DIRECTORY);
        let mut name = run_dir.file_name().unwrap_or_default().to_owned();
        name.push(BESIDE_RUN_DIR);
        let beside_run_dir = run_dir.with_file_name(name);
        let (driver, unreachable, turn) = (Mutex::default(), Mutex::default(), RwLock::default());
        OvsLink { access, root, in_run_dir, beside_run_dir, mounts, driver, unreachable, turn }
    }

    /// The socket of a port, as OVS is told of it.
    pub(super) fn socket(&self, port: &PortName, name: &str) -> PathBuf {
        self.directory().join(port.as_str()).join(name)
    }

    /// Makes a port whose socket is, or will be, in this directory of the host. What was there of it before is replaced.
    pub(super) fn add(&self, spec: &PortSpec, directory: &Path) -> Result<(), CniError> {
        let _turn = self.turn.read();
        let driver = self.driver()?;
        if let Some(mount) = mount_of(spec) {
            self.make_mount(directory, mount)?;
        }
        failpoint::pass("add.socket");
        driver.add_port(spec.clone()).map(drop).map_err(|e| told(&e))
    }

    /// Takes a port away. One that OVS does not have is success, and so is a database that is not there: the port goes when it is back.
    pub(super) fn remove(&self, spec: &PortSpec) -> Result<(), CniError> {
        let _turn = self.turn.read();
        match self.driver()?.remove_recorded(spec) {
            Ok(_) => {}
            Err(OvsError::Unreachable(why)) => {
                tracing::warn!(port = %spec.name, %why, "a port of OVS is removed when its database is back");
            }
            Err(error) => return Err(told(&error)),
        }
        failpoint::pass("del.unserved");
        let Some(mount) = mount_of(spec) else { return Ok(()) };
        self.mounts.remove(mount).map_err(|e| unusable(mount, &e))
    }

    fn make_mount(&self, directory: &Path, mount: &Path) -> Result<(), CniError> {
        if let Some(group) = self.group()? {
            let made = self.mounts.make_passable(&self.beside_run_dir, group);
            made.map_err(|e| closed_to_ovs(&self.beside_run_dir, &e))?;
        }
        self.mounts.make(directory, mount).map_err(|e| unusable(directory, &e))
    }

    /// Lets OVS into a directory of this mode that was made for a container.
    pub(super) fn let_in(&self, directory: &OwnedFd, path: &Path, mode: u16) -> Result<(), CniError> {
        let Some(group) = self.group()? else { return Ok(()) };
        group_access::let_pass(directory, mode, group).map_err(|e| closed_to_ovs(path, &e))
    }

    /// Refuses a configuration for an OVS of another group than this node's: it would never be connected. Where the node names none, OVS is
    /// root's, and may be whatever the configuration says.
    pub(super) fn must_be_of(&self, group: &str) -> Result<(), CniError> {
        let Some(own) = &self.access.group else { return Ok(()) };
        // To root every directory is open.
        if ["root", "0"].contains(&group) || self.number_of(group).ok() == Some(self.number_of(own)?) {
            return Ok(());
        }
        let msg = format!("host.vhost.group is {group:?}, and this node's vhostUser.ovs.group is {own:?}");
        Err(CniError::new(Code::InvalidConfig, msg)
            .with("name the group of ovs-vswitchd in both; where that is root's, in neither"))
    }

    /// The number of the group of an OVS that is not root's.
    fn group(&self) -> Result<Option<u32>, CniError> {
        self.access.group.as_deref().map(|group| self.number_of(group)).transpose()
    }

    fn number_of(&self, group: &str) -> Result<u32, CniError> {
        let host = HostRoot::whole(&self.root.seen_at(Path::new("/")));
        let number = group_access::number_of(&host, group)
            .map_err(|e| errors::file("the node's file of groups", &e, Code::Io, "make it a file of text"))?;
        number.ok_or_else(|| {
            CniError::new(Code::InvalidConfig, format!("the node has no group {group:?}"))
                .with("vhostUser.ovs.group is the name or the number of the group of ovs-vswitchd")
        })
    }

    /// CHECK: OVS has the port, as it was asked for.
    pub(super) fn check(&self, spec: &PortSpec) -> Result<Checked, CniError> {
        let Some(port) = self.ports()?.into_iter().find(|port| port.name == spec.name.as_str()) else {
            return Ok(Checked::Changed(format!("OVS has no port {}", spec.name)));
        };
        if port.spec.as_ref() != Some(spec) {
            return Ok(Checked::Changed(format!("the port {} of OVS has other settings", spec.name)));
        }
        // What the database says of the port stays when the switch dies.
        self.driver()?.check_service().map_err(|e| told(&e))?;
        Ok(why_unserved(&port).map_or(Checked::Whole, Checked::Changed))
    }

    /// The ports of ours that OVS has.
    pub(super) fn ports(&self) -> Result<Vec<PortView>, CniError> {
        self.driver()?.ports().map_err(|e| told(&e))
    }

    /// The directory that `ovs-vswitchd` has to see, with the mounts that are made in it.
    pub(super) fn directory(&self) -> &Path {
        if self.access.group.is_some() { &self.beside_run_dir } else { &self.in_run_dir }
    }

    /// As whom `ovs-vswitchd` has access to it.
    pub(super) fn has_access(&self) -> String {
        match &self.access.group {
            Some(group) => format!("is root's or of the group {group}"),
            None => "is root's (if not, name its group in vhostUser.ovs.group)".to_owned(),
        }
    }

    /// Why no port can be made in the bridge just now, for an ADD: a connection that was lost is waited for. `is_made`: a bridge that is
    /// not there is made with its first port.
    pub(super) fn lacks_for_add(&self, bridge: &str, is_made: bool) -> Option<String> {
        self.look(bridge, is_made, CONNECTS).err().map(|e| e.to_string())
    }

    /// The same for STATUS: it answers soon, whatever OVS does.
    pub(super) fn lacks_for_status(&self, bridge: &str, is_made: bool) -> Option<String> {
        let was_away = self.unreachable.lock().is_some_and(|since| since.elapsed() < UNREACHABLE);
        let limit = if was_away { Duration::ZERO } else { STATUS_CONNECTS };
        let looked = self.look(bridge, is_made, limit);
        if !was_away {
            let is_away = matches!(looked, Err(OvsError::Unreachable(_)));
            *self.unreachable.lock() = is_away.then(Instant::now);
        }
        looked.err().map(|e| e.to_string())
    }

    fn look(&self, bridge: &str, is_made: bool, limit: Duration) -> Result<(), OvsError> {
        match self.started()?.check_bridge(bridge, limit) {
            Err(OvsError::BridgeMissing { .. }) if is_made => Ok(()),
            looked => looked,
        }
    }

    /// How often there was a connection to the database; `None`: nothing is to be done there. `has_ports`: some record has a port of it.
    pub(super) fn connections(&self, has_ports: bool) -> Option<u64> {
        let is_started = self.driver.lock().is_some();
        if !is_started && !self.access.is_configured && !self.in_run_dir.exists() && !has_ports {
            return None;
        }
        let driver = self.driver().ok()?;
        driver.status().unreachable.is_none().then(|| driver.counters().connections)
    }

    /// Has OVS have these ports and no others of ours. `owned` is asked for while no port is made or removed.
    pub(super) fn keep_only(&self, owned: impl FnOnce() -> Vec<PortSpec>) -> Result<Reconciled, CniError> {
        let _turn = self.turn.write();
        let owned = owned();
        let reconciled = self.driver()?.reconcile(&owned).map_err(|e| told(&e))?;
        let is_owned = |name: &str| owned.iter().any(|spec| spec.name.as_str() == name);
        // A port keeps its mount when the group changes.
        for directory in [&self.in_run_dir, &self.beside_run_dir] {
            let mounts = self.mounts.entries(directory).unwrap_or_else(|error| {
                tracing::warn!(directory = %directory.display(), %error, "mounts that no port has stay");
                Vec::new()
            });
            for mount in mounts {
                let name = mount.file_name().and_then(OsStr::to_str);
                if !name.is_some_and(is_owned)
                    && let Err(error) = self.mounts.remove(&mount)
                {
                    tracing::warn!(path = %mount.display(), %error, "a mount that no port has stays");
                }
            }
        }
        Ok(reconciled)
    }

    fn driver(&self) -> Result<Arc<OvsDpdk>, CniError> {
        self.started().map_err(|e| told(&e))
    }

    /// The driver, which is started where it is not.
    fn started(&self) -> Result<Arc<OvsDpdk>, OvsError> {
        let mut driver = self.driver.lock();
        if let Some(driver) = &*driver {
            return Ok(Arc::clone(driver));
        }
        let address = match self.access.database.socket() {
            Some(socket) => DatabaseAddress::parse(&format!("unix:{}", self.root.seen_at(socket).display())),
            None => Ok(self.access.database.clone()),
        };
        let options = Options {
            address: address?,
            tls: self.access.tls.clone(),
            node: self.access.node.clone(),
            run_dir: None,
            limits: Limits { connect: CONNECTS, ..Limits::default() },
        };
        let started = Arc::new(OvsDpdk::start(options)?);
        *driver = Some(Arc::clone(&started));
        Ok(started)
    }
}

/// Where the directory of a port's socket is mounted for OVS; as it is on record, whatever the configuration says by now.
fn mount_of(spec: &PortSpec) -> Option<&Path> {
    match &spec.socket {
        VhostSocket::PodListens(socket) => socket.parent(),
        VhostSocket::OvsListens => None,
    }
}

/// The error of a directory to which the group of OVS cannot be given access.
fn closed_to_ovs(directory: &Path, error: &io::Error) -> CniError {
    let what = format!("the directory {}, which OVS's group is to pass through,", directory.display());
    errors::file(what, error, Code::Io, "its file system must have access control lists (acl(5))")
}

/// Why OVS does not serve a port that it has; `None` where it does.
pub(super) fn why_unserved(port: &PortView) -> Option<String> {
    match (&port.error, port.ofport) {
        (Some(error), _) => Some(format!("OVS cannot serve the port {}: {error}", port.name)),
        (None, None) => Some(format!("ovs-vswitchd does not serve the port {}", port.name)),
        (None, Some(_)) => None,
    }
}

/// Code 11 for all that can be had again without a change of the configuration.
fn told(error: &OvsError) -> CniError {
    match error {
        OvsError::Spec(_) | OvsError::Address(_) => CniError::new(Code::InvalidConfig, error.to_string())
            .with("correct the configuration, as docs/vhost-user.md says"),
        _ => CniError::new(Code::TryAgain, error.to_string())
            .with("see the logs of ovsdb-server and ovs-vswitchd"),
    }
}
