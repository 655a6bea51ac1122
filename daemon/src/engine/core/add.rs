//! ADD: plan, put the intent on record, make the link, give it addresses, commit, answer.
//!
//! The commit is the point of no return. Whatever fails before it, and a caller that has gone before it, is undone by
//! the same removal that a DEL is, from the same record.

use std::net::IpAddr;
use std::sync::Arc;

use fairlead_cni::result::{Dns, Interface};
use fairlead_cni::{CniError, CniResult, Code};
use fairlead_host::announce::Announcement;
use fairlead_host::{Net, NetError, failpoint};
use fairlead_kube::PodRef;
use ipnet::IpNet;

use super::{Answer, Core, PodNet, executes_ipam};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::enter_pod_netns;
use crate::engine::errors;
use crate::engine::kinds::{Addressing, Applied, ApplyError, Network, NotAttached, Plan, Reservation};
use crate::engine::netdev;
use crate::engine::netdev::setup::{self, Dad};
use crate::store::{Attachment, Commit, IpamRecord, Key, LinkRecord, Namespace, Phase};

impl Core {
    /// ADD to a network that has been validated; returns the answer.
    pub(crate) fn add(
        &self,
        request: &mut AttachmentRequest<'_>,
        network: &Network,
    ) -> Result<String, NotAttached> {
        let _lock = self.lock_container(request)?;
        // Before the look for a record: a removal that is under way would be taken for an attachment that exists.
        self.finish_older(request)?;
        // Before the reservation: a repeated ADD would find its own VF taken.
        if let Some(before) = self.store.find(request.key) {
            return Ok(self.repeat(request, &request.conf.raw, &before, &*self.enter(request)?)?);
        }
        if network.waits_for_others() {
            request.leave_pod();
        }
        let (network, reservation) = network.reserve(&self.kinds, self, request)?;
        // A plugin of a list is on record by the list.
        let is_of_list = request.nested && request.made_with.is_none();
        let Key { network: name, .. } = request.key;
        let collected_as = (!is_of_list && executes_ipam(&request.conf)).then_some(&**name);
        if let Some(name) = collected_as.filter(|name| self.collections.is_running(name)) {
            request.leave_pod();
            self.collections.wait(name, request.waiting.deadline)?;
        }
        // After what can wait for seconds: an entered namespace cannot die.
        let mut pod = self.enter(request)?;
        request.timing.end("namespace");
        let (plan, attachment) = self.intend(request, &network, &reservation, &mut *pod)?;
        let attachment = self.put_intent_on_record(request, attachment, collected_as)?;
        reservation.keep(); // on record, it is nobody else's
        // On the disk before a plugin is executed: what plugins hold outlives the boot, the journal does not.
        let kept = self.records.keep(&attachment);
        let done = kept.and_then(|()| self.apply(request, &network, &plan, &attachment, &mut *pod));
        let committed = done.and_then(|(result, applied)| {
            self.commit(request, &attachment, &result, Vec::new()).map(|answer| (answer, result, applied))
        });
        if committed.is_ok() {
            pod.close_when_answered();
        }
        // Nothing of the namespace is held while the link is taken down.
        drop(pod);
        match committed {
            Ok((answer, result, applied)) => {
                failpoint::pass("add.committed");
                self.announce(request, &network, &attachment, &result, &applied);
                Ok(answer)
            }
            Err(error) => {
                // The undo enters the namespace by itself.
                request.leave_pod();
                // Giving back what was never taken would fail for ever, as the ADD did.
                let none = || Attachment { ipam: IpamRecord::None, ..Attachment::clone(&attachment) };
                match request.no_address_taken {
                    true => self.undo(&none(), &error),
                    false => self.undo(&attachment, &error),
                }
                Err(NotAttached::Failed(error))
            }
        }
    }

