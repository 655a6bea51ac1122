//! One set of CNI plugins under judgement, and how it is called: exactly as libcni does it, through executables,
//! environment, standard input and output. Nothing of any implementation's inside is known here.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{self, RunError};
use crate::test_node::FILES_DIR;

const CALL_LIMIT: Duration = Duration::from_secs(60);
const DAEMON_START_LIMIT: Duration = Duration::from_secs(90);
const RUN_DIR: &str = "/run/fairlead";
const STATE_DIR: &str = "/var/lib/fairlead";

/// A directory of plugin executables, and what they need besides.
#[derive(Debug, Clone)]
pub struct Implementation {
    /// The role in the tables: `reference`, `subject` or `peer`.
    pub role: &'static str,
    /// The directory of its executables.
    pub dir: PathBuf,
    /// The directory from which plugins are taken that it does not have itself.
    pub fallback: Option<PathBuf>,
    /// The `fairleadd` that is run on each of its test nodes.
    pub daemon: Option<PathBuf>,
}

/// Why an implementation could not be called at all.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The implementation has no such executable.
    #[error("the {role} has no plugin {plugin} in {dir}")]
    NoPlugin {
        /// The role of the implementation.
        role: &'static str,
        /// The name of the plugin.
        plugin: String,
        /// The directory where it was looked for.
        dir: PathBuf,
    },
    /// The executable could not be started.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The daemon did not become ready.
    #[error("the daemon {program} ended or was not ready within {} s; its log: {log}", DAEMON_START_LIMIT.as_secs())]
    Daemon {
        /// The path of the daemon.
        program: PathBuf,
        /// The end of the daemon's log.
        log: String,
    },
    /// A file for the implementation could not be made.
    #[error("{path}: {source}")]
    File {
        /// The path of the file.
        path: String,
        /// Why it could not be made.
        source: std::io::Error,
    },
}

/// The environment and the input of one call.
#[derive(Debug, Clone, Default)]
pub struct Call<'a> {
    /// The value of `CNI_COMMAND`.
    pub command: &'a str,
    /// The value of `CNI_CONTAINERID`; not set if empty.
    pub container_id: &'a str,
    /// The value of `CNI_NETNS`; not set if empty.
    pub netns: &'a str,
    /// The value of `CNI_IFNAME`; not set if empty.
    pub ifname: &'a str,
    /// The value of `CNI_ARGS`; not set if empty.
    pub args: &'a str,
    /// The text on standard input.
    pub config: &'a [u8],
}

/// How a call ended, as a runtime sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The exit status was 0.
    Success,
    /// The call failed with an error object of this code.
    Error(u64),
    /// The call failed without an error object on standard output.
    NoErrorObject(Option<i32>),
    /// The call did not end within the time limit.
    Hung,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Success => f.write_str("ok"),
            Verdict::Error(code) => write!(f, "code {code}"),
            Verdict::NoErrorObject(Some(status)) => write!(f, "no error object (exit {status})"),
            Verdict::NoErrorObject(None) => f.write_str("no error object (killed)"),
            Verdict::Hung => write!(f, "no answer in {} s", CALL_LIMIT.as_secs()),
        }
    }
}

/// Everything that one call answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// How the call ended.
    pub verdict: Verdict,
    /// The standard output as JSON; null when there was none.
    pub body: Value,
    /// The text on standard error.
    pub stderr: String,
}

impl Answer {
    /// Whether the call succeeded.
    pub fn ok(&self) -> bool {
        self.verdict == Verdict::Success
    }

    /// The message and details of the error; standard error where there is no error object.
    pub fn complaint(&self) -> String {
        let field = |name| self.body.get(name).and_then(Value::as_str).unwrap_or_default();
        match (field("msg"), field("details")) {
            ("", _) => self.stderr.trim().to_owned(),
            (msg, "") => msg.to_owned(),
            (msg, details) => format!("{msg}: {details}"),
        }
    }
}

