//! Makes the subjects from the command line; each is checked before anything is measured.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::bare_program;
use crate::bench::{Waiting, WithSwitch};
use crate::cli::Options;
use crate::daemon::{Daemon, DaemonError, DaemonPaths};
use crate::network_config::{IFNAME, config, peer_config, pools, vf_config};
use crate::node::MASTER;
use crate::node_file_systems;
use crate::subject::{BARE, OURS_WAITING, RAW_AT_ONCE, Role, Subject, version_of};

/// Why a subject cannot be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubjectSetupError {
    /// The subject's executable is not there.
    #[error("{name}: there is no executable {path}: {remedy}, or leave it out with `--without {name}`")]
    Missing {
        /// The name of the subject.
        name: String,
        /// The path that is missing.
        path: PathBuf,
        /// How to get it.
        remedy: &'static str,
    },
    /// The config of a peer cannot be read.
    #[error("config {path} of peer {name}: {source}")]
    Config {
        /// The name of the peer.
        name: String,
        /// The file that the option names.
        path: String,
        /// Why it cannot be read.
        #[source]
        source: io::Error,
    },
    /// The peer's name cannot begin a container id, or is taken.
    #[error(
        "peer {0:?}: a name begins with a letter or digit, goes on with those, `_`, `.` or `-`, and is not taken"
    )]
    Name(String),
    /// An option names a peer that does not exist.
    #[error("{option} names {name:?}, which is {what}")]
    Unknown {
        /// The option of the command line.
        option: &'static str,
        /// The name that it uses.
        name: String,
        /// What can be named instead.
        what: &'static str,
    },
    /// A directory of the run, or a program in it, could not be made, or one of a killed run could not be removed.
    #[error("{path}: {source}")]
    Directory {
        /// The directory or program.
        path: PathBuf,
        /// Why it could not be made or removed.
        #[source]
        source: io::Error,
    },
    /// The subject's daemon does not serve.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// All subjects were left out.
    #[error("everybody was left out: there is nothing to measure")]
    Nobody,
}

/// The beginning of the name of each directory; the number of the process that owns it follows.
const PREFIX: &str = "fairlead-bench-";

/// The directories of this run, removed when dropped.
#[derive(Debug)]
pub(crate) struct RunDirectories {
    /// The directory on a real disk: allocations, state, namespaces, logs.
    pub(crate) data: PathBuf,
    /// The directory of the daemons' run directories.
    pub(crate) run: PathBuf,
}

impl RunDirectories {
    /// Makes the directories, and removes those of runs that were killed.
    pub(crate) fn make(options: &Options) -> Result<RunDirectories, SubjectSetupError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| SubjectSetupError::Directory { path, source }
        };
        let data_in = options.data_dir_fs.as_deref().unwrap_or(Path::new("/var/lib"));
        let run_in = options.run_dir_fs.as_deref().unwrap_or(Path::new("/run"));
        for dir in [data_in, run_in] {
            remove_leftovers(dir).map_err(failed(dir))?;
        }
        let name = format!("{PREFIX}{}", std::process::id());
        let dirs = RunDirectories { data: data_in.join(format!("{name}-data")), run: run_in.join(name) };
        for dir in [&dirs.data, &dirs.run] {
            fs::create_dir_all(dir).map_err(failed(dir))?;
        }
        // A directory that was named is taken as it is.
        // The report's head tells what there is instead.
        if options.data_dir_fs.is_none()
            && let Err(error) = node_file_systems::disk_with_a_journal(&dirs.data)
        {
            let _ = writeln!(io::stderr(), "no disk with a journal for {}: {error}", dirs.data.display());
        }
        if options.run_dir_fs.is_none()
            && let Err(error) = node_file_systems::run_directory(&dirs.run)
        {
            let _ = writeln!(io::stderr(), "no tmpfs for {}: {error}", dirs.run.display());
        }
        Ok(dirs)
    }

    /// The `dataDir` of host-local.
    pub(crate) fn allocations(&self) -> PathBuf {
        self.data.join("networks")
    }

    /// The paths of a daemon of this name.
    pub(crate) fn paths(&self, name: &str) -> DaemonPaths {
        DaemonPaths {
            run_dir: self.run.join(name),
            state_dir: self.data.join(format!("{name}-state")),
            // Alone in its directory, as on a node: the daemon looks at its configuration again whenever something there
            // has changed, and a log is written with each call.
            config: self.data.join(format!("{name}-etc")).join("config.yaml"),
            conf_dir: None,
            log: self.data.join(format!("{name}.log")),
        }
    }
}

