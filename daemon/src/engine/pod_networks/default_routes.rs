//! Which of a pod's interfaces has its default route: the default network's, unless the pod asks for another one (K23, M14).

use std::net::IpAddr;

use fairlead_cni::{CniError, CniResult, Code};
use fairlead_host::{Net, NetError, Op, Route};
use fairlead_kube::npwg::NetworkSelection;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::AskedNetwork;
use super::network_status_report::default_by as told_default_by;
use crate::engine::Engine;
use crate::engine::cluster_network::FirstNetwork;
use crate::engine::core::{PodNet, enter_again};
use crate::engine::errors;
use crate::engine::netdev::setup::{is_main, is_pods_default};
use crate::store::Attachment;

/// The default routes of a pod while its networks are attached.
pub(super) struct DefaultRoutes<'a> {
    engine: &'a Engine,
    first: &'a FirstNetwork<'a>,
    /// What the default network had and others have asked for.
    taken: Vec<Route>,
}

impl<'a> DefaultRoutes<'a> {
    /// As long as nothing else is attached, the default network has them.
    pub(super) fn new(engine: &'a Engine, first: &'a FirstNetwork<'a>) -> DefaultRoutes<'a> {
        DefaultRoutes { engine, first, taken: Vec::new() }
    }

    /// The default network that the pod has chosen leads its default routes by the gateways that the pod names for it. Its result tells
    /// them.
    pub(super) fn of_default_network(
        &self,
        selection: &NetworkSelection,
        result: &mut CniResult,
    ) -> Result<(), CniError> {
        // Without gateways the network's own configuration says.
        let gateways = selection.default_route.as_deref().unwrap_or_default();
        if gateways.is_empty() {
            return Ok(());
        }
        let named = |v6: bool| gateways.iter().any(|gateway| gateway.is_ipv6() == v6);
        let ifname = &self.first.attachment.key.ifname;
        self.in_pod(|pod| {
            let Some(link) = pod.link_by_name(ifname)? else { return Ok(()) };
            let mut own = defaults_by(pod, ifname)?;
            own.retain(|route| named(route.dst.addr().is_ipv6()));
            let by_gateways = gateways.iter().map(|gateway| Op::AddRoute(default_by(*gateway, link.index)));
            pod.batch(&own.into_iter().map(Op::DeleteRoute).chain(by_gateways).collect::<Vec<_>>())
        })
        .map_err(|error| by_gateway(error, gateways))?;
        result.routes.retain(|route| !is_pods_default(route) || !named(route.dst.addr().is_ipv6()));
        result.routes.extend(gateways.iter().map(|gateway| told_default_by(*gateway)));
        Ok(())
    }

    /// Before a network is attached that is to have the default route: the kernel takes no second one. Returns what it takes from the
    /// default network.
    pub(super) fn make_way(&self, asked: &AskedNetwork) -> Result<Vec<Route>, CniError> {
        let Some(gateways) = &asked.selection.default_route else { return Ok(Vec::new()) };
        // Without gateways the network's own configuration says, in which families.
        let wanted = |v6: bool| gateways.is_empty() || gateways.iter().any(|gateway| gateway.is_ipv6() == v6);
        self.in_pod(|pod| {
            let mut of_first = defaults_by(pod, &self.first.attachment.key.ifname)?;
            of_first.retain(|route| wanted(route.dst.addr().is_ipv6()));
            pod.batch(&of_first.iter().cloned().map(Op::DeleteRoute).collect::<Vec<_>>())?;
            Ok(of_first)
        })
    }

    /// After a network was attached, which took these from the default one: it has the default routes that it is to have, and no
    /// others.
    pub(super) fn settle(
        &mut self,
        asked: &AskedNetwork,
        attached: &CniResult,
        taken: Vec<Route>,
    ) -> Result<(), CniError> {
        let ifname = &asked.interface;
        let has = |v6: bool| {
            attached.routes.iter().any(|route| is_pods_default(route) && route.dst.addr().is_ipv6() == v6)
        };
        match &asked.selection.default_route {
            // Its own ADD has left it none.
            None => Ok(()),
            Some(gateways) if gateways.is_empty() => {
                // What it does not bring stays the default network's.
                let (stays, back): (Vec<Route>, Vec<Route>) =
                    taken.into_iter().partition(|route| has(route.dst.addr().is_ipv6()));
                self.taken.extend(stays);
                self.in_pod(|pod| pod.batch(&back.into_iter().map(Op::AddRoute).collect::<Vec<_>>()))
            }
            Some(gateways) => {
                self.taken.extend(taken);
                self.in_pod(|pod| {
                    let own = defaults_by(pod, ifname)?.into_iter().map(Op::DeleteRoute);
                    let Some(link) = pod.link_by_name(ifname)? else { return Ok(()) };
                    let by_gateways =
                        gateways.iter().map(|gateway| Op::AddRoute(default_by(*gateway, link.index)));
                    pod.batch(&own.chain(by_gateways).collect::<Vec<_>>())
                })
                .map_err(|error| by_gateway(error, gateways))
            }
        }
    }

    /// The default network's result, as it is now.
    pub(super) fn leave_out_what_was_taken(&self, result: &mut CniResult) {
        let taken = |v6: bool| self.taken.iter().any(|route| route.dst.addr().is_ipv6() == v6);
        result.routes.retain(|route| !is_pods_default(route) || !taken(route.dst.addr().is_ipv6()));
    }

    fn in_pod<T>(&self, change: impl FnOnce(&mut dyn Net) -> Result<T, NetError>) -> Result<T, CniError> {
        let told = |e: NetError| {
            errors::kernel(&self.first.attachment.key.network, "setting the pod's default route", &e)
        };
        let mut pod = match self.first.visit {
            Some(visit) => visit.view()?,
            None => PodNet::Own(enter_again(self.engine.core.kernel(), &self.first.attachment.netns)?),
        };
        change(&mut *pod).map_err(told)
    }
}

impl Engine {
    /// Before the ADD of a list is committed whose network is not asked to have the pod's default route: what its plugins have set of one
    /// is taken away, in the pod and in the result. By that result CHECK looks later, which would miss what is not there. Built-in
    /// plugins set none.
    pub(in crate::engine) fn without_default_routes(
        &self,
        made: &FirstNetwork<'_>,
        mut result: CniResult,
    ) -> Result<CniResult, CniError> {
        if !result.routes.iter().any(is_pods_default) {
            return Ok(result);
        }
        let ifname = &made.attachment.key.ifname;
        DefaultRoutes::new(self, made).in_pod(|pod| {
            let unasked = defaults_by(pod, ifname)?;
            pod.batch(&unasked.into_iter().map(Op::DeleteRoute).collect::<Vec<_>>())
        })?;
        result.routes.retain(|route| !is_pods_default(route));
        Ok(result)
    }

