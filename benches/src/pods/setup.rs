//! Starts everybody who gives pods their networks: ours, in three ways, and Multus, with and without its daemon.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use super::cluster::{Cluster, NODE};
use super::networks::{INTERFACES, by_call, by_watch, default_network};
use super::{BY_CALL, BY_WATCH, ONE, PodsError, THICK, THIN};
use crate::cli::Options;
use crate::daemon::{Daemon, DaemonPaths};
use crate::network_config::{IFNAME, config};
use crate::subject::{Role, Subject, version_of};
use crate::subject_setup::{RunDirectories, SubjectSetupError, absolute, existing};

/// Where a pod of the cluster has its account: Multus' daemon takes no kubeconfig.
const ACCOUNT: &str = "/run/secrets";
/// The time that Multus' daemon may take to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);

/// All that a daemon of ours is started with.
#[derive(Debug)]
pub(crate) struct OwnDaemon {
    /// The executable.
    fairleadd: PathBuf,
    /// Its configuration.
    yaml: String,
    /// The paths of the daemon that the cases about its life start.
    paths: DaemonPaths,
}

impl OwnDaemon {
    /// Starts one, and waits until it is ready.
    pub(crate) fn start(&self) -> Result<Arc<Daemon>, crate::daemon::DaemonError> {
        Daemon::start(&self.fairleadd, &self.paths, &self.yaml).map(Arc::new)
    }

    /// The environment by which the executable finds it.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        self.paths.environment()
    }
}

/// The files of a pod's account, which Multus' daemon reads again every minute. They are in the suite's own mount namespace: the machine
/// does not see them.
#[derive(Debug)]
pub(crate) struct Account;

impl Account {
    fn mount(cluster: &Cluster, token: &str) -> Result<Account, PodsError> {
        let place = Path::new(ACCOUNT);
        let unmountable = |source| PodsError::File { path: place.to_owned(), source };
        fs::create_dir_all(place).map_err(unmountable)?;
        mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), None::<&str>)
            .map_err(|e| unmountable(io::Error::from(e)))?;
        let mounted = Account;
        let files = place.join("kubernetes.io/serviceaccount");
        write(&files.join("token"), token)?;
        let path = cluster.authority();
        let authority = fs::read_to_string(&path).map_err(|source| PodsError::File { path, source })?;
        write(&files.join("ca.crt"), &authority)?;
        Ok(mounted)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // The mount namespace dies with this process; the empty directory is the machine's.
        let _ = umount2(ACCOUNT, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(ACCOUNT);
    }
}

/// Everybody who is measured, and what they live by.
#[derive(Debug)]
pub(crate) struct Everybody {
    /// In the order in which they take turns.
    pub(crate) subjects: Vec<Subject>,
    /// How to start a further daemon of ours.
    pub(crate) own: Option<OwnDaemon>,
    /// What Multus' daemon reads.
    pub(crate) account: Option<Account>,
}

/// Starts all that the command line names.
pub(crate) fn everybody(
    options: &Options,
    dirs: &RunDirectories,
    cluster: &Cluster,
) -> Result<Everybody, PodsError> {
    let conf_dir = dirs.data.join("net.d");
    let default = conf_dir.join("10-pods.conflist");
    write(&default, &default_network(&dirs.allocations()).to_string())?;
    let (mut subjects, mut own, mut account) = (Vec::new(), None, None);
    if !options.leaves_out("ours") {
        let (three, daemon) = ours(options, dirs, cluster, &conf_dir)?;
        subjects.extend(three);
        own = Some(daemon);
    }
    for peer in &options.peers {
        if peer.name != "multus" {
            return Err(PodsError::Peer(peer.name.clone()));
        }
        account = Some(Account::mount(cluster, THICK)?);
        let multus = Multus { options, dirs, cluster, default: &default, dir: Path::new(&peer.value) };
        subjects.extend(multus.both()?.into_iter().filter(|subject| !options.leaves_out(&subject.name)));
    }
    if subjects.is_empty() {
        return Err(SubjectSetupError::Nobody.into());
    }
    Ok(Everybody { subjects, own, account })
}

