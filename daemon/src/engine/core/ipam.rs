//! Where an attachment's addresses come from: host-local and static in here, any other IPAM plugin executed. The one place that
//! tells IPAMs apart.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_cni::config::{AttachmentRef, HostLocal as HostLocalConfig, NetConf, StaticIpam};
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, CniResult, Code};
use fairlead_host::time_limit::within;
use fairlead_ipam::{
    HostLocal, IpamError, Lease, LeaseRequest, NetworkDir, Owner, PendingRemovals, static_ipam,
};

use super::Core;
use super::status::not_available;
use crate::call::Waiting;
use crate::delegate::{DelegateCall, DelegateError, Delegates, Parameters, says_it_has_no_check};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::call_settings::CurrentCallSettings;
use crate::engine::conf_cache::ConfCache;
use crate::engine::kinds::{Addressing, takes_addresses};
use crate::own_executable::is_file_of_ours;
use crate::policy::{Refusal, data_dir_root};
use crate::store::{Attachment, IpamRecord};

/// STATUS waits so long for a directory that may hang: its caller gives the daemon 100 ms.
pub(super) const STATUS_LIMIT: Duration = Duration::from_millis(50);

/// The IPAM that a configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IpamKind<'c> {
    /// No addresses: the interface is layer 2 only.
    None,
    HostLocal,
    Static,
    /// Another program, by its type.
    Delegate(&'c str),
}

impl IpamKind<'_> {
    fn of(conf: &NetConf) -> IpamKind<'_> {
        match conf.ipam_type.as_deref() {
            None => IpamKind::None,
            Some("host-local") => IpamKind::HostLocal,
            Some("static") => IpamKind::Static,
            Some(plugin) => IpamKind::Delegate(plugin),
        }
    }
}

/// Whether the addresses of a configuration come from a program that is executed: such a call belongs on the slow lane.
pub(crate) fn executes_ipam(conf: &NetConf) -> bool {
    matches!(IpamKind::of(conf), IpamKind::Delegate(_))
}

/// Why no address was had.
pub(super) struct NotAllocated {
    pub(super) error: CniError,
    /// The program that would give it could not even be started, or the directory not be opened: there is nothing to give back.
    pub(super) nothing_taken: bool,
}

impl From<CniError> for NotAllocated {
    fn from(error: CniError) -> NotAllocated {
        NotAllocated { error, nothing_taken: false }
    }
}

/// The address plugins, built in and executed.
pub(crate) struct Ipam {
    pub(crate) host_local: Arc<HostLocal>,
    pub(crate) delegates: Delegates,
    pub(crate) confs: ConfCache,
    pub(crate) call_settings: Arc<CurrentCallSettings>,
}

impl Ipam {
    /// What is put on record about the addresses before the first is taken. Code 7 where the network must have an IPAM and has
    /// none.
    pub(super) fn record(
        &self,
        request: &AttachmentRequest<'_>,
        addressing: Addressing,
    ) -> Result<IpamRecord, CniError> {
        let chained = request.conf.prev_result.as_ref().is_some_and(|prev| !prev.ips.is_empty());
        let required = match addressing {
            Addressing::Never => return Ok(IpamRecord::None),
            Addressing::Required => true,
            Addressing::RequiredUnlessChained => !chained,
            Addressing::Optional => false,
        };
        Ok(match IpamKind::of(&request.conf) {
            IpamKind::None if required => return Err(ipam_missing(request)),
            IpamKind::None => IpamRecord::None,
            IpamKind::HostLocal => {
                let data_dir = data_dir(&request.conf)?;
                let root = self.data_dir_root(request, &data_dir)?;
                let network = request.address_directory().into_owned();
                let directory = NetworkDir { data_dir, network, root };
                directory.must_be_possible()?;
                let NetworkDir { data_dir, root, .. } = directory;
                IpamRecord::HostLocal { data_dir, root }
            }
            IpamKind::Static => IpamRecord::Static,
            IpamKind::Delegate(plugin) => {
                // One that is not there has made nothing that a record would have to remember.
                let found = self.delegates.find(plugin, request.sandbox.path);
                found.map_err(|e| e.to_cni_error(Command::Add))?;
                IpamRecord::Delegate { plugin: plugin.to_owned() }
            }
        })
    }