    /// Puts an attachment on record, before anything of it is made, and begins the file that describes its device. `collected_as`: the
    /// network whose GC asks plugins of this one, too, and is waited for while it does.
    pub(crate) fn put_intent_on_record(
        &self,
        request: &mut AttachmentRequest<'_>,
        attachment: Attachment,
        collected_as: Option<&str>,
    ) -> Result<Arc<Attachment>, CniError> {
        let begin = || self.store.begin(attachment).map_err(|e| errors::store(&e));
        let attachment = match collected_as {
            Some(network) => self.collections.begin(network, request.waiting.deadline, begin)??,
            None => begin()?,
        };
        if let Some(told) = request.device_plugin_file.filter(|_| attachment.device_info.is_some()) {
            self.kinds.device_info.begin(&attachment, told);
        }
        request.timing.end("intent");
        failpoint::pass("add.begun");
        Ok(attachment)
    }

    /// The pod's namespace, if it is what the caller meant.
    pub(crate) fn enter<'a>(&'a self, request: &AttachmentRequest<'a>) -> Result<PodNet<'a>, CniError> {
        match request.visit {
            // It is of the same call, which has looked whether that is what the caller meant.
            Some(visit) => visit.view(),
            None => Ok(PodNet::Own(enter_pod_netns::enter(self.kernel(), &self.host_id, request)?)),
        }
    }

    /// A second ADD: the stored answer if the first one's may not have arrived and this is the same call. `config`: its configuration as
    /// it would go on record.
    pub(crate) fn repeat(
        &self,
        request: &AttachmentRequest<'_>,
        config: &str,
        before: &Attachment,
        pod: &dyn Net,
    ) -> Result<String, CniError> {
        let same =
            before.netns.id.same(pod.id()) && *before.config == *config && before.phase == Phase::Attached;
        // The specification wants an error for a second ADD. Only an answer that may have been lost is given again.
        match &before.answer {
            Some(answer) if same && !self.store.is_delivered(before) => Ok(answer.clone()),
            _ => Err(CniError::new(
                Code::AlreadyThere,
                format!(
                    "network {:?}: container {} already has interface {:?}",
                    request.key.network, request.key.container, request.key.ifname
                ),
            )
            .with("an attachment is added once; DEL it first")),
        }
    }

    /// The removal of this very interface of this container, should it still be under way. The caller has the container.
    pub(crate) fn finish_older(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        let key = request.key;
        self.must_not_be_newer(request)?;
        if let Some(before) = self.store.find(key).filter(|a| a.phase == Phase::Removing) {
            request.leave_pod();
            self.remove(&before, Answer::WhenGone).map_err(|e| CniError {
                code: Code::TryAgain,
                msg: format!("what an earlier attachment of this name left is not removed yet: {}", e.msg),
                details: e.details,
            })?;
        }
        // A silenced link still has its addresses, and host-local gives an interface no second ones. It may also have the VF.
        let of_this = |a: &Attachment| {
            a.key.container == key.container && a.key.network == key.network && a.key.ifname == key.ifname
        };
        if self.store.silenced().iter().any(|a| of_this(a)) {
            request.leave_pod();
            self.finish_pending(of_this);
        }
        Ok(())
    }

    /// Looks at the host and makes the plan and the record of it.
    fn intend(
        &self,
        request: &mut AttachmentRequest<'_>,
        network: &Network,
        reservation: &Reservation<'_>,
        pod: &mut dyn Net,
    ) -> Result<(Plan, Attachment), CniError> {
        let netns = self.namespace(request, pod)?;
        let id = self.store.next_id();
        let plan = network.plan(&self.kinds, request, reservation, pod)?;
        let mut attachment = Attachment {
            ipam: self.ipam.record(request, network.addressing())?,
            passed_over: request.passed_over.clone(),
            device_info: network.device_info().or(request.device_info()).map(str::to_owned),
            locality: reservation.locality().cloned(),
            taken_device: reservation.taken_device(),
            namespace: request.namespace.cloned(),
            pod: PodRef::of_args(request.args),
            made_with: request.made_with,
            default_gateways: request.default_gateways.to_vec(),
            parked: matches!(plan.record, LinkRecord::Moved(_)).then(|| self.kinds.ids.parked_name()),
            ..Attachment::new(id, request.key.clone(), netns, plan.record.clone(), request.conf.raw.clone())
        };
        // A later DEL executes the plugins from the record, when this caller and its environment are gone.
        if attachment.has_delegates() {
            attachment.caller = request.caller();
        }
        request.timing.end("plan");
        Ok((plan, attachment))
    }

