//! ADD: plan, put the intent on record, make the link, give it addresses, commit, answer.
//!
//! The commit is the point of no return. Whatever fails before it, and a caller that has gone before it, is undone by
//! the same removal that a DEL is, from the same record.

use std::net::IpAddr;
use std::sync::Arc;

use fairlead_cni::result::Interface;
use fairlead_cni::wire::Inode;
use fairlead_cni::{CniError, CniResult, Code};
use fairlead_host::{Mac, Net};
use ipnet::IpNet;
use nix::errno::Errno;

use super::vfs::Reserved;
use super::job::Job;
use super::{Engine, errors, failpoint, vfs, link};
use crate::networks::interface::{self, Dad};
use crate::networks::sriov::Sriov;
use crate::networks::{Addressing, Facts, LinkPlan, Network};
use crate::store::{Attachment, IpamRecord, LinkRecord, Namespace, Phase};

/// What an ADD has come to know of its interface; MTU and PCI address where the answer tells them.
#[derive(Default)]
struct Made {
    index: u32,
    mac: Option<Mac>,
    mtu: u32,
    pci_id: String,
}

impl Engine {
    pub(super) fn add(&self, job: &mut Job) -> Result<String, CniError> {
        let network = self.validated.take(&job.conf, &job.request.args);
        let network = network.map_or_else(|| Network::validate(&job.conf, &job.args), Ok)?;
        self.add_to(job, network)
    }

    /// ADD to a network that has been validated.
    pub(super) fn add_to(&self, job: &mut Job, network: Network) -> Result<String, CniError> {
        let _claim = self.claim(job)?;
        self.finish_older(job)?;
        if let Some(before) = self.store.find(&job.key) {
            return self.repeat(job, &before, self.enter(job)?.as_ref());
        }
        let (network, vf) = match network.vf() {
            Some(_) => self.with_vf(job, network)?,
            None => (network, None),
        };
        let mut pod = self.enter(job)?;
        job.timing.end("namespace");
        let (plan, attachment) = self.intend(job, &network, vf.as_ref(), pod.as_mut())?;
        let attachment = self.store.begin(attachment).map_err(|e| errors::store(&e))?;
        if let Some(vf) = vf {
            vf.keep(); // on record, it is nobody else's
        }
        job.timing.end("intent");
        failpoint::pass("add.begun");
        let kept = self.records.keep(&attachment);
        let done = kept.and_then(|()| self.apply(job, &network, &plan, &attachment, pod.as_mut()));
        let committed = done.and_then(|(result, made)| {
            self.commit(job, &attachment, &result).map(|answer| (answer, result, made))
        });
        match committed {
            Ok((answer, result, made)) => {
                drop(pod);
                failpoint::pass("add.committed");
                self.announce(job, &attachment, &result, &made);
                Ok(answer)
            }
            Err(error) => {
                drop(pod);
                self.undo(&attachment, &error);
                Err(error)
            }
        }
    }

    /// The VF that the network needs is had outside the pod's namespace: another one may have to be looked at, and
    /// nothing must keep this one alive while it is waited for. For a namespace that is not the caller's none is waited for.
    fn with_vf(
        &self,
        job: &mut Job,
        network: Network,
    ) -> Result<(Network, Option<Reserved<'_>>), CniError> {
        let address = network.vf().and_then(|wanted| wanted.address().ok());
        if !address.is_some_and(|address| self.pools.has_ready(address, |_| true)) {
            drop(self.enter(job)?);
        }
        let network = self.with_device(job, network).map_err(|e| job.noting(e))?;
        let vf = self.reserve(job, &network)?;
        let network = match &vf {
            Some(reserved) => network.with_vf(reserved.address()),
            None => network,
        };
        self.tell_nearness(job, &network);
        Ok((network, vf))
    }

