//! A `fairleadd` that the suite starts for itself, ready when `/readyz` says so, and ended with the suite.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::unix_http::{self, HttpAnswer, HttpRequest};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time that a daemon may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// The time that a daemon may take to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// Why a daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    /// A directory or file for it could not be made.
    #[error("{path}: {source}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Why it could not be made.
        #[source]
        source: io::Error,
    },
    /// The daemon could not be started.
    #[error("{program} cannot be started: {source}")]
    Start {
        /// The name of the program.
        program: String,
        /// Why it could not be started.
        #[source]
        source: io::Error,
    },
    /// The daemon ended, or is not ready in time.
    #[error("{program} {state}; the end of its log:\n{log}")]
    NotReady {
        /// The name of the program.
        program: String,
        /// What it does instead of serving.
        state: String,
        /// The last lines of its output.
        log: String,
    },
}

/// The paths of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct DaemonPaths {
    /// The value of `--run-dir`.
    pub(crate) run_dir: PathBuf,
    /// The value of `--state-dir`.
    pub(crate) state_dir: PathBuf,
    /// The value of `--config`.
    pub(crate) config: PathBuf,
    /// The value of `CNI_CONF_DIR`; `None`: the host's own.
    pub(crate) conf_dir: Option<PathBuf>,
    /// The file for its standard output and error.
    pub(crate) log: PathBuf,
}

impl DaemonPaths {
    /// The path of the daemon's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run_dir.join("fairlead.sock")
    }

    /// The environment by which the executable finds this daemon.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let paths = [("FAIRLEAD_SOCKET", self.socket()), ("FAIRLEAD_STATE_DIR", self.state_dir.clone())];
        paths.into_iter().map(|(name, path)| (name.to_owned(), path.display().to_string())).collect()
    }
}

/// A running daemon; stopped when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    /// The process id of the daemon.
    pub(crate) pid: Pid,
    /// The socket, for daemons of ours.
    socket: Option<PathBuf>,
    log: PathBuf,
}

impl Daemon {
    /// Starts `fairleadd` with `yaml` as its configuration, and waits until it is ready.
    pub(crate) fn start(binary: &Path, paths: &DaemonPaths, yaml: &str) -> Result<Daemon, DaemonError> {
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| DaemonError::File { path, source }
        };
        fs::create_dir_all(&paths.run_dir).map_err(file(&paths.run_dir))?;
        fs::create_dir_all(&paths.state_dir).map_err(file(&paths.state_dir))?;
        let beside = paths.config.parent().unwrap_or(&paths.state_dir);
        fs::create_dir_all(beside).map_err(file(beside))?;
        fs::write(&paths.config, yaml).map_err(file(&paths.config))?;
        let mut command = dying_with_us(binary);
        command.arg("run").arg("--run-dir").arg(&paths.run_dir).arg("--state-dir").arg(&paths.state_dir);
        command.arg("--config").arg(&paths.config);
        command.envs(paths.conf_dir.iter().map(|dir| ("CNI_CONF_DIR", dir)));
        let mut daemon = Daemon::spawn(command, &binary.display().to_string(), &paths.log)?;
        daemon.until_ready(binary, paths)?;
        daemon.socket = Some(paths.socket());
        Ok(daemon)
    }

    /// Starts a command line that serves a peer. Only the first call can show whether it is ready.
    pub(crate) fn companion(line: &str, log: &Path) -> Result<Daemon, DaemonError> {
        let mut command = dying_with_us(Path::new("/bin/sh"));
        command.args(["-c", &format!("exec {line}")]);
        Daemon::spawn(command, line, log)
    }

    /// The body of the answer to `GET path`; empty for a daemon that is not ours.
    pub(crate) fn get(&self, path: &str) -> io::Result<Vec<u8>> {
        let Some(socket) = &self.socket else { return Ok(Vec::new()) };
        Ok(get(socket, path)?.body.into_bytes())
    }

    /// The last lines of its output.
    pub(crate) fn last_words(&self) -> String {
        last_lines(&self.log)
    }

    fn spawn(mut command: Command, program: &str, log: &Path) -> Result<Daemon, DaemonError> {
        let file = |source| DaemonError::File { path: log.to_owned(), source };
        let out = File::create(log).map_err(file)?;
        let err = out.try_clone().map_err(file)?;
        let start = |source| DaemonError::Start { program: program.to_owned(), source };
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(start)?;
        let pid = i32::try_from(child.id()).map_err(|e| start(io::Error::other(e)))?;
        Ok(Daemon { child, pid: Pid::from_raw(pid), socket: None, log: log.to_owned() })
    }

    fn until_ready(&mut self, binary: &Path, paths: &DaemonPaths) -> Result<(), DaemonError> {
        let started = Instant::now();
        let not_ready = |state| DaemonError::NotReady {
            program: binary.display().to_string(),
            state,
            log: last_lines(&paths.log),
        };
        while !is_ready(&paths.socket()) {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(not_ready(format!("ended with {status} before it was ready")));
            }
            if started.elapsed() > READY_WITHIN {
                return Err(not_ready(format!("is not ready after {READY_WITHIN:?}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Nothing useful can be done about a daemon that is gone already.
        let _ = kill(self.pid, Signal::SIGTERM);
        let started = Instant::now();
        while started.elapsed() < STOPPED_WITHIN {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that gets SIGTERM when the thread that starts it ends in whatever way; that is the suite's main
/// thread.
fn dying_with_us(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command
}

/// True when `GET /readyz` is answered with 200.
fn is_ready(socket: &Path) -> bool {
    get(socket, "/readyz").is_ok_and(|answer| answer.status == 200)
}

fn get(socket: &Path, path: &str) -> io::Result<HttpAnswer> {
    unix_http::exchange(socket, HttpRequest { method: "GET", path, body: "" }, Duration::from_secs(5))
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_daemon_is_ready_only_when_it_answers_200() {
        let dir = tempfile::tempdir().unwrap();
        for (answer, ready) in
            [("HTTP/1.1 200 OK\r\n\r\n", true), ("HTTP/1.1 503 Service Unavailable\r\n\r\n", false)]
        {
            let socket = dir.path().join(format!("{ready}.sock"));
            assert!(!is_ready(&socket));
            let listener = UnixListener::bind(&socket).unwrap();
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 256]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            });
            assert_eq!(is_ready(&socket), ready);
            server.join().unwrap();
        }
    }

    #[test]
    fn a_daemon_that_ends_at_once_is_told_with_its_own_words() {
        let dir = tempfile::tempdir().unwrap();
        let paths = DaemonPaths {
            run_dir: dir.path().join("run"),
            state_dir: dir.path().join("state"),
            config: dir.path().join("config.yaml"),
            conf_dir: None,
            log: dir.path().join("log"),
        };
        let error = Daemon::start(Path::new("/bin/ls"), &paths, "").unwrap_err().to_string();
        assert!(error.contains("before it was ready") && error.contains("run-dir"), "{error}");
    }
}