    /// Takes the addresses that are on record to be taken. `reserved`: those that host-local does not choose.
    pub(super) fn allocate(
        &self,
        request: &AttachmentRequest<'_>,
        addressing: Addressing,
        attachment: &Attachment,
        reserved: &[IpAddr],
        pending: &dyn PendingRemovals,
    ) -> Result<CniResult, NotAllocated> {
        let result = match &attachment.ipam {
            IpamRecord::None => {
                // In a chain it takes over what the plugin before it was given.
                let takes_over = addressing == Addressing::RequiredUnlessChained;
                return Ok(request.conf.prev_result.clone().filter(|_| takes_over).unwrap_or_default());
            }
            IpamRecord::HostLocal { data_dir, root } => {
                let config = HostLocalConfig::parse(&request.conf, request.args)?;
                config.must_be_possible()?;
                let lease = LeaseRequest {
                    directory: &recorded_dir(attachment, data_dir, root.as_deref()),
                    container_id: &request.key.container,
                    ifname: &request.key.ifname,
                    reserved,
                };
                let in_time = InTime { waiting: &request.waiting, pending };
                result_of(
                    self.host_local
                        .allocate(&config, &lease, &in_time)
                        .map_err(|e| NotAllocated { nothing_taken: e.gives_nothing(), error: e.into() })?,
                )
            }
            IpamRecord::Static => {
                result_of(static_ipam::allocate(&StaticIpam::parse(&request.conf, request.args)?))
            }
            IpamRecord::Delegate { plugin } => {
                let answer = self.execute(request, plugin, &request.conf.raw, Command::Add).map_err(|e| {
                    NotAllocated {
                        nothing_taken: e.never_ran(),
                        error: e.to_cni_error(Command::Add).of_network(&request.key.network),
                    }
                })?;
                answer.unwrap_or_default()
            }
        };
        // The reference plugins refuse an IPAM without an address, too.
        if result.ips.is_empty() {
            let msg = format!("network {:?}: its IPAM gave no address", request.key.network);
            let error = CniError::new(Code::InvalidConfig, msg);
            return Err(error.with("an IPAM has to give at least one address").into());
        }
        Ok(result)
    }

    /// CHECK of the addresses.
    pub(super) fn check(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        match IpamKind::of(&request.conf) {
            IpamKind::None => Ok(()),
            IpamKind::HostLocal => {
                let key = request.key;
                let directory = self.used_dir(request)?.ok_or_else(|| IpamError::Unallocated {
                    network: request.address_directory().into_owned(),
                    container_id: key.container.clone(),
                })?;
                Ok(self.host_local.check(&directory, &key.container, &key.ifname)?)
            }
            IpamKind::Static => {
                let config = StaticIpam::parse(&request.conf, request.args)?;
                let prev = request.conf.prev_result.clone().unwrap_or_default();
                Ok(static_ipam::check(&config, &prev, &request.key.ifname)?)
            }
            IpamKind::Delegate(plugin) => match self.delegate(request, plugin, Command::Check) {
                // What the pod has is compared with the result all the same.
                Err(error) if says_it_has_no_check(&error) => {
                    tracing::debug!(plugin, %error, "an IPAM plugin has no CHECK");
                    Ok(())
                }
                checked => checked.map(drop),
            },
        }
    }

    /// Gives back the addresses of an attachment whose link is gone.
    pub(super) fn release(&self, attachment: &Attachment) -> Result<(), CniError> {
        release(&self.host_local, attachment)
    }

