//! Why the daemon did not serve a call. Each variant keeps what the error object for the runtime is made of; its code is
//! chosen in `error_codes`.

use crate::connection::ConnectError;
use crate::daemon_process::HungDaemon;
use crate::http_exchange::MalformedAnswer;
use crate::spool_writer::SpoolError;
use crate::stdin_config::ConfigError;

/// Why the daemon did not serve a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// An error object of the daemon's own, to be passed on as it is.
    #[error("the daemon answered with an error")]
    Answered(Vec<u8>),
    /// There is no connection to a daemon.
    #[error("{0}")]
    NoConnection(ConnectError),
    /// The daemon answered until the deadline that it is stopping.
    #[error("the daemon is stopping and did not begin this call")]
    Stopping,
    /// The daemon closed connections without reading them until the deadline.
    #[error("the daemon closed the connection before it had read the call")]
    NotRead,
    /// The connection ended within the answer.
    #[error("the connection to the daemon was lost before the whole answer had arrived")]
    Lost,
    /// The daemon has not answered by the deadline.
    #[error("the daemon did not answer within the time limit")]
    Late,
    /// The daemon has not answered, and its process does nothing from which an answer could come.
    #[error("{0}")]
    Hung(HungDaemon),
    /// What came back is no HTTP answer.
    #[error("the daemon's answer can't be understood: {0}")]
    Malformed(MalformedAnswer),
    /// An HTTP answer without a CNI result or error in it.
    #[error("the daemon's answer can't be understood: HTTP status {0} without a CNI result or error object")]
    NoBody(u16),
    /// No daemon is there, and none could accept this configuration.
    #[error("{0}")]
    Config(ConfigError),
    /// No daemon is there, and the spool can't take the call.
    #[error("no daemon is running, and {0}")]
    Spool(SpoolError),
}

impl CallError {
    /// Whether the daemon's next start may end this state.
    pub(crate) fn ends_with_a_restart(&self) -> bool {
        match self {
            CallError::Stopping
            | CallError::NotRead
            | CallError::Lost
            | CallError::Late
            | CallError::Hung(_)
            | CallError::NoConnection(ConnectError::Down(_) | ConnectError::Busy) => true,
            CallError::Answered(_)
            | CallError::NoConnection(ConnectError::Refused(_))
            | CallError::Malformed(_)
            | CallError::NoBody(_)
            | CallError::Config(_)
            | CallError::Spool(_) => false,
        }
    }
}
