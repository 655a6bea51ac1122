//! The log: one line per event on standard error, for a person or for a program.

use std::io;

use fairlead_kube::PodRef;
use tracing::Span;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::settings::{LogFormat, LogLevel};

/// The handle that changes the level while the daemon runs.
#[derive(Debug, Clone)]
pub(crate) struct Level(reload::Handle<LevelFilter, Registry>);

impl Level {
    /// Changes the level of what is logged from now on.
    pub(crate) fn set(&self, level: LogLevel) {
        // Fails only when the subscriber is gone, and then there is nothing to log to.
        let _ = self.0.reload(filter(level));
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// The span of what is done for a pod: each line that is logged in it names the pod. Without a pod there is none, and lines have the
/// container's id.
pub(crate) fn of_pod(pod: Option<&PodRef>) -> Span {
    let Some(pod) = pod else { return Span::none() };
    // Of the highest level, so that it is there for whatever is logged.
    tracing::error_span!("pod", pod = pod.to_string(), pod_uid = pod.uid.as_deref())
}

/// Begins to log; does nothing in a process that logs already.
pub(crate) fn begin(level: LogLevel, format: LogFormat) -> Level {
    let (level, handle) = reload::Layer::new(filter(level));
    let lines = match format {
        LogFormat::Text => fmt::layer().with_target(false).with_ansi(false).with_writer(io::stderr).boxed(),
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed(),
    };
    let _ = tracing_subscriber::registry().with(level).with(lines).try_init();
    Level(handle)
}