    /// The pod's namespace, if it is what the caller meant.
    pub(super) fn enter(&self, job: &Job) -> Result<Box<dyn Net + '_>, CniError> {
        let pod = self.kernel.pod(job.netns()).map_err(|e| errors::netns(&e))?;
        let id = pod.id();
        let here = Inode { dev: id.dev, ino: id.ino };
        if job.request.netns_inode.is_some_and(|seen| seen != here) {
            return Err(errors::other_namespace(job.netns()));
        }
        let own = Inode { dev: self.host_id.dev, ino: self.host_id.ino };
        if job.request.own_netns.is_some_and(|callers| callers != own) {
            return Err(errors::other_host());
        }
        Ok(pod)
    }

    /// A second ADD: the stored answer if the first one's may not have arrived and this is the same call.
    pub(super) fn repeat(&self, job: &Job, before: &Attachment, pod: &dyn Net) -> Result<String, CniError> {
        let same = before.netns.id.same(pod.id())
            && before.config == job.conf.raw
            && before.phase == Phase::Attached;
        match &before.answer {
            Some(answer) if same && !before.answered => Ok(answer.clone()),
            _ => Err(CniError::new(
                Code::AlreadyThere,
                format!(
                    "network {:?}: container {} already has interface {:?}",
                    job.key.network, job.key.container, job.key.ifname
                ),
            )
            .with("an attachment is added once; DEL it first")),
        }
    }

    /// Looks at the host and makes the plan and the record of it.
    fn intend(
        &self,
        job: &mut Job,
        network: &Network,
        reserved: Option<&Reserved<'_>>,
        pod: &mut dyn Net,
    ) -> Result<(LinkPlan, Attachment), CniError> {
        let told = |e| errors::kernel(&job.key.network, "looking at the pod's namespace", &e);
        let nsid = pod.nsid().map_err(told)?;
        let (parent, vf) = match network.vf().zip(reserved) {
            Some((wanted, reserved)) => {
                self.at_home(wanted, reserved).map(|(link, home)| (link, Some(home)))?
            }
            None => (self.stands_on(network, pod)?, None),
        };
        let id = self.store.next_id();
        let facts = Facts {
            ifname: &job.key.ifname,
            parent: parent.as_ref(),
            vf: vf.as_ref(),
            index: self.chance.index(),
            mac: Mac::local(self.chance.next()),
        };
        let plan = if self.is_in_user_space(network) { None } else { Some(network.plan(&facts)?) };
        let record = record_of(job, plan.as_ref(), pod)?;
        let netns = Namespace { path: job.request.netns.clone(), id: pod.id().clone(), nsid };
        let mut attachment = Attachment {
            ipam: self.ipam_record(job, network)?,
            passed_over: job.passed_over.clone(),
            device_info: network.vf().and_then(|vf| vf.device_info.clone()),
            near: job.near.clone(),
            ..Attachment::new(id, job.key.clone(), netns, record, job.conf.raw.clone())
        };
        if attachment.has_delegates() {
            attachment.caller = job.caller();
        }
        job.timing.end("plan");
        Ok((plan.unwrap_or(LinkPlan::Loopback), attachment))
    }

    fn stands_on(
        &self,
        network: &Network,
        pod: &mut dyn Net,
    ) -> Result<Option<fairlead_host::Link>, CniError> {
        if let Some(device) = network.device() {
            if self.is_in_user_space(network) {
                return Ok(None);
            }
            return link::device(self.kernel.as_ref(), &device.device, |d| self.interfaces_of(d)).map(Some);
        }
        network.parent().map(|p| link::parent(self.kernel.as_ref(), pod, &p)).transpose()
    }

    fn ipam_record(&self, job: &Job, network: &Network) -> Result<IpamRecord, CniError> {
        let chained = job.conf.prev_result.as_ref().is_some_and(|p| !p.ips.is_empty());
        match (network.addressing(), job.conf.ipam_type.as_deref()) {
            (Addressing::Never, _) => Ok(IpamRecord::None),
            (Addressing::Required, None) if !(chained && matches!(network, Network::Ipvlan(_))) => {
                Err(CniError::new(
                    Code::InvalidConfig,
                    format!(
                        "network {:?}: {} needs an \"ipam\" with a \"type\"",
                        job.key.network, job.key.plugin
                    ),
                )
                .with("host-local and static are built in; any other is executed from CNI_PATH"))
            }
            (_, kind) => self.ipam_of(job, kind),
        }
    }

    /// Carries the plan out, step by step.
    fn apply(
        &self,
        job: &mut Job,
        network: &Network,
        plan: &LinkPlan,
        attachment: &Arc<Attachment>,
        pod: &mut dyn Net,
    ) -> Result<(CniResult, Made), CniError> {
        if attachment.link == LinkRecord::Loopback {
            return self.loopback(job, pod);
        }
        let mut result = self.addresses(job, attachment)?;
        job.timing.end("ipam");
        failpoint::pass("add.allocated");
        self.tell_of_device(attachment)?;
        let made = self.link(job, network, plan, attachment, pod)?;
        job.timing.end("link");
        failpoint::pass("add.linked");
        for ip in &mut result.ips {
            ip.interface = Some(0);
        }
        result.interfaces = vec![Interface {
            name: job.key.ifname.clone(),
            mac: made.mac.map(|m| m.to_string()).unwrap_or_default(),
            sandbox: job.request.netns.clone(),
            mtu: made.mtu,
            pci_id: made.pci_id.clone(),
            ..Interface::default()
        }];
        if !matches!(attachment.link, LinkRecord::None | LinkRecord::Given(_)) {
            let notifies = network.notifies(!result.ips.is_empty());
            let setup = interface::setup(&result, made.index, &job.key.ifname, notifies, self.policy().dad);
            link::configure(pod, &setup, made.index).map_err(|e| {
                errors::kernel(&job.key.network, &format!("setting up {:?}", job.key.ifname), &e)
            })?;
        }
        result.dns = job.conf.dns.clone();
        job.timing.end("configure");
        failpoint::pass("add.configured");
        Ok((result, made))
    }

    fn link(
        &self,
        job: &Job,
        network: &Network,
        plan: &LinkPlan,
        attachment: &Attachment,
        pod: &mut dyn Net,
    ) -> Result<Made, CniError> {
        let doing = || format!("making {:?}{}", job.key.ifname, network.of_device());
        let told = |e| errors::kernel(&job.key.network, &doing(), &e);
        match (plan, &attachment.link) {
            (LinkPlan::Make(new, mac), LinkRecord::Made { index, .. }) => {
                let mut made = link::make(pod, new);
                if made.as_ref().is_err_and(|e| e.errno() == Some(Errno::EADDRINUSE)) && self.hurry_mac(*mac)
                {
                    made = link::make(pod, new);
                }
                match made {
                    Err(e) if e.errno() == Some(Errno::EEXIST) => Err(name_taken(job)),
                    Err(e) => Err(told(e)),
                    Ok(()) => {
                        let mac = link::mac_of(pod, *index, *mac).map_err(told)?;
                        Ok(Made { index: *index, mac, ..Made::default() })
                    }
                }
            }
            (LinkPlan::Lend(lent), LinkRecord::Moved(_)) => {
                let index = link::lend(pod, lent, &job.key.ifname).map_err(told)?;
                Ok(Made { index, mac: link::mac_of(pod, index, None).map_err(told)?, ..Made::default() })
            }
            (LinkPlan::LendVf { lent, change, mac }, LinkRecord::Moved(_)) => {
                let index = self.prepare(lent, change, *mac)?;
                failpoint::pass("add.prepared");
                let lent_now = vfs::lend(pod, index, &job.key.ifname).map_err(told)?;
                let (index, mac, mtu) = lent_now.map_or((index, None, 0), |l| (l.index, l.mac, l.mtu));
                let address = network.vf().map(Sriov::address).transpose()?;
                let pci_id = address.map(|address| address.to_string()).unwrap_or_default();
                Ok(Made { index, mac, mtu, pci_id })
            }
            (LinkPlan::GiveVf { vf, change, mac }, LinkRecord::Given(_)) => {
                self.set_up(vf, change)?;
                failpoint::pass("add.prepared");
                Ok(Made { mac: *mac, pci_id: vf.address.to_string(), ..Made::default() })
            }
            _ => Ok(Made::default()),
        }
    }

    /// `lo` has what the kernel gives it.
    fn loopback(&self, job: &Job, pod: &mut dyn Net) -> Result<(CniResult, Made), CniError> {
        let told = |e| errors::kernel(&job.key.network, "setting up \"lo\"", &e);
        let lo = pod
            .link_by_name("lo")
            .map_err(told)?
            .ok_or_else(|| CniError::new(Code::Internal, "the namespace has no interface \"lo\""))?;
        let up = fairlead_host::SetLink { index: lo.index, up: Some(true), ..Default::default() };
        pod.batch(&[fairlead_host::Op::SetLink(up)]).map_err(told)?;
        let made = Made::default();
        if let Some(prev) = &job.conf.prev_result {
            return Ok((prev.clone(), made));
        }
        let addresses = pod.addresses(lo.index).map_err(told)?;
        if let Some(stranger) = addresses.iter().find(|a| !a.net.addr().is_loopback()) {
            let msg = format!("\"lo\" has the address {}, which is no loopback address", stranger.net);
            return Err(CniError::new(Code::Internal, msg));
        }
        let first = |v6: bool| addresses.iter().find(move |a| a.net.addr().is_ipv6() == v6);
        let ips = [first(false), first(true)].into_iter().flatten().map(|a| fairlead_cni::result::IpConfig {
            address: a.net,
            gateway: None,
            interface: Some(0),
        });
        let lo = Interface {
            name: "lo".into(),
            mac: Mac([0; 6]).to_string(),
            sandbox: job.request.netns.clone(),
            ..Interface::default()
        };
        Ok((CniResult { interfaces: vec![lo], ips: ips.collect(), ..CniResult::default() }, made))
    }

    pub(super) fn commit(
        &self,
        job: &mut Job,
        attachment: &Attachment,
        result: &CniResult,
    ) -> Result<String, CniError> {
        let answer = result.to_json(job.conf.version)?;
        if job.gone.get() {
            return Err(CniError::new(Code::TryAgain, "the caller went away before the interface was ready"));
        }
        let addresses: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        self.store.commit(attachment.id, addresses, answer.clone()).map_err(|e| errors::store(&e))?;
        job.timing.end("commit");
        Ok(answer)
    }

    /// Tells the neighbours, and asks whether one of them has the address already; off the answer's path.
    fn announce(&self, job: &Job, attachment: &Attachment, result: &CniResult, made: &Made) {
        let (Some(announcer), Some(mac)) = (&self.announcer, made.mac) else { return };
        let addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
        if addresses.is_empty()
            || matches!(attachment.link, LinkRecord::Loopback | LinkRecord::Given(_) | LinkRecord::None)
        {
            return;
        }
        announcer.announce(fairlead_host::announce::Announcement {
            netns: job.netns().to_owned(),
            netns_id: attachment.netns.id.clone(),
            ifindex: made.index,
            mac,
            addresses,
            probe: self.policy().dad == Dad::Fast,
            awaits_carrier: matches!(attachment.link, LinkRecord::Moved(_)),
            label: format!("{}/{}", job.key.container, job.key.ifname),
        });
    }
}

