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

/// How long a daemon may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How long a daemon may take to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// Why a daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    /// A directory or file for it could not be made.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// It could not be started.
    #[error("{program} cannot be started: {source}")]
    Start {
        /// What.
        program: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// It ended, or is not ready in time.
    #[error("{program} {state}; the end of its log:\n{log}")]
    NotReady {
        /// What.
        program: String,
        /// What it is doing instead.
        state: String,
        /// The last lines of its output.
        log: String,
    },
}

/// Where one daemon keeps its things.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// `--run-dir`
    pub(crate) run_dir: PathBuf,
    /// `--state-dir`
    pub(crate) state_dir: PathBuf,
    /// `--config`
    pub(crate) config: PathBuf,
    /// Its standard output and error.
    pub(crate) log: PathBuf,
}

impl Places {
    /// Its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run_dir.join("fairlead.sock")
    }

    /// What the executable is told of them.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let told = [("FAIRLEAD_SOCKET", self.socket()), ("FAIRLEAD_STATE_DIR", self.state_dir.clone())];
        told.into_iter().map(|(name, path)| (name.to_owned(), path.display().to_string())).collect()
    }
}

/// A running daemon; stopped when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    /// Its process.
    pub(crate) pid: Pid,
    /// Of ours.
    socket: Option<PathBuf>,
    log: PathBuf,
}

impl Daemon {
    /// Starts `fairleadd` with `yaml` as its configuration and waits until it is ready.
    pub(crate) fn start(binary: &Path, places: &Places, yaml: &str) -> Result<Daemon, DaemonError> {
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| DaemonError::File { path, source }
        };
        fs::create_dir_all(&places.run_dir).map_err(file(&places.run_dir))?;
        fs::create_dir_all(&places.state_dir).map_err(file(&places.state_dir))?;
        let beside = places.config.parent().unwrap_or(&places.state_dir);
        fs::create_dir_all(beside).map_err(file(beside))?;
        fs::write(&places.config, yaml).map_err(file(&places.config))?;
        let mut command = dying_with_us(binary);
        command.arg("run").arg("--run-dir").arg(&places.run_dir).arg("--state-dir").arg(&places.state_dir);
        command.arg("--config").arg(&places.config);
        let mut daemon = Daemon::spawn(command, &binary.display().to_string(), &places.log)?;
        daemon.until_ready(binary, places)?;
        daemon.socket = Some(places.socket());
        Ok(daemon)
    }

    /// Starts a command line that serves a peer. Whether it is ready only the first call can tell.
    pub(crate) fn companion(line: &str, log: &Path) -> Result<Daemon, DaemonError> {
        let mut command = dying_with_us(Path::new("/bin/sh"));
        command.args(["-c", &format!("exec {line}")]);
        Daemon::spawn(command, line, log)
    }

    /// What it answers to `GET path`; an empty answer from one that is not ours.
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

    fn until_ready(&mut self, binary: &Path, places: &Places) -> Result<(), DaemonError> {
        let started = Instant::now();
        let not_ready = |state| DaemonError::NotReady {
            program: binary.display().to_string(),
            state,
            log: last_lines(&places.log),
        };
        while !is_ready(&places.socket()) {
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

/// A command that gets SIGTERM when the thread that starts it, the suite's main thread, ends in whatever way.
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
        let places = Places {
            run_dir: dir.path().join("run"),
            state_dir: dir.path().join("state"),
            config: dir.path().join("config.yaml"),
            log: dir.path().join("log"),
        };
        let error = Daemon::start(Path::new("/bin/ls"), &places, "").unwrap_err().to_string();
        assert!(error.contains("before it was ready") && error.contains("run-dir"), "{error}");
    }
}
