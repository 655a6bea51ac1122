//! Plugins of others: found in `CNI_PATH` and executed as the specification's section on delegation says.
//!
//! Invariants: a `type` is a bare file name, looked for below the host's root and nowhere else. A plugin gets the
//! caller's whole environment with the `CNI_*` variables of this call. One that a tenant's definition names works in an
//! empty directory of its own: what that text calls a file by a relative path is none of the host's. A plugin never outlives its time limit. An
//! error names plugin, command and exit status, and repeats what the plugin said and the end of its standard
//! error (X13).

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, CniResult, CniVersion, names};
use fairlead_host::exec::{Exec, Output};
use fairlead_host::files;
use fairlead_host::host_root::HostRoot;
use serde_json::json;
use tempfile::TempDir;

use crate::own_executable::is_file_of_ours;

mod error;
mod status_verdicts;
mod surviving_plugins;

pub use error::DelegateError;
pub(crate) use error::says_it_has_no_check;

use error::{first_bytes, last_bytes, why};
use status_verdicts::StatusVerdicts;
use surviving_plugins::RunningPlugins;

/// The variables that the specification defines; a plugin gets those of its own call, never the caller's.
const VARIABLES: [&str; 6] =
    ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"];

/// The longest result of a plugin that a tenant's definition names, in bytes: twice the longest definition. It is on record, in the
/// node's memory, for as long as the pod lives.
const LONGEST_RESULT_OF_TENANT: usize = 128 << 10;

/// The parameters of a call, as plugins get them in the environment.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// The value of `CNI_CONTAINERID`.
    pub container_id: &'a str,
    /// The value of `CNI_NETNS`.
    pub netns: &'a str,
    /// The value of `CNI_IFNAME`.
    pub ifname: &'a str,
    /// The value of `CNI_ARGS`.
    pub args: &'a str,
    /// The value of `CNI_PATH`.
    pub path: &'a str,
    /// The whole environment of the caller.
    pub env: &'a [(String, String)],
    /// Whether the configuration is a tenant's. What it names must not be found on the host: the plugin works in an empty
    /// directory.
    pub of_tenant: bool,
}

impl<'a> From<&'a Request> for Parameters<'a> {
    fn from(request: &'a Request) -> Parameters<'a> {
        Parameters {
            container_id: &request.container_id,
            netns: &request.netns,
            ifname: &request.ifname,
            args: &request.args,
            path: &request.path,
            env: &request.env,
            // What the runtime hands over is the administrator's.
            of_tenant: false,
        }
    }
}

/// One call of one plugin, and what it may use.
#[derive(Clone, Copy)]
pub struct DelegateCall<'a> {
    /// The command that the plugin is called with.
    pub command: Command,
    /// The plugin's `type`, which is the name of its executable.
    pub plugin: &'a str,
    /// Its configuration, as it gets it on standard input.
    pub config: &'a str,
    /// The parameters that the plugin gets in its environment.
    pub parameters: Parameters<'a>,
    /// The time after which the plugin's process group is killed.
    pub time_limit: Duration,
    /// How long the caller waits. A STATUS is answered by then, and its plugin goes on; that of any other command is killed.
    pub patience: Duration,
    /// Asked every 20 ms while the plugin runs; true kills it. The plugin of a STATUS, which other callers may wait for, goes on.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Whether a plugin's file is Fairlead's own executable. That one is not started: it would wait for the
    /// daemon, which waits for it.
    pub is_ours: fn(&File) -> bool,
}

/// How a call ended that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelegateOutcome {
    /// The plugin was executed with success; this is its standard output (JSON for ADD).
    Output(String),
    /// The file is our own executable and was not started; the caller serves the call itself.
    Ours,
}

/// Finds the plugins of others below the host's root and executes them.
#[derive(Debug, Clone)]
pub struct Delegates {
    root: HostRoot,
    host_root: PathBuf,
    cgroup: Option<PathBuf>,
    empty_dirs: PathBuf,
    running: Option<Arc<RunningPlugins>>,
    statuses: Arc<StatusVerdicts>,
}

impl Delegates {
    /// `host_root`: the host's root as the daemon sees it. `cgroup`: the directory of a cgroup for the plugins,
    /// outside the daemon's own memory limit. `empty_dirs`: the directory in which each plugin of a tenant's definition gets
    /// an empty one to work in; nobody but this daemon writes there.
    pub fn new(host_root: PathBuf, cgroup: Option<PathBuf>, empty_dirs: PathBuf) -> Delegates {
        Delegates {
            root: HostRoot::new(host_root.clone()),
            host_root,
            cgroup,
            empty_dirs,
            running: None,
            statuses: Arc::default(),
        }
    }