fn ours(
    options: &Options,
    dirs: &RunDirectories,
    cluster: &Cluster,
    conf_dir: &Path,
) -> Result<([Subject; 3], OwnDaemon), PodsError> {
    let remedy = "`make build` makes it";
    let binary = existing("ours", &options.ours.join("fairlead"), remedy)?;
    let fairleadd = existing("ours", &options.ours.join("fairleadd"), remedy)?;
    // JSON is YAML.
    let yaml = json!({
        "kubeconfig": cluster.kubeconfig("ours"), "nodeName": NODE,
        "policy": { "dataDirRoots": [dirs.allocations()] },
    })
    .to_string();
    let paths = |name| DaemonPaths { conf_dir: Some(conf_dir.to_owned()), ..dirs.paths(name) };
    let served = paths("ours");
    let daemon = Arc::new(Daemon::start(&fairleadd, &served, &yaml)?);
    let subject = |name: &str, config: Value, interfaces| Subject {
        name: name.to_owned(),
        role: Role::Ours,
        version: version_of(&fairleadd, Some("--version")),
        binary: binary.clone(),
        config: Some(config),
        environment: served.environment(),
        daemon: Some(Arc::clone(&daemon)),
        interfaces,
    };
    let subjects = [
        subject(ONE, config(&dirs.allocations()), &[IFNAME]),
        subject(BY_CALL, by_call(), INTERFACES),
        subject(BY_WATCH, by_watch(), INTERFACES),
    ];
    Ok((subjects, OwnDaemon { fairleadd, yaml, paths: paths("ours-alone") }))
}

/// Multus from one directory.
struct Multus<'a> {
    options: &'a Options,
    dirs: &'a RunDirectories,
    cluster: &'a Cluster,
    /// The cluster's default network.
    default: &'a Path,
    dir: &'a Path,
}

impl Multus<'_> {
    fn both(&self) -> Result<[Subject; 2], PodsError> {
        let program = |name: &str| {
            existing(
                "multus",
                &self.dir.join(name),
                "give the directory of multus-daemon, multus-shim and multus",
            )
        };
        let (shim, daemon, thin) = (program("multus-shim")?, program("multus-daemon")?, program("multus")?);
        let version = version_of(&daemon, Some("-version"));
        let (socket_dir, own) = (self.dirs.run.join("multus"), self.dirs.data.join("multus"));
        let config = json!({
            "cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus-shim", "daemonSocketDir": socket_dir,
        });
        let mut of_daemon = self.common(&own.join("thick"));
        of_daemon["socketDir"] = json!(socket_dir);
        // As in its own manifest. With any other value its daemon ends at once.
        of_daemon["multusConfigFile"] = json!("auto");
        of_daemon["multusAutoconfigDir"] = json!(self.default.parent());
        of_daemon["cniConfigDir"] = json!(own.join("net.d"));
        fs::create_dir_all(own.join("net.d"))
            .map_err(|source| PodsError::File { path: own.join("net.d"), source })?;
        let served = self.daemon(&daemon, &own.join("daemon-config.json"), &of_daemon, &socket_dir)?;
        let mut of_thin = self.common(&own.join("thin"));
        of_thin["name"] = json!("multus-cni-network");
        of_thin["type"] = json!("multus");
        of_thin["kubeconfig"] = json!(self.cluster.kubeconfig("multus-thin"));
        let subject = |name: &str, binary, config, daemon| Subject {
            name: name.to_owned(),
            role: Role::Peer,
            binary,
            version: version.clone(),
            config: Some(config),
            environment: Vec::new(),
            daemon,
            interfaces: INTERFACES,
        };
        Ok([subject(THICK, shim, config, Some(served)), subject(THIN, thin, of_thin, None)])
    }

    /// What both are configured with: errors only in the log, the same plugins and the same default network.
    fn common(&self, own: &Path) -> Value {
        let plugins = self.options.reference.as_deref().unwrap_or(&self.options.debian);
        json!({
            "cniVersion": "1.0.0", "logLevel": "error", "logToStderr": true, "clusterNetwork": self.default,
            "binDir": absolute(plugins), "cniDir": own, "confDir": own,
        })
    }

    fn daemon(
        &self,
        daemon: &Path,
        file: &Path,
        config: &Value,
        socket_dir: &Path,
    ) -> Result<Arc<Daemon>, PodsError> {
        write(file, &config.to_string())?;
        let line = format!(
            "env KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT=6443 MULTUS_NODE_NAME={NODE} {} -config {}",
            daemon.display(),
            file.display()
        );
        let served = Daemon::companion(&line, &self.dirs.paths(THICK).log)?;
        let (socket, started) = (socket_dir.join("multus.sock"), Instant::now());
        while !socket.exists() && started.elapsed() < LISTENS_WITHIN {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Arc::new(served))
    }
}

fn write(path: &Path, text: &str) -> Result<(), PodsError> {
    let unwritable = |source| PodsError::File { path: path.to_owned(), source };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(unwritable)?;
    }
    fs::write(path, text).map_err(unwritable)
}
