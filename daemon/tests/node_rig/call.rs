//! A call as a runtime makes it: by the executable, or, where only the daemon matters, straight over its socket.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_cni::wire::{Command, RECEIVED, Request, WIRE};
use fairlead_host::unix_http::{self, HttpAnswer, HttpRequest};
use serde_json::{Value, json};

use super::{PATIENCE, Pod, Rig, executable};

/// The outcome of one call.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Success, with what was printed.
    Done(String),
    /// The call failed with a CNI error object.
    Refused(CniError),
    /// No answer came: nobody listened, or the daemon died.
    Lost,
}

impl Reply {
    /// A success with a result.
    pub(crate) fn result(&self) -> Value {
        match self {
            Reply::Done(text) => serde_json::from_str(text).unwrap(),
            other => panic!("no success: {other:?}"),
        }
    }

    /// Asserts that the call succeeded.
    pub(crate) fn succeeds(&self) {
        assert!(matches!(self, Reply::Done(_)), "no success: {self:?}");
    }
}

/// The way by which a call gets to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The executable calls, which waits for a daemon and spools a DEL without one.
    Executable,
    /// The test calls over the socket, so that the death of a daemon is seen.
    Socket,
}

/// One interface of one container.
pub(crate) struct Call<'r> {
    pub(crate) rig: &'r Rig,
    pub(crate) container: String,
    pub(crate) ifname: String,
    pub(crate) config: String,
    /// `CNI_ARGS`
    args: String,
    netns: PathBuf,
    inode: Option<fairlead_cni::wire::Inode>,
}

impl Rig {
    /// Calls for `eth0` of a container.
    pub(crate) fn call(&self, container: &str, pod: &Pod, config: &Value) -> Call<'_> {
        Call {
            rig: self,
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
            config: config.to_string(),
            args: "IgnoreUnknown=1".to_owned(),
            netns: pod.path().to_owned(),
            inode: Some(pod.inode()),
        }
    }
}

impl Call<'_> {
    /// The same with these `CNI_ARGS`.
    pub(crate) fn with_args(self, args: String) -> Self {
        Self { args, ..self }
    }

    /// The same for the namespace at this path.
    pub(crate) fn in_netns(self, netns: PathBuf) -> Self {
        Self { netns, inode: None, ..self }
    }

    fn request(&self, command: Command) -> Request {
        Request {
            wire: WIRE,
            command,
            container_id: self.container.clone(),
            netns: self.netns.display().to_string(),
            netns_inode: self.inode,
            own_netns: None,
            own_netns_cookie: None,
            ifname: self.ifname.clone(),
            args: self.args.clone(),
            path: self.rig.path("bin").display().to_string(),
            env: vec![("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())],
            config: self.config.clone(),
            deadline_ms: 30_000,
            issued_ns: None,
            spooled: None,
        }
    }

    pub(crate) fn add(&self) -> Reply {
        post(&self.rig.socket(), &self.request(Command::Add))
    }

    /// CHECK of what this ADD answered.
    pub(crate) fn check(&self, added: &Reply) -> Reply {
        let mut config: Value = serde_json::from_str(&self.config).unwrap();
        config["prevResult"] = added.result();
        post(&self.rig.socket(), &Request { config: config.to_string(), ..self.request(Command::Check) })
    }

    pub(crate) fn del(&self) -> Reply {
        post(&self.rig.socket(), &self.request(Command::Del))
    }

    /// Calls as a runtime does: again and again while there is no answer, or the answer is to try again.
    pub(crate) fn insist(&self, command: Command, way: Way) -> Reply {
        let limit = Instant::now() + 2 * PATIENCE;
        loop {
            let reply = match way {
                Way::Executable => self.execute(command).end(),
                Way::Socket => post(&self.rig.socket(), &self.request(command)),
            };
            match reply {
                Reply::Refused(error) if error.code.number() == 11 && Instant::now() < limit => {}
                Reply::Lost if Instant::now() < limit => {}
                reply => return reply,
            }
            sleep(Duration::from_millis(3));
        }
    }

    /// Starts the executable as a runtime does, and does not wait for its end.
    pub(crate) fn execute(&self, command: Command) -> Running {
        let mut program = Program::new(executable());
        program.env_clear().envs([
            ("CNI_COMMAND", command.name()),
            ("CNI_CONTAINERID", self.container.as_str()),
            ("CNI_IFNAME", self.ifname.as_str()),
            ("CNI_ARGS", self.args.as_str()),
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("FAIRLEAD_TIMEOUT", "20"),
        ]);
        program.env("CNI_NETNS", &self.netns).env("CNI_PATH", self.rig.path("bin"));
        program.env("FAIRLEAD_SOCKET", self.rig.socket());
        program.env("FAIRLEAD_STATE_DIR", self.rig.path("state"));
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = self.rig.spawn(&mut program);
        child.stdin.take().unwrap().write_all(self.config.as_bytes()).unwrap();
        Running(child)
    }
}

/// A run of the executable; killed when dropped.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn is_at_work(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    pub(crate) fn end(mut self) -> Reply {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        match self.0.wait().unwrap().success() {
            true => Reply::Done(text),
            false => CniError::from_json(&text).map_or(Reply::Lost, Reply::Refused),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The answer to a GET; `None` when there is none.
pub(super) fn get(socket: &Path, path: &str) -> Option<HttpAnswer> {
    unix_http::exchange(socket, HttpRequest { method: "GET", path, body: "" }, 2 * PATIENCE).ok()
}

fn post(socket: &Path, request: &Request) -> Reply {
    let body = serde_json::to_string(request).unwrap();
    let http = HttpRequest { method: "POST", path: request.command.path(), body: &body };
    let Ok(mut answer) = unix_http::exchange(socket, http, 2 * PATIENCE) else { return Reply::Lost };
    // As the executable does when the runtime has the answer.
    let _ = answer.acknowledge(RECEIVED);
    match answer.status {
        200 => Reply::Done(answer.body),
        _ => Reply::Refused(CniError::from_json(&answer.body).unwrap_or_else(|| panic!("{answer:?}"))),
    }
}

/// The fields of the operator's table that are compared.
pub(crate) fn stored(rows: &[Value]) -> Vec<Value> {
    rows.iter().map(|r| json!([r["container"], r["phase"]])).collect()
}
