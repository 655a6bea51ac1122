//! VFs that sriov-cni gave to pods before Fairlead came: nobody gets one while its pod lives, and it comes home
//! with that pod's DEL, or when the pod's namespace is dead: before the next ADD, or with the next sweep. To its pool it is lent,
//! until that plugin's files say otherwise: they are watched.
//!
//! That plugin's own files are the record: they are there before anything is done and are removed when all of it is, so that
//! it may be begun again at any step. Of an earlier boot they mean nothing any more.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Net, NetError, NetnsError, process};
use fairlead_sriov::interface::{self, APPEARS, Appearance};
use fairlead_sriov::{VfDevice, InventoryError, PciAddr};

use super::vfs::{lent, unusable};
use super::homecoming::{Waits, still_away};
use super::job::Job;
use super::link::Reach;
use super::{Engine, errors};
use crate::networks::host_device::USER_SPACE_DRIVERS;
use crate::pools::{Inherited, Look};
use crate::sriov_cni::{self, DIRECTORY, Left, Record, Was};
use crate::store::{Attachment, Key, Lent, LentVf, LinkRecord, Namespace, Phase};
use fairlead_host::file_watch::{Watch, WatchError};

/// Whether the pod that a VF went to lives.
enum Pod {
    Lives,
    Dead,
    /// That release noted no namespace, and the VF is not seen here.
    Untold,
}

impl Engine {
    /// What is there, once for the log.
    pub(super) fn tell_inherited(&self) {
        match self.left_by_sriov_cni() {
            Ok(none) if none.is_empty() => {}
            Ok(left) => tracing::warn!(vfs = ?left.vfs(), unreadable = ?left.unreadable,
                "sriov-cni has left VFs with pods: each is handed out again after that pod's DEL or death"),
            Err(error) => tracing::error!(%error, "what sriov-cni has left can't be read"),
        }
    }

    fn left_by_sriov_cni(&self) -> Result<Left, CniError> {
        sriov_cni::left(&self.root).map_err(|e| unread(&e))
    }

    /// The same, read again only when one has come or gone: of a VF that is listed it may not tell the newest.
    pub(super) fn listed_by_sriov_cni(&self) -> Result<Arc<Left>, CniError> {
        self.predecessor.left(&self.root).map_err(|e| unread(&e))
    }

    /// The owners that the files of that plugin name, in words.
    pub(super) fn owners_by_sriov_cni(&self) -> Inherited {
        let left = self.listed_by_sriov_cni();
        let left = left.map_err(|_| "sriov-cni's, whose files cannot be read".to_owned())?;
        let owner = |(address, pod)| (address, format!("sriov-cni's {pod}"));
        Ok(Arc::new(left.vfs().into_iter().map(owner).collect()))
    }

    /// The pod of that plugin that has a VF, as its files tell.
    pub(super) fn given_by_sriov_cni(&self, address: PciAddr) -> Result<Option<String>, CniError> {
        let left = self.listed_by_sriov_cni()?;
        Ok(left.holder_of(address).map(|pod| format!("sriov-cni's {pod}")))
    }

    /// Has the pools looked at as soon as a file of that plugin comes or goes: when its own DEL has brought a VF home,
    /// nothing else tells. Ends when dropped; without it the pools' keeper sees that with its next look.
    pub(super) fn watch_inherited(engine: &Arc<Engine>) -> Result<Watch, WatchError> {
        let told = Arc::downgrade(engine);
        Watch::new("watch-sriov-cni", sriov_cni::directories(&engine.root), move || {
            if let Some(engine) = told.upgrade() {
                engine.pools.look_soon(Look::Quick);
            }
        })
    }

    /// Has the reaper bring home what belongs to dead pods of that plugin, for pools that nobody asks for it.
    pub(super) fn expect_from_the_dead(&self) {
        let Ok(left) = self.listed_by_sriov_cni() else { return };
        for address in left.vfs().into_keys() {
            self.reaper.expect(address, Instant::now());
        }
    }

    /// Brings a VF home if the pod that it went to is dead.
    pub(super) fn inherit_from_the_dead(&self, address: PciAddr) {
        let Some(_claim) = self.reserved.try_take(&address.to_string()) else { return };
        let ours = self.store.with_vf(address).is_some();
        if !ours && let Err(error) = self.inherit(address) {
            tracing::debug!(pci = %address, %error, "a VF of sriov-cni's is not home");
        }
    }

