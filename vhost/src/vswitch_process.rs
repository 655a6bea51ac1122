//! The life of the process `fairlead-vswitch`: socket, confinement, data plane, control, and the end by a signal.
//!
//! The control socket is bound first, since an unprivileged process may not; threads come after the confinement, so that it holds for all
//! of them. The process keeps no state: whoever controls it tells it its ports after every start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use std::{io, panic};

use fairlead_host::topology::CpuList;
use nix::sys::signal::{SigSet, Signal};
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::confinement::{ConfinementError, User, confine};
use crate::control::listening_socket::{BindError, bind_control_socket};
use crate::control::{EventQueues, Server, ServerError};
use crate::dataplane::{
    DataPlane, Event, MemoryBound, MemoryLimits, Options, PlacesError, PollPlace, Polling, StartError,
    poll_places,
};
use crate::log_limit::{Admitted, LogLimit};
use crate::switch::Limits;

/// Where the kernel tells of processors and NUMA nodes.
const SYSFS: &str = "/sys";

/// How the process is to run.
#[derive(Debug)]
pub struct Settings {
    /// Where the control socket is made.
    pub socket: PathBuf,
    /// The processors of the poll threads, as [`poll_places`] takes them.
    pub cpus: Vec<CpuList>,
    /// How the poll threads wait for frames.
    pub polling: Polling,
    /// What the guests' memory may cost.
    pub memory: MemoryLimits,
    /// How many frames to groups and unknown addresses a port may send in a second, at least one.
    pub storm_frames: u32,
    /// Who the process is to be; absent: who it is.
    pub user: Option<User>,
}

/// The process can't run.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It has no control socket.
    #[error("there is no control socket")]
    Bind(#[from] BindError),
    /// It would have privileges that it must not have.
    #[error("the process can't be confined, and does not run otherwise")]
    Confinement(#[from] ConfinementError),
    /// It has no data plane.
    #[error("the data plane can't start")]
    DataPlane(#[from] StartError),
    /// It has nowhere to forward frames.
    #[error("where the poll threads can run is not known")]
    Places(#[from] PlacesError),
    /// It can't be controlled.
    #[error("the control socket can't be served")]
    Server(#[from] ServerError),
    /// It can't wait for signals, or has no eventfd.
    #[error("{what} can't be had")]
    Kernel {
        /// What it needs.
        what: &'static str,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
}

/// Has a thread that panics end the process. Without it the others would go on, with no traffic or deaf to the daemon; whoever watches the
/// process starts it again, and it has its ports at once.
pub fn end_with_any_thread() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        tell(what);
        std::process::abort();
    }));
}

/// Runs until SIGTERM or SIGINT. To be called while the process has one thread.
///
/// # Errors
/// When the process can't start; everything that it made but the socket's file is gone then.
pub fn run(settings: &Settings) -> Result<(), ProcessError> {
    let ends = block_ends().map_err(|error| kernel("a set of blocked signals", error.into()))?;
    let users = vec![0, rustix::process::getuid().as_raw()];
    let listener = bind_control_socket(&settings.socket)?;
    let memory = bound_memory(settings.memory);
    let places = places(&settings.cpus)?;
    confine(settings.user)?;
    let events = Arc::new(EventQueues::new().map_err(|error| kernel("an eventfd", error))?);
    let published = Arc::clone(&events);
    let limit = Mutex::new(LogLimit::default());
    let data_plane = DataPlane::start(
        Options {
            places: places.clone(),
            polling: settings.polling,
            memory,
            limits: Limits::of_storm_frames(settings.storm_frames),
            port_files: None,
        },
        move |event| {
            log(&event, &mut limit.lock());
            published.publish(event);
        },
    )?;
    let server = Server::start(listener, data_plane, events, users)?;
    log_places(&places, &settings.cpus);
    info!(
        socket = %settings.socket.display(),
        version = env!("CARGO_PKG_VERSION"),
        "fairlead-vswitch is ready for ports"
    );
    let signal = ends.wait().map_err(|error| kernel("a signal", error.into()))?;
    info!(signal = signal.as_str(), "fairlead-vswitch ends");
    drop(server);
    Ok(())
}

/// What the guests' memory may cost. Where the kernel has not what it takes, the switch runs as it would without limits, and says so.
fn bound_memory(limits: MemoryLimits) -> Option<Arc<MemoryBound>> {
    match MemoryBound::new(limits) {
        Ok(bound) => Some(Arc::new(bound)),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            warn!(
                %error, cause,
                "what the guests' memory costs is not bounded: a guest that shares a large empty file can use up this process' \
                 memory limit"
            );
            None
        }
    }
}

/// The signals that end the process are waited for from now on, and reach no thread.
fn block_ends() -> nix::Result<SigSet> {
    let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    ends.thread_block()?;
    Ok(ends)
}

fn kernel(what: &'static str, source: io::Error) -> ProcessError {
    ProcessError::Kernel { what, source }
}

/// Where the poll threads run. Where the machine can't be read and nothing is named, that is one thread on any processor.
fn places(named: &[CpuList]) -> Result<Vec<PollPlace>, PlacesError> {
    match poll_places(Path::new(SYSFS), named) {
        Err(error) if named.is_empty() => {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            warn!(%error, cause, "one thread forwards frames, whatever nodes there are");
            Ok(vec![PollPlace::default()])
        }
        known => known,
    }
}

/// Tells where the poll threads run, and which processors were named in vain.
fn log_places(places: &[PollPlace], named: &[CpuList]) {
    let list = |place: &PollPlace| place.cpus.iter().filter_map(|cpu| u32::try_from(*cpu).ok()).collect();
    for (number, place) in places.iter().enumerate() {
        let cpus: CpuList = list(place);
        info!(number, numa_node = place.numa_node, %cpus, "a poll thread runs");
    }
    let used: Vec<CpuList> = places.iter().map(list).collect();
    let is_missing = |cpu: &u32| !used.iter().any(|cpus| cpus.contains(*cpu));
    let missing: CpuList = named.iter().flat_map(CpuList::iter).filter(is_missing).collect();
    if !missing.is_empty() {
        warn!(cpus = %missing, "processors that are named for poll threads are not there");
    }
}

fn log(event: &Event, limit: &mut LogLimit) {
    let (Event::Connected { port } | Event::Disconnected { port, .. } | Event::Misbehaved { port, .. }) =
        event;
    let Some(Admitted { left_out }) = limit.admit(port, Instant::now()) else { return };
    match event {
        Event::Connected { port } => info!(port, left_out, "a guest is connected"),
        Event::Disconnected { port, why } => info!(port, why, left_out, "a guest is gone"),
        Event::Misbehaved { port, what } => warn!(port, what, left_out, "a guest breaks the protocol"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    use super::*;

    const CHILD: &str = "vswitch_process::tests::a_process_of_which_one_thread_panics";

    #[test]
    #[ignore = "it ends its process: the next test starts one for it"]
    fn a_process_of_which_one_thread_panics() {
        end_with_any_thread();
        thread::spawn(|| panic!("as a bug of a poll thread would"));
        thread::sleep(Duration::from_secs(600));
    }

    #[test]
    fn a_thread_that_panics_ends_the_process() {
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args(["--exact", "--ignored", CHILD]).output().unwrap();
        assert_eq!(ended.status.signal(), Some(Signal::SIGABRT as i32), "{ended:?}");
    }
}
