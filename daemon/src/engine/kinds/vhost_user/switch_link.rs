//! The daemon's connection to `fairlead-vswitch`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code, avoid_containerd_phrases};
use fairlead_host::Uplink;
use fairlead_vhost::control::messages::{RefusalCode, SocketSide};
use fairlead_vhost::control::{Client, ClientError, EventStream};
use fairlead_vhost::port::{MacEntry, PortView, UplinkConfig, UplinkView};
use parking_lot::Mutex;

use crate::store::VhostUserRecord;

/// So long the switch may take for an answer: it does nothing that waits for a guest.
const ANSWERS: Duration = Duration::from_secs(2);
/// So long it may take to give an interface back: a driver may start its card anew without the program (igb), which takes longer the
/// busier the machine is.
const GIVES_BACK: Duration = Duration::from_secs(10);
/// So long a switch that has not answered is not asked again: calls that waited for their turn would each wait as long as the first one.
const SILENT: Duration = Duration::from_secs(1);
/// So long STATUS waits for the switch: a runtime's call takes the daemon itself for hung when it has no answer after some 95 ms.
const STATUS_ANSWERS: Duration = Duration::from_millis(50);

/// The connection. Calls take turns: each takes a fraction of a millisecond.
pub(super) struct SwitchLink {
    socket: PathBuf,
    line: Mutex<Line>,
}

/// What those who call take turns with.
struct Line {
    client: Client,
    /// When the switch last let a call wait in vain, and what was said of that.
    silent: Option<(Instant, CniError)>,
}

impl Line {
    fn silence(&self) -> Option<&CniError> {
        self.silent.as_ref().filter(|(since, _)| since.elapsed() < SILENT).map(|(_, error)| error)
    }
}

impl SwitchLink {
    pub(super) fn new(socket: PathBuf) -> SwitchLink {
        let client = Client::new(socket.clone(), ANSWERS);
        SwitchLink { line: Mutex::new(Line { client, silent: None }), socket }
    }

    /// Has the switch serve a port, in place of any that has its name.
    pub(super) fn add(
        &self,
        record: &VhostUserRecord,
        side: SocketSide,
        socket: &OwnedFd,
    ) -> Result<(), CniError> {
        let port = &record.port;
        let add = |client: &mut Client| {
            near(record.numa_node, |node| client.add_port(port.clone(), side, socket.as_fd(), node))
        };
        self.call(|client| match add(client) {
            // A daemon that was killed has left it, or one whose store was lost.
            Err(error) if refused(&error) == Some(RefusalCode::NameTaken) => {
                client.remove_port(&port.name)?;
                add(client)
            }
            done => done,
        })
    }

    /// Takes a port out of the switch. One that it does not have is success, and so is a switch that does not run: all of its ports
    /// have ended with it.
    pub(super) fn remove(&self, name: &str) -> Result<(), CniError> {
        self.call(|client| none_is_success(client.remove_port(name)))
    }

    /// Whether a port can be given a new listener: not one that the switch has lost, nor by a switch from before that could be done.
    ///
    /// # Errors
    /// Not now, as the port still closes what its last guest sent; or the switch does not answer.
    pub(super) fn can_listen_anew(&self, name: &str) -> Result<bool, CniError> {
        self.call(|client| match client.can_listen_anew(name) {
            Err(error) if has_to_be_added(&error) => Ok(false),
            done => done.map(|()| true),
        })
    }

    /// Has the switch wait for a pod's guest at another socket. The port stays as it is, with all that its guests did.
    pub(super) fn listen_anew(&self, name: &str, listener: &OwnedFd) -> Result<(), CniError> {
        self.call(|client| client.new_listener(name, listener.as_fd()))
    }

    /// Hands over a new connection to the process that made the socket of a port.
    pub(super) fn reconnect(&self, name: &str, stream: &OwnedFd) -> Result<(), CniError> {
        self.call(|client| client.reconnect(name, stream.as_fd()))
    }

    /// Has the switch serve an uplink of this NUMA node, whose sockets are to be bound then.
    pub(super) fn add_uplink(
        &self,
        config: &UplinkConfig,
        uplink: &Uplink,
        numa_node: Option<u32>,
    ) -> Result<(), CniError> {
        self.call(|client| near(numa_node, |node| client.add_uplink(config.clone(), uplink, node)))
    }

