//! VFs that sriov-cni gave to pods before Fairlead came. Nobody gets such a VF while its pod lives.
//!
//! It is restored with that pod's DEL. Where the pod's namespace is dead it is restored before the next ADD that wants it, or with
//! the next sweep. Its pool counts it as lent until that plugin's files say otherwise; their directory is watched.
//!
//! That plugin's own files are the record. They are there before anything is done and are removed when all of it is, so that
//! the work may be begun again at any step. Files of an earlier boot mean nothing any more.

pub(crate) mod files;
mod files_cache;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_cni::{CniError, Code};
use fairlead_host::{HostRoot, Link, Net, NetError, NetnsError, process};
use fairlead_sriov::pools::SriovCniOwners;
use fairlead_sriov::vf_netdev::{self, APPEARS, Appearance};
use fairlead_sriov::{InventoryError, PciAddr, USER_SPACE_DRIVERS, VfDevice};

use super::sriov::{SriovServices, still_away, unusable, vf_not_to_be_had};
use super::{Kinds, Undone, vf, vfio};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::recorded_netns::Reach;
use crate::store::{Attachment, Key, LinkRecord, MovedNetdev, Namespace, Phase, VfRecord};
use files::{DIRECTORY, NetdevBefore, Record, SriovCniFiles};
use files_cache::CachedFiles;

impl super::SriovCniVfs for Kinds {
    fn settle(&self, vf: PciAddr) -> Result<(), CniError> {
        self.leftovers.settle(self, vf)
    }

    fn owner(&self, vf: PciAddr) -> Result<Option<String>, CniError> {
        self.leftovers.owner(vf)
    }
}

/// Whether the pod that a VF went to lives.
enum Pod {
    Lives,
    Dead,
    /// That release noted no namespace, and the VF's netdev is not seen here.
    Unknown,
}

/// The files of sriov-cni, and what is done by them.
pub(crate) struct SriovCniImport {
    root: Arc<HostRoot>,
    cached: CachedFiles,
}

impl SriovCniImport {
    /// Reads that plugin's files below this root.
    pub(crate) fn new(root: Arc<HostRoot>) -> SriovCniImport {
        SriovCniImport { root, cached: CachedFiles::default() }
    }