    /// Before an ADD takes a VF that it has reserved: refused while a pod of sriov-cni lives with it, brought home where
    /// that pod is dead.
    pub(super) fn inherit(&self, address: PciAddr) -> Result<(), CniError> {
        if !self.listed_by_sriov_cni()?.lists(address) {
            return Ok(());
        }
        let left = self.left_by_sriov_cni()?;
        let (record, netns) = (left.holder(address), left.taken.get(&address));
        if record.is_none() && netns.is_none() {
            return Ok(());
        }
        let who = match (record, netns) {
            (Some(record), _) => format!("sriov-cni has given it to a pod ({})", record.name),
            (None, netns) => format!("sriov-cni has given it to the pod in {}", shown(netns)),
        };
        match self.pod_of(address, record, netns.map(|path| path.as_path()))? {
            Pod::Lives => return Err(lent(address, &who)),
            Pod::Untold => {
                let why = format!("{who}, and nothing tells whether that lives");
                let remedy =
                    format!("DEL that pod; if it is gone for good, remove its file from {DIRECTORY}");
                return Err(CniError { details: remedy, ..lent(address, &why) });
            }
            Pod::Dead => {}
        }
        tracing::info!(pci = %address, who, "the pod that sriov-cni gave a VF to is dead: it is brought home");
        if let Some(record) = record {
            self.bring_inherited_home(record, None)?;
        }
        self.forget_inherited(&left, address)
    }

