//! The log: one line per event on standard error, for a person or for a program. Whatever words of others an event repeats, they never
//! begin a line of their own.

use std::cell::RefCell;
use std::io;

use fairlead_kube::PodRef;
use tracing::span::EnteredSpan;
use tracing::{Event, Subscriber, error_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
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

thread_local! {
    /// The pod that this thread works for, and its span once something was logged.
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Work {
    pod: PodRef,
    span: Option<EnteredSpan>,
}

/// The calling thread works for a pod, until this is dropped.
#[derive(Debug)]
#[must_use = "the work ends when this is dropped"]
pub(crate) struct WorksForPod {
    before: Option<Work>,
}

/// What the calling thread does from now on is for a pod: each line that it logs names the pod. Without a pod nothing is added, and lines
/// have the container's id.
pub(crate) fn of_pod(pod: Option<PodRef>) -> WorksForPod {
    let work = pod.map(|pod| Work { pod, span: None });
    WorksForPod { before: WORK.replace(work) }
}

impl Drop for WorksForPod {
    fn drop(&mut self) {
        drop(WORK.replace(self.before.take()));
    }
}

/// Makes the span of a pod when the first line is logged in it: most calls log nothing, and a span takes 9 µs of an ADD.
struct SpansOfPods;

impl<S: Subscriber> Layer<S> for SpansOfPods {
    // Asked before the line is put together, with the spans that are there then.
    fn event_enabled(&self, _: &Event<'_>, _: Context<'_, S>) -> bool {
        // Where the thread is at its very end, there is no pod any more.
        let _ = WORK.try_with(|work| {
            if let Some(Work { pod, span }) = &mut *work.borrow_mut() {
                // Of the highest level, so that it is there for whatever is logged.
                let made =
                    || error_span!("pod", pod = pod.to_string(), pod_uid = pod.uid.as_deref()).entered();
                span.get_or_insert_with(made);
            }
        });
        true
    }
}

/// Escapes the control characters of an event's text, but for the end of its line: what an executed program has said could look like lines
/// of ours.
struct OneLine<F>(F);

impl<S, N, F> FormatEvent<S, N> for OneLine<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        // Nearly every line is one piece.
        for piece in line.split_inclusive(char::is_control) {
            match piece.chars().next_back().filter(|last| last.is_control()) {
                Some(last) => write!(writer, "{}{}", piece.trim_end_matches(last), last.escape_debug())?,
                None => writer.write_str(piece)?,
            }
        }
        writer.write_char('\n')
    }
}

/// Lines for a person.
pub(crate) fn text_lines<S, W>(writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let format = OneLine(Format::default().with_target(false));
    fmt::layer().event_format(format).with_ansi(false).with_writer(writer).boxed()
}

/// Begins to log; does nothing in a process that logs already.
pub(crate) fn begin(level: LogLevel, format: LogFormat) -> Level {
    let (level, handle) = reload::Layer::new(filter(level));
    let lines = match format {
        LogFormat::Text => text_lines(io::stderr),
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed(),
    };
    let _ = tracing_subscriber::registry().with(level).with(lines).with(SpansOfPods).try_init();
    Level(handle)
}
