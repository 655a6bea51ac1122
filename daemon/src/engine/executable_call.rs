//! The call of an executable. Its request is parsed when the call is made. The lane, the reply and the record of the
//! delivery all go by that.
//!
//! Nothing of the request is read a second time. What could not be parsed is kept as the error that is answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::NetConf;
use fairlead_cni::wire::{Command, Request};
use fairlead_kube::PodRef;

use super::attachment_request::{AttachmentRequest, OWN_TYPE};
use super::call_phases::Phases;
use super::core::executes_ipam;
use super::parsed_request::ParsedRequest;
use super::pod_networks::PodNetworks;
use super::recent_calls::FailedCall;
use super::{Engine, netdev};
use crate::call::{Lane, PreparedCall, Reply, Waiting, catching_panics};
use crate::logging;
use crate::netconf_summary::ConfigSummary;
use crate::store::Key;

/// A call that the engine has prepared.
pub(super) struct EngineCall {
    engine: Arc<Engine>,
    request: Request,
    /// What the request says, or why its configuration can't be read.
    parsed: Result<ParsedRequest, CniError>,
    /// It was carried out and answered with a result: only then does its delivery say anything of the attachment.
    succeeded: AtomicBool,
    /// Where its time went, once it has succeeded.
    phases: OnceLock<Phases>,
    /// What its pod has got, once it has succeeded.
    pod_networks: OnceLock<PodNetworks>,
}

impl EngineCall {
    pub(super) fn new(engine: Arc<Engine>, request: Request) -> EngineCall {
        // A request is prepared on the server's threads, which must outlive any fault.
        let parsed = catching_panics(request.command, || {
            let removal = matches!(request.command, Command::Del | Command::Gc);
            let conf = engine.core.ipam.confs.get(&request.config, removal)?;
            Ok(ParsedRequest::new(conf, None, &request.container_id, &request.ifname, &request.args))
        });
        EngineCall {
            engine,
            request,
            parsed,
            succeeded: AtomicBool::new(false),
            phases: OnceLock::new(),
            pod_networks: OnceLock::new(),
        }
    }

    /// `phases`: where its time went, whatever it ends with.
    fn carry_out(
        &self,
        parsed: &ParsedRequest,
        waiting: Waiting,
        phases: &mut Phases,
    ) -> Result<String, CniError> {
        let engine = &*self.engine;
        #[cfg(feature = "failpoints")]
        if let Some(answer) = super::definition_stand_in::add(engine, &self.request, &waiting) {
            return answer;
        }
        let mut request = AttachmentRequest::of_call(&self.request, &parsed.wanted, waiting)?;
        request.sandbox.netns = engine.core.netns_now(&request.sandbox);
        request.timing.end("parse");
        let answer = engine.carry_out(&mut request, parsed);
        *phases = request.timing.take();
        let answer = answer.map_err(|e| in_words_of_the_call(&request, e))?;
        if let Some(attached) = request.pod_networks.take() {
            // Empty so far: a call is carried out once.
            let _ = self.pod_networks.set(attached);
        }
        Ok(answer)
    }

    /// Remembers for the operator that it failed. GC and STATUS are of no pod.
    fn failed(&self, error: &CniError, arrived: Instant, phases: Phases) {
        let Request { command, container_id, ifname, .. } = &self.request;
        if !matches!(command, Command::Add | Command::Del | Command::Check) {
            return;
        }
        let key = self.parsed.as_ref().map_or_else(
            |_| {
                let summary = ConfigSummary::of(&self.request.config);
                let (container, ifname) = (container_id.clone(), ifname.clone());
                Key { container, network: summary.name, ifname, plugin: summary.kind }
            },
            |parsed| parsed.wanted.key.clone(),
        );
        let timing = (phases, arrived.elapsed());
        self.engine.recent.failed(FailedCall::new(*command, self.pod(), key, error, timing));
    }

    /// What the call has attached, if it is an ADD that was answered with a result.
    fn attached(&self) -> Option<&Key> {
        let is_attached = self.request.command == Command::Add && self.succeeded.load(Ordering::Acquire);
        self.parsed.as_ref().ok().filter(|_| is_attached).map(|parsed| &parsed.wanted.key)
    }

    /// The pod, where the runtime names it.
    fn pod(&self) -> Option<PodRef> {
        match &self.parsed {
            Ok(parsed) => PodRef::of_args(parsed.wanted.args.as_ref().ok()?),
            Err(_) => PodRef::of_args(&Args::parse(&self.request.args).ok()?),
        }
    }