    /// The directories in which that plugin's files come and go.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        files::directories(&self.root)
    }

    /// The VFs that are listed; none where the files cannot be read.
    pub(crate) fn vfs(&self) -> Vec<PciAddr> {
        self.listed().map(|left| left.vfs().into_keys().collect()).unwrap_or_default()
    }

    /// Logs what is there.
    pub(crate) fn log(&self) {
        match self.left() {
            Ok(none) if none.is_empty() => {}
            Ok(left) => tracing::warn!(vfs = ?left.vfs(), unreadable = ?left.unreadable,
                "sriov-cni has left VFs with pods: each is handed out again after that pod's DEL or death"),
            Err(error) => tracing::error!(%error, "what sriov-cni has left can't be read"),
        }
    }

    fn left(&self) -> Result<SriovCniFiles, CniError> {
        files::read_all(&self.root).map_err(|e| unread(&e))
    }

    /// The same, read again only when one has come or gone: of a VF that is listed it may not tell the newest.
    fn listed(&self) -> Result<Arc<SriovCniFiles>, CniError> {
        self.cached.read(&self.root).map_err(|e| unread(&e))
    }

    /// The owners that the files of that plugin name, in words.
    pub(crate) fn owners(&self) -> SriovCniOwners {
        let left = self.listed().map_err(|_| "sriov-cni's, whose files cannot be read".to_owned())?;
        let owner = |(address, pod)| (address, format!("sriov-cni's {pod}"));
        Ok(Arc::new(left.vfs().into_iter().map(owner).collect()))
    }

    /// The pod of that plugin that has a VF, as its files say.
    pub(crate) fn owner(&self, address: PciAddr) -> Result<Option<String>, CniError> {
        let left = self.listed()?;
        Ok(left.holder_of(address).map(|pod| format!("sriov-cni's {pod}")))
    }

    /// Restores a VF if the pod that it went to is dead.
    pub(crate) fn settle_dead(&self, kinds: &Kinds, address: PciAddr) {
        // Somebody works on it just now. Nobody waits here: the next sweep comes again.
        let Some(_lock) = kinds.sriov.reserved.try_take(&address.to_string()) else { return };
        let ours = kinds.sriov.store.has_vf(address);
        if !ours && let Err(error) = self.settle(kinds, address) {
            tracing::debug!(pci = %address, %error, "a VF of sriov-cni's is not home");
        }
    }

    /// Before an ADD takes a VF that it has reserved: refused while a pod of sriov-cni lives with it, restored where that pod is
    /// dead.
    pub(crate) fn settle(&self, kinds: &Kinds, address: PciAddr) -> Result<(), CniError> {
        // The cache is enough to say that a VF is not listed. What is listed is read anew.
        if !self.listed()?.lists(address) {
            return Ok(());
        }
        let left = self.left()?;
        let (record, netns) = (left.holder(address), left.taken.get(&address));
        if record.is_none() && netns.is_none() {
            return Ok(());
        }
        let who = match (record, netns) {
            (Some(record), _) => format!("sriov-cni has given it to a pod ({})", record.name),
            (None, netns) => format!("sriov-cni has given it to the pod in {}", shown(netns)),
        };
        match pod_of(&kinds.sriov, address, record, netns.map(|path| path.as_path()))? {
            Pod::Lives => return Err(vf_not_to_be_had(address, &who)),
            Pod::Unknown => {
                let why = format!("{who}, and nothing tells whether that lives");
                let remedy =
                    format!("DEL that pod; if it is gone for good, remove its file from {DIRECTORY}");
                return Err(CniError { details: remedy, ..vf_not_to_be_had(address, &why) });
            }
            Pod::Dead => {}
        }
        tracing::info!(pci = %address, who, "the pod that sriov-cni gave a VF to is dead: it is brought home");
        if let Some(record) = record {
            restore(kinds, record, None)?;
        }
        self.forget(kinds, &left, address)
    }

    /// The DEL of a pod that sriov-cni made. X22: a VF that a newer one has is not touched.
    pub(crate) fn del(&self, kinds: &Kinds, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        if request.key.plugin != "sriov" {
            return Ok(());
        }
        let find = |left: &SriovCniFiles| left.of(&request.key.container, &request.key.ifname).cloned();
        let Some(record) = find(&*self.listed()?) else { return Ok(()) };
        let address = record.device;
        let lock = kinds.sriov.reserved.take(&address.to_string(), request.waiting.deadline);
        let _lock = lock.ok_or_else(|| vf_not_to_be_had(address, "another call works on it just now"))?;
        // Read again under the lock: another call may have restored it meanwhile.
        let left = self.left()?;
        let Some(record) = find(&left) else { return Ok(()) };
        let ours = kinds.sriov.store.has_vf(address);
        if ours || left.holder(address) != Some(&record) {
            tracing::info!(pci = %address, record = record.name, "a newer pod has the VF of an old one's DEL");
            return files::forget(&self.root, &record).map_err(|e| unforgotten(&record.name, &e));
        }
        let noted = left.taken.get(&address).map(|path| path.as_path());
        // CNI_NETNS may be empty on DEL: then the namespace that sriov-cni noted counts.
        let path = if request.netns().as_os_str().is_empty() { noted } else { Some(request.netns()) };
        let pod = match path.filter(|path| path.is_absolute()).map(|path| kinds.kernel.pod(path)) {
            // With its namespace gone the VF falls back to the host's.
            None
            | Some(Err(
                NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. },
            )) => None,
            Some(Ok(pod)) => Some((pod, request.key.ifname.as_str())),
            Some(Err(e)) => return Err(errors::netns(&e)),
        };
        restore(kinds, &record, pod)?;
        self.forget(kinds, &left, address)
    }

    /// All that says who had it; a record of a pod before that one too.
    fn forget(&self, kinds: &Kinds, left: &SriovCniFiles, address: PciAddr) -> Result<(), CniError> {
        kinds.sriov.pools.take_back(address, || {
            // A kill in between leaves a file, by which the restore is begun again.
            for record in left.records.iter().filter(|record| record.device == address) {
                files::forget(&self.root, record).map_err(|e| unforgotten(&record.name, &e))?;
            }
            files::forget_taken(&self.root, address).map_err(|e| unforgotten(&format!("pci/{address}"), &e))
        })
    }
}

