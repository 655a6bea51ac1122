//! The server and the client over a real socket, with commands that are only recorded.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlead_host::{Mac, Uplink, UplinkQueue};
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::listening_socket::{SocketAddress, bind_control_socket};
use super::messages::{
    Answer, AnswerMessage, MESSAGE_BYTES, PROTOCOL, PortEvent, Refusal, RefusalCode, Request, RequestMessage,
    SocketSide,
};
use super::requests::Requests;
use super::seqpacket::{Received, receive, send};
use super::{Client, ClientError, EventQueues, PortCommands, Server};
use crate::capture::{CaptureDirection, CaptureKey, CaptureOptions, CaptureRequest, Ended, Seen, Tap};
use crate::dataplane::{Event, Socket};
use crate::port::{MacEntry, PortConfig, PortCounters, PortView, ThreadView, UplinkConfig, UplinkView};

const LIMIT: Duration = Duration::from_secs(60);

/// Ports in the order in which they came, with their sockets, uplinks with the number of their queues, and captures; nothing else.
#[derive(Default, Clone)]
struct Recorded(
    Arc<Mutex<Vec<(PortConfig, Socket)>>>,
    Arc<Mutex<Vec<(UplinkConfig, usize)>>>,
    Arc<Mutex<Vec<(CaptureKey, Tap)>>>,
);

impl Recorded {
    fn at(&self, name: &str) -> Result<usize, Refusal> {
        let unknown = || Refusal::new(RefusalCode::UnknownPort, format!("there is no port {name}"));
        self.0.lock().iter().position(|(config, _)| config.name == name).ok_or_else(unknown)
    }
}

impl PortCommands for Recorded {
    fn add_port(&self, config: PortConfig, socket: Socket, _: Option<u32>) -> Result<(), Refusal> {
        if self.at(&config.name).is_ok() {
            return Err(Refusal::new(RefusalCode::NameTaken, format!("there is a port {}", config.name)));
        }
        self.0.lock().push((config, socket));
        Ok(())
    }

    fn remove_port(&self, name: &str) -> Result<(), Refusal> {
        let at = self.at(name)?;
        self.0.lock().remove(at);
        Ok(())
    }

    fn reconnect(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal> {
        let at = self.at(name)?;
        self.0.lock()[at].1 = Socket::Connecting(socket);
        Ok(())
    }

    fn can_listen_anew(&self, name: &str) -> Result<(), Refusal> {
        self.at(name).map(drop)
    }

    fn new_listener(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal> {
        let at = self.at(name)?;
        self.0.lock()[at].1 = Socket::Listening(socket);
        Ok(())
    }

    fn add_uplink(&self, config: UplinkConfig, uplink: Uplink, _: Option<u32>) -> Result<(), Refusal> {
        self.1.lock().push((config, uplink.queues.len()));
        Ok(())
    }

    fn remove_uplink(&self, network: &str) -> Result<(), Refusal> {
        self.1.lock().retain(|(config, _)| config.network != network);
        Ok(())
    }

    fn uplinks(&self) -> Vec<UplinkView> {
        let view = |(config, queues): &(UplinkConfig, usize)| UplinkView {
            config: config.clone(),
            queues: u16::try_from(*queues).unwrap(),
            bound: false,
            zero_copy: true,
            lost_frames: 0,
            counters: PortCounters::default(),
            thread: ThreadView::default(),
        };
        self.1.lock().iter().map(view).collect()
    }

    fn capture(&self, name: &str, request: CaptureRequest) -> Result<CaptureKey, Refusal> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        self.at(name)?;
        let key = CaptureKey(NEXT.fetch_add(1, Ordering::Relaxed));
        self.2.lock().push((key, Tap::new(request).unwrap()));
        Ok(key)
    }

    fn end_capture(&self, _: &str, key: CaptureKey) {
        self.2.lock().retain(|(known, _)| *known != key);
    }

    fn ports(&self) -> Vec<PortView> {
        let view = |(config, _): &(PortConfig, Socket)| PortView {
            config: config.clone(),
            has_connection: false,
            connected: false,
            features: 0,
            active_queues: 0,
            counters: PortCounters::default(),
            thread: ThreadView::default(),
        };
        self.0.lock().iter().map(view).collect()
    }

    fn mac_table(&self) -> Vec<MacEntry> {
        let entry = |n: u64| MacEntry {
            network: "red".into(),
            vlan: None,
            mac: Mac::local(n),
            port: "a".into(),
            age_s: n,
        };
        (0..16_384).map(entry).collect()
    }
}

struct Switch {
    dir: tempfile::TempDir,
    recorded: Recorded,
    events: Arc<EventQueues>,
    server: Option<Server>,
}

impl Switch {
    fn start(users: &[u32]) -> Switch {
        let dir = tempfile::tempdir().unwrap();
        let recorded = Recorded::default();
        let events = Arc::new(EventQueues::new().unwrap());
        let mut switch = Switch { dir, recorded, events, server: None };
        switch.serve(users);
        switch
    }