    /// The same for who must not wait for a directory that hangs: `None` when it has not answered in `limit`.
    pub(super) fn release_within(
        &self,
        limit: Duration,
        attachment: &Attachment,
    ) -> io::Result<Option<Result<(), CniError>>> {
        let (host_local, attachment) = (Arc::clone(&self.host_local), attachment.clone());
        within("release-files", limit, move || release(&host_local, &attachment))
    }

    /// K10: gives back what this container's interface has in the network, whoever took it.
    pub(super) fn del_unrecorded(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        if !takes_addresses(&request.key.plugin) {
            return Ok(());
        }
        match IpamKind::of(&request.conf) {
            IpamKind::None | IpamKind::Static => Ok(()),
            IpamKind::HostLocal => {
                let Some(directory) = self.used_dir(request)? else { return Ok(()) };
                self.host_local.release(&directory, &request.key.container, &request.key.ifname)?;
                Ok(())
            }
            IpamKind::Delegate(plugin) => self.delegate(request, plugin, Command::Del).map(drop),
        }
    }

    /// GC: allocations in host-local's directory that `keep` does not claim, and the GC of an IPAM plugin that is executed.
    pub(super) fn gc(&self, request: &AttachmentRequest<'_>, keep: &dyn Fn(&Owner) -> bool) -> Vec<CniError> {
        match IpamKind::of(&request.conf) {
            IpamKind::None | IpamKind::Static => Vec::new(),
            IpamKind::HostLocal => {
                let readable = HostLocalConfig::parse(&request.conf, request.args).is_ok();
                let Some(directory) = self.used_dir(request).ok().flatten().filter(|_| readable) else {
                    return Vec::new();
                };
                let removed = self.host_local.gc(&directory, keep);
                removed.errors.into_iter().map(Into::into).collect()
            }
            IpamKind::Delegate(_) => Vec::new(),
        }
    }

    /// GC of the IPAM plugin that is executed, where the network has one; `valid`: what it keeps.
    pub(super) fn gc_executed(
        &self,
        request: &AttachmentRequest<'_>,
        valid: &[AttachmentRef],
    ) -> Result<(), CniError> {
        let IpamKind::Delegate(plugin) = IpamKind::of(&request.conf) else { return Ok(()) };
        let config = request.conf.gc_config(valid)?;
        let done = self.execute(request, plugin, &config, Command::Gc);
        done.map(drop).map_err(|e| e.to_cni_error(Command::Gc).of_network(&request.key.network))
    }

    /// STATUS of the IPAM. How full host-local's ranges are is not looked at.
    pub(super) fn status(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        match IpamKind::of(&request.conf) {
            IpamKind::None => Ok(()),
            IpamKind::HostLocal => self.host_local_status(request),
            IpamKind::Static => StaticIpam::parse(&request.conf, request.args).map(drop),
            // Whatever its reason is: without addresses no ADD can succeed.
            IpamKind::Delegate(plugin) => self
                .delegate(request, plugin, Command::Status)
                .map(drop)
                .map_err(|e| CniError { code: Code::NotAvailable, ..e }),
        }
    }

