//! The life of the process `fairlead-vswitch`: socket, confinement, data plane, control, and the end by a signal.
//!
//! The control socket is bound first, since an unprivileged process may not; threads come after the confinement, so that it holds for all
//! of them. The process keeps no state: whoever controls it tells it its ports after every start.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use nix::sys::signal::{SigSet, Signal};
use tracing::{info, warn};

use crate::confinement::{ConfinementError, User, confine};
use crate::control::listening_socket::{BindError, bind_control_socket};
use crate::control::{EventQueues, Server, ServerError};
use crate::dataplane::{DataPlane, Event, Options, StartError};

/// How the process is to run.
#[derive(Debug)]
pub struct Settings {
    /// Where the control socket is made.
    pub socket: PathBuf,
    /// Processors and polling.
    pub options: Options,
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

/// Runs until SIGTERM or SIGINT. To be called while the process has one thread.
///
/// # Errors
/// When the process can't start; everything that it made but the socket's file is gone then.
pub fn run(settings: Settings) -> Result<(), ProcessError> {
    let ends = block_ends().map_err(|error| kernel("a set of blocked signals", error.into()))?;
    let users = vec![0, rustix::process::getuid().as_raw()];
    let listener = bind_control_socket(&settings.socket)?;
    confine(settings.user)?;
    let events = Arc::new(EventQueues::new().map_err(|error| kernel("an eventfd", error))?);
    let published = Arc::clone(&events);
    let data_plane = DataPlane::start(settings.options, move |event| {
        log(&event);
        published.publish(event);
    })?;
    let server = Server::start(listener, data_plane, events, users)?;
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

/// The signals that end the process are waited for from now on, and reach no thread.
fn block_ends() -> nix::Result<SigSet> {
    let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    ends.thread_block()?;
    Ok(ends)
}

fn kernel(what: &'static str, source: io::Error) -> ProcessError {
    ProcessError::Kernel { what, source }
}

fn log(event: &Event) {
    match event {
        Event::Connected { port } => info!(port, "a guest is connected"),
        Event::Disconnected { port, why } => info!(port, why, "a guest is gone"),
        Event::Misbehaved { port, what } => warn!(port, what, "a guest breaks the protocol"),
    }
}