    fn serve(&mut self, users: &[u32]) {
        drop(self.server.take());
        let listener = bind_control_socket(&self.path()).unwrap();
        let events = Arc::clone(&self.events);
        self.server = Some(Server::start(listener, self.recorded.clone(), events, users.to_vec()).unwrap());
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn client(&self) -> Client {
        Client::new(self.path(), LIMIT)
    }

    /// A connection without the client's good manners.
    fn raw(&self) -> OwnedFd {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, SocketAddress::of(&self.path()).unwrap().as_unix()).unwrap();
        socket
    }
}

fn me() -> u32 {
    rustix::process::getuid().as_raw()
}

fn config(name: &str) -> PortConfig {
    PortConfig {
        name: name.into(),
        network: "red".into(),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        vlan: None,
        trunk: Vec::new(),
        spoof_check: true,
        isolated: false,
        queues: 1,
        mtu: 1_500,
        from_guest_bits: None,
        to_guest_bits: None,
    }
}

fn add(client: &mut Client, name: &str) -> Result<(), ClientError> {
    let (ours, _guests) = UnixStream::pair().unwrap();
    client.add_port(config(name), SocketSide::Connected, ours.as_fd(), None)
}

fn code(error: &ClientError) -> RefusalCode {
    match error {
        ClientError::Refused { refusal, .. } => refusal.code,
        other => panic!("not refused: {other}"),
    }
}

/// The next answer to a connection without manners.
fn answer(socket: &OwnedFd) -> Answer {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        match receive(socket) {
            Received::Nothing => std::thread::sleep(Duration::from_millis(1)),
            Received::Message(bytes, _) => {
                return serde_json::from_slice::<AnswerMessage>(&bytes).unwrap().answer;
            }
            other => panic!("no answer: {other:?}"),
        }
    }
    panic!("no answer in time")
}

fn refusal(socket: &OwnedFd, message: &[u8]) -> Refusal {
    send(socket, message, &[]).unwrap();
    match answer(socket) {
        Answer::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn ports_come_with_their_sockets_and_go() {
    let switch = Switch::start(&[me()]);
    let mut client = switch.client();
    let listener = UnixListener::bind(switch.dir.path().join("port.sock")).unwrap();
    client.add_port(config("a"), SocketSide::Listening, listener.as_fd(), None).unwrap();
    add(&mut client, "b").unwrap();
    assert_eq!(code(&add(&mut client, "b").unwrap_err()), RefusalCode::NameTaken);
    assert!(matches!(switch.recorded.0.lock()[0].1, Socket::Listening(_)));
    let (ours, _guests) = UnixStream::pair().unwrap();
    client.reconnect("a", ours.as_fd()).unwrap();
    assert!(matches!(switch.recorded.0.lock()[0].1, Socket::Connecting(_)));
    client.can_listen_anew("a").unwrap();
    client.new_listener("a", listener.as_fd()).unwrap();
    assert!(matches!(switch.recorded.0.lock()[0].1, Socket::Listening(_)));
    assert_eq!(code(&client.new_listener("a", ours.as_fd()).unwrap_err()), RefusalCode::BadSocket);
    assert_eq!(code(&client.can_listen_anew("c").unwrap_err()), RefusalCode::UnknownPort);
    client.remove_port("a").unwrap();
    let gone = client.remove_port("a").unwrap_err();
    assert_eq!(gone.to_string(), "fairlead-vswitch refuses `remove-port`: there is no port a");
    let names: Vec<_> = client.ports().unwrap().into_iter().map(|port| port.config.name).collect();
    assert_eq!(names, ["b"]);
    assert_eq!(client.version().unwrap().pid, std::process::id());
}

/// What is logged.
#[derive(Default, Clone)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_pod_whose_port_gets_a_new_socket_or_is_made_anew_all_the_time_fills_no_log() {
    let (log, recorded, mut requests) = (Log::default(), Recorded::default(), Requests::default());
    let written = log.clone();
    let logger = tracing_subscriber::fmt().with_ansi(false).with_writer(move || written.clone()).finish();
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("port.sock")).unwrap();
    let name = || "a".to_owned();
    let all = || {
        let add = Request::AddPort { config: config("a"), socket: SocketSide::Listening, numa_node: None };
        [add, Request::NewListener { name: name() }, Request::RemovePort { name: name() }]
    };
    tracing::subscriber::with_default(logger, || {
        // The last one is refused.
        for request in
            (0..100).flat_map(|_| all().into_iter().chain([Request::CanListenAnew { name: name() }]))
        {
            let takes = matches!(request, Request::AddPort { .. } | Request::NewListener { .. });
            let sockets = takes.then(|| listener.as_fd().try_clone_to_owned().unwrap());
            let message = RequestMessage { version: request.version(), request };
            let bytes = serde_json::to_vec(&message).unwrap();
            requests.answer(&bytes, sockets.into_iter().collect(), &recorded);
        }
    });
    let lines = String::from_utf8(log.0.lock().clone()).unwrap();
    let count = |what: &str| lines.lines().filter(|line| line.contains(what)).count();
    assert_eq!((count("port=\"a\""), count("a request is refused")), (10, 10), "{lines}");
}

