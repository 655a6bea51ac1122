//! The type `fairlead` with `paths`: the first one that can be had is taken.
//!
//! A path is passed over only for what the host or the pod lacks, before anything is changed; whatever fails once it has
//! been taken fails the call. An attachment's record says which path it has: the one behind those that were passed over.

use std::sync::Arc;

use fairlead_cni::config::fairlead::Numa;
use fairlead_cni::config::{self, NetConf};
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_sriov::numa::NumaPolicy;

use super::attachment_request::AttachmentRequest;
use super::cluster_network::unknown;
use super::kinds::{Network, NotAttached};
use super::{Engine, errors};
use crate::store::PassedOver;

impl Engine {
    /// Carries a call out for the path that its attachment has, or for the first that can be had.
    pub(super) fn by_paths(
        &self,
        request: &mut AttachmentRequest<'_>,
        paths: Vec<NetConf>,
        numa: Option<Numa>,
    ) -> Result<String, CniError> {
        request.numa = Some(policy(numa));
        let paths: Vec<Arc<NetConf>> = paths.into_iter().map(Arc::new).collect();
        match request.command {
            Command::Add => return self.add_by_paths(request, &paths),
            Command::Del => {
                // Without a record any path may have made the interface (K10). An invalid one does not keep the others.
                let networks: Vec<_> =
                    paths.iter().map(|p| Network::validate(p, request.args).ok()).collect();
                let networks: Vec<_> = networks.iter().map(Option::as_ref).collect();
                self.core.del(request, &networks)?;
            }
            Command::Check => {
                let attachment = self.core.store.find(request.key).ok_or_else(|| unknown(request))?;
                let taken = paths.get(attachment.passed_over.len()).ok_or_else(|| fewer_paths(request))?;
                request.conf = Arc::clone(taken);
                request.conf.version.must_have(Command::Check)?;
                let network = Network::validate(&request.conf, request.args)?;
                self.core.check(request, &network)?;
            }
            Command::Gc => self.core.gc(request)?,
            Command::Status => self.status_of_any(request, &paths)?,
        }
        Ok(String::new())
    }