    /// Takes a network's uplink away. As for ports, none is success. Other calls wait meanwhile: the switch answers them when that is done.
    pub(super) fn remove_uplink(&self, network: &str) -> Result<(), CniError> {
        let _others = self.line.lock();
        let mut patient = Client::new(self.socket.clone(), GIVES_BACK);
        let removed = call_twice(&mut patient, |client| none_is_success(client.remove_uplink(network)));
        removed.map_err(|error| told(&error))
    }

    /// The uplinks that the switch has.
    pub(super) fn uplinks(&self) -> Result<Vec<UplinkView>, CniError> {
        self.call(Client::uplinks)
    }

    /// The uplink of a network, where the switch answers and has it.
    pub(super) fn uplink_of(&self, network: &str) -> Option<UplinkView> {
        self.uplinks().ok()?.into_iter().find(|there| there.config.network == network)
    }

    /// The ports that the switch has.
    pub(super) fn ports(&self) -> Result<Vec<PortView>, CniError> {
        self.call(Client::ports)
    }

    /// The addresses that the switch knows.
    pub(super) fn addresses(&self) -> Result<Vec<MacEntry>, CniError> {
        self.call(Client::mac_table)
    }

    /// A port as the switch has it.
    pub(super) fn port(&self, name: &str) -> Result<Option<PortView>, CniError> {
        Ok(self.ports()?.into_iter().find(|port| port.config.name == name))
    }

    /// Removes all ports but these.
    pub(super) fn keep_only(&self, names: &[String]) -> Result<(), CniError> {
        let removed = self.call(|client| client.keep_only(names))?;
        if !removed.is_empty() {
            tracing::warn!(?removed, "ports of the switch that no attachment has are removed");
        }
        Ok(())
    }

    /// Why the switch cannot be told anything just now. Answers soon, whatever the switch does, and waits for no other call.
    pub(super) fn lacks(&self) -> Option<String> {
        let silence = self.line.try_lock().and_then(|line| line.silence().map(|error| error.msg.clone()));
        silence.or_else(|| {
            let asked = Client::new(self.socket.clone(), STATUS_ANSWERS).version();
            asked.err().map(|error| told(&error).msg)
        })
    }

    /// A connection of its own on which the switch tells what happens, and whose end is the switch's.
    pub(super) fn events(&self) -> Result<EventStream, ClientError> {
        Client::new(self.socket.clone(), ANSWERS).events()
    }

    fn call<T>(&self, call: impl Fn(&mut Client) -> Result<T, ClientError>) -> Result<T, CniError> {
        let mut line = self.line.lock();
        if let Some(silence) = line.silence() {
            return Err(silence.clone());
        }
        let done = call_twice(&mut line.client, call);
        done.map_err(|error| {
            let told = told(&error);
            if matches!(error, ClientError::TimedOut { .. }) {
                line.silent = Some((Instant::now(), told.clone()));
            }
            told
        })
    }
}

fn call_twice<T>(
    client: &mut Client,
    call: impl Fn(&mut Client) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    match call(client) {
        // The switch was started again since the last call. Every request may be made twice.
        Err(ClientError::Closed { .. }) => call(client),
        done => done,
    }
}

/// What was to be removed is not there: the switch says so, or does not run. One that could not be connected to for another reason may
/// still have it.
fn none_is_success(removed: Result<(), ClientError>) -> Result<(), ClientError> {
    match removed {
        Err(error) if error.is_unserved() || refused(&error) == Some(RefusalCode::UnknownPort) => Ok(()),
        done => done,
    }
}

/// Asks for a thread of this NUMA node; for any, where the switch is from before there were several.
fn near(
    numa_node: Option<u32>,
    mut ask: impl FnMut(Option<u32>) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    match ask(numa_node) {
        Err(error) if numa_node.is_some() && refused(&error) == Some(RefusalCode::NewerVersion) => ask(None),
        done => done,
    }
}

/// The port is none that can be given a listener: it is not there, or connects to its guest, or the switch knows no such request.
fn has_to_be_added(error: &ClientError) -> bool {
    use RefusalCode::{BadSocket, NewerVersion, UnknownPort};
    matches!(refused(error), Some(BadSocket | NewerVersion | UnknownPort))
}

