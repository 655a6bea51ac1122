//! Our own type with `paths`: the first one that can be had is taken.
//!
//! A path is passed over only for what the host or the pod lacks, before anything is changed; whatever fails once it has
//! been taken fails the call. An attachment's record tells which path it has: behind those that were passed over.

use std::sync::Arc;

use fairlead_cni::config::own::Numa;
use fairlead_cni::config::{self, NetConf};
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_sriov::numa::NumaPolicy;

use super::job::Job;
use super::{Engine, errors, link, lists};
use crate::networks::Network;
use crate::store::PassedOver;

/// The type of a path that is not served yet.
const VHOST_USER: &str = "vhost-user";

impl Engine {
    /// Carries a call out for the path that its attachment has, or for the first that can be had.
    pub(super) fn by_paths(
        &self,
        job: &mut Job,
        paths: Vec<NetConf>,
        numa: Option<Numa>,
    ) -> Result<String, CniError> {
        job.numa = Some(policy(numa));
        let paths: Vec<Arc<NetConf>> = paths.into_iter().map(Arc::new).collect();
        match job.request.command {
            Command::Add => self.add_by_paths(job, &paths),
            Command::Del => {
                let networks: Vec<_> = paths.iter().map(|p| Network::validate(p, &job.args).ok()).collect();
                self.del_of(job, &networks).map(|()| String::new())
            }
            Command::Check => {
                let attachment = self.store.find(&job.key).ok_or_else(|| lists::unknown(job))?;
                let taken = paths.get(attachment.passed_over.len()).ok_or_else(|| fewer_paths(job))?;
                job.conf = Arc::clone(taken);
                self.check(job).map(|()| String::new())
            }
            Command::Gc => self.gc(job).map(|()| String::new()),
            Command::Status => self.status_of_any(job, &paths).map(|()| String::new()),
        }
    }

