//! Plugins of others: found in `CNI_PATH`, executed as the specification's delegation says.
//!
//! The invariants: a `type` is a bare file name, looked for below the host's root and nowhere else; a plugin gets the
//! caller's whole environment with the `CNI_*` variables of this call; it never outlives its time limit; and an
//! error tells plugin, command, exit status, its own words and the end of its standard error (X13).

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, CniResult, CniVersion, Code, names};
use fairlead_host::exec::{Exec, ExecError, Output};

use fairlead_host::host_root::HostRoot;

mod outlived;

pub use fairlead_cni::avoid_containerd_phrases as harmless;
use outlived::AtWork;

/// How much of a plugin's output an error repeats, in bytes.
const SHOWN: usize = 2048;

/// What to do about a plugin's own error.
const REFUSED: &str =
    "the plugin's own words say why: mend that, or correct the plugin's part of the network's configuration";

/// The variables of the specification; a plugin gets those of its own call, never those of the caller's.
const VARIABLES: [&str; 6] =
    ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"];

/// The parameters of a call, as plugins get them in the environment.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// `CNI_CONTAINERID`
    pub container_id: &'a str,
    /// `CNI_NETNS`
    pub netns: &'a str,
    /// `CNI_IFNAME`
    pub ifname: &'a str,
    /// `CNI_ARGS`
    pub args: &'a str,
    /// `CNI_PATH`
    pub path: &'a str,
    /// The caller's whole environment.
    pub env: &'a [(String, String)],
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
        }
    }
}

/// One call of one plugin.
#[derive(Clone, Copy)]
pub struct DelegateCall<'a> {
    /// What is asked of it.
    pub command: Command,
    /// Its `type`.
    pub plugin: &'a str,
    /// Its configuration, as it gets it on standard input.
    pub config: &'a str,
    /// The parameters.
    pub parameters: Parameters<'a>,
    /// How long it may take; then its process group is killed.
    pub time_limit: Duration,
    /// Asked every 20 ms; true kills it.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Whether a plugin's file is Fairlead's own executable: then it is not started, for it would wait for the daemon
    /// that waits for it.
    pub is_ours: &'a dyn Fn(&File) -> bool,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The plugin was executed with success; its standard output (JSON for ADD).
    Output(String),
    /// The file is our own executable and was not started: the caller serves the call itself.
    Ours,
}

/// Why a plugin did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DelegateError {
    /// The `type` is a path, or no name at all.
    #[error("{0}")]
    BadType(#[source] CniError),
    /// No directory of `CNI_PATH` has it.
    #[error("plugin {plugin:?} is in no directory of CNI_PATH ({path:?})")]
    Absent {
        /// Its type.
        plugin: String,
        /// `CNI_PATH`
        path: String,
    },
    /// It could not be started, or did not end by itself.
    #[error("plugin {plugin:?}, {command}: {why}", command = command.name(), why = why(source))]
    Exec {
        /// Its type.
        plugin: String,
        /// What was asked of it.
        command: Command,
        /// Why.
        #[source]
        source: ExecError,
    },
    /// It answered with an error.
    #[error("plugin {plugin:?}, {command}, failed with exit status {status}: {told}{stderr}", command = command.name())]
    Refused {
        /// Its type.
        plugin: String,
        /// What was asked of it.
        command: Command,
        /// Its exit status.
        status: i32,
        /// Its CNI error's code, where it printed one.
        code: Option<Code>,
        /// Its CNI error's message and details, or the begin of what it printed instead.
        told: String,
        /// The end of its standard error, introduced; empty when there is none.
        stderr: String,
    },
    /// It ended with success and printed something that is no result.
    #[error("plugin {plugin:?}, {command}: its answer is no CNI result ({why}): {told}{stderr}", command = command.name())]
    Garbage {
        /// Its type.
        plugin: String,
        /// What was asked of it.
        command: Command,
        /// What is wrong with it.
        why: String,
        /// The begin of what it printed.
        told: String,
        /// The end of its standard error, introduced; empty when there is none.
        stderr: String,
    },
    /// An IPAM type that is our own executable: it is no IPAM plugin.
    #[error("IPAM plugin {plugin:?} is Fairlead's own executable, which is none")]
    OursAsIpam {
        /// Its type.
        plugin: String,
    },
}

impl DelegateError {
    /// What a CNI caller is told of it. The plugin's own code is passed on.
    pub fn told(&self, command: Command) -> CniError {
        let (code, remedy) = match self {
            DelegateError::BadType(error) => (error.code, ""),
            DelegateError::Absent { .. } => {
                (Code::InvalidConfig, "install the plugin in a directory of CNI_PATH, or correct `type`")
            }
            DelegateError::Exec {
                source: ExecError::TimedOut { .. } | ExecError::Cancelled { .. }, ..
            } => (Code::TryAgain, "its process group was killed"),
            DelegateError::Exec { .. } => {
                (Code::Internal, "is the plugin made for this machine, and executable?")
            }
            DelegateError::Refused { code: Some(Code::Internal) | None, .. } => (Code::PluginFailed, REFUSED),
            DelegateError::Refused { code: Some(code), .. } => (*code, REFUSED),
            DelegateError::Garbage { .. } => {
                (Code::Decode, "the plugin does not follow the CNI specification")
            }
            DelegateError::OursAsIpam { .. } => {
                (Code::InvalidConfig, "put the original back with `fairleadd uninstall`")
            }
        };
        let text = self.to_string();
        CniError::new(code, if command == Command::Del { harmless(&text) } else { text }).with(remedy)
    }
}