/// What is put on record about the link of a plan; `None`: a process in user space has the device.
fn record_of(job: &Job, plan: Option<&LinkPlan>, pod: &mut dyn Net) -> Result<LinkRecord, CniError> {
    Ok(match plan {
        Some(LinkPlan::Make(new, mac)) => {
            LinkRecord::Made { index: new.index.unwrap_or_default(), kind: new.kind.clone(), mac: *mac }
        }
        Some(LinkPlan::Lend(lent) | LinkPlan::LendVf { lent, .. }) => {
            // With its name taken in the pod the kernel would move it all the same, under its old name.
            let taken = pod.link_by_name(&job.key.ifname);
            match taken.map_err(|e| errors::kernel(&job.key.network, "looking at the pod's namespace", &e))? {
                Some(_) => return Err(name_taken(job)),
                None => LinkRecord::Moved(lent.clone()),
            }
        }
        Some(LinkPlan::GiveVf { vf, .. }) => LinkRecord::Given(vf.clone()),
        Some(LinkPlan::Loopback) => LinkRecord::Loopback,
        None => LinkRecord::None,
    })
}

fn name_taken(job: &Job) -> CniError {
    CniError::new(
        Code::AlreadyThere,
        format!(
            "network {:?}: an interface {:?} is already in the pod's namespace",
            job.key.network, job.key.ifname
        ),
    )
    .with("DEL the attachment that has it, or give this one another name")
}