    /// The same, with locks in `dir` (in the run directory), by which plugins of an earlier daemon that was
    /// killed can be waited for. What that one left behind of the plugins' own directories goes.
    pub fn watched_in(self, dir: &Path) -> Delegates {
        if let Err(error) = files::gone(fs::remove_dir_all(&self.empty_dirs)) {
            tracing::warn!(dir = %self.empty_dirs.display(), %error, "what plugins of an earlier daemon left stays");
        }
        let running = RunningPlugins::open(dir).inspect_err(|error| {
            tracing::warn!(dir = %dir.display(), %error, "plugins that outlive a killed daemon will not be waited for");
        });
        Delegates { running: running.ok().map(Arc::new), ..self }
    }

    /// Waits until no plugin of an earlier daemon is at work, up to `limit` after the start. An ADD that such a
    /// plugin still carries out must not end after its DEL.
    pub fn wait_for_earlier(&self, limit: Duration) {
        if let Some(running) = &self.running {
            running.wait_for_earlier(limit);
        }
    }

    /// Finds a plugin: the first directory of `CNI_PATH` that has a regular file of that name. The path is the
    /// host's.
    pub fn find(&self, plugin: &str, path: &str) -> Result<(PathBuf, File), DelegateError> {
        names::plugin_type(plugin).map_err(DelegateError::BadType)?;
        let directories = path.split(':').map(Path::new).filter(|dir| dir.is_absolute());
        let found = directories.map(|dir| dir.join(plugin)).find_map(|program| {
            let file = self.root.open(&program).ok()?;
            let metadata = file.metadata().ok().filter(Metadata::is_file)?;
            Some((program, file, metadata.mode()))
        });
        match found {
            Some((program, file, mode)) if mode & 0o111 != 0 => Ok((program, file)),
            Some((program, ..)) => Err(DelegateError::NotExecutable { plugin: plugin.to_owned(), program }),
            None => Err(DelegateError::Absent { plugin: plugin.to_owned(), path: path.to_owned() }),
        }
    }

    /// Kills the plugins that are still asked for a STATUS, and waits until they have ended, 3 s at most. No other is asked from now on.
    pub fn end_statuses(&self) {
        self.statuses.end();
    }

    /// Starts a plugin and waits for its end. A STATUS is answered by what its plugin last said, where it says nothing new in time.
    pub fn run(&self, call: &DelegateCall<'_>) -> Result<DelegateOutcome, DelegateError> {
        match call.command {
            Command::Status => self.statuses.ask(self, call),
            _ => self.run_to_its_end(call),
        }
    }

    fn run_to_its_end(&self, call: &DelegateCall<'_>) -> Result<DelegateOutcome, DelegateError> {
        let output = match self.execute(call, call.command.name())? {
            Some(output) => output,
            None => return Ok(DelegateOutcome::Ours),
        };
        check_output(call, &output).map(DelegateOutcome::Output)
    }

    /// What a plugin answers to VERSION, which is asked of it for a tenant's definition. How it exits does not matter: one of CNI
    /// 0.1.0 fails, because it does not know the command (M5).
    ///
    /// # Errors
    /// Those of a plugin that cannot be executed; code 11 where it does not end in `time_limit`.
    pub fn version(
        &self,
        plugin: &str,
        (path, env): (&str, &[(String, String)]),
        (time_limit, cancelled): (Duration, &dyn Fn() -> bool),
    ) -> Result<String, CniError> {
        const DUMMY: &str = "dummy"; // as libcni has it: some plugins look at all variables first
        let asked = json!({"cniVersion": CniVersion::LATEST.as_str()}).to_string();
        let parameters = Parameters {
            container_id: DUMMY,
            netns: DUMMY,
            ifname: DUMMY,
            args: "",
            path,
            env,
            of_tenant: true,
        };
        let call = DelegateCall {
            command: Command::Add,
            plugin,
            config: &asked,
            parameters,
            time_limit,
            patience: Duration::MAX,
            cancelled,
            is_ours: is_file_of_ours,
        };
        match self.execute(&call, "VERSION") {
            Ok(Some(output)) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(None) => Ok(json!({"supportedVersions": [CniVersion::LATEST.as_str()]}).to_string()),
            Err(error) => {
                let told = error.to_cni_error(Command::Add);
                let msg = match &error {
                    DelegateError::Exec { source, .. } => {
                        format!("plugin {plugin:?}, VERSION: {}", why(source))
                    }
                    other => other.to_string(),
                };
                Err(CniError { msg, ..told })
            }
        }
    }

