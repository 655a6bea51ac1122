//! Frames of one port of the switch, as a file for tcpdump and Wireshark.
//!
//! The switch is asked itself, over its control socket, and not the daemon: frames need no way round, and a daemon that hangs is one
//! reason to look at them.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_vhost::capture::{CaptureOptions, CaptureReader, Ended, PcapngWriter, Seen};
use fairlead_vhost::control::{Client, ClientError};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::Value;

use super::CliError;
use super::arguments::CaptureArgs;
use super::table::rows;
use crate::operator_client::get;
use crate::run_dir::{SOCKET, SWITCH_SOCKET};

/// How long the switch may take for an answer.
const ANSWERS: Duration = Duration::from_secs(5);
/// What `-w` takes for standard output.
const STDOUT: &str = "-";

/// Why a capture did not begin, or ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The switch does not do it.
    #[error(transparent)]
    Switch(#[from] ClientError),
    /// No port is meant.
    #[error("{of:?} names no port of the switch: there are {}; `fairleadd vswitch ports -o wide` lists them with their pods", if .ports.is_empty() { "none".to_owned() } else { .ports.join(", ") })]
    NoSuchPort {
        /// What was asked for.
        of: String,
        /// The ports that there are.
        ports: Vec<String>,
    },
    /// Several ports are meant.
    #[error("{of:?} names several ports of the switch: name one of them, {}", .ports.join(", "))]
    SeveralPorts {
        /// What was asked for.
        of: String,
        /// The ports that are meant.
        ports: Vec<String>,
    },
    /// The switch does not have the port of the record.
    #[error("the switch does not have the port {port:?} yet: {reason}")]
    NotYet {
        /// Which port it is, by its name in the switch.
        port: String,
        /// What keeps it from the switch, as the daemon tells it.
        reason: String,
    },
    /// The interface of an uplink is meant.
    #[error(
        "{0:?} is an uplink, and the switch captures frames of ports alone: capture the ports of its network, or at the other end of the wire"
    )]
    Uplink(String),
    /// The file can't be written.
    #[error(
        "{path}: the capture can't be written: {source}; name a file that can be, or - for standard output"
    )]
    Write {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended by itself.
    #[error("the capture has ended: {0}")]
    Ended(&'static str),
}

/// Captures until so many frames came, a signal comes, or the reader of standard output has gone.
pub(super) fn capture(args: &CaptureArgs) -> Result<(), CliError> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().map_err(io::Error::from)?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let signals = SignalFd::with_flags(&signals, flags).map_err(io::Error::from)?;
    let socket = args.run_dir.join(SWITCH_SOCKET);
    let port = port_of(&args.of, &socket, &args.run_dir)?;
    let options = CaptureOptions { direction: args.direction.into(), snaplen: args.snaplen };
    let reader = Client::new(socket, ANSWERS).capture(&port, options).map_err(CaptureError::from)?;
    let path = args.write.display().to_string();
    let failed = |source| CaptureError::Write { path: path.clone(), source };
    let to: Box<dyn Write> = match path.as_str() {
        STDOUT => Box::new(io::stdout()),
        _ => {
            // What pods say to each other is nobody else's.
            let mut file = OpenOptions::new();
            Box::new(
                file.write(true).create(true).truncate(true).mode(0o600).open(&args.write).map_err(failed)?,
            )
        }
    };
    let file = PcapngWriter::new(BufWriter::new(to), &port, args.snaplen).map_err(failed)?;
    tell(&format!("capturing {port}; Ctrl-C ends it"));
    let told = Told { reader, signals, most: args.count };
    match told.write_all(file) {
        // `fairleadd vswitch capture … -w - | head` is no failure.
        Err(Failed::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(Failed::Write(error)) => Err(failed(error).into()),
        Err(Failed::Ended(why)) => Err(CaptureError::Ended(why).into()),
        Ok(()) => Ok(()),
    }
}

/// On standard error: the frames may be on standard output.
fn tell(text: &str) {
    // Whoever has closed it does not want to know.
    let _ = writeln!(io::stderr(), "{text}");
}

/// The port of this name, or the only one of this pod.
fn port_of(of: &str, switch: &Path, run_dir: &Path) -> Result<String, CaptureError> {
    let mut client = Client::new(switch, ANSWERS);
    let ports: Vec<String> = client.ports()?.into_iter().map(|port| port.config.name).collect();
    if ports.iter().any(|port| port == of) {
        return Ok(of.to_owned());
    }
    if client.uplinks().unwrap_or_default().iter().any(|uplink| uplink.config.interface == of) {
        return Err(CaptureError::Uplink(of.to_owned()));
    }
    // The daemon alone knows the pods.
    let table = get(&run_dir.join(SOCKET), "/v1/vswitch-ports").unwrap_or_default();
    port_among(of, rows(&table["ports"]), ports)
}

/// The only one of the daemon's rows that is meant, by its name or its pod. `ports`: those that the switch has.
fn port_among(of: &str, known: &[Value], ports: Vec<String>) -> Result<String, CaptureError> {
    let is_of = |pod: &str| pod == of || pod.split_once('/').is_some_and(|(_, name)| name == of);
    let is_named = |name: &str| name == of || is_short_for(of, name);
    let is_meant = |row: &&Value| {
        row["config"]["name"].as_str().is_some_and(is_named) || row["pod"].as_str().is_some_and(is_of)
    };
    let meant: Vec<&Value> = known.iter().filter(is_meant).collect();
    let name = |row: &Value| row["config"]["name"].as_str().unwrap_or("?").to_owned();
    match meant[..] {
        [port] => match port["reason"].as_str() {
            Some(why) => Err(CaptureError::NotYet { port: name(port), reason: why.to_owned() }),
            None => Ok(name(port)),
        },
        [] => Err(CaptureError::NoSuchPort { of: of.to_owned(), ports }),
        _ => {
            let ports = meant.into_iter().map(name).collect();
            Err(CaptureError::SeveralPorts { of: of.to_owned(), ports })
        }
    }
}

/// Whether a port's name is meant by what a table of 80 columns shows of it, or by the beginning of its container's id.
fn is_short_for(short: &str, name: &str) -> bool {
    if let Some((begin, end)) = short.split_once('…') {
        return name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end);
    }
    let parts = short.rsplit_once('/').zip(name.rsplit_once('/'));
    parts.is_some_and(|((begin, ifname), (container, of_it))| {
        ifname == of_it && !begin.is_empty() && container.starts_with(begin)
    })
}

