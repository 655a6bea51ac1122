//! The rig of a test: a directory with a socket and a state directory, runs of the built executable in it, and a fake daemon
//! that does what the test says.
#![allow(dead_code, reason = "each test file uses its part of the rig")]
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

/// The result of an ADD.
pub(crate) const RESULT: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[],"dns":{}}"#;

/// The directory that a test has for itself.
pub(crate) struct Rig {
    directory: TempDir,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig { directory: TempDir::new().unwrap() }
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

    /// A call as a runtime makes it, with a time limit of two seconds.
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

    /// The names of all files in the spool.
    pub(crate) fn files(&self) -> Vec<String> {
        let Ok(files) = fs::read_dir(self.spool()) else { return Vec::new() };
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// One run of the executable, which has not begun.
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

/// A run of the executable that has not ended.
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

/// What a run of the executable returned and printed.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ok: bool,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Outcome {
    /// The error object that was printed. Checks that the exit status is that of an error too.
    pub(crate) fn error(&self) -> CniError {
        assert_eq!(self.code, Some(1), "{self:?}");
        let error = CniError::from_json(&self.stdout).unwrap_or_else(|| panic!("no error object: {self:?}"));
        assert!(!error.msg.is_empty(), "{self:?}");
        error
    }

    /// The code of the error object that was printed.
    pub(crate) fn refused(&self) -> u32 {
        self.error().code.number()
    }

    /// Checks that the call succeeded with nothing to print.
    pub(crate) fn silent_success(&self) {
        assert!(self.ok && self.stdout.is_empty() && self.stderr.is_empty(), "{self:?}");
    }

    /// `PATIENCE` stretches the time where the processor is an emulated one.
    pub(crate) fn took_less_than(&self, millis: u64) {
        let patience = std::env::var("PATIENCE").map_or(1, |times| times.parse().unwrap());
        assert!(self.took < Duration::from_millis(millis) * patience, "{self:?}");
    }

    pub(crate) fn took_at_least(&self, millis: u64) {
        assert!(self.took >= Duration::from_millis(millis), "{self:?}");
    }
}

/// A request as the fake daemon received it.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) head: String,
    pub(crate) request: Request,
}

/// A fake daemon that does what the test says.
pub(crate) struct Daemon {
    /// Every request that was received whole.
    pub(crate) arrived: Receiver<Arrived>,
}

impl Daemon {
    /// Listens, and calls `part` with the number of each request, the request and its connection.
    pub(crate) fn listen(
        socket: &Path,
        part: impl FnMut(usize, &Request, UnixStream) + Send + 'static,
    ) -> Daemon {
        let aside = socket.with_extension("new");
        let listener = UnixListener::bind(&aside).unwrap();
        fs::rename(&aside, socket).unwrap();
        Daemon::serve(listener, part)
    }

    /// Serves a listener that exists already.
    pub(crate) fn serve(
        listener: UnixListener,
        part: impl FnMut(usize, &Request, UnixStream) + Send + 'static,
    ) -> Daemon {
        let (sender, arrived) = channel();
        thread::spawn(move || play(&listener, &sender, part));
        Daemon { arrived }
    }

    /// Answers every request with the same bytes.
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
        // A connection that is closed without a request does not count.
        let Some(arrived) = read_request(&mut connection) else { continue };
        let request = arrived.request.clone();
        // Sent before the answer, so that a test that has the answer can count on it. Nobody need receive it.
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

/// An HTTP answer with these headers and this body.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The answer to a call that succeeded.
pub(crate) fn ok(body: &str) -> String {
    answer("200 OK", "", body)
}

/// The answer of a daemon that stops and has not begun the call.
pub(crate) fn not_begun() -> String {
    let body = r#"{"cniVersion":"1.1.0","code":11,"msg":"stopping"}"#;
    answer("503 Service Unavailable", "fairlead-outcome: not-begun\r\n", body)
}