#[test]
fn a_socket_of_another_kind_is_refused_and_closed_and_the_connection_stays() {
    let switch = Switch::start(&[me()]);
    let mut client = switch.client();
    let file = File::open("/dev/null").unwrap();
    let refused = client.add_port(config("a"), SocketSide::Listening, file.as_fd(), None).unwrap_err();
    assert_eq!(code(&refused), RefusalCode::BadSocket);
    let (ours, guests) = UnixStream::pair().unwrap();
    let refused = client.add_port(config("a"), SocketSide::Listening, ours.as_fd(), None).unwrap_err();
    assert_eq!(code(&refused), RefusalCode::BadSocket);
    drop(ours);
    client.version().unwrap();
    let mut byte = [0];
    guests.set_nonblocking(true).unwrap();
    assert_eq!(rustix::io::read(&guests, &mut byte).unwrap(), 0, "the refused descriptor is closed");
    assert!(client.ports().unwrap().is_empty());
}

#[test]
fn an_uplink_comes_with_the_descriptors_of_all_its_queues_and_goes() {
    let switch = Switch::start(&[me()]);
    let mut client = switch.client();
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    let queues = || (0..8).map(|_| UplinkQueue { socket: null(), memory: null() }).collect();
    let uplink = Uplink { native: true, attachment: null(), queues: queues() };
    let config =
        UplinkConfig { network: "red".into(), interface: "eth1".into(), index: 7, mtu: 1_500, native: true };
    client.add_uplink(config.clone(), &uplink, None).unwrap();
    let views = client.uplinks().unwrap();
    assert_eq!((views.len(), &views[0].config, views[0].queues), (1, &config, 8));
    assert!(!views[0].bound);
    // A switch from before it was told does not tell it, and is not taken for one whose uplinks get nothing.
    let mut told = serde_json::to_value(&views[0]).unwrap();
    assert_eq!(told.as_object_mut().unwrap().remove("bound"), Some(serde_json::Value::Bool(false)));
    assert!(serde_json::from_value::<UplinkView>(told).unwrap().bound);
    client.remove_uplink("red").unwrap();
    assert!(client.uplinks().unwrap().is_empty());
    // A switch from before there were uplinks takes all other requests, and one from before there were nodes ports of none.
    assert_eq!([Request::Uplinks.version(), Request::Ports.version()], [2, 1]);
    let name = String::from("a");
    let anew = [Request::CanListenAnew { name: name.clone() }, Request::NewListener { name }];
    assert_eq!(
        anew.map(|request| request.version()),
        [4, 4],
        "and one from before ports got new sockets is asked once"
    );
    let of_node = |numa_node| {
        let port = Request::AddPort { config: self::config("a"), socket: SocketSide::Listening, numa_node };
        [port, Request::AddUplink { config: config.clone(), numa_node }].map(|request| request.version())
    };
    assert_eq!([of_node(None), of_node(Some(0))], [[1, 2], [3, 3]]);
}