fn pod_of(
    sriov: &SriovServices,
    address: PciAddr,
    record: Option<&Record>,
    netns: Option<&Path>,
) -> Result<Pod, CniError> {
    match netns.filter(|path| path.is_absolute()).map(|path| sriov.kernel.pod(path)) {
        Some(Ok(_)) => Ok(Pod::Lives),
        Some(Err(NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. })) => {
            Ok(Pod::Dead)
        }
        Some(Err(e)) => Err(errors::netns(&e)),
        // Until 2.7 no namespace was noted: an interface that is here is in no pod, and no pod outlives a boot. In user
        // space a VF has no interface to be seen.
        None => {
            let is_earlier = record.map(|record| is_of_an_earlier_boot(sriov, record, false)).transpose()?;
            let is_dead = is_earlier.unwrap_or_default() || seen_here(sriov, address)?.is_some();
            Ok(if is_dead { Pod::Dead } else { Pod::Unknown })
        }
    }
}

/// Whether a record was written before this boot. The boot's time moves with a clock that is set forward, past what was
/// written since: of a VF that is in a pod, or may be, it is of this boot.
fn is_of_an_earlier_boot(sriov: &SriovServices, record: &Record, pod_lives: bool) -> Result<bool, CniError> {
    if !process::booted_at().is_ok_and(|booted| record.written < booted) {
        return Ok(false);
    }
    let driver = sriov.inventory.vf(record.device).ok().and_then(|device| device.driver);
    match driver.is_some_and(|driver| !USER_SPACE_DRIVERS.contains(&driver.as_str())) {
        true => seen_here(sriov, record.device).map(|link| link.is_some()),
        false => Ok(!pod_lives),
    }
}

fn seen_here(sriov: &SriovServices, address: PciAddr) -> Result<Option<Link>, CniError> {
    let told = |e: NetError| errors::kernel("", &format!("looking for VF {address}"), &e);
    vf_netdev::interface(sriov.kernel.host().map_err(told)?.as_mut(), address, &[]).map_err(told)
}