    /// Whether the call starts other programs or waits for more than the kernel.
    fn waits(&self, parsed: &ParsedRequest) -> bool {
        let core = &self.engine.core;
        let (command, conf) = (self.request.command, &*parsed.wanted.conf);
        if conf.plugin_type == OWN_TYPE {
            return command != Command::Add || self.engine.pod_add_waits(&parsed.wanted);
        }
        if executes_ipam(conf) || command == Command::Gc {
            return true;
        }
        let network = parsed.valid_network();
        match command {
            Command::Del => match network {
                // Only a DEL that is answered when the interface is silent is fast. Any other waits for the link's deletion.
                Some(network) if network.silent_is_gone() && conf.ipam_type.is_some() => {
                    let attachment = core.store.find(&parsed.wanted.key);
                    core.call_settings().del_waits
                        || !core.kernel().renames_while_up()
                        || network.waits(&core.kinds, command, attachment.as_deref())
                }
                _ => true,
            },
            Command::Add => {
                // The kernel's duplicate address detection can take up to 5 s.
                core.call_settings().dad == netdev::setup::Dad::Wait
                    || network.is_some_and(|network| network.waits(&core.kinds, command, None))
            }
            Command::Check => network.is_some_and(|network| network.waits(&core.kinds, command, None)),
            // STATUS has a thread of its own, whatever its lane.
            Command::Gc | Command::Status => false,
        }
    }
}

impl PreparedCall for EngineCall {
    fn request(&self) -> &Request {
        &self.request
    }

    fn conf(&self) -> Option<&NetConf> {
        self.parsed.as_ref().ok().map(|parsed| &*parsed.wanted.conf)
    }

    fn lane(&self) -> Lane {
        match &self.parsed {
            Ok(parsed) if self.waits(parsed) => Lane::Slow,
            Ok(_) | Err(_) => Lane::Fast,
        }
    }

    fn serve(&self, waiting: Waiting) -> Reply {
        let _in_log = logging::of_pod(self.pod());
        let (arrived, mut phases) = (waiting.arrived, Phases::new());
        let (version, outcome) = match &self.parsed {
            Ok(parsed) => (parsed.wanted.conf.version, self.carry_out(parsed, waiting, &mut phases)),
            // An error, too, is answered in the version of the configuration, as far as that can be read.
            Err(refused) => (ConfigSummary::of(&self.request.config).version, Err(refused.clone())),
        };
        let outcome = match self.request.command {
            Command::Del => outcome.map_err(|error| error.of_del()),
            _ => outcome,
        };
        match &outcome {
            Ok(_) => {
                self.succeeded.store(true, Ordering::Release);
                // Empty so far: a call is carried out once.
                let _ = self.phases.set(phases);
            }
            Err(error) => self.failed(error, arrived, phases),
        }
        Reply { version, outcome }
    }

    fn count_phases(&self) {
        let (Ok(parsed), Some(phases)) = (&self.parsed, self.phases.get()) else { return };
        let calls = &self.engine.calls;
        let kind = calls.type_label(&parsed.wanted.key.plugin);
        for (phase, took) in phases {
            calls.phase(self.request.command, kind, phase, *took);
        }
    }

    fn delivered(&self) {
        if let Some(key) = self.attached() {
            self.engine.core.store.delivered(key);
        }
    }

    fn answered(&self, delivered: bool) {
        let Some(key) = self.attached() else { return };
        // Before the delivery is on record, and whatever has become of the caller: the pod has its networks.
        if let Some(attached) = self.pod_networks.get() {
            self.engine.report(attached, key);
        }
        self.engine.warn_of_fallbacks(self.pod_networks.get(), key);
        self.engine.annotate_pod_of(key);
        let store = &self.engine.core.store;
        let attachment = store.find(key);
        // Here and not before the answer, which would wait for it.
        if let (Some(attachment), Some(phases)) = (&attachment, self.phases.get()) {
            self.engine.recent.added(attachment.id, phases.clone());
        }
        if let Some(attachment) = attachment
            && delivered
            && !attachment.answered
            && let Err(e) = store.answered(attachment.id)
        {
            // No failure of the ADD: an identical one would get the answer again instead of an error.
            tracing::warn!(error = %e, "the delivery of an answer could not be put on record");
        }
    }
}

/// Whatever went wrong: a person is told on which network, and on which interface where the call has one (X14). What
/// a list's plugin says is told so once, by the list's own call.
fn in_words_of_the_call(request: &AttachmentRequest<'_>, error: CniError) -> CniError {
    let Key { network, ifname, .. } = request.key;
    match request.command {
        _ if request.nested => error,
        Command::Add | Command::Del | Command::Check => error.of_interface(network, ifname),
        Command::Gc | Command::Status => error.of_network(network),
    }
}