fn refused(error: &ClientError) -> Option<RefusalCode> {
    match error {
        ClientError::Refused { refusal, .. } => Some(refusal.code),
        _ => None,
    }
}

/// Code 11 for all that can be had again without a change of the configuration.
fn told(error: &ClientError) -> CniError {
    if refused(error) == Some(RefusalCode::BadConfig) {
        return CniError::new(Code::InvalidConfig, error.to_string());
    }
    let remedy = match error {
        _ if error.is_unserved() => "start fairlead-vswitch, as docs/vhost-user.md says",
        ClientError::Connect { .. } => {
            "see that the daemon may open more files (LimitNOFILE, fs.file-max), has memory, and may use the socket"
        }
        ClientError::TimedOut { .. } => {
            "fairlead-vswitch hangs: see its log, and start it again; pods keep their ports"
        }
        _ => "see the log of fairlead-vswitch",
    };
    // A DEL can be answered with it: containerd would take some phrases of the kernel for success.
    CniError::new(Code::TryAgain, avoid_containerd_phrases(&error.to_string())).with(remedy)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use fairlead_vhost::control::messages::Refusal;
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};

    use super::*;

    #[test]
    fn a_switch_that_hangs_is_waited_for_once_and_status_says_so_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vswitch.sock");
        // Connections are taken, and nobody reads what comes over them.
        let hung = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(std::os::fd::AsRawFd::as_raw_fd(&hung), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&hung, Backlog::new(64).unwrap()).unwrap();
        let (link, start) = (SwitchLink::new(path), Instant::now());
        let (calls, status) = thread::scope(|scope| {
            let calls = [(); 8].map(|()| scope.spawn(|| link.ports().unwrap_err()));
            let status = link.lacks().unwrap();
            let early = start.elapsed() < ANSWERS;
            (calls.map(|call| call.join().unwrap()), (status, early))
        });
        assert!(
            start.elapsed() < ANSWERS * 4,
            "eight calls that wait one after the other take eight times as long"
        );
        assert!(calls.iter().all(|e| e.code == Code::TryAgain && e.msg.contains("no answer to `ports`")));
        assert!(status.0.contains("no answer to `version` within 50ms") && status.1, "{status:?}");
        assert!(link.lacks().unwrap().contains("no answer to `ports` within 2s"));
    }

    #[test]
    fn what_a_switch_has_that_does_not_run_is_removed_and_what_one_may_have_that_could_not_be_asked_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vswitch.sock");
        let both = |path: PathBuf| {
            let link = SwitchLink::new(path);
            [link.remove("c1/net1"), link.remove_uplink("blue")]
        };
        assert_eq!(both(path.clone()), [Ok(()), Ok(())], "nobody has made the socket");
        let ended = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(std::os::fd::AsRawFd::as_raw_fd(&ended), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&ended, Backlog::new(1).unwrap()).unwrap();
        drop(ended);
        assert_eq!(both(path.clone()), [Ok(()), Ok(())], "who made it has ended");
        // The kernel comes to no socket, as where the daemon has no descriptor left for one.
        for kept in both(path.join("below")) {
            let kept = kept.unwrap_err();
            assert_eq!(kept.code, Code::TryAgain, "{kept}");
            assert!(kept.msg.contains("can't connect") && kept.details.contains("LimitNOFILE"), "{kept}");
        }
    }

    #[test]
    fn a_switch_that_knows_of_no_nodes_is_asked_for_any_thread_and_every_other_refusal_stays() {
        let asked = |numa_node, code| {
            let mut asked = Vec::new();
            let done = near(numa_node, |node| {
                asked.push(node);
                let refusal = Refusal::new(code, "no");
                let is_taken = node.is_none() && code == RefusalCode::NewerVersion;
                if is_taken { Ok(()) } else { Err(ClientError::Refused { request: "add-port", refusal }) }
            });
            (done.is_ok(), asked)
        };
        assert_eq!(asked(Some(1), RefusalCode::NewerVersion), (true, vec![Some(1), None]));
        assert_eq!(asked(Some(1), RefusalCode::NameTaken), (false, vec![Some(1)]));
        assert_eq!(asked(None, RefusalCode::BadConfig), (false, vec![None]));
    }
}