    /// host-local: its configuration, and whether its files can be made. Its directory may hang, and STATUS has one thread for
    /// all networks: so another one looks.
    fn host_local_status(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        let config = HostLocalConfig::parse(&request.conf, request.args)?;
        let (data_dir, network) = (config.data_dir, request.address_directory().into_owned());
        let path = Path::new(&data_dir).join(&network);
        let root = self.data_dir_root(request, &data_dir)?;
        let (host_local, directory) = (Arc::clone(&self.host_local), NetworkDir { data_dir, network, root });
        let looked = within("status-files", STATUS_LIMIT, move || host_local.writable(&directory));
        let hangs = || Err(io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer"));
        looked.and_then(|done| done.unwrap_or_else(hangs)).map_err(|error| {
            let what = format!("host-local's directory {} can't be written: {error}", path.display());
            not_available(request, what)
                .with("make it a directory on a file system that can be written and has space, or correct `dataDir`")
        })
    }

    /// The root of the policy below which the directory of a tenant's definition has to lie; `None` for the administrator's.
    fn data_dir_root(
        &self,
        request: &AttachmentRequest<'_>,
        data_dir: &str,
    ) -> Result<Option<String>, CniError> {
        let Some(namespace) = request.namespace else { return Ok(None) };
        let call_settings = self.call_settings.get();
        // What cannot be read is not taken for a policy that allows everything.
        let policy = call_settings
            .policy
            .as_deref()
            .ok_or_else(|| Refusal::PolicyUnknown { namespace: namespace.to_string() })?;
        let root = data_dir_root(policy, namespace, "ipam.dataDir", data_dir)?;
        Ok(Some(root.to_string_lossy().into_owned()))
    }

    /// The directory of a request that takes no address. A tenant's is where one was taken, by the root of then: `None` where
    /// none ever was.
    fn used_dir(&self, request: &AttachmentRequest<'_>) -> Result<Option<NetworkDir>, CniError> {
        let (data_dir, network) = (data_dir(&request.conf)?, request.address_directory());
        Ok(match request.namespace {
            Some(_) => self.host_local.place(&data_dir, &network),
            None => Some(NetworkDir::of_administrator(&data_dir, &network)),
        })
    }

    /// Calls the IPAM plugin of a configuration.
    fn delegate(
        &self,
        request: &AttachmentRequest<'_>,
        plugin: &str,
        command: Command,
    ) -> Result<Option<CniResult>, CniError> {
        let done = self.execute(request, plugin, &request.conf.raw, command);
        done.map_err(|e| e.to_cni_error(command).of_network(&request.key.network))
    }

    fn execute(
        &self,
        request: &AttachmentRequest<'_>,
        plugin: &str,
        config: &str,
        command: Command,
    ) -> Result<Option<CniResult>, DelegateError> {
        // A removal goes on when its caller has gone, so neither the deadline nor a hang-up ends the plugin.
        let goes_on = matches!(command, Command::Del | Command::Gc);
        let patience = match goes_on {
            true => Duration::MAX,
            false => request.waiting.deadline.saturating_duration_since(Instant::now()),
        };
        let call = DelegateCall {
            command,
            plugin,
            config,
            parameters: request.parameters(),
            time_limit: self.call_settings.get().delegate_timeout,
            patience,
            cancelled: &|| !goes_on && request.waiting.gone.get(),
            is_ours: is_file_of_ours,
        };
        self.delegates.ipam(&call, request.conf.version)
    }

    /// DEL of the IPAM plugin that was executed for an attachment, from its record alone.
    pub(super) fn delegate_del(&self, attachment: &Attachment, netns: &str) -> Result<(), CniError> {
        let IpamRecord::Delegate { plugin } = &attachment.ipam else { return Ok(()) };
        // Leniently: only the version is needed, and a prevResult that cannot be read must not stop a removal.
        let conf = self.confs.get(&attachment.config, true)?;
        let call = DelegateCall {
            command: Command::Del,
            plugin,
            config: &attachment.config,
            parameters: parameters(attachment, netns),
            time_limit: self.call_settings.get().delegate_timeout,
            patience: Duration::MAX,
            cancelled: &|| false,
            is_ours: is_file_of_ours,
        };
        let done = self.delegates.ipam(&call, conf.version);
        done.map(drop).map_err(|e| e.to_cni_error(Command::Del).of_network(&attachment.key.network))
    }

    /// A plugin that outlived a killed daemon may still work for the same attachment.
    pub(super) fn wait_for_earlier_delegates(&self) {
        self.delegates.wait_for_earlier(self.call_settings.get().delegate_timeout);
    }
}

/// Removals that are hurried for as long as a caller waits.
struct InTime<'a> {
    waiting: &'a Waiting,
    pending: &'a dyn PendingRemovals,
}

