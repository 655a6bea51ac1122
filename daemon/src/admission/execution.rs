//! Carries one call out: the last check whether it is still wanted, the engine's work, the answer, and then the
//! log and the metrics.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::Code;
use fairlead_cni::args::Args;
use fairlead_cni::trace::TraceParent;
use fairlead_cni::wire::Command;
use fairlead_kube::PodRef;
use tracing::{error, info};

use super::Shared;
use super::queued_call::{BEGUN, Outcome, QueuedCall, Receipt, WITHDRAWN};
use crate::call::{PreparedCall, Reply, Waiting, catching_panics};
use crate::netconf_summary::ConfigSummary;

/// A call that was carried out and answered.
#[derive(Debug)]
pub struct FinishedCall {
    call: Arc<dyn PreparedCall>,
    /// True for an ADD: it counts as ended only when its receipt has come back.
    pub(super) receipt: bool,
    took: Duration,
    failure: Option<(Code, String)>,
}

impl FinishedCall {
    /// The id of its container.
    pub fn container(&self) -> &str {
        &self.call.request().container_id
    }
}

impl Shared {
    /// Carries a queued call out; `None` where it was not begun because its caller has gone or its deadline has
    /// passed.
    pub(super) fn carry_out(&self, call: QueuedCall) -> Option<FinishedCall> {
        let durable = call.outlives_its_caller();
        if call.waiting.gone.get() && !durable {
            return None;
        }
        if !durable && Instant::now() >= call.waiting.deadline {
            // The caller's task may have answered so itself already.
            if call.progress.advance(WITHDRAWN) {
                let _ = call.answer.send(Outcome::TooLate);
            }
            return None;
        }
        // The caller's task may have withdrawn the call meanwhile: whoever advances it first decides.
        if !call.progress.advance(BEGUN) {
            return None;
        }
        let (reply, receipt, done) = self.perform(call.prepared, call.waiting);
        // Where nobody waits any more, the receipt in the outcome is dropped and so reports that the answer was
        // lost.
        let _ = call.answer.send(Outcome::Reply(reply, receipt));
        Some(done)
    }

    /// Has the engine carry the call out, and puts together what its caller and the log get.
    pub(super) fn perform(
        &self,
        call: Arc<dyn PreparedCall>,
        waiting: Waiting,
    ) -> (Reply, Receipt, FinishedCall) {
        let arrived = waiting.arrived;
        let reply = serve_catching_panics(&*call, waiting);
        let failure = reply.outcome.as_ref().err().map(|e| (e.code, e.to_string()));
        let took = arrived.elapsed();
        let receipts = self.receipts.get().filter(|_| call.request().command == Command::Add);
        let receipt = Receipt::new(&call, receipts.cloned());
        let done = FinishedCall { receipt: receipts.is_some(), call, took, failure };
        (reply, receipt, done)
    }

    pub(super) fn note(&self, done: &FinishedCall) {
        let FinishedCall { call, took, failure, .. } = done;
        let request = call.request();
        let (network, plugin) = match call.conf() {
            Some(conf) => (Cow::Borrowed(&*conf.name), Cow::Borrowed(&*conf.plugin_type)),
            None => {
                // A configuration that is invalid may still tell its network and type, for the log.
                let summary = ConfigSummary::of(&request.config);
                (Cow::Owned(summary.name), Cow::Owned(summary.kind))
            }
        };
        self.calls.observe(
            request.command,
            // A label comes from a closed set: callers could make metrics without end otherwise.
            self.calls.type_label(&plugin),
            failure.as_ref().map_or(0, |(c, _)| c.number()),
            *took,
        );
        call.count_phases();
        self.health.note(failure.as_ref().map(|(code, _)| *code));
        let pod = Args::parse(&request.args).ok().and_then(|args| PodRef::of_args(&args));
        // As a text, which is quoted: a runtime without Kubernetes passes on whatever its caller calls a pod.
        let pod_name = pod.as_ref().map(PodRef::to_string);
        let trace = || TraceParent::of(&request.env).map_or("", TraceParent::as_str);
        match failure {
            None => info!(
                command = request.command.name(),
                container = request.container_id,
                ifname = request.ifname,
                netns = request.netns,
                pod = pod_name.as_deref(),
                pod_uid = pod.as_ref().and_then(|pod| pod.uid.as_deref()),
                network = &*network,
                r#type = &*plugin,
                traceparent = trace(),
                took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                "done"
            ),
            Some((code, error)) => error!(
                command = request.command.name(),
                container = request.container_id,
                ifname = request.ifname,
                netns = request.netns,
                pod = pod_name.as_deref(),
                pod_uid = pod.as_ref().and_then(|pod| pod.uid.as_deref()),
                network = &*network,
                r#type = &*plugin,
                traceparent = trace(),
                took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                code = code.number(),
                error,
                "failed"
            ),
        }
    }
}

/// Carries a call out; a panic becomes an answer like any other failure.
pub(crate) fn serve_catching_panics(call: &dyn PreparedCall, waiting: Waiting) -> Reply {
    let request = call.request();
    let served = catching_panics(request.command, || Ok(call.serve(waiting)));
    served.unwrap_or_else(|error| Reply {
        version: ConfigSummary::of(&request.config).version,
        outcome: Err(error),
    })
}