    /// What goes on record of the pod's namespace.
    pub(crate) fn namespace(
        &self,
        request: &AttachmentRequest<'_>,
        pod: &mut dyn Net,
    ) -> Result<Namespace, CniError> {
        let told = |e| errors::kernel(&request.key.network, "looking at the pod's namespace", &e);
        let nsid = pod.nsid().map_err(told)?;
        Ok(Namespace { path: request.sandbox.netns.to_owned(), id: pod.id().clone(), nsid })
    }

    /// Carries the plan out, step by step.
    fn apply(
        &self,
        request: &mut AttachmentRequest<'_>,
        network: &Network,
        plan: &Plan,
        attachment: &Arc<Attachment>,
        pod: &mut dyn Net,
    ) -> Result<(CniResult, Applied), CniError> {
        // Addresses before the link: when none is free, nothing was changed in the pod. A program is asked when the link is there, as the
        // reference plugins do it: `dhcp` asks the network for them by that very link.
        let asked_by_link = matches!(attachment.ipam, IpamRecord::Delegate { .. });
        let mut result = CniResult::default();
        if !asked_by_link {
            result = self.allocate(request, network, attachment)?;
        }
        let mut applied = self.link(request, network, plan, attachment, pod)?;
        if let Some(whole) = applied.result.take() {
            return Ok((whole, applied));
        }
        request.timing.end("link");
        failpoint::pass("add.linked");
        if asked_by_link {
            result = self.allocate(request, network, attachment)?;
        }
        describe(request, &applied, &mut result);
        if let Some(index) = applied.netdev {
            let notifies = network.notifies(!result.ips.is_empty());
            let dad = self.call_settings().dad;
            let setup = setup::setup(&result, index, &request.key.ifname, notifies, dad);
            netdev::configure(pod, &setup, index)
                .map_err(|e| errors::configuring(&request.key.network, &request.key.ifname, &e))?;
        }
        if !network.answers_dns_of_ipam() || result.dns == Dns::default() {
            result.dns = request.conf.dns.clone();
        }
        self.kinds.tell_pod(attachment, &result)?;
        request.timing.end("configure");
        failpoint::pass("add.configured");
        Ok((result, applied))
    }

    /// The addresses that the network gives the interface; none where its type takes none.
    fn allocate(
        &self,
        request: &mut AttachmentRequest<'_>,
        network: &Network,
        attachment: &Attachment,
    ) -> Result<CniResult, CniError> {
        if network.addressing() == Addressing::Never {
            return Ok(CniResult::default());
        }
        let nodes = self.nodes_addresses(request, attachment)?;
        let reserved: Vec<IpAddr> = nodes.iter().map(|address| address.net.addr()).collect();
        let given = self.ipam.allocate(request, network.addressing(), attachment, &reserved, self);
        let mut result = given.map_err(|refused| {
            request.no_address_taken = refused.nothing_taken;
            refused.error
        })?;
        if request.no_default_route {
            result.routes.retain(|route| !setup::is_pods_default(route));
        }
        must_be_possible(attachment, &result)?;
        self.must_be_none_of_the_nodes(request, &nodes, &result)?;
        request.timing.end("ipam");
        failpoint::pass("add.allocated");
        Ok(result)
    }

    /// The interface, by its kind: made, or moved into the pod.
    fn link(
        &self,
        request: &AttachmentRequest<'_>,
        network: &Network,
        plan: &Plan,
        attachment: &Attachment,
        pod: &mut dyn Net,
    ) -> Result<Applied, CniError> {
        let refused = |error: &NetError| {
            let doing = format!("making {:?}{}", request.key.ifname, network.of_device());
            errors::kernel(&request.key.network, &doing, error)
        };
        self.kinds.apply(self, request, &plan.work, attachment, pod).map_err(|e| match e {
            ApplyError::Cni(error) => error,
            ApplyError::Kernel(error) => refused(&error),
            ApplyError::Explained(error, why) => refused(&error).with(why),
        })
    }