/// A capture under way.
struct Told {
    reader: CaptureReader,
    signals: SignalFd,
    /// How many frames at most; absent: until a signal.
    most: Option<u64>,
}

enum Failed {
    Write(io::Error),
    Ended(&'static str),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Write(error)
    }
}

impl Told {
    fn write_all<W: Write>(mut self, mut file: PcapngWriter<W>) -> Result<(), Failed> {
        let mut frames = 0_u64;
        let mut ended = None;
        while self.most.is_none_or(|most| frames < most) && !matches!(self.signals.read_signal(), Ok(Some(_)))
        {
            match self.reader.look() {
                Seen::Frame(frame) => {
                    file.frame(&frame)?;
                    frames += 1;
                }
                Seen::Nothing => file.flush()?,
                Seen::Ended(why) => {
                    ended = Some(match why {
                        Ended::PortRemoved => "the port was removed",
                        Ended::SwitchGone => "fairlead-vswitch has ended",
                        Ended::Broken => "what fairlead-vswitch wrote can't be; restart it",
                    });
                    break;
                }
            }
        }
        let lost = self.reader.lost();
        file.end(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), lost)?;
        tell(&format!("{frames} frames captured, {lost} lost because they were not written fast enough"));
        ended.map_or(Ok(()), |why| Err(Failed::Ended(why)))
    }
}

#[cfg(test)]
mod tests {
    use fairlead_host::Uplink;
    use fairlead_vhost::control::PortCommands;
    use fairlead_vhost::fake_switch;
    use fairlead_vhost::port::UplinkConfig;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_that_means_no_port_several_or_one_that_is_not_there_yet_is_told_as_what_it_is() {
        let row = |name: &str, pod: &str, reason: Value| json!({"config": {"name": name}, "pod": pod, "reason": reason});
        let known = [
            row("c1/net1", "ns/one", Value::Null),
            row("c2/net1", "ns/two", Value::Null),
            row("c2/net2", "ns/two", Value::Null),
            row("c3/net1", "ns/three", "the pod has not made its socket yet".into()),
        ];
        let of = |name: &str| port_among(name, &known, vec!["c1/net1".into()]).map_err(|e| e.to_string());
        for name in ["one", "ns/one", "c1/net1", "c1/…t1"] {
            assert_eq!(of(name).as_deref(), Ok("c1/net1"), "{name}");
        }
        assert_eq!(of("c2/net2").as_deref(), Ok("c2/net2"));
        let why = |name: &str| of(name).unwrap_err();
        assert!(why("nope").starts_with("\"nope\" names no port of the switch: there are c1/net1;"));
        assert_eq!(
            why("ns/two"),
            "\"ns/two\" names several ports of the switch: name one of them, c2/net1, c2/net2"
        );
        let not_yet =
            "the switch does not have the port \"c3/net1\" yet: the pod has not made its socket yet";
        assert_eq!((why("three").as_str(), why("c3/net1").as_str()), (not_yet, not_yet));
    }

    #[test]
    fn what_keeps_a_capture_from_its_switch_its_uplink_or_its_file_is_told_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("vswitch.sock");
        let why = port_of("p", &socket, dir.path()).unwrap_err().to_string();
        assert!(why.contains("vswitch.sock: can't connect: No such file or directory"), "{why}");
        let (_server, ports) = fake_switch::serve(&socket);
        let config = UplinkConfig {
            network: "blue".into(),
            interface: "ens1f0".into(),
            index: 7,
            mtu: 1500,
            native: true,
        };
        let attachment = std::fs::File::open("/dev/null").unwrap().into();
        ports.add_uplink(config, Uplink { native: true, queues: Vec::new(), attachment }, None).unwrap();
        let why = port_of("ens1f0", &socket, dir.path()).unwrap_err().to_string();
        assert!(why.starts_with("\"ens1f0\" is an uplink"), "{why}");
        let source = io::Error::from_raw_os_error(nix::libc::ENOSPC);
        let why = CaptureError::Write { path: "/x".into(), source }.to_string();
        assert!(why.starts_with("/x: the capture can't be written: No space left on device"), "{why}");
    }
}