impl PendingRemovals for InTime<'_> {
    fn hurry(&self, directory: &NetworkDir, wanted: Option<IpAddr>) -> bool {
        let is_late = Instant::now() >= self.waiting.deadline || self.waiting.gone.get();
        !is_late && self.pending.hurry(directory, wanted)
    }
}

impl PendingRemovals for Core {
    fn hurry(&self, directory: &NetworkDir, wanted: Option<IpAddr>) -> bool {
        self.finish_pending(|a| {
            wanted.is_none_or(|ip| a.addresses.iter().any(|held| held.addr() == ip))
                && a.address_directory() == directory.network
                && matches!(&a.ipam, IpamRecord::HostLocal { data_dir, .. } if *data_dir == directory.data_dir)
        })
    }
}

/// What a plugin gets of an attachment whose caller is long gone.
pub(crate) fn parameters<'a>(attachment: &'a Attachment, netns: &'a str) -> Parameters<'a> {
    Parameters {
        container_id: &attachment.key.container,
        netns,
        ifname: &attachment.key.ifname,
        args: &attachment.caller.args,
        path: &attachment.caller.path,
        env: &attachment.caller.env,
        of_tenant: attachment.namespace.is_some(),
    }
}

fn ipam_missing(request: &AttachmentRequest<'_>) -> CniError {
    let msg = format!(
        "network {:?}: {} needs an \"ipam\" with a \"type\"",
        request.key.network, request.key.plugin
    );
    CniError::new(Code::InvalidConfig, msg)
        .with("host-local and static are built in; any other is executed from CNI_PATH")
}

fn release(host_local: &HostLocal, attachment: &Attachment) -> Result<(), CniError> {
    match &attachment.ipam {
        IpamRecord::HostLocal { data_dir, root } => {
            let directory = recorded_dir(attachment, data_dir, root.as_deref());
            Ok(give_back(host_local, &directory, attachment)?)
        }
        // Nothing was taken, or the plugin has had its DEL with those that are executed.
        IpamRecord::Static | IpamRecord::Delegate { .. } | IpamRecord::None => Ok(()),
    }
}

/// The directory that an attachment has its addresses of.
fn recorded_dir(attachment: &Attachment, data_dir: &str, root: Option<&str>) -> NetworkDir {
    NetworkDir {
        data_dir: data_dir.to_owned(),
        network: attachment.address_directory().into_owned(),
        root: root.map(str::to_owned),
    }
}

/// Gives back what an attachment has of host-local.
fn give_back(
    host_local: &HostLocal,
    directory: &NetworkDir,
    attachment: &Attachment,
) -> Result<(), IpamError> {
    let key = &attachment.key;
    // The addresses are on record from the commit on. Before it, all that this interface has in the network is this ADD's.
    let released = if attachment.addresses.is_empty() {
        host_local.release(directory, &key.container, &key.ifname)
    } else {
        let ips: Vec<_> = attachment.addresses.iter().map(ipnet::IpNet::addr).collect();
        host_local.release_ips(directory, &key.container, &key.ifname, &ips)
    };
    released.map(drop)
}

/// `dataDir`, whatever else the `ipam` says: a removal must not fail for a range that is wrong by now.
fn data_dir(conf: &NetConf) -> Result<String, CniError> {
    let fields = conf.fields()?;
    let ipam = fields.object("ipam")?;
    let given = ipam.map(|ipam| ipam.text("dataDir")).transpose()?.flatten();
    Ok(given.filter(|dir| !dir.is_empty()).unwrap_or_else(|| DEFAULT_DATA_DIR.to_owned()))
}

fn result_of(lease: Lease) -> CniResult {
    CniResult { ips: lease.ips, routes: lease.routes, dns: lease.dns, ..CniResult::default() }
}
