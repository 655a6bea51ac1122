//! Plugins of others: found in `CNI_PATH` and executed as the specification's section on delegation says.
//!
//! Invariants: a `type` is a bare file name, looked for below the host's root and nowhere else. A plugin gets the
//! caller's whole environment with the `CNI_*` variables of this call. One that a tenant's definition names works in an
//! empty directory of its own: what that text calls a file by a relative path is none of the host's. A plugin never outlives its time limit. An
//! error names plugin, command and exit status, and repeats what the plugin said and the end of its standard
//! error (X13).

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, CniResult, CniVersion, Code, avoid_containerd_phrases, names};
use fairlead_host::exec::{Exec, ExecError, Output};
use fairlead_host::files;
use fairlead_host::host_root::HostRoot;
use fairlead_host::shortage;
use nix::errno::Errno;
use serde_json::json;
use tempfile::TempDir;

use crate::own_executable::is_file_of_ours;

mod surviving_plugins;

use surviving_plugins::RunningPlugins;

/// How much of a plugin's output an error repeats, in bytes.
const SHOWN: usize = 2048;

/// The remedy for an error that the plugin itself answered.
const REFUSED: &str =
    "the plugin's own words say why: mend that, or correct the plugin's part of the network's configuration";

/// The remedy where the daemon itself may not start a plugin.
const NO_PRIVILEGE: &str = "to execute plugins the daemon needs CAP_SYS_ADMIN, and in a container CAP_SYS_CHROOT and CAP_SYS_PTRACE, by which it enters the host's mount namespace";

/// The variables that the specification defines; a plugin gets those of its own call, never the caller's.
const VARIABLES: [&str; 6] =
    ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"];

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
    /// Asked every 20 ms while the plugin runs; true kills it.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Whether a plugin's file is Fairlead's own executable. That one is not started: it would wait for the
    /// daemon, which waits for it.
    pub is_ours: &'a dyn Fn(&File) -> bool,
}

/// How a call ended that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelegateOutcome {
    /// The plugin was executed with success; this is its standard output (JSON for ADD).
    Output(String),
    /// The file is our own executable and was not started; the caller serves the call itself.
    Ours,
}

/// Why a plugin did not do what it was called for.
#[derive(Debug, thiserror::Error)]
pub enum DelegateError {
    /// The `type` is a path, or is empty.
    #[error("{0}")]
    BadType(#[source] CniError),
    /// No directory of `CNI_PATH` has the plugin.
    #[error("plugin {plugin:?} is in no directory of CNI_PATH ({path:?})")]
    Absent {
        /// The plugin's `type`.
        plugin: String,
        /// The value of `CNI_PATH` in which it was looked for.
        path: String,
    },
    /// The plugin's file is there and no program.
    #[error("plugin {plugin:?}: {} is not executable", .program.display())]
    NotExecutable {
        /// The plugin's `type`.
        plugin: String,
        /// The path of its file.
        program: PathBuf,
    },
    /// No empty directory can be made for the plugin of a tenant's definition.
    #[error("plugin {plugin:?}: no directory to work in can be made in {}: {source}", .parent.display())]
    NoDirectory {
        /// The plugin's `type`.
        plugin: String,
        /// Where it is made.
        parent: PathBuf,
        /// Why it cannot be made.
        #[source]
        source: io::Error,
    },
    /// The plugin could not be started, or did not end by itself.
    #[error("plugin {plugin:?}, {command}: {why}", command = command.name(), why = why(source))]
    Exec {
        /// The plugin's `type`.
        plugin: String,
        /// The command that it was called with.
        command: Command,
        /// Why the program did not run to its end.
        #[source]
        source: ExecError,
    },
    /// The plugin answered with an error.
    #[error("plugin {plugin:?}, {command}, failed with exit status {status}: {told}{stderr}", command = command.name())]
    Refused {
        /// The plugin's `type`.
        plugin: String,
        /// The command that it was called with.
        command: Command,
        /// The exit status of the plugin.
        status: i32,
        /// The code of its CNI error, where it printed one.
        code: Option<Code>,
        /// The message and details of its CNI error, or the beginning of what it printed instead.
        told: String,
        /// The end of its standard error, introduced for a message; empty when there is none.
        stderr: String,
    },
    /// The plugin ended with success, and what it printed is no result.
    #[error("plugin {plugin:?}, {command}: its answer is no CNI result ({why}): {told}{stderr}", command = command.name())]
    Garbage {
        /// The plugin's `type`.
        plugin: String,
        /// The command that it was called with.
        command: Command,
        /// What is wrong with its answer.
        why: String,
        /// The beginning of what it printed.
        told: String,
        /// The end of its standard error, introduced for a message; empty when there is none.
        stderr: String,
    },
    /// The IPAM type is our own executable, which is no IPAM plugin.
    #[error("IPAM plugin {plugin:?} is Fairlead's own executable, which is none")]
    OursAsIpam {
        /// The plugin's `type`.
        plugin: String,
    },
}

impl DelegateError {
    /// Whether the plugin was never executed: it has made nothing that a DEL would have to undo.
    pub fn never_ran(&self) -> bool {
        match self {
            DelegateError::BadType(_)
            | DelegateError::Absent { .. }
            | DelegateError::NotExecutable { .. }
            | DelegateError::NoDirectory { .. }
            | DelegateError::OursAsIpam { .. } => true,
            DelegateError::Exec { source, .. } => source.never_ran(),
            DelegateError::Refused { .. } | DelegateError::Garbage { .. } => false,
        }
    }

