//! What sriov-cni, the plugin that served VFs here before, has left for pods that still run: one file for each
//! interface with how its VF was, one for each VF with the namespace that it went to.
//!
//! Read as that plugin wrote it (its releases 2.0 to 2.10), and removed when it holds no more; never written.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fairlead_host::files::text_of;
use fairlead_host::{HostRoot, Mac, VfChange, VfLinkState, VfRate, VfVlan, VlanProto};
use fairlead_sriov::PciAddr;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};
use serde::Deserialize;

/// Where it keeps its files.
pub(crate) const DIRECTORY: &str = "/var/lib/cni/sriov";
/// Those of VFs, in it.
pub(super) const PCI: &str = "pci";
/// Larger than any that it writes: they hold one network's configuration.
const LARGEST: u64 = 1 << 20;
/// As it stands in a file, whatever the machine's byte order was.
const DOT1AD: [u32; 2] = [0x88a8, 0xa888];

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct SriovCniFiles {
    /// Its interfaces, the oldest first.
    pub(crate) records: Vec<Record>,
    /// The namespaces that VFs went to, by path.
    pub(crate) taken: BTreeMap<PciAddr, PathBuf>,
    /// Files that cannot be read, and why.
    pub(crate) unreadable: Vec<(String, String)>,
}

/// A pod's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The file: `<container>-<interface>`.
    pub(crate) name: String,
    /// When it was written.
    pub(crate) written: SystemTime,
    /// The VF.
    pub(crate) device: PciAddr,
    /// How its interface was; `None`: a driver in user space had it.
    pub(crate) interface: Option<NetdevBefore>,
    /// Those of its settings that the network asked for, as they were.
    pub(crate) before: VfChange,
}

/// An interface before it went to its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetdevBefore {
    pub(crate) name: String,
    /// `None`: not told by that release.
    pub(crate) mac: Option<Mac>,
    /// `None`: not told by that release.
    pub(crate) mtu: Option<u32>,
}

impl SriovCniFiles {
    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.taken.is_empty() && self.unreadable.is_empty()
    }

    /// The interface of a container.
    pub(crate) fn of(&self, container: &str, ifname: &str) -> Option<&Record> {
        let name = format!("{container}-{ifname}");
        self.records.iter().find(|record| record.name == name)
    }

    /// The last interface that a VF became.
    pub(crate) fn holder(&self, device: PciAddr) -> Option<&Record> {
        self.records.iter().rfind(|record| record.device == device)
    }

    /// Whether it says that a pod has a VF.
    pub(crate) fn lists(&self, device: PciAddr) -> bool {
        self.taken.contains_key(&device) || self.holder(device).is_some()
    }

    /// What names the pod that a VF went to: its file, or the namespace.
    pub(crate) fn holder_of(&self, device: PciAddr) -> Option<String> {
        let of_record = self.holder(device).map(|record| record.name.clone());
        of_record.or_else(|| Some(self.taken.get(&device)?.display().to_string()))
    }

    /// Each VF, with the file or the namespace that names its pod.
    pub(crate) fn vfs(&self) -> BTreeMap<PciAddr, String> {
        let taken = self.taken.iter().map(|(device, netns)| (*device, netns.display().to_string()));
        taken.chain(self.records.iter().map(|record| (record.device, record.name.clone()))).collect()
    }
}

/// Reads all of it; nothing where that plugin never was.
pub(crate) fn read_all(root: &HostRoot) -> io::Result<SriovCniFiles> {
    let mut left = SriovCniFiles::default();
    if let Some(dir) = directory(root, "")? {
        for name in names(&dir)? {
            match record(&dir, &name) {
                Ok(record) => left.records.push(record),
                // Somebody has just removed it.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                // One file that cannot be read must not hide the others.
                Err(e) => left.unreadable.push((name, e.to_string())),
            }
        }
    }
    // The newest record of a VF counts, and `holder` takes the last.
    left.records.sort_by(|a, b| (a.written, &a.name).cmp(&(b.written, &b.name)));
    if let Some(dir) = directory(root, PCI)? {
        for name in names(&dir)? {
            let Ok(device) = name.parse() else { continue };
            match read(&dir, &name) {
                Ok((text, _)) => drop(left.taken.insert(device, text.trim().into())),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => left.unreadable.push((format!("{PCI}/{name}"), e.to_string())),
            }
        }
    }
    Ok(left)
}

/// Where its files come and go, to be watched.
pub(crate) fn directories(root: &HostRoot) -> Vec<PathBuf> {
    ["", PCI].iter().map(|below| root.seen_at(&Path::new(DIRECTORY).join(below))).collect()
}

/// An interface holds its VF no more.
pub(crate) fn forget(root: &HostRoot, record: &Record) -> io::Result<()> {
    remove(root, "", &record.name)
}

/// A VF is nobody's any more.
pub(crate) fn forget_taken(root: &HostRoot, device: PciAddr) -> io::Result<()> {
    remove(root, PCI, &device.to_string())
}

fn remove(root: &HostRoot, below: &str, name: &str) -> io::Result<()> {
    root.remove(&Path::new(DIRECTORY).join(below).join(name))
}