    /// Starts a plugin with this command and waits for its end; `None`: its file is our own executable.
    fn execute(&self, call: &DelegateCall<'_>, command: &str) -> Result<Option<Output>, DelegateError> {
        let (program, file) = self.find(call.plugin, call.parameters.path)?;
        if (call.is_ours)(&file) {
            return Ok(None);
        }
        // The kernel would refuse to execute a file that is open for writing (ETXTBSY). This one is open for
        // reading, so nothing depends on closing it.
        drop(file);
        // A STATUS changes nothing: where it outlives a killed daemon, no DEL need wait for its end.
        let running = self.running.as_deref().filter(|_| call.command != Command::Status);
        let empty = call.parameters.of_tenant.then(|| self.empty_dir(call.plugin)).transpose()?;
        let exec = Exec {
            program,
            args: Vec::new(),
            env: environment(call, command),
            stdin: call.config.as_bytes().to_vec(),
            time_limit: call.time_limit.min(call.patience),
            host_root: Some(self.host_root.clone()),
            cgroup: self.cgroup.clone(),
            directory: empty.as_ref().map(|dir| dir.path().to_owned()),
            keeps_open: running.map(RunningPlugins::lock),
            cancelled: call.cancelled,
        };
        let failed =
            |source| DelegateError::Exec { plugin: call.plugin.to_owned(), command: call.command, source };
        let output = exec.run().map_err(failed)?;
        if let Some(error) = &output.cgroup_error {
            tracing::warn!(plugin = call.plugin, %error, "the plugin ran in the daemon's own cgroup");
        }
        Ok(Some(output))
    }

    /// An empty directory that root alone can enter, and that goes with all that is in it when it is dropped.
    fn empty_dir(&self, plugin: &str) -> Result<TempDir, DelegateError> {
        let own = fs::Permissions::from_mode(0o700);
        let made = fs::create_dir_all(&self.empty_dirs)
            .and_then(|()| tempfile::Builder::new().permissions(own).tempdir_in(&self.empty_dirs));
        made.map_err(|source| DelegateError::NoDirectory {
            plugin: plugin.to_owned(),
            parent: self.empty_dirs.clone(),
            source: Arc::new(source),
        })
    }

    /// Calls an IPAM plugin. The result of ADD is read in the configuration's version; other commands have none.
    /// GC and STATUS of a configuration below 1.1.0 succeed without a call, because the plugin would not know
    /// them.
    pub fn ipam(
        &self,
        call: &DelegateCall<'_>,
        version: CniVersion,
    ) -> Result<Option<CniResult>, DelegateError> {
        if matches!(call.command, Command::Gc | Command::Status) && !version.has(call.command) {
            return Ok(None);
        }
        let DelegateOutcome::Output(stdout) = self.run(call)? else {
            return Err(DelegateError::OursAsIpam { plugin: call.plugin.to_owned() });
        };
        if call.command != Command::Add {
            return Ok(None);
        }
        let result = CniResult::parse_text(&stdout, version)
            .map_err(|error| garbage(call, error.to_string(), &stdout, &[]));
        result.map(Some)
    }
}

fn environment(call: &DelegateCall<'_>, command: &str) -> Vec<(OsString, OsString)> {
    let p = &call.parameters;
    let own = [command, p.container_id, p.netns, p.ifname, p.args, p.path];
    let inherited = p.env.iter().filter(|(key, _)| !VARIABLES.contains(&key.as_str()));
    inherited
        .map(|(key, value)| (key.into(), value.into()))
        .chain(VARIABLES.into_iter().zip(own).map(|(key, value)| (key.into(), value.into())))
        .collect()
}

/// The output of a plugin that ended by itself with success; its failure as an error.
fn check_output(call: &DelegateCall<'_>, output: &Output) -> Result<String, DelegateError> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let error = CniError::from_json(stdout.trim());
        return Err(DelegateError::Refused {
            plugin: call.plugin.to_owned(),
            command: call.command,
            status: output.status.code().unwrap_or(-1),
            code: error.as_ref().map(|e| e.code),
            told: error.map_or_else(|| first_bytes(&stdout), |e| e.to_string()),
            stderr: last_bytes(&output.stderr),
        });
    }
    let bytes = stdout.len();
    if call.command == Command::Add && call.parameters.of_tenant && bytes > LONGEST_RESULT_OF_TENANT {
        return Err(DelegateError::TooLong { plugin: call.plugin.to_owned(), bytes });
    }
    if call.command == Command::Add
        && let Err(e) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&stdout)
    {
        return Err(garbage(call, e.to_string(), &stdout, &output.stderr));
    }
    Ok(stdout.into_owned())
}

fn garbage(call: &DelegateCall<'_>, why: String, stdout: &str, stderr: &[u8]) -> DelegateError {
    let (plugin, command) = (call.plugin.to_owned(), call.command);
    DelegateError::Garbage { plugin, command, why, told: first_bytes(stdout), stderr: last_bytes(stderr) }
}

#[cfg(test)]
pub(crate) mod script;
#[cfg(test)]
mod tests;
