//! CHECK: whether the interface, its addresses and its routes still are what ADD answered. Really looks, and changes
//! nothing.

use fairlead_cni::result::CniResult;
use fairlead_cni::{CniError, CniVersion, Code};
use fairlead_host::{Link, Net, Route};

use super::job::Job;
use super::{Engine, errors, link};
use crate::networks::{Network, interface};

impl Engine {
    pub(super) fn check(&self, job: &mut Job) -> Result<(), CniError> {
        if job.conf.version < CniVersion::V0_4_0 {
            return Err(CniError::new(
                Code::IncompatibleVersion,
                format!("CHECK came with 0.4.0; the network's version is {}", job.conf.version),
            ));
        }
        let network = Network::validate(&job.conf, &job.args)?;
        let _claim = self.claim(job)?;
        let network = self.with_recorded_device(job, network)?;
        let prev = job.conf.prev_result.clone().ok_or_else(|| {
            CniError::new(Code::InvalidConfig, "CHECK needs the result of ADD as prevResult")
        })?;
        self.ipam_check(job)?;
        let mut pod = self.kernel.pod(job.netns()).map_err(|e| errors::netns(&e))?;
        job.timing.end("namespace");
        let done = self.compare(job, &network, &prev, pod.as_mut());
        job.timing.end("compare");
        done
    }

    fn compare(
        &self,
        job: &Job,
        network: &Network,
        prev: &CniResult,
        pod: &mut dyn Net,
    ) -> Result<(), CniError> {
        let told = |e| errors::kernel(&job.key.network, &format!("looking at {:?}", job.key.ifname), &e);
        let at =
            prev.interfaces.iter().position(|i| i.name == job.key.ifname && i.sandbox == job.request.netns);
        let at = match at {
            Some(at) => at,
            None if matches!(network, Network::Loopback) => 0,
            None => {
                return Err(changed(
                    job,
                    &format!("prevResult has no interface of this name in {}", job.request.netns),
                ));
            }
        };
        if self.is_in_user_space(network) {
            return Ok(());
        }
        if let Some(vf) = network.vf()
            && self.is_given(job, vf)?
        {
            let told = prev.interfaces.get(at).map(|i| i.mac.as_str()).unwrap_or_default();
            let reason = self.check_given(vf, told)?;
            return reason.map_or(Ok(()), |reason| Err(changed(job, &reason)));
        }
        if let Some(parent) = network.parent() {
            link::parent(self.kernel.as_ref(), pod, &parent)?;
        }
        let link = pod.link_by_name(&job.key.ifname).map_err(told)?;
        let link = link.ok_or_else(|| changed(job, "the interface is gone"))?;
        network.check(&link).map_err(|reason| changed(job, &reason))?;
        if let Some(vf) = network.vf() {
            let settings = self.settings_now(vf)?;
            settings.map_or(Ok(()), |now| vf.check_settings(&now)).map_err(|r| changed(job, &r))?;
        }
        // A lent device is the pod's own to set down; a VF that was set up for it is not.
        if !link.up && network.device().is_none() {
            return Err(changed(job, "the interface is down"));
        }
        if matches!(network, Network::Loopback) {
            return Ok(());
        }
        self.compare_mac(job, prev, at, &link)?;
        let present: Vec<_> = pod.addresses(link.index).map_err(told)?.into_iter().map(|a| a.net).collect();
        let lost = prev
            .ips
            .iter()
            .filter(|ip| ip.interface.is_none_or(|i| i == at))
            .find(|ip| !present.contains(&ip.address));
        if let Some(ip) = lost {
            return Err(changed(job, &format!("its address {} is gone", ip.address)));
        }
        let routes = pod.routes().map_err(told)?;
        match interface::routes(prev, link.index).find(|wanted| !routes.iter().any(|r| serves(r, wanted))) {
            Some(lost) => Err(changed(job, &format!("the route to {} is gone", lost.dst))),
            None => Ok(()),
        }
    }

    fn compare_mac(&self, job: &Job, prev: &CniResult, at: usize, link: &Link) -> Result<(), CniError> {
        let wanted = prev.interfaces.get(at).map(|i| i.mac.as_str()).unwrap_or_default();
        match link.mac {
            Some(mac) if !wanted.is_empty() && !wanted.eq_ignore_ascii_case(&mac.to_string()) => {
                Err(changed(job, &format!("its MAC address is {mac} instead of {wanted}")))
            }
            _ => Ok(()),
        }
    }
}

fn serves(present: &Route, wanted: &Route) -> bool {
    let table = |r: &Route| r.table.filter(|t| *t != 0).unwrap_or(254);
    present.dst.trunc() == wanted.dst.trunc()
        && present.gateway == wanted.gateway
        && table(present) == table(wanted)
        && wanted.priority.is_none_or(|p| present.priority.unwrap_or(0) == p || present.dst.addr().is_ipv6())
}

fn changed(job: &Job, reason: &str) -> CniError {
    let msg = format!(
        "network {:?}, container {}, interface {:?}: {reason}",
        job.key.network, job.key.container, job.key.ifname
    );
    CniError::new(Code::Changed, msg).with("delete the pod and make it anew")
}