impl Implementation {
    /// Calls one of its plugins from the current test node.
    pub fn call(&self, plugin: &str, call: &Call<'_>) -> Result<Answer, CallError> {
        let mut command = Command::new(self.find(plugin)?);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("CNI_PATH", self.cni_path());
        for (key, value) in [
            ("CNI_COMMAND", call.command),
            ("CNI_CONTAINERID", call.container_id),
            ("CNI_NETNS", call.netns),
            ("CNI_IFNAME", call.ifname),
            ("CNI_ARGS", call.args),
        ] {
            if !value.is_empty() {
                command.env(key, value);
            }
        }
        if self.daemon.is_some() {
            command.env("FAIRLEAD_SOCKET", format!("{RUN_DIR}/fairlead.sock"));
            command.env("FAIRLEAD_STATE_DIR", STATE_DIR);
        }
        let output = process::run(&mut command, call.config, CALL_LIMIT)?;
        Ok(judge(&output))
    }

    fn find(&self, plugin: &str) -> Result<PathBuf, CallError> {
        let places = [Some(&self.dir), self.fallback.as_ref()];
        places.into_iter().flatten().map(|dir| dir.join(plugin)).find(|path| path.exists()).ok_or_else(|| {
            CallError::NoPlugin { role: self.role, plugin: plugin.to_owned(), dir: self.dir.clone() }
        })
    }

    /// Whether the implementation has this plugin itself.
    pub fn has(&self, plugin: &str) -> bool {
        self.dir.join(plugin).exists()
    }

    fn cni_path(&self) -> String {
        match &self.fallback {
            Some(fallback) => format!("{}:{}", self.dir.display(), fallback.display()),
            None => self.dir.display().to_string(),
        }
    }

    /// Starts its daemon, where it has one, on the current test node.
    pub fn start_daemon(&self) -> Result<Option<Daemon>, CallError> {
        self.daemon
            .as_deref()
            .map(|program| Daemon::start(program, &self.dir, self.fallback.as_deref()))
            .transpose()
    }
}

fn judge(output: &process::Output) -> Answer {
    let body: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    let code = body.get("code").and_then(Value::as_u64);
    let verdict = match (output.timed_out, output.status, code) {
        (true, ..) => Verdict::Hung,
        (_, Some(0), _) => Verdict::Success,
        (_, Some(_), Some(code)) => Verdict::Error(code),
        (_, status, _) => Verdict::NoErrorObject(status),
    };
    Answer { verdict, body, stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
}

/// A running daemon, killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(program: &Path, dir: &Path, fallback: Option<&Path>) -> Result<Daemon, CallError> {
        let log = format!("{FILES_DIR}/daemon.log");
        let net_d = format!("{FILES_DIR}/net.d");
        let file = |path: &str| {
            let path = path.to_owned();
            move |source| CallError::File { path, source }
        };
        fs::create_dir_all(&net_d).map_err(file(&net_d))?;
        let out = File::create(&log).map_err(file(&log))?;
        let err = out.try_clone().map_err(file(&log))?;
        let child = Command::new(program)
            .args(["run", "--run-dir", RUN_DIR, "--state-dir", STATE_DIR])
            .env("CNI_CONF_DIR", &net_d)
            .env("CNI_PLUGIN_DIR", fallback.unwrap_or(dir))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(file(&program.display().to_string()))?;
        let mut daemon = Daemon { child };
        daemon.wait_until_ready(program, &log)?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self, program: &Path, log: &str) -> Result<(), CallError> {
        let socket = format!("{RUN_DIR}/fairlead.sock");
        let deadline = Instant::now() + DAEMON_START_LIMIT;
        while !ready(&socket) {
            let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            if ended || Instant::now() > deadline {
                return Err(CallError::Daemon { program: program.to_owned(), log: tail(log) });
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The end of its log on the current test node, for a report.
    pub fn log(&self) -> String {
        tail(&format!("{FILES_DIR}/daemon.log"))
    }
}

fn tail(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Whether the daemon at `socket` says that it is ready.
fn ready(socket: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: fairlead\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    ask().is_ok_and(|answer| answer == "HTTP/1.1 200")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Already ended is as good as killed; its zombie is collected either way.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