/// Executes plugins.
#[derive(Debug)]
pub struct Delegates {
    root: HostRoot,
    host_root: PathBuf,
    cgroup: Option<PathBuf>,
    at_work: Option<AtWork>,
}

impl Delegates {
    /// `host_root`: the host's root as the daemon sees it. `cgroup`: the directory of a cgroup for the plugins, outside
    /// the daemon's own memory limit.
    pub fn new(host_root: PathBuf, cgroup: Option<PathBuf>) -> Delegates {
        Delegates { root: HostRoot::new(host_root.clone()), host_root, cgroup, at_work: None }
    }

    /// The same, and what an earlier daemon started and did not live to see the end of can be waited for: `dir` is in
    /// the run directory.
    pub fn watched_in(self, dir: &Path) -> Delegates {
        let at_work = AtWork::open(dir).inspect_err(|error| {
            tracing::warn!(dir = %dir.display(), %error, "plugins that outlive a killed daemon will not be waited for");
        });
        Delegates { at_work: at_work.ok(), ..self }
    }

    /// Waits, up to `limit` after the start, until no plugin that an earlier daemon started is at work: it must not do
    /// after its DEL what it was told before.
    pub fn wait_for_earlier(&self, limit: Duration) {
        if let Some(at_work) = &self.at_work {
            at_work.wait_for_earlier(limit);
        }
    }

    /// Where a plugin is, as the host names it: the first directory of `CNI_PATH` with a regular file of that name.
    pub fn find(&self, plugin: &str, path: &str) -> Result<(PathBuf, File), DelegateError> {
        names::plugin_type(plugin).map_err(DelegateError::BadType)?;
        let directories = path.split(':').map(Path::new).filter(|dir| dir.is_absolute());
        let found = directories.map(|dir| dir.join(plugin)).find_map(|program| {
            let file = self.root.open(&program).ok()?;
            file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some((program, file))
        });
        found.ok_or_else(|| DelegateError::Absent { plugin: plugin.to_owned(), path: path.to_owned() })
    }

    /// Calls a plugin and waits for its end.
    pub fn run(&self, call: &DelegateCall<'_>) -> Result<Found, DelegateError> {
        let (program, file) = self.find(call.plugin, call.parameters.path)?;
        if (call.is_ours)(&file) {
            return Ok(Found::Ours);
        }
        // A program that is open for nothing but reading can be executed; it is closed all the same.
        drop(file);
        let exec = Exec {
            program,
            args: Vec::new(),
            env: environment(call),
            stdin: call.config.as_bytes().to_vec(),
            time_limit: call.time_limit,
            host_root: Some(self.host_root.clone()),
            cgroup: self.cgroup.clone(),
            keeps_open: self.at_work.as_ref().map(AtWork::lock),
            cancelled: call.cancelled,
        };
        let told =
            |source| DelegateError::Exec { plugin: call.plugin.to_owned(), command: call.command, source };
        let output = exec.run().map_err(told)?;
        if let Some(error) = &output.cgroup_error {
            tracing::warn!(plugin = call.plugin, %error, "the plugin ran in the daemon's own cgroup");
        }
        judge(call, &output).map(Found::Output)
    }

    /// Calls an IPAM plugin. The result of ADD is read in the configuration's version; other commands have none.
    /// GC and STATUS of a configuration below 1.1.0 are success: the plugin would not know them.
    pub fn ipam(
        &self,
        call: &DelegateCall<'_>,
        version: CniVersion,
    ) -> Result<Option<CniResult>, DelegateError> {
        if matches!(call.command, Command::Gc | Command::Status) && version < CniVersion::V1_1_0 {
            return Ok(None);
        }
        let Found::Output(stdout) = self.run(call)? else {
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

fn environment(call: &DelegateCall<'_>) -> Vec<(OsString, OsString)> {
    let p = &call.parameters;
    let own = [call.command.name(), p.container_id, p.netns, p.ifname, p.args, p.path];
    let inherited = p.env.iter().filter(|(key, _)| !VARIABLES.contains(&key.as_str()));
    inherited
        .map(|(key, value)| (key.into(), value.into()))
        .chain(VARIABLES.into_iter().zip(own).map(|(key, value)| (key.into(), value.into())))
        .collect()
}

/// What a plugin that ended by itself has said.
fn judge(call: &DelegateCall<'_>, output: &Output) -> Result<String, DelegateError> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let error = CniError::from_json(stdout.trim());
        return Err(DelegateError::Refused {
            plugin: call.plugin.to_owned(),
            command: call.command,
            status: output.status.code().unwrap_or(-1),
            code: error.as_ref().map(|e| e.code),
            told: error.map_or_else(|| begin(&stdout), |e| e.to_string()),
            stderr: tail(&output.stderr),
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
    DelegateError::Garbage { plugin, command, why, told: begin(stdout), stderr: tail(stderr) }
}

/// Why a program did not end by itself, with no more of its standard error than an error may repeat.
fn why(error: &ExecError) -> String {
    match error {
        ExecError::TimedOut { limit, stderr, .. } => {
            format!("killed after its time limit of {limit:?}{}", tail(stderr))
        }
        ExecError::Cancelled { stderr, .. } => {
            format!("killed because the call was cancelled{}", tail(stderr))
        }
        ExecError::Signalled { signal, stderr, .. } => format!("killed by signal {signal}{}", tail(stderr)),
        other => other.to_string(),
    }
}

/// The begin of an output, for an error.
fn begin(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().find(|(at, _)| *at >= SHOWN) {
        _ if text.is_empty() => "it printed nothing".to_owned(),
        Some((at, _)) => format!("{:?}…", text.get(..at).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// The end of standard error, for an error.
fn tail(stderr: &[u8]) -> String {
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