/// Restores the VF of a record, from the pod (with the netdev's name there) or from where its namespace's death has left it.
fn restore(kinds: &Kinds, record: &Record, pod: Option<(Box<dyn Net + '_>, &str)>) -> Result<(), CniError> {
    let sriov = &kinds.sriov;
    // A VF begins a boot with nothing of what it was before.
    if is_of_an_earlier_boot(sriov, record, pod.is_some())? {
        return Ok(());
    }
    let address = record.device;
    let device = match sriov.inventory.vf(address) {
        Ok(device) => device,
        Err(e @ InventoryError::Io { .. }) => return Err(unusable(&e)),
        Err(e) => {
            tracing::warn!(pci = %address, error = %e, "a VF that sriov-cni lent is gone");
            return Ok(());
        }
    };
    let driver = device.driver.as_deref().filter(|driver| !USER_SPACE_DRIVERS.contains(driver));
    let vf = vf_record(record, &device, driver.unwrap_or_default());
    let undone = match (&record.interface, driver) {
        (Some(was), Some(_)) => restore_netdev(kinds, record, was, vf, pod)?,
        // In user space all the time, or given to another driver since: that is left as it is.
        _ => {
            drop(pod);
            let attachment = as_attachment(sriov, record, "", LinkRecord::Vfio(vf.clone()));
            vfio::undo(sriov, &attachment, &vf)?.into()
        }
    };
    match undone {
        Undone::Whole => Ok(()),
        // Nothing of it is on record of ours: its file stays, and it is tried again.
        Undone::AwaitsCarrier(why) | Undone::Away(why) | Undone::Quarantined { why, .. } => Err(why),
    }
}

fn restore_netdev(
    kinds: &Kinds,
    record: &Record,
    was: &NetdevBefore,
    vf: VfRecord,
    pod: Option<(Box<dyn Net + '_>, &str)>,
) -> Result<Undone, CniError> {
    let (sriov, address) = (&kinds.sriov, vf.address);
    let told = |e: NetError| errors::kernel("", &format!("bringing VF {address} home"), &e);
    let undo = |netdev: MovedNetdev, ifname: &str, reach: Reach<'_>| {
        let Some(vf) = netdev.vf.clone() else { return Ok(Undone::Whole) };
        let attachment = as_attachment(sriov, record, ifname, LinkRecord::Moved(Box::new(netdev.clone())));
        vf::undo(kinds, &attachment, &netdev, &vf, reach)
    };
    if let Some((mut pod, ifname)) = pod {
        let links = pod.links().map_err(told)?;
        let found = vf_netdev::interface_among(&links, address, &[ifname, &was.name], was.mac);
        if let Some(link) = found {
            return undo(before(was, vf, link), ifname, Reach::Inside(pod));
        }
    }
    let mut host = sriov.kernel.host().map_err(told)?;
    let link = vf_netdev::wait_for_netdev(host.as_mut(), address, APPEARS).map_err(told)?;
    let link = link.ok_or_else(|| still_away(&vf))?;
    // It is on the host already: no namespace has to be entered.
    undo(before(was, vf, &link), "", Reach::Dead)
}

/// What the kinds' own undo works from; never in the store.
fn as_attachment(sriov: &SriovServices, record: &Record, ifname: &str, link: LinkRecord) -> Attachment {
    let key = Key {
        container: record.name.clone(),
        network: String::new(),
        ifname: ifname.to_owned(),
        plugin: "sriov".to_owned(),
    };
    let netns = Namespace { path: String::new(), id: sriov.host_id.clone(), nsid: None };
    let attachment = Attachment::new(sriov.store.next_id(), key, netns, link, Arc::from(""));
    Attachment { phase: Phase::Removing, ..attachment }
}

fn vf_record(record: &Record, device: &VfDevice, driver: &str) -> VfRecord {
    VfRecord {
        address: record.device,
        pf: device.physical.address,
        index: device.index,
        driver: driver.to_owned(),
        iommu_group: device.iommu_group,
        // That plugin has noted none of these.
        inode: None,
        mtu: None,
        pf_mac: None,
        before: record.before.clone(),
    }
}

/// The netdev before its pod. What that plugin never noted stays as the netdev has it now; it left them down.
fn before(was: &NetdevBefore, vf: VfRecord, link: &Link) -> MovedNetdev {
    let now = Appearance::of(link);
    let mac = was.mac.or(now.mac);
    let mtu = was.mtu.unwrap_or(now.mtu);
    let was = Appearance { name: was.name.clone(), mac, mtu, up: false, ..now };
    MovedNetdev { was, vf: Some(vf), ..MovedNetdev::of(link) }
}

fn unread(error: &std::io::Error) -> CniError {
    let remedy = "make it a directory that root can read, or remove it if no pod is left of that plugin";
    errors::file(format!("the files of sriov-cni in {DIRECTORY}"), error, Code::Io, remedy)
}

fn shown(netns: Option<&PathBuf>) -> String {
    netns.map(|path| path.display().to_string()).unwrap_or_default()
}

fn unforgotten(name: &str, error: &std::io::Error) -> CniError {
    let what = format!("sriov-cni's file {DIRECTORY}/{name} cannot be removed");
    errors::file(what, error, Code::Io, "make the directory writable")
}
