//! A stage for the built executable: a directory of its own with a socket, a state directory, and a daemon that
//! plays what the test says.
#![allow(dead_code, reason = "each test file uses its part of the stage")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here is the test")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_cni::spool::{EntryName, parse};
use fairlead_cni::wire::Request;
use tempfile::TempDir;

/// A configuration that a daemon would accept.
pub(crate) const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"net","type":"macvlan"}"#;

/// An ADD's result.
pub(crate) const RESULT: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[],"dns":{}}"#;

/// The directory.
pub(crate) struct Stage {
    directory: TempDir,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage { directory: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("fairlead.sock")
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.path("state/spool")
    }

    /// A call as a runtime makes it, with two seconds to live.
    pub(crate) fn call(&self, command: &str) -> Call {
        let mut variables = vec![
            ("CNI_COMMAND".into(), command.into()),
            ("CNI_CONTAINERID".into(), "c1".into()),
            ("CNI_NETNS".into(), "/proc/self/ns/net".into()),
            ("CNI_IFNAME".into(), "eth0".into()),
            ("CNI_ARGS".into(), "IgnoreUnknown=1".into()),
            ("CNI_PATH".into(), "/opt/cni/bin".into()),
            ("FAIRLEAD_TIMEOUT".into(), "2".into()),
        ];
        variables.push(("FAIRLEAD_SOCKET".into(), self.socket().into_os_string()));
        variables.push(("FAIRLEAD_STATE_DIR".into(), self.path("state").into_os_string()));
        Call { program: env!("CARGO_BIN_EXE_fairlead").into(), variables, stdin: CONFIG.into(), close: true }
    }

    /// The whole entries of the spool, in the order of replay.
    pub(crate) fn entries(&self) -> Vec<Request> {
        let mut names: Vec<String> =
            self.files().into_iter().filter(|name| EntryName::parse_whole(name).is_some()).collect();
        names.sort();
        names.iter().map(|name| parse(&fs::read(self.spool().join(name)).unwrap()).unwrap()).collect()
    }

    /// All files of the spool.
    pub(crate) fn files(&self) -> Vec<String> {
        let Ok(files) = fs::read_dir(self.spool()) else { return Vec::new() };
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// One run of the executable.
pub(crate) struct Call {
    program: PathBuf,
    variables: Vec<(OsString, OsString)>,
    stdin: Vec<u8>,
    close: bool,
}

impl Call {
    pub(crate) fn set(mut self, name: &str, value: impl AsRef<OsStr>) -> Call {
        self = self.unset(name);
        self.variables.push((name.into(), value.as_ref().into()));
        self
    }

    pub(crate) fn unset(mut self, name: &str) -> Call {
        self.variables.retain(|(known, _)| known != name);
        self
    }

    pub(crate) fn config(mut self, text: impl Into<Vec<u8>>) -> Call {
        self.stdin = text.into();
        self
    }

    pub(crate) fn stdin_stays_open(mut self) -> Call {
        self.close = false;
        self
    }

    pub(crate) fn program(mut self, path: &Path) -> Call {
        self.program = path.to_owned();
        self
    }

    pub(crate) fn start(self) -> Running {
        let began = Instant::now();
        let mut child = Command::new(&self.program)
            .env_clear()
            .envs(self.variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The executable may end before it has read all.
        let _ = stdin.write_all(&self.stdin);
        Running { child, began, _stdin: (!self.close).then_some(stdin) }
    }

    pub(crate) fn run(self) -> Outcome {
        self.start().end()
    }
}

/// A run that has not ended.
pub(crate) struct Running {
    pub(crate) child: Child,
    began: Instant,
    _stdin: Option<std::process::ChildStdin>,
}

impl Running {
    pub(crate) fn end(mut self) -> Outcome {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        Outcome { ok: status.success(), code: status.code(), stdout, stderr, took: self.began.elapsed() }
    }
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ok: bool,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Outcome {
    /// The error object, checked to be one and to be told by the exit status too.
    pub(crate) fn error(&self) -> CniError {
        assert_eq!(self.code, Some(1), "{self:?}");
        let error = CniError::from_json(&self.stdout).unwrap_or_else(|| panic!("no error object: {self:?}"));
        assert!(!error.msg.is_empty(), "{self:?}");
        error
    }

    /// The error's number.
    pub(crate) fn refused(&self) -> u32 {
        self.error().code.number()
    }

    /// Checks that the call succeeded with nothing to print.
    pub(crate) fn silent_success(&self) {
        assert!(self.ok && self.stdout.is_empty() && self.stderr.is_empty(), "{self:?}");
    }

    pub(crate) fn took_less_than(&self, millis: u64) {
        assert!(self.took < Duration::from_millis(millis), "{self:?}");
    }

    pub(crate) fn took_at_least(&self, millis: u64) {
        assert!(self.took >= Duration::from_millis(millis), "{self:?}");
    }
}

/// A request as it arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) head: String,
    pub(crate) request: Request,
}

/// A daemon that plays a part.
pub(crate) struct Daemon {
    /// Every request that arrived whole.
    pub(crate) arrived: Receiver<Arrived>,
}

impl Daemon {
    /// Listens, and plays `part` with the number of the request and its connection.
    pub(crate) fn listen(
        socket: &Path,
        part: impl FnMut(usize, &Request, UnixStream) + Send + 'static,
    ) -> Daemon {
        let aside = socket.with_extension("new");
        let listener = UnixListener::bind(&aside).unwrap();
        fs::rename(&aside, socket).unwrap();
        Daemon::serve(listener, part)
    }

    /// Serves a listener that is there already.
    pub(crate) fn serve(
        listener: UnixListener,
        part: impl FnMut(usize, &Request, UnixStream) + Send + 'static,
    ) -> Daemon {
        let (sender, arrived) = channel();
        thread::spawn(move || play(&listener, &sender, part));
        Daemon { arrived }
    }

    /// Answers every request alike.
    pub(crate) fn answering(socket: &Path, answer: impl Into<Vec<u8>>) -> Daemon {
        let answer = answer.into();
        Daemon::listen(socket, move |_, _, mut connection| connection.write_all(&answer).unwrap_or(()))
    }
}

fn play(
    listener: &UnixListener,
    sender: &Sender<Arrived>,
    mut part: impl FnMut(usize, &Request, UnixStream),
) {
    let mut number = 0;
    for connection in listener.incoming() {
        let mut connection = connection.unwrap();
        // Connections that are closed without a request are no requests.
        let Some(arrived) = read_request(&mut connection) else { continue };
        let request = arrived.request.clone();
        // Told before it is answered, so that who has the answer can count. Nobody need listen.
        let _ = sender.send(arrived);
        part(number, &request, connection);
        number += 1;
    }
}

fn read_request(connection: &mut UnixStream) -> Option<Arrived> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 65536];
    loop {
        let n = connection.read(&mut chunk).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        if bytes.len() == end + 4 + length.parse::<usize>().unwrap() {
            return Some(Arrived { request: serde_json::from_slice(&bytes[end + 4..]).unwrap(), head });
        }
    }
}

/// An HTTP answer.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A success.
pub(crate) fn ok(body: &str) -> String {
    answer("200 OK", "", body)
}

/// The daemon is stopping.
pub(crate) fn not_begun() -> String {
    let body = r#"{"cniVersion":"1.1.0","code":11,"msg":"stopping"}"#;
    answer("503 Service Unavailable", "fairlead-outcome: not-begun\r\n", body)
}