    /// CHECK: the default routes that the pod asked for are there.
    pub(super) fn check_default_routes(&self, attachment: &Attachment) -> Result<(), CniError> {
        if attachment.default_gateways.is_empty() {
            return Ok(());
        }
        let (network, ifname) = (&attachment.key.network, &attachment.key.ifname);
        let told = |e: NetError| errors::kernel(network, "looking at the pod's default route", &e);
        let mut pod = enter_again(self.core.kernel(), &attachment.netns)?;
        let there = defaults_by(pod.as_mut(), ifname).map_err(told)?;
        let lacks = |gateway: &&IpAddr| there.iter().all(|route| route.gateway != Some(**gateway));
        match attachment.default_gateways.iter().find(lacks) {
            None => Ok(()),
            Some(gateway) => Err(CniError::new(
                Code::Changed,
                format!(
                    "network {network:?}, interface {ifname:?}: the pod's default route by {gateway} is not there"
                ),
            )),
        }
    }
}

/// A gateway that the network does not reach is the pod's mistake, and the kernel names none.
fn by_gateway(error: CniError, gateways: &[IpAddr]) -> CniError {
    if error.code != Code::InvalidConfig {
        return error;
    }
    let named: Vec<String> = gateways.iter().map(IpAddr::to_string).collect();
    let kernel = error.msg.rsplit(": ").next().unwrap_or_default();
    let msg = format!("\"default-route\" of the pod's annotation is [{}]: {kernel}", named.join(", "));
    CniError { msg, details: String::new(), ..error }
        .with("name a gateway of this network's own subnet that is no address of the pod, or [] for the network's own")
}

/// The default routes of the main table that leave by an interface.
fn defaults_by(pod: &mut dyn Net, ifname: &str) -> Result<Vec<Route>, NetError> {
    let Some(link) = pod.link_by_name(ifname)? else { return Ok(Vec::new()) };
    let is_default = |route: &Route| {
        route.index == link.index && route.dst.prefix_len() == 0 && route.table.is_none_or(is_main)
    };
    Ok(pod.routes()?.into_iter().filter(is_default).collect())
}

fn default_by(gateway: IpAddr, index: u32) -> Route {
    Route {
        dst: everywhere(gateway),
        gateway: Some(gateway),
        index,
        source: None,
        table: None,
        scope: Some(0),
        priority: None,
        mtu: None,
        advmss: None,
        protocol: None,
    }
}

/// The destination of a default route by this gateway.
pub(super) fn everywhere(gateway: IpAddr) -> IpNet {
    match gateway {
        IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
    }
}