    /// The DEL of a pod that sriov-cni made. X22: a VF that a newer one has is not touched.
    pub(super) fn del_inherited(&self, job: &Job) -> Result<(), CniError> {
        if job.key.plugin != "sriov" {
            return Ok(());
        }
        let find = |left: &Left| left.of(&job.key.container, &job.key.ifname).cloned();
        let Some(record) = find(&*self.listed_by_sriov_cni()?) else { return Ok(()) };
        let address = record.device;
        let claim = self.reserved.take(&address.to_string(), job.deadline);
        let _claim = claim.ok_or_else(|| lent(address, "another call works on it just now"))?;
        let left = self.left_by_sriov_cni()?;
        let Some(record) = find(&left) else { return Ok(()) };
        let ours = self.store.with_vf(address).is_some();
        if ours || left.holder(address) != Some(&record) {
            tracing::info!(pci = %address, record = record.name, "a newer pod has the VF of an old one's DEL");
            return sriov_cni::forget(&self.root, &record).map_err(|e| unforgotten(&record.name, &e));
        }
        let noted = left.taken.get(&address).map(|path| path.as_path());
        let path = if job.netns().as_os_str().is_empty() { noted } else { Some(job.netns()) };
        let pod = match path.filter(|path| path.is_absolute()).map(|path| self.kernel.pod(path)) {
            None
            | Some(Err(
                NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. },
            )) => None,
            Some(Ok(pod)) => Some((pod, job.key.ifname.as_str())),
            Some(Err(e)) => return Err(errors::netns(&e)),
        };
        self.bring_inherited_home(&record, pod)?;
        self.forget_inherited(&left, address)
    }

    /// All that says who had it; a record of a pod before that one too.
    fn forget_inherited(&self, left: &Left, address: PciAddr) -> Result<(), CniError> {
        self.pools.take_back(address, || {
            for record in left.records.iter().filter(|record| record.device == address) {
                sriov_cni::forget(&self.root, record).map_err(|e| unforgotten(&record.name, &e))?;
            }
            sriov_cni::forget_taken(&self.root, address)
                .map_err(|e| unforgotten(&format!("pci/{address}"), &e))
        })
    }

    fn pod_of(
        &self,
        address: PciAddr,
        record: Option<&Record>,
        netns: Option<&Path>,
    ) -> Result<Pod, CniError> {
        match netns.filter(|path| path.is_absolute()).map(|path| self.kernel.pod(path)) {
            Some(Ok(_)) => Ok(Pod::Lives),
            Some(Err(
                NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. },
            )) => Ok(Pod::Dead),
            Some(Err(e)) => Err(errors::netns(&e)),
            // Until 2.7 no namespace was noted: an interface that is here is in no pod, and no pod outlives a boot. In user
            // space a VF has no interface to be seen.
            None => {
                let is_earlier =
                    record.map(|record| self.is_of_an_earlier_boot(record, false)).transpose()?;
                let is_dead = is_earlier.unwrap_or_default() || self.seen_here(address)?.is_some();
                Ok(if is_dead { Pod::Dead } else { Pod::Untold })
            }
        }
    }

    /// Whether a record was written before this boot. The boot's time moves with a clock that is set forward, past what was
    /// written since: of a VF that is in a pod, or may be, it is of this boot.
    fn is_of_an_earlier_boot(&self, record: &Record, pod_lives: bool) -> Result<bool, CniError> {
        if !process::booted_at().is_ok_and(|booted| record.written < booted) {
            return Ok(false);
        }
        let driver = self.inventory.vf(record.device).ok().and_then(|vf| vf.driver);
        match driver.is_some_and(|driver| !USER_SPACE_DRIVERS.contains(&driver.as_str())) {
            true => self.seen_here(record.device).map(|link| link.is_some()),
            false => Ok(!pod_lives),
        }
    }

    fn seen_here(&self, address: PciAddr) -> Result<Option<Link>, CniError> {
        let told = |e: NetError| errors::kernel("", &format!("looking for VF {address}"), &e);
        interface::interface(self.kernel.host().map_err(told)?.as_mut(), address, &[]).map_err(told)
    }

    /// As it is on record, from the pod (with the interface's name there) or from where its namespace's death has left it.
    fn bring_inherited_home(
        &self,
        record: &Record,
        pod: Option<(Box<dyn Net + '_>, &str)>,
    ) -> Result<(), CniError> {
        // A VF begins a boot anew, with everything about it.
        if self.is_of_an_earlier_boot(record, pod.is_some())? {
            return Ok(());
        }
        let address = record.device;
        let vf = match self.inventory.vf(address) {
            Ok(vf) => vf,
            Err(e @ InventoryError::Io { .. }) => return Err(unusable(&e)),
            Err(e) => {
                tracing::warn!(pci = %address, error = %e, "a VF that sriov-cni lent is gone");
                return Ok(());
            }
        };
        let driver = vf.driver.as_deref().filter(|driver| !USER_SPACE_DRIVERS.contains(driver));
        let vf = as_lent(record, &vf, driver.unwrap_or_default());
        Waits::nothing(match (&record.interface, driver) {
            (Some(was), Some(_)) => self.bring_inherited_interface(record, was, vf, pod)?,
            // In user space all the time, or given to another driver since: that is left as it is.
            _ => {
                drop(pod);
                self.take_back_given(&self.as_attachment(record, "", LinkRecord::Given(vf.clone())), &vf)?
            }
        })
    }

    fn bring_inherited_interface(
        &self,
        record: &Record,
        was: &Was,
        vf: LentVf,
        pod: Option<(Box<dyn Net + '_>, &str)>,
    ) -> Result<Option<Waits>, CniError> {
        let address = vf.address;
        let told = |e: NetError| errors::kernel("", &format!("bringing VF {address} home"), &e);
        if let Some((mut pod, ifname)) = pod {
            let links = pod.links().map_err(told)?;
            let found = interface::interface_among(&links, address, &[ifname, &was.name], was.mac);
            if let Some(link) = found {
                let lent = LinkRecord::Moved(before(was, vf, link));
                return self
                    .bring_vf_home(&self.as_attachment(record, ifname, lent), Reach::Inside(pod));
            }
        }
        let mut host = self.kernel.host().map_err(told)?;
        let link = interface::appear(host.as_mut(), address, APPEARS).map_err(told)?;
        let link = link.ok_or_else(|| still_away(&vf))?;
        let lent = LinkRecord::Moved(before(was, vf, &link));
        self.bring_vf_home(&self.as_attachment(record, "", lent), Reach::Dead)
    }

    /// What our own homecoming works from; never in the store.
    fn as_attachment(&self, record: &Record, ifname: &str, link: LinkRecord) -> Attachment {
        let key = Key {
            container: record.name.clone(),
            network: String::new(),
            ifname: ifname.to_owned(),
            plugin: "sriov".to_owned(),
        };
        let netns = Namespace { path: String::new(), id: self.host_id.clone(), nsid: None };
        let attachment = Attachment::new(self.store.next_id(), key, netns, link, String::new());
        Attachment { phase: Phase::Removing, ..attachment }
    }
}

fn as_lent(record: &Record, vf: &VfDevice, driver: &str) -> LentVf {
    LentVf {
        address: record.device,
        physical: vf.physical.address,
        index: vf.index,
        driver: driver.to_owned(),
        iommu_group: vf.iommu_group,
        before: record.before.clone(),
    }
}

/// What that plugin never noted stays as the interface has it now; it left them down.
fn before(was: &Was, vf: LentVf, link: &Link) -> Lent {
    let now = Appearance::of(link);
    let mac = was.mac.or(now.mac);
    let mtu = was.mtu.unwrap_or(now.mtu);
    let was = Appearance { name: was.name.clone(), mac, mtu, up: false, ..now };
    Lent { was, index: link.index, vf: Some(vf) }
}

fn unread(error: &std::io::Error) -> CniError {
    let remedy = "make it a directory that root can read, or remove it if no pod is left of that plugin";
    errors::file(format!("the files of sriov-cni in {DIRECTORY}"), error, Code::Io, remedy)
}

fn shown(netns: Option<&std::path::PathBuf>) -> String {
    netns.map(|path| path.display().to_string()).unwrap_or_default()
}

fn unforgotten(name: &str, error: &std::io::Error) -> CniError {
    let what = format!("sriov-cni's file {DIRECTORY}/{name} cannot be removed");
    errors::file(what, error, Code::Io, "make the directory writable")
}