    /// Puts the answer on record, after what belongs to the same ADD: from here on a restart never undoes the attachment.
    pub(crate) fn commit(
        &self,
        request: &mut AttachmentRequest<'_>,
        attachment: &Attachment,
        result: &CniResult,
        mut commits: Vec<Commit>,
    ) -> Result<String, CniError> {
        // Written before the commit: a result that this version cannot express must still be undone.
        let answer = result.to_json(request.conf.version)?;
        // The last moment at which the ADD can be undone. A caller that is gone gets no answer, and may send no DEL.
        if request.waiting.gone.get() {
            return Err(CniError::new(Code::TryAgain, "the caller went away before the interface was ready"));
        }
        let addresses: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        let own = Commit { id: attachment.id, addresses, answer: answer.clone() };
        match request.visit {
            Some(visit) => visit.commit_later(own),
            None => {
                commits.push(own);
                self.store.commit(commits).map_err(|e| errors::store(&e))?;
            }
        }
        request.timing.end("commit");
        Ok(answer)
    }

    /// Tells the neighbours what was put off until all of a pod was on record.
    pub(crate) fn announce_all(&self, announcements: Vec<Announcement>) {
        if let Some(announcer) = &self.kinds.announcer {
            announcements.into_iter().for_each(|one| announcer.announce(one));
        }
    }

    /// Tells the neighbours, and asks whether one of them has the address already; off the answer's path.
    fn announce(
        &self,
        request: &AttachmentRequest<'_>,
        network: &Network,
        attachment: &Attachment,
        result: &CniResult,
        applied: &Applied,
    ) {
        let (Some(announcer), Some(_), Some(index)) = (&self.kinds.announcer, applied.mac, applied.netdev)
        else {
            return;
        };
        let addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
        if addresses.is_empty() {
            return;
        }
        let announcement = Announcement {
            netns: request.netns().to_owned(),
            netns_id: attachment.netns.id.clone(),
            ifindex: index,
            addresses,
            probe: self.call_settings().dad == Dad::Fast,
            awaits_carrier: applied.awaits_carrier,
            ndisc_notify: (network.notifies(true) && setup::ndisc_notify_may_wait(result))
                .then(|| request.key.ifname.clone()),
            label: format!("{}/{}", request.key.container, request.key.ifname),
        };
        match request.visit {
            Some(visit) => visit.announce_later(announcement),
            None => announcer.announce(announcement),
        }
    }
}

/// Refuses addresses and routes that the kernel would refuse. Those of a device in user space are its process's, which may use them as it
/// likes.
fn must_be_possible(attachment: &Attachment, result: &CniResult) -> Result<(), CniError> {
    let mtu = match &attachment.link {
        LinkRecord::Made { mtu, .. } => *mtu,
        LinkRecord::Moved(_) => None,
        LinkRecord::Vfio(_)
        | LinkRecord::VhostUser(_)
        | LinkRecord::Loopback
        | LinkRecord::Conflist { .. }
        | LinkRecord::None => return Ok(()),
    };
    mtu.map_or(Ok(()), |mtu| result.must_have_room_for_ipv6(mtu))?;
    result.must_be_possible().map_err(|error| match &attachment.ipam {
        IpamRecord::Delegate { plugin } => {
            let msg = format!("plugin {plugin:?}, ADD: its answer cannot be carried out: {}", error.msg);
            CniError::new(Code::PluginFailed, msg).with(format!(
                "mend the plugin, or correct its part of the network's configuration: {}",
                error.details
            ))
        }
        IpamRecord::HostLocal { .. } | IpamRecord::Static | IpamRecord::None => error,
    })
}

/// Adds the interface to the answer.
fn describe(request: &AttachmentRequest<'_>, applied: &Applied, result: &mut CniResult) {
    for ip in &mut result.ips {
        // An IPAM does not know the interfaces. The index points into the list below, which has one.
        ip.interface = Some(0);
    }
    result.interfaces = vec![Interface {
        name: request.key.ifname.clone(),
        mac: applied.mac.map(|m| m.to_string()).unwrap_or_default(),
        sandbox: request.sandbox.netns.to_owned(),
        mtu: applied.mtu,
        pci_id: applied.pci_id.clone(),
        socket_path: applied.socket_path.clone(),
    }];
}
