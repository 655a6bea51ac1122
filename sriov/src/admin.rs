//! The administrator's settings of functions, read and set through their physical function.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fairlead_host::{Kernel, Link, Net, NetError, Op, Vf, VfChange};
use nix::errno::Errno;

use crate::interface::is_of;
use crate::{Function, PciAddr, Physical, VfProfile};

/// Reads and sets them.
pub struct Administrator {
    kernel: Arc<dyn Kernel>,
    /// Of physical functions with several interfaces (switchdev mode): the one that tells the settings.
    known: Mutex<BTreeMap<PciAddr, u32>>,
}

/// Why settings could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The physical function is not there to be asked.
    #[error("the physical function {physical} of {function} has no interface here that tells its settings")]
    NoInterface {
        /// Whose settings.
        function: PciAddr,
        /// Who should have told.
        physical: PciAddr,
    },
    /// The kernel could not be asked.
    #[error("reading the settings of function {function}: {source}")]
    Unread {
        /// Whose settings.
        function: PciAddr,
        /// Why not.
        #[source]
        source: NetError,
    },
    /// A setting was not taken.
    #[error("setting {setting} for function {function} by {physical}: {source}")]
    NotSet {
        /// Whose.
        function: PciAddr,
        /// Who should have set it.
        physical: PciAddr,
        /// Which, for a person.
        setting: String,
        /// Why not.
        #[source]
        source: NetError,
    },
}

impl SettingError {
    /// The driver will never take the setting.
    pub fn is_refusal(&self) -> bool {
        match self {
            SettingError::NotSet { source, .. } => source.errno().is_some_and(is_refusal),
            SettingError::NoInterface { .. } | SettingError::Unread { .. } => false,
        }
    }
}

/// What a driver answers to a setting that it will never take.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EINVAL | Errno::ERANGE | Errno::EPERM)
}

impl Administrator {
    /// Of the machine's functions.
    pub fn new(kernel: Arc<dyn Kernel>) -> Administrator {
        Administrator { kernel, known: Mutex::default() }
    }

    /// A function's settings as they are.
    pub fn settings(&self, function: &Function) -> Result<Vf, SettingError> {
        let mut host = self.kernel.host().map_err(unread(function))?;
        let pf = self.link(host.as_mut(), function)?;
        let all = host.vfs(pf).map_err(unread(function))?;
        all.into_iter().find(|vf| vf.index == function.index).ok_or_else(|| no_interface(function))
    }

    /// Makes a change, in one message. The first setting that is refused is named, and those before it (in the order of
    /// [`VfChange::singly`]) stay.
    pub fn set(&self, function: &Function, change: &VfChange) -> Result<(), SettingError> {
        if change.is_empty() {
            return Ok(());
        }
        self.send(function, change).map_err(|error| match error {
            SettingError::NotSet { function: address, physical, setting, source } => {
                let now = self.settings(function);
                let left = now.ok().map(|now| VfProfile::from(change).plan(&now).change);
                let first = left.and_then(|left| left.singly().next());
                let setting = first.map_or(setting, |one| one.describe());
                SettingError::NotSet { function: address, physical, setting, source }
            }
            other => other,
        })
    }

    /// The same, but what the driver will never take is passed over and told.
    pub fn set_what_is_taken(
        &self,
        function: &Function,
        change: &VfChange,
    ) -> Result<Vec<SettingError>, SettingError> {
        if change.is_empty() {
            return Ok(Vec::new());
        }
        match self.send(function, change) {
            Err(e) if e.is_refusal() => {}
            other => return other.map(|()| Vec::new()),
        }
        let mut refused = Vec::new();
        for one in change.singly() {
            match self.send(function, &one) {
                Err(e) if e.is_refusal() => refused.push(e),
                other => other?,
            }
        }
        Ok(refused)
    }

    fn send(&self, function: &Function, change: &VfChange) -> Result<(), SettingError> {
        let mut host = self.kernel.host().map_err(unread(function))?;
        let pf = self.link(host.as_mut(), function)?;
        let set = Op::SetVf { pf, vf: function.index, change: change.clone() };
        host.batch(&[set]).map_err(|source| SettingError::NotSet {
            function: function.address,
            physical: function.physical.address,
            setting: change.describe(),
            source,
        })
    }

    /// The interface of the physical function that tells and takes the settings. Only where there are several are they read
    /// to find it, because that is dear.
    fn link(&self, host: &mut dyn Net, function: &Function) -> Result<u32, SettingError> {
        let physical = &function.physical;
        let links = links_of(host, physical).map_err(unread(function))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(&physical.address);
        match links.as_slice() {
            [] => return Err(no_interface(function)),
            [one] => return Ok(one.index),
            several => {
                if let Some(one) = several.iter().find(|link| before == Some(&link.index)) {
                    return Ok(one.index);
                }
            }
        }
        for link in links {
            if !host.vfs(link.index).map_err(unread(function))?.is_empty() {
                known.insert(physical.address, link.index);
                return Ok(link.index);
            }
        }
        Err(no_interface(function))
    }
}

fn links_of(host: &mut dyn Net, physical: &Physical) -> Result<Vec<Link>, NetError> {
    let mut links = Vec::new();
    for name in &physical.interfaces {
        links.extend(host.link_by_name(name)?);
    }
    if links.is_empty() {
        // Sysfs lists those of the namespace that it was mounted in, which need not be the daemon's.
        let wanted = physical.address.to_string();
        links.extend(host.links()?.into_iter().filter(|link| is_of(link, &wanted)));
    }
    Ok(links)
}

fn unread(function: &Function) -> impl Fn(NetError) -> SettingError {
    let function = function.address;
    move |source| SettingError::Unread { function, source }
}

fn no_interface(function: &Function) -> SettingError {
    SettingError::NoInterface { function: function.address, physical: function.physical.address }
}