pub(super) fn directory(root: &HostRoot, below: &str) -> io::Result<Option<OwnedFd>> {
    match root.directory(&Path::new(DIRECTORY).join(below)) {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Of the regular files.
fn names(dir: &OwnedFd) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if is_file(dir, entry.file_name(), entry.file_type()) {
            found.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
    }
    Ok(found)
}

fn is_file(dir: &OwnedFd, name: &CStr, told: FileType) -> bool {
    match told {
        // Some file systems do not tell the type of a file in its directory.
        FileType::Unknown => statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile),
        told => told == FileType::RegularFile,
    }
}

fn read(dir: &OwnedFd, name: &str) -> io::Result<(String, SystemTime)> {
    // A symbolic link must not lead us elsewhere, and a pipe must not block us.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(dir, name, flags, Mode::empty())?);
    let written = file.metadata()?.modified()?;
    Ok((text_of(file, LARGEST)?, written))
}

fn record(dir: &OwnedFd, name: &str) -> io::Result<Record> {
    let (text, written) = read(dir, name)?;
    let state: State = serde_json::from_str(&text)?;
    let device = state.device.parse().map_err(io::Error::other)?;
    let (interface, before) = (state.interface()?, state.before()?);
    Ok(Record { name: name.to_owned(), written, device, interface, before })
}

/// The network's configuration with what that plugin noted in it.
#[derive(Debug, Deserialize)]
struct State {
    #[serde(rename = "deviceID")]
    device: String,
    #[serde(rename = "OrigVfState")]
    original: Option<Original>,
    /// Before 2.6, in place of the above.
    #[serde(rename = "HostIFNames", default)]
    host_interface: String,
    #[serde(rename = "adminMAC", default)]
    admin_mac: String,
    #[serde(rename = "effectiveMAC", default)]
    effective_mac: String,
    #[serde(rename = "MAC", default)]
    mac: String,
    vlan: Option<u32>,
    #[serde(default)]
    spoofchk: String,
    #[serde(default)]
    trust: String,
    #[serde(default)]
    link_state: String,
    min_tx_rate: Option<u32>,
    max_tx_rate: Option<u32>,
}

/// The VF before it went to its pod.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Original {
    #[serde(rename = "HostIFName")]
    host_interface: String,
    spoof_chk: bool,
    trust: bool,
    #[serde(rename = "AdminMAC")]
    admin_mac: String,
    #[serde(rename = "EffectiveMAC")]
    effective_mac: String,
    vlan: u16,
    #[serde(rename = "VlanQoS")]
    vlan_qos: u8,
    vlan_proto: u32,
    min_tx_rate: u32,
    max_tx_rate: u32,
    link_state: u32,
    #[serde(rename = "MTU")]
    mtu: u32,
}

/// What that plugin took for granted where it had not looked.
impl Default for Original {
    fn default() -> Original {
        Original {
            host_interface: String::new(),
            spoof_chk: true,
            trust: false,
            admin_mac: String::new(),
            effective_mac: String::new(),
            vlan: 0,
            vlan_qos: 0,
            vlan_proto: 0,
            min_tx_rate: 0,
            max_tx_rate: 0,
            link_state: 0,
            mtu: 0,
        }
    }
}

impl State {
    fn original(&self) -> Original {
        self.original.clone().unwrap_or_else(|| Original {
            host_interface: self.host_interface.clone(),
            admin_mac: self.admin_mac.clone(),
            effective_mac: self.effective_mac.clone(),
            ..Original::default()
        })
    }

    fn interface(&self) -> io::Result<Option<NetdevBefore>> {
        let Original { host_interface: name, effective_mac, mtu, .. } = self.original();
        let was = NetdevBefore { name, mac: mac(&effective_mac)?, mtu: Some(mtu).filter(|mtu| *mtu > 0) };
        Ok(Some(was).filter(|was| !was.name.is_empty()))
    }

    /// What the network did not ask for was not changed.
    fn before(&self) -> io::Result<VfChange> {
        let was = self.original();
        let proto = if DOT1AD.contains(&was.vlan_proto) { VlanProto::Dot1ad } else { VlanProto::Dot1q };
        let link_state = match was.link_state {
            1 => VfLinkState::Enable,
            2 => VfLinkState::Disable,
            _ => VfLinkState::Auto,
        };
        let asked = |text: &str| !text.is_empty();
        let rates = self.min_tx_rate.is_some() || self.max_tx_rate.is_some();
        Ok(VfChange {
            mac: if asked(&self.mac) { mac(&was.admin_mac)? } else { None },
            vlan: self.vlan.map(|_| VfVlan { id: was.vlan, qos: was.vlan_qos, proto }),
            // The kernel sets both rates in one attribute (IFLA_VF_RATE), so both are restored.
            rate: rates.then_some(VfRate { min: was.min_tx_rate, max: was.max_tx_rate }),
            spoofchk: asked(&self.spoofchk).then_some(was.spoof_chk),
            trust: asked(&self.trust).then_some(was.trust),
            link_state: asked(&self.link_state).then_some(link_state),
        })
    }
}

fn mac(text: &str) -> io::Result<Option<Mac>> {
    Some(text).filter(|text| !text.is_empty()).map(|text| text.parse().map_err(io::Error::other)).transpose()
}

#[cfg(test)]
mod tests;