#[test]
fn what_is_no_request_is_refused_with_the_reason() {
    let switch = Switch::start(&[me()]);
    let raw = switch.raw();
    let next = PROTOCOL + 1;
    let newer = refusal(
        &raw,
        format!(r#"{{"version":{next},"request":{{"paint":{{}}}},"colour":"red"}}"#).as_bytes(),
    );
    assert_eq!(newer.code, RefusalCode::NewerVersion);
    assert!(
        newer.reason.contains(&format!("is of version {next}"))
            && newer.reason.ends_with("upgrade fairlead-vswitch first")
    );
    for bad in [
        "no JSON",
        r#"{"version":1}"#,
        r#"{"version":1,"request":"paint"}"#,
        r#"{"version":1,"request":"ports","colour":"red"}"#,
        r#"{"version":1,"request":{"remove-port":{"name":"a","colour":"red"}}}"#,
    ] {
        assert_eq!(refusal(&raw, bad.as_bytes()).code, RefusalCode::Malformed, "{bad}");
    }
    assert_eq!(refusal(&raw, &vec![b' '; MESSAGE_BYTES + 1]).code, RefusalCode::Malformed);
    let file = File::open("/dev/null").unwrap();
    send(&raw, br#"{"version":1,"request":"ports"}"#, &[file.as_fd()]).unwrap();
    assert!(matches!(answer(&raw), Answer::Refused(refusal) if refusal.code == RefusalCode::BadSocket));
    let mut client = switch.client();
    let mut wrong = config("a");
    wrong.queues = 0;
    let (ours, _guests) = UnixStream::pair().unwrap();
    let refused = client.add_port(wrong, SocketSide::Connected, ours.as_fd(), None).unwrap_err();
    assert_eq!(code(&refused), RefusalCode::BadConfig);
}

#[test]
fn only_the_listed_users_are_heard() {
    let switch = Switch::start(&[me() + 1]);
    let refused = switch.client().ports().unwrap_err();
    assert_eq!(code(&refused), RefusalCode::NotAllowed);
    assert!(refused.to_string().ends_with("connect as root"), "{refused}");
}

#[test]
fn all_ports_but_those_of_a_long_list_are_removed() {
    let switch = Switch::start(&[me()]);
    let mut client = switch.client();
    for name in ["a", "b", "c"] {
        add(&mut client, name).unwrap();
    }
    let mut names: Vec<String> = (0..2_000).map(|n| format!("{n:064}")).collect();
    names.push("b".into());
    assert_eq!(client.keep_only(&names).unwrap(), ["a", "c"]);
    assert_eq!(client.keep_only(&names).unwrap(), Vec::<String>::new());
    assert_eq!(client.keep_only(&[]).unwrap(), ["b"], "an earlier list is forgotten");
}

#[test]
fn a_table_of_any_length_arrives_whole() {
    let switch = Switch::start(&[me()]);
    assert_eq!(switch.client().mac_table().unwrap(), switch.recorded.mac_table());
}

#[test]
fn a_client_that_does_not_read_keeps_nobody_waiting() {
    let switch = Switch::start(&[me()]);
    let slow: Vec<OwnedFd> = (0..4).map(|_| switch.raw()).collect();
    for socket in &slow {
        // The answers are more than a socket holds, and more is asked for than is answered.
        for _ in 0..10 {
            send(socket, br#"{"version":1,"request":"mac-table"}"#, &[]).unwrap();
        }
    }
    // Each within the client's limit, while nobody reads the answers to the others.
    let mut client = switch.client();
    (0..100).for_each(|_| drop(client.version().unwrap()));
    for socket in &slow {
        assert!(matches!(answer(socket), Answer::MacTable { more: true, .. }));
    }
}

#[test]
fn the_seventeenth_connection_is_told_why_it_is_refused() {
    let switch = Switch::start(&[me()]);
    let mut clients: Vec<Client> = (0..16).map(|_| switch.client()).collect();
    clients.iter_mut().for_each(|client| drop(client.version().unwrap()));
    let refused = switch.client().version().unwrap_err();
    assert_eq!(code(&refused), RefusalCode::TooManyConnections);
    clients.pop();
    let until = Instant::now() + LIMIT;
    while switch.client().version().is_err() {
        assert!(Instant::now() < until, "the place of a closed connection is free again");
    }
}

#[test]
fn events_reach_their_reader_in_order_and_a_slow_one_is_told_what_it_lost() {
    let switch = Switch::start(&[me()]);
    let mut quick = switch.client().events().unwrap();
    let mut slow = switch.client().events().unwrap();
    assert_eq!(quick.next(Duration::ZERO).unwrap(), None);
    switch.events.publish(Event::Misbehaved { port: "a".into(), what: "it looped".into() });
    let misbehaved = PortEvent::Misbehaved { port: "a".into(), what: "it looped".into() };
    assert_eq!(quick.next(LIMIT).unwrap(), Some(misbehaved.clone()));
    assert_eq!(slow.next(LIMIT).unwrap(), Some(misbehaved));
    let count = 5_000_u64;
    for n in 0..count {
        switch.events.publish(Event::Disconnected { port: n.to_string(), why: "x".repeat(2_000) });
    }
    let (mut seen, mut lost) = (0, 0);
    while seen + lost < count {
        match slow.next(LIMIT).unwrap() {
            Some(PortEvent::Lost { count }) => lost += count,
            Some(PortEvent::Disconnected { port, .. }) => {
                assert_eq!(port, (seen + lost).to_string());
                seen += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(lost > 0, "{seen} events of {count} were kept for a reader that did not read");
}

#[test]
fn a_connection_for_events_takes_no_requests() {
    let switch = Switch::start(&[me()]);
    let raw = switch.raw();
    send(&raw, br#"{"version":1,"request":"events"}"#, &[]).unwrap();
    assert_eq!(answer(&raw), Answer::Done);
    assert!(refusal(&raw, br#"{"version":1,"request":"ports"}"#).reason.contains("is for events"));
}

#[test]
fn a_client_outlives_the_switch_and_finds_the_next_one() {
    let mut switch = Switch::start(&[me()]);
    let mut client = switch.client();
    client.version().unwrap();
    let mut events = switch.client().events().unwrap();
    switch.serve(&[me()]);
    assert!(matches!(client.version(), Err(ClientError::Closed { request: "version", .. })));
    assert!(matches!(events.next(LIMIT), Err(ClientError::Closed { .. })));
    client.version().unwrap();
    drop(switch.server.take());
    let _ = client.version();
    let error = client.version().unwrap_err();
    assert!(error.to_string().contains("see that fairlead-vswitch runs with `--socket /"), "{error}");
}

#[test]
fn a_switch_that_does_not_answer_costs_the_limit_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let _nobody_accepts = bind_control_socket(&path).unwrap();
    let mut client = Client::new(&path, Duration::from_millis(50));
    let begun = Instant::now();
    let error = client.version().unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { request: "version", .. }), "{error}");
    assert!(begun.elapsed() < LIMIT);
}

#[test]
fn a_capture_lasts_as_long_as_its_connection() {
    let mut switch = Switch::start(&[me()]);
    let options = CaptureOptions { direction: CaptureDirection::Both, snaplen: 64 };
    let refused = switch.client().capture("a", options).unwrap_err();
    assert_eq!(code(&refused), RefusalCode::UnknownPort);
    add(&mut switch.client(), "a").unwrap();
    let mut reader = switch.client().capture("a", options).unwrap();
    assert_eq!(reader.look(), Seen::Nothing);
    let captures = Arc::clone(&switch.recorded.2);
    assert_eq!(captures.lock().len(), 1);
    drop(reader);
    let until = Instant::now() + LIMIT;
    while !captures.lock().is_empty() {
        assert!(Instant::now() < until, "the capture goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    reader = switch.client().capture("a", options).unwrap();
    captures.lock().clear();
    assert_eq!(reader.look(), Seen::Ended(Ended::PortRemoved));
    reader = switch.client().capture("a", options).unwrap();
    drop(switch.server.take());
    while reader.look() == Seen::Nothing {
        assert!(Instant::now() < until, "the switch is gone");
    }
    assert_eq!(reader.look(), Seen::Ended(Ended::SwitchGone));
}
