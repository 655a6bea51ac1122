//! The call of an executable. Its request is parsed when the call is made. The lane, the reply and the record of the
//! delivery all go by that.
//!
//! Nothing of the request is read a second time. What could not be parsed is kept as the error that is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;
use fairlead_cni::wire::{Command, Request};

use super::attachment_request::{AttachmentRequest, OWN_TYPE};
use super::core::Ipam;
use super::parsed_request::ParsedRequest;
use super::{Engine, netdev};
use crate::call::{Lane, PreparedCall, Reply, Waiting, catching_panics};
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
}

impl EngineCall {
    pub(super) fn new(engine: Arc<Engine>, request: Request) -> EngineCall {
        // A request is prepared on the server's threads, which must outlive any fault.
        let parsed = catching_panics(request.command, || {
            let removal = matches!(request.command, Command::Del | Command::Gc);
            let conf = engine.core.ipam.confs.get(&request.config, removal)?;
            Ok(ParsedRequest::new(conf, &request.container_id, &request.ifname, &request.args))
        });
        EngineCall { engine, request, parsed, succeeded: AtomicBool::new(false) }
    }

    fn carry_out(&self, parsed: &ParsedRequest, waiting: Waiting) -> Result<String, CniError> {
        let engine = &*self.engine;
        let vf_wait = engine.core.policy().vf_wait;
        let mut request = AttachmentRequest::of_call(&self.request, &parsed.wanted, waiting, vf_wait)?;
        request.timing.end("parse");
        let answer = match parsed.wanted.key.plugin == OWN_TYPE {
            true => engine.own_type(&mut request),
            false => engine.core.carry_out(&mut request, parsed, Some(&engine.networks)),
        };
        let answer = answer.map_err(|e| in_words_of_the_call(&request, e))?;
        let kind = self.engine.calls.type_label(&request.key.plugin);
        for (phase, took) in request.timing.phases() {
            engine.calls.phase(request.command, kind, phase, *took);
        }
        Ok(answer)
    }

    /// Whether the call starts other programs or waits for more than the kernel.
    fn waits(&self, parsed: &ParsedRequest) -> bool {
        let core = &self.engine.core;
        let (command, conf) = (self.request.command, &*parsed.wanted.conf);
        if Ipam::executes(conf) || conf.plugin_type == OWN_TYPE || command == Command::Gc {
            return true;
        }
        let network = parsed.valid_network();
        match command {
            Command::Del => match network {
                // Only a DEL that is answered when the interface is silent is fast. Any other waits for the link's deletion.
                Some(network) if network.silent_is_gone() && conf.ipam_type.is_some() => {
                    let attachment = core.store.find(&parsed.wanted.key);
                    core.policy().del_waits
                        || !core.kernel().renames_while_up()
                        || network.waits(&core.kinds, command, attachment.as_deref())
                }
                _ => true,
            },
            Command::Add => {
                // The kernel's duplicate address detection can take up to 5 s.
                core.policy().dad == netdev::setup::Dad::Wait
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
        match &self.parsed {
            Ok(parsed) => {
                let outcome = self.carry_out(parsed, waiting);
                self.succeeded.store(outcome.is_ok(), Ordering::Release);
                Reply { version: parsed.wanted.conf.version, outcome }
            }
            Err(refused) => Reply {
                // An error, too, is answered in the version of the configuration, as far as that can be read.
                version: ConfigSummary::of(&self.request.config).version,
                outcome: Err(refused.clone()),
            },
        }
    }

    fn answered(&self, delivered: bool) {
        let Ok(parsed) = &self.parsed else { return };
        if self.request.command != Command::Add || !delivered || !self.succeeded.load(Ordering::Acquire) {
            return;
        }
        let store = &self.engine.core.store;
        if let Some(attachment) = store.find(&parsed.wanted.key)
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
    let of_network = format!("network {network:?}");
    let rest = error.msg.strip_prefix(&of_network).and_then(|rest| rest.strip_prefix(": "));
    let attaches = matches!(request.command, Command::Add | Command::Del | Command::Check);
    let msg = match rest {
        _ if request.in_conflist => return error,
        Some(rest) if attaches && !rest.contains(&format!("{ifname:?}")) => {
            format!("{of_network}, interface {ifname:?}: {rest}")
        }
        Some(_) => return error,
        None if attaches => format!("{of_network}, interface {ifname:?}: {}", error.msg),
        None => format!("{of_network}: {}", error.msg),
    };
    CniError { msg, ..error }
}