    fn add_by_paths(&self, job: &mut Job, paths: &[Arc<NetConf>]) -> Result<String, CniError> {
        let asked = paths.iter().enumerate().map(|(at, path)| {
            asked(path, job).map_err(|e| CniError { msg: format!("\"paths[{at}]\": {}", e.msg), ..e })
        });
        let asked = asked.collect::<Result<Vec<Asked>, CniError>>()?;
        if let Some(before) = self.store.find(&job.key) {
            // A second ADD gets the stored answer, or is told that there is one already.
            job.conf = Arc::clone(paths.get(before.passed_over.len()).or(paths.last()).unwrap_or(&job.conf));
            job.passed_over.clone_from(&before.passed_over);
            return self.add(job);
        }
        for (at, (path, asked)) in paths.iter().zip(asked).enumerate() {
            job.conf = Arc::clone(path);
            job.another = at + 1 < paths.len();
            let kind = crate::metrics::kind_label(&path.plugin_type);
            match self.add_by(job, asked) {
                Err(Untaken::Lacks(why)) => {
                    tracing::info!(container = %job.key.container, network = %job.key.network, ifname = %job.key.ifname,
                        path = at, r#type = %path.plugin_type, why, "a path is passed over");
                    self.calls.path(kind, false);
                    job.passed_over.push(PassedOver { kind: path.plugin_type.clone(), why });
                }
                Err(Untaken::Failed(error)) => {
                    self.calls.path(kind, true);
                    return Err(after(error, &job.passed_over));
                }
                Ok(answer) => {
                    self.calls.path(kind, true);
                    return Ok(answer);
                }
            }
        }
        Err(super::internal("a configuration without paths was taken for one with paths"))
    }

    /// ADD by this path. What is lacking before anything is changed makes room for the next one, if there is one.
    fn add_by(&self, job: &mut Job, asked: Asked) -> Result<String, Untaken> {
        let network = match asked {
            Asked::Of(network) => *network,
            Asked::Nothing(none) if job.another => return Err(Untaken::Lacks(none.msg)),
            Asked::Nothing(none) => return Err(Untaken::Failed(none)),
        };
        if job.another
            && let Some(why) = self.lacks(job, &network).map_err(Untaken::Failed)?
        {
            return Err(Untaken::Lacks(why));
        }
        (job.lacks, job.near) = (false, None);
        self.add_to(job, network).map_err(|error| match job.lacks && job.another {
            true => Untaken::Lacks(error.msg),
            false => Untaken::Failed(error),
        })
    }

    /// What the host lacks for this path; asked only where another comes after it. A question that fails fails the call: what is
    /// not known is not lacking. Whether a VF can be had, its reservation tells.
    fn lacks(&self, job: &Job, network: &Network) -> Result<Option<String>, CniError> {
        let told = |e| errors::kernel(&job.key.network, "looking for what a path needs", &e);
        if let Some(kind) = self.missing_kind(network).map_err(told)? {
            return Ok(Some(format!("the kernel has no {kind}")));
        }
        if let Some(master) = self.missing_master(network).map_err(told)? {
            return Ok(Some(format!("the host has no interface {master:?}")));
        }
        let Some(device) = network.device() else { return Ok(None) };
        match link::device(self.kernel.as_ref(), &device.device, |d| self.interfaces_of(d)) {
            Err(e) if matches!(e.code, Code::InvalidConfig | Code::NotAvailable) => Ok(Some(e.msg)),
            other => other.map(|_| None),
        }
    }

    /// Available while one of its paths is.
    fn status_of_any(&self, job: &mut Job, paths: &[Arc<NetConf>]) -> Result<(), CniError> {
        super::gc::below_1_1(&job.conf, "STATUS")?;
        let mut last = Ok(());
        for path in paths {
            job.conf = Arc::clone(path);
            last = match names_no_vf(path, job)? {
                _ if path.plugin_type == VHOST_USER => Err(not_served()),
                // Which one it is, a pod's ADD tells.
                Some(_) => self.store_status(job),
                None => self.status(job),
            };
            if last.is_ok() {
                break;
            }
        }
        last
    }
}

/// Why a path was not taken.
enum Untaken {
    /// It cannot be had now.
    Lacks(String),
    /// It was taken, and failed.
    Failed(CniError),
}

/// `numa`, and what it is where nobody says.
fn policy(numa: Option<Numa>) -> NumaPolicy {
    match numa {
        Some(Numa::Strict) => NumaPolicy::Strict,
        Some(Numa::Preferred) | None => NumaPolicy::Preferred,
        Some(Numa::Any) => NumaPolicy::Any,
    }
}

/// What a path asks for, as far as it can be told without looking at the host.
enum Asked {
    /// This.
    Of(Box<Network>),
    /// Nothing that could be had: why.
    Nothing(CniError),
}

/// Refuses all that can be refused without looking at the host.
fn asked(path: &NetConf, job: &Job) -> Result<Asked, CniError> {
    if path.plugin_type == VHOST_USER {
        return Ok(Asked::Nothing(not_served()));
    }
    match names_no_vf(path, job)? {
        Some(none) => Ok(Asked::Nothing(none)),
        None => Network::validate(path, &job.args).map(|network| Asked::Of(Box::new(network))),
    }
}

/// An `sriov` path for a pod that was given no VF.
fn names_no_vf(path: &NetConf, job: &Job) -> Result<Option<CniError>, CniError> {
    if path.plugin_type != "sriov" {
        return Ok(None);
    }
    let given = config::Sriov::parse(path)?.device(path, &job.args);
    Ok(given.err().filter(|e| e.code == Code::InvalidConfig))
}

fn not_served() -> CniError {
    CniError::new(Code::UnsupportedField, "paths of type \"vhost-user\" are not served by this version")
        .with("put another path behind it")
}

fn fewer_paths(job: &Job) -> CniError {
    CniError::new(
        Code::InvalidConfig,
        format!("network {:?} has fewer paths than when {:?} was added", job.key.network, job.key.ifname),
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