    fn add_by_paths(
        &self,
        request: &mut AttachmentRequest<'_>,
        paths: &[Arc<NetConf>],
    ) -> Result<String, CniError> {
        // All of them before the first is tried: a wrong path would otherwise show only on the day when it is needed.
        let wanted = paths.iter().enumerate().map(|(at, path)| {
            wanted(path, request).map_err(|e| CniError { msg: format!("\"paths[{at}]\": {}", e.msg), ..e })
        });
        let wanted = wanted.collect::<Result<Vec<Wanted>, CniError>>()?;
        if let Some(before) = self.core.store.find(request.key) {
            // A second ADD gets the stored answer, or the error that there is one already.
            // The network may have fewer paths by now, and the record still answers.
            let taken = paths.get(before.passed_over.len()).or(paths.last());
            request.conf = Arc::clone(taken.unwrap_or(&request.conf));
            request.passed_over.clone_from(&before.passed_over);
            let network = Network::validate(&request.conf, request.args)?;
            return self.core.add(request, &network).map_err(NotAttached::into_error);
        }
        for (at, (path, wanted)) in paths.iter().zip(wanted).enumerate() {
            request.conf = Arc::clone(path);
            request.fallback_follows = at + 1 < paths.len();
            let kind = self.calls.type_label(&path.plugin_type);
            match self.add_by(request, wanted) {
                Err(NotAttached::Unavailable(why)) if request.fallback_follows => {
                    let why = why.msg;
                    tracing::info!(container = %request.key.container, network = %request.key.network, ifname = %request.key.ifname,
                        path = at, r#type = %path.plugin_type, why, "a path is passed over");
                    self.calls.path(kind, false);
                    request.passed_over.push(PassedOver { kind: path.plugin_type.clone(), why });
                }
                Err(failed) => {
                    self.calls.path(kind, true);
                    return Err(after(failed.into_error(), &request.passed_over));
                }
                Ok(answer) => {
                    self.calls.path(kind, true);
                    return Ok(answer);
                }
            }
        }
        Err(errors::internal("a configuration without paths was taken for one with paths"))
    }

    /// ADD by this path. What is lacking before anything is changed makes room for the next one, if there is one.
    fn add_by(&self, request: &mut AttachmentRequest<'_>, wanted: Wanted) -> Result<String, NotAttached> {
        let network = match wanted {
            Wanted::Network(network) => *network,
            Wanted::Nothing(none) => return Err(NotAttached::Unavailable(none)),
        };
        // Asked only where another path follows: a question that fails fails the call, because what is not known is not lacking.
        // Whether a VF can be had, its reservation says.
        if request.fallback_follows
            && let Some(why) = network.lacks(&self.core.kinds)?
        {
            return Err(NotAttached::Unavailable(CniError::new(Code::NotAvailable, why)));
        }
        self.core.add(request, &network)
    }

    /// Available while one of its paths is.
    fn status_of_any(
        &self,
        request: &mut AttachmentRequest<'_>,
        paths: &[Arc<NetConf>],
    ) -> Result<(), CniError> {
        request.conf.version.must_have(Command::Status)?;
        let mut last = Ok(());
        for path in paths {
            request.conf = Arc::clone(path);
            last = match names_no_device(path, request)? {
                // Which one it is, a pod's ADD says.
                Some(_) => self.core.store_status(request),
                None => self.status_of(request),
            };
            if last.is_ok() {
                break;
            }
        }
        last
    }

    fn status_of(&self, request: &mut AttachmentRequest<'_>) -> Result<(), CniError> {
        request.conf.version.must_have(Command::Status)?;
        self.networks.rescan();
        let network = Network::validate(&request.conf, request.args)?;
        self.core.status(request, &network)
    }
}

/// `numa`, and what it is where nobody says.
fn policy(numa: Option<Numa>) -> NumaPolicy {
    match numa {
        Some(Numa::Strict) => NumaPolicy::Strict,
        Some(Numa::Preferred) | None => NumaPolicy::Preferred,
        Some(Numa::Any) => NumaPolicy::Any,
    }
}

/// What a path asks for, as far as that is known without looking at the host.
enum Wanted {
    /// A network.
    Network(Box<Network>),
    /// Nothing that could be had, and why.
    Nothing(CniError),
}

/// Refuses all that can be refused without looking at the host.
fn wanted(path: &NetConf, request: &AttachmentRequest<'_>) -> Result<Wanted, CniError> {
    match names_no_device(path, request)? {
        Some(none) => Ok(Wanted::Nothing(none)),
        None => Network::validate(path, request.args).map(|network| Wanted::Network(Box::new(network))),
    }
}

/// The error of an `sriov` or `host-device` path that names no device, for a pod that was given none.
fn names_no_device(path: &NetConf, request: &AttachmentRequest<'_>) -> Result<Option<CniError>, CniError> {
    match path.plugin_type.as_str() {
        "sriov" => {
            let given = config::Sriov::parse(path)?.device(path, request.args);
            Ok(given.err().filter(|e| e.code == Code::InvalidConfig))
        }
        "host-device" if config::HostDevice::read(path)?.is_none() => {
            Ok(config::HostDevice::parse(path).err())
        }
        _ => Ok(None),
    }
}

fn fewer_paths(request: &AttachmentRequest<'_>) -> CniError {
    CniError::new(
        Code::InvalidConfig,
        format!(
            "network {:?} has fewer paths than when {:?} was added",
            request.key.network, request.key.ifname
        ),
    )
    .with("delete the pod and make it anew")
}

/// The error of the path that was taken, and why it came to that one.
fn after(error: CniError, passed_over: &[PassedOver]) -> CniError {
    let mut reasons: Vec<String> =
        passed_over.iter().map(|p| format!("path {} was passed over: {}", p.kind, p.why)).collect();
    if reasons.is_empty() {
        return error;
    }
    reasons.insert(0, error.details.clone());
    reasons.retain(|reason| !reason.is_empty());
    error.with(reasons.join("; "))
}
