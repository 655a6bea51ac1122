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

use super::operator_commands::rows;
use super::{CaptureArgs, CliError};
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
    /// No port is meant, or several are.
    #[error("{of:?} names no port of the switch, or several: there are {}; `fairleadd vswitch ports -o wide` lists them", if .ports.is_empty() { "none".to_owned() } else { .ports.join(", ") })]
    NoSuchPort {
        /// What was asked for.
        of: String,
        /// The ports that there are.
        ports: Vec<String>,
    },
    /// The file can't be written.
    #[error("{path}: the capture can't be written")]
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
    let known = Client::new(switch, ANSWERS).ports()?;
    let ports: Vec<String> = known.into_iter().map(|port| port.config.name).collect();
    if ports.iter().any(|port| port == of) {
        return Ok(of.to_owned());
    }
    // The daemon alone knows the pods.
    let table = get(&run_dir.join(SOCKET), "/v1/vswitch-ports").unwrap_or_default();
    let is_meant = |pod: &str| pod == of || pod.split_once('/').is_some_and(|(_, name)| name == of);
    let meant = rows(&table["ports"]).iter().filter(|row| row["pod"].as_str().is_some_and(is_meant));
    let meant: Vec<&str> = meant.filter_map(|row| row["config"]["name"].as_str()).collect();
    match meant[..] {
        [port] => Ok(port.to_owned()),
        _ => Err(CaptureError::NoSuchPort { of: of.to_owned(), ports }),
    }
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
