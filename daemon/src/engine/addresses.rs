//! Where an attachment's addresses come from: host-local and static in here, any other IPAM plugin executed.

use fairlead_cni::args::Args;
use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_cni::config::{HostLocal, NetConf, StaticIpam};
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, CniResult, Code};

use super::Engine;
use super::job::Job;
use super::removal::Answer;
use crate::store::{Attachment, IpamRecord, LinkRecord, Phase};
use fairlead_ipam::{Lease, LeaseRequest, PendingRemovals, Place, static_ipam};

/// host-local's part of a configuration, if that is its IPAM.
pub(super) fn host_local_config(conf: &NetConf, args: &Args) -> Result<Option<HostLocal>, CniError> {
    match conf.ipam_type.as_deref() {
        Some("host-local") => HostLocal::parse(conf, args).map(Some),
        _ => Ok(None),
    }
}

impl Engine {
    /// What is put on record about the addresses before the first is taken.
    pub(super) fn ipam_of(&self, job: &Job, kind: Option<&str>) -> Result<IpamRecord, CniError> {
        Ok(match kind {
            None => IpamRecord::None,
            Some("host-local") => IpamRecord::HostLocal { data_dir: data_dir(&job.conf)? },
            Some("static") => IpamRecord::Static,
            Some(plugin) => {
                // One that is not there has made nothing that a record would have to remember.
                let found = self.delegates.find(plugin, &job.request.path);
                found.map_err(|e| e.told(Command::Add))?;
                IpamRecord::Delegate { plugin: plugin.to_owned() }
            }
        })
    }

    /// Takes the addresses.
    pub(super) fn addresses(&self, job: &Job, attachment: &Attachment) -> Result<CniResult, CniError> {
        let result = match &attachment.ipam {
            IpamRecord::None => {
                // An ipvlan in a chain takes over what the plugin before it was given.
                let chained = (job.key.plugin == "ipvlan").then(|| job.conf.prev_result.clone()).flatten();
                return Ok(chained.unwrap_or_default());
            }
            IpamRecord::HostLocal { .. } => {
                let config = HostLocal::parse(&job.conf, &job.args)?;
                let request = LeaseRequest {
                    network: &job.key.network,
                    container_id: &job.key.container,
                    ifname: &job.key.ifname,
                };
                result_of(self.host_local.allocate(&config, &request, self)?)
            }
            IpamRecord::Static => result_of(static_ipam::allocate(&StaticIpam::parse(&job.conf, &job.args)?)),
            IpamRecord::Delegate { plugin } => self.delegate_add(job, plugin)?,
        };
        if result.ips.is_empty() {
            let msg = format!("network {:?}: its IPAM gave no address", job.key.network);
            return Err(
                CniError::new(Code::InvalidConfig, msg).with("an IPAM has to give at least one address")
            );
        }
        Ok(result)
    }

    /// CHECK of the addresses.
    pub(super) fn ipam_check(&self, job: &Job) -> Result<(), CniError> {
        match job.conf.ipam_type.as_deref() {
            _ if job.key.plugin == "loopback" => Ok(()),
            None => Ok(()),
            Some("host-local") => {
                let dir = data_dir(&job.conf)?;
                Ok(self.host_local.check(&dir, &job.key.network, &job.key.container, &job.key.ifname)?)
            }
            Some("static") => {
                let config = StaticIpam::parse(&job.conf, &job.args)?;
                let prev = job.conf.prev_result.clone().unwrap_or_default();
                Ok(static_ipam::check(&config, &prev, &job.key.ifname)?)
            }
            Some(plugin) => self.delegate(job, plugin, Command::Check).map(drop),
        }
    }

    /// K10: gives back what this container's interface has in the network, whoever took it.
    pub(super) fn ipam_del_unrecorded(&self, job: &Job) -> Result<(), CniError> {
        match job.conf.ipam_type.as_deref() {
            _ if job.key.plugin == "loopback" => Ok(()),
            None | Some("static") => Ok(()),
            Some("host-local") => {
                let dir = data_dir(&job.conf)?;
                self.host_local.release(&dir, &job.key.network, &job.key.container, &job.key.ifname)?;
                Ok(())
            }
            Some(plugin) => self.delegate(job, plugin, Command::Del).map(drop),
        }
    }

    /// GC of an IPAM plugin that is executed.
    pub(super) fn ipam_gc(&self, job: &Job) -> Result<(), CniError> {
        match job.conf.ipam_type.as_deref() {
            None | Some("static" | "host-local") => Ok(()),
            Some(plugin) => self.delegate(job, plugin, Command::Gc).map(drop),
        }
    }

    /// STATUS of the IPAM.
    pub(super) fn ipam_status(&self, job: &Job) -> Result<(), CniError> {
        match job.conf.ipam_type.as_deref() {
            None => Ok(()),
            Some("host-local") => self.host_local_status(job),
            Some("static") => StaticIpam::parse(&job.conf, &job.args).map(drop),
            // Whatever its reason is: without addresses no ADD can succeed.
            Some(plugin) => self
                .delegate(job, plugin, Command::Status)
                .map(drop)
                .map_err(|e| CniError { code: Code::NotAvailable, ..e }),
        }
    }

    /// Finishes the removals that may hold what an ADD wants; true when one was finished.
    fn hurry(&self, wanted: impl Fn(&Attachment) -> bool) -> bool {
        let waiting = self.store.silenced().into_iter().filter(|a| wanted(a));
        let mut finished = false;
        for attachment in waiting {
            if finished {
                // The next ADD will want the next one: the reaper's threads get ahead of it.
                self.reaper.expect(attachment.id, std::time::Instant::now());
            } else {
                finished = self.reap(attachment.id).is_ok();
            }
        }
        finished
    }

    /// The removal of this very interface of this container, should it still be under way. The caller has the container.
    pub(super) fn finish_older(&self, job: &Job) -> Result<(), CniError> {
        let key = &job.key;
        if let Some(before) = self.store.find(key).filter(|a| a.phase == Phase::Removing) {
            self.remove(&before, Answer::WhenGone).map_err(|e| CniError {
                code: Code::TryAgain,
                msg: format!("what an earlier attachment of this name left is not removed yet: {}", e.msg),
                details: e.details,
            })?;
        }
        self.hurry(|a| {
            a.key.container == key.container && a.key.network == key.network && a.key.ifname == key.ifname
        });
        Ok(())
    }

    /// A removal that still holds this MAC address.
    pub(super) fn hurry_mac(&self, wanted: Option<fairlead_host::Mac>) -> bool {
        self.hurry(|a| matches!(&a.link, LinkRecord::Made { mac, .. } if *mac == wanted && mac.is_some()))
    }
}

impl PendingRemovals for Engine {
    fn hurry(&self, place: &Place) -> bool {
        self.hurry(|a| {
            a.key.network == place.network
                && matches!(&a.ipam, IpamRecord::HostLocal { data_dir } if *data_dir == place.data_dir)
        })
    }
}

/// `dataDir`, whatever else the `ipam` says: a removal must not fail for a range that is wrong by now.
fn data_dir(conf: &NetConf) -> Result<String, CniError> {
    let fields = conf.fields()?;
    let ipam = fields.object("ipam")?;
    let given = ipam.map(|ipam| ipam.text("dataDir")).transpose()?.flatten();
    Ok(given.unwrap_or_else(|| DEFAULT_DATA_DIR.to_owned()))
}

fn result_of(lease: Lease) -> CniResult {
    CniResult { ips: lease.ips, routes: lease.routes, dns: lease.dns, ..CniResult::default() }
}