    /// The error for the CNI caller. The plugin's own code is passed on. Code 999 is for what the daemon itself cannot do.
    pub fn to_cni_error(&self, command: Command) -> CniError {
        let told = |code, remedy: &'static str| (code, Cow::Borrowed(remedy));
        let (code, remedy) = match self {
            DelegateError::BadType(error) => told(error.code, ""),
            DelegateError::Absent { .. } => {
                told(Code::InvalidConfig, "install the plugin in a directory of CNI_PATH, or correct `type`")
            }
            DelegateError::NotExecutable { .. } => {
                told(Code::InvalidConfig, "make it executable (chmod +x), or correct `type`")
            }
            DelegateError::NoDirectory { .. } => told(
                Code::TryAgain,
                "make room on the run directory's file system, and the directory writable",
            ),
            DelegateError::Exec { source, .. } => code_and_remedy(source),
            DelegateError::Refused { code: Some(Code::Internal) | None, .. } => {
                told(Code::PluginFailed, REFUSED)
            }
            DelegateError::Refused { code: Some(code), .. } => told(*code, REFUSED),
            DelegateError::Garbage { .. } => told(
                Code::PluginFailed,
                "the plugin does not follow the CNI specification: its ADD must print a result, and nothing else, on standard output",
            ),
            DelegateError::OursAsIpam { .. } => {
                told(Code::InvalidConfig, "put the original back with `fairleadd uninstall`")
            }
        };
        let text = self.to_string();
        CniError::new(code, if command == Command::Del { avoid_containerd_phrases(&text) } else { text })
            .with(remedy)
    }
}

/// Finds the plugins of others below the host's root and executes them.
#[derive(Debug)]
pub struct Delegates {
    root: HostRoot,
    host_root: PathBuf,
    cgroup: Option<PathBuf>,
    empty_dirs: PathBuf,
    running: Option<RunningPlugins>,
}

impl Delegates {
    /// `host_root`: the host's root as the daemon sees it. `cgroup`: the directory of a cgroup for the plugins,
    /// outside the daemon's own memory limit. `empty_dirs`: the directory in which each plugin of a tenant's definition gets
    /// an empty one to work in; nobody but this daemon writes there.
    pub fn new(host_root: PathBuf, cgroup: Option<PathBuf>, empty_dirs: PathBuf) -> Delegates {
        Delegates { root: HostRoot::new(host_root.clone()), host_root, cgroup, empty_dirs, running: None }
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
        Delegates { running: running.ok(), ..self }
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

    /// Starts a plugin and waits for its end.
    pub fn run(&self, call: &DelegateCall<'_>) -> Result<DelegateOutcome, DelegateError> {
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
            cancelled,
            is_ours: &is_file_of_ours,
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
        let empty = call.parameters.of_tenant.then(|| self.empty_dir(call.plugin)).transpose()?;
        let exec = Exec {
            program,
            args: Vec::new(),
            env: environment(call, command),
            stdin: call.config.as_bytes().to_vec(),
            time_limit: call.time_limit,
            host_root: Some(self.host_root.clone()),
            cgroup: self.cgroup.clone(),
            directory: empty.as_ref().map(|dir| dir.path().to_owned()),
            keeps_open: self.running.as_ref().map(RunningPlugins::lock),
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
            source,
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
        if matches!(call.command, Command::Gc | Command::Status) && version < CniVersion::V1_1_0 {
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

/// The code for a plugin that did not run to its end, and what a person can do.
fn code_and_remedy(error: &ExecError) -> (Code, Cow<'static, str>) {
    let told = |code, remedy: &'static str| (code, Cow::Borrowed(remedy));
    match error {
        ExecError::TimedOut { .. } | ExecError::Cancelled { .. } => {
            told(Code::TryAgain, "its process group was killed")
        }
        _ if error.is_for_want_of_privilege() => told(Code::Internal, NO_PRIVILEGE),
        ExecError::Signalled { .. } => told(
            Code::PluginFailed,
            "the plugin crashed, or was killed; the kernel's log (dmesg) says whether it was for want of memory",
        ),
        ExecError::TooMuchOutput { .. } => {
            told(Code::PluginFailed, "the plugin must print its result, and nothing else, on standard output")
        }
        ExecError::Missing { .. } => told(
            Code::PluginFailed,
            "install the interpreter that the script's first line names, or the loader that the program was linked for",
        ),
        ExecError::NotExecutable { .. } | ExecError::NotStarted { errno: Errno::ELIBBAD, .. } => told(
            Code::PluginFailed,
            "is it a program for this machine, or a script that begins with #!, on a file system that is not mounted noexec?",
        ),
        ExecError::NotStarted { errno: Errno::ETXTBSY, .. } => {
            told(Code::TryAgain, "its file is being written: install a plugin by renaming it into its place")
        }
        ExecError::HostMounts { errno, .. }
        | ExecError::NotStarted { errno, .. }
        | ExecError::Directory { errno, .. }
        | ExecError::Failed { errno, .. } => match shortage::remedy(*errno) {
            Some(remedy) => (Code::TryAgain, Cow::Owned(remedy)),
            None => told(Code::Internal, "the daemon could not start it; its log and the kernel's say more"),
        },
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

/// The reason why a program did not end by itself, with the end of its standard error.
fn why(error: &ExecError) -> String {
    match error {
        ExecError::TimedOut { limit, stderr, .. } => {
            format!("killed after its time limit of {limit:?}{}", last_bytes(stderr))
        }
        ExecError::Cancelled { stderr, .. } => {
            format!("killed because the call was cancelled{}", last_bytes(stderr))
        }
        ExecError::Signalled { signal, stderr, .. } => {
            format!("killed by signal {signal}{}", last_bytes(stderr))
        }
        other => other.to_string(),
    }
}

/// The beginning of an output, quoted for an error.
fn first_bytes(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().find(|(at, _)| *at >= SHOWN) {
        _ if text.is_empty() => "it printed nothing".to_owned(),
        Some((at, _)) => format!("{:?}…", text.get(..at).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// The end of standard error, for an error.
fn last_bytes(stderr: &[u8]) -> String {
    let from = stderr.len().saturating_sub(SHOWN);
    let text = String::from_utf8_lossy(stderr.get(from..).unwrap_or_default());
    match text.trim() {
        "" => String::new(),
        text => format!("; its standard error: {}{text}", if from > 0 { "…" } else { "" }),
    }
}

#[cfg(test)]
pub(crate) mod script;
#[cfg(test)]
mod tests;