impl Drop for RunDirectories {
    fn drop(&mut self) {
        [&self.data, &self.run].into_iter().for_each(|dir| node_file_systems::unmount(dir));
        // What cannot be removed is named after this process and harms nobody.
        let _ = fs::remove_dir_all(&self.data);
        let _ = fs::remove_dir_all(&self.run);
    }
}

/// Removes directories of this suite in `dir` whose process is gone.
fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        let Some(process) = process.filter(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit())) else {
            continue;
        };
        if !Path::new("/proc").join(process).exists() {
            match fs::remove_dir_all(entry.path()) {
                // A run that was ending while this one looked has removed it itself.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// Starts everybody, in the order in which they take turns.
pub(crate) fn subjects(options: &Options, dirs: &RunDirectories) -> Result<Vec<Subject>, SubjectSetupError> {
    check_names(options)?;
    let mut all = Vec::new();
    if !options.leaves_out("ours") {
        all.push(ours(options, dirs, config(&dirs.allocations()), "{}\n")?);
    }
    if !options.leaves_out("debian") {
        let remedy = "`apt-get install -y containernetworking-plugins`";
        all.push(reference("debian", &options.debian, remedy, dirs)?);
    }
    if let Some(dir) = &options.reference {
        all.push(reference("newest", dir, "give the directory of the built reference plugins", dirs)?);
    }
    for peer in &options.peers {
        let config = config(&dirs.allocations());
        all.push(self::peer(options, &peer.name, Path::new(&peer.value), config, dirs)?);
    }
    if !options.leaves_out("floor") {
        let calls = format!("and the kernel calls of an ADD on {MASTER}");
        all.push(floor(options, &calls)?);
        all.push(bare(dirs, &calls)?);
    }
    if all.is_empty() { Err(SubjectSetupError::Nobody) } else { Ok(all) }
}

/// Starts ours, the peers and the floor, for VFs.
pub(crate) fn for_vfs(options: &Options, dirs: &RunDirectories) -> Result<Vec<Subject>, SubjectSetupError> {
    check_names(options)?;
    let config = vf_config(&dirs.allocations());
    let mut all = Vec::new();
    if !options.leaves_out("ours") {
        all.push(ours(options, dirs, config.clone(), &pools(&options.vfs, &options.in_user_space))?);
    }
    for named in &options.peers {
        all.push(peer(options, &named.name, Path::new(&named.value), config.clone(), dirs)?);
    }
    if !options.leaves_out("floor") {
        all.push(floor(options, "and the kernel calls of an ADD and a DEL")?);
    }
    if all.is_empty() { Err(SubjectSetupError::Nobody) } else { Ok(all) }
}

/// How to start a daemon of ours with `del: wait`; `None` where ours is left out.
pub(crate) fn waiting(options: &Options, dirs: &RunDirectories) -> Option<Waiting> {
    (!options.leaves_out("ours")).then(|| Waiting {
        daemon: absolute(&options.ours.join("fairleadd")),
        paths: dirs.paths(OURS_WAITING),
    })
}

/// How to start a daemon of ours with a switch beside it; `None` where ours is left out.
pub(crate) fn with_switch(options: &Options, dirs: &RunDirectories) -> Option<WithSwitch> {
    (!options.leaves_out("ours")).then(|| WithSwitch {
        daemon: absolute(&options.ours.join("fairleadd")),
        switch: absolute(&options.ours.join("fairlead-vswitch")),
        paths: dirs.paths("ours-ports"),
        ports: dirs.run.join("ports"),
    })
}

fn check_names(options: &Options) -> Result<(), SubjectSetupError> {
    const OWN: [&str; 9] = [
        "ours",
        OURS_WAITING,
        "ours-ports",
        "ours-beside-ports",
        "debian",
        "newest",
        "floor",
        BARE,
        RAW_AT_ONCE,
    ];
    for name in &options.without {
        if !["ours", "debian", "floor"].contains(&name.as_str()) {
            let what = "none of `ours`, `debian`, `floor`";
            return Err(SubjectSetupError::Unknown { option: "--without", name: name.clone(), what });
        }
    }
    for (at, peer) in options.peers.iter().enumerate() {
        let taken =
            OWN.contains(&peer.name.as_str()) || options.peers[..at].iter().any(|p| p.name == peer.name);
        let good = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if taken
            || !peer.name.starts_with(|c: char| c.is_ascii_alphanumeric())
            || !peer.name.chars().all(good)
        {
            return Err(SubjectSetupError::Name(peer.name.clone()));
        }
    }
    for (option, named) in
        [("--peer-config", &options.peer_configs), ("--peer-daemon", &options.peer_daemons)]
    {
        if let Some(stray) = named.iter().find(|n| !options.peers.iter().any(|p| p.name == n.name)) {
            let what = "no `--peer`";
            return Err(SubjectSetupError::Unknown { option, name: stray.name.clone(), what });
        }
    }
    Ok(())
}

fn ours(
    options: &Options,
    dirs: &RunDirectories,
    config: Value,
    yaml: &str,
) -> Result<Subject, SubjectSetupError> {
    let remedy = "`make build` makes it";
    let binary = existing("ours", &options.ours.join("fairlead"), remedy)?;
    let fairleadd = existing("ours", &options.ours.join("fairleadd"), remedy)?;
    let paths = dirs.paths("ours");
    let daemon = Daemon::start(&fairleadd, &paths, yaml)?;
    Ok(Subject {
        name: "ours".to_owned(),
        role: Role::Ours,
        version: version_of(&fairleadd, Some("--version")),
        binary,
        config: Some(config),
        environment: paths.environment(),
        daemon: Some(Arc::new(daemon)),
        interfaces: &[IFNAME],
    })
}

fn reference(
    name: &str,
    dir: &Path,
    remedy: &'static str,
    dirs: &RunDirectories,
) -> Result<Subject, SubjectSetupError> {
    let binary = existing(name, &dir.join("macvlan"), remedy)?;
    existing(name, &dir.join("host-local"), remedy)?;
    Ok(Subject {
        name: name.to_owned(),
        role: Role::Reference,
        version: version_of(&binary, None),
        binary,
        config: Some(config(&dirs.allocations())),
        environment: Vec::new(),
        daemon: None,
        interfaces: &[IFNAME],
    })
}

fn peer(
    options: &Options,
    name: &str,
    path: &Path,
    suites: Value,
    dirs: &RunDirectories,
) -> Result<Subject, SubjectSetupError> {
    let binary = existing(name, path, "give the path of the plugin's executable")?;
    let data_dir = dirs.allocations();
    let config = match options.peer_configs.iter().find(|c| c.name == name) {
        Some(file) => peer_config(Path::new(&file.value), &data_dir).map_err(|source| {
            SubjectSetupError::Config { name: name.to_owned(), path: file.value.clone(), source }
        })?,
        None => suites,
    };
    let daemon = match options.peer_daemons.iter().find(|d| d.name == name) {
        Some(line) => Some(Arc::new(Daemon::companion(&line.value, &dirs.paths(name).log)?)),
        None => None,
    };
    let version = version_of(&binary, None);
    let (name, config) = (name.to_owned(), Some(config));
    Ok(Subject {
        name,
        role: Role::Peer,
        version,
        binary,
        config,
        environment: Vec::new(),
        daemon,
        interfaces: &[IFNAME],
    })
}

fn floor(options: &Options, calls: &str) -> Result<Subject, SubjectSetupError> {
    let binary = existing("floor", &options.empty, "`make build` makes it")?;
    let program = "an empty static Rust program, with the standard library's start";
    Ok(no_plugin("floor", Role::Floor, binary, format!("{program}, {calls}")))
}

fn bare(dirs: &RunDirectories, calls: &str) -> Result<Subject, SubjectSetupError> {
    let binary = dirs.data.join(BARE);
    bare_program::write(&binary)
        .map_err(|source| SubjectSetupError::Directory { path: binary.clone(), source })?;
    Ok(no_plugin(BARE, Role::Bare, binary, format!("a program of three instructions, {calls}")))
}

fn no_plugin(name: &str, role: Role, binary: PathBuf, version: String) -> Subject {
    Subject {
        name: name.to_owned(),
        role,
        version,
        binary,
        config: None,
        environment: Vec::new(),
        daemon: None,
        interfaces: &[IFNAME],
    }
}

/// The absolute path of a subject's executable.
pub(crate) fn existing(name: &str, path: &Path, remedy: &'static str) -> Result<PathBuf, SubjectSetupError> {
    let path = absolute(path);
    if path.is_file() {
        Ok(path)
    } else {
        Err(SubjectSetupError::Missing { name: name.to_owned(), path, remedy })
    }
}

pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let dead = i32::MAX;
        let ours = std::process::id();
        for name in
            [format!("{PREFIX}{dead}"), format!("{PREFIX}{dead}-data"), format!("{PREFIX}{ours}-data")]
        {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["fairlead-bench-", "fairlead-bench-of-mine", "fairlead", "networks"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        remove_leftovers(dir.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        let kept = format!("{PREFIX}{ours}-data");
        let mut want = ["fairlead", "fairlead-bench-", "fairlead-bench-of-mine", "networks", kept.as_str()];
        want.sort_unstable();
        assert_eq!(left, want);
    }
}
