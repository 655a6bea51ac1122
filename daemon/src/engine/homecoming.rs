//! How a VF comes home: from the pod, from a namespace that died, or from an ADD that failed half way. From
//! the record alone; it may be begun again at any step.
//!
//! The settings are put back only when the interface has left the pod: until then the pod stays on its VLAN.

use std::time::Duration;

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Mac, Net, NetError, Op, Override, SetLink, VfChange};
use fairlead_sriov::interface::{APPEARS, NAMED, appear, dress, interface};
use fairlead_sriov::resetting::is_resetting;
use fairlead_sriov::{VfDevice, InventoryError, SettingError, VFIO_PCI, VfProfile};
use nix::errno::Errno;

use super::vfs;
use super::link::{self, Reach};
use super::{Engine, errors, failpoint};
use crate::store::{Attachment, Lent, LentVf, LinkRecord};

/// What a VF that is home otherwise cannot have back before its NIC has a carrier, for a person.
#[derive(Debug)]
pub(super) struct Waits(pub(super) CniError);

impl Waits {
    /// For whom nothing may wait.
    pub(super) fn nothing(waits: Option<Waits>) -> Result<(), CniError> {
        waits.map_or(Ok(()), |Waits(why)| Err(why))
    }
}

impl Engine {
    /// Brings the VF of an attachment home and gives it back everything as it was, but for what waits for a carrier.
    pub(super) fn bring_vf_home(
        &self,
        attachment: &Attachment,
        reach: Reach<'_>,
    ) -> Result<Option<Waits>, CniError> {
        let lent = match &attachment.link {
            LinkRecord::Moved(lent) => lent,
            LinkRecord::Given(vf) => return self.take_back_given(attachment, vf),
            _ => return Ok(None),
        };
        let Some(vf) = &lent.vf else { return Ok(None) };
        let told = |e: NetError| {
            errors::kernel(&attachment.key.network, &format!("bringing VF {} home", vf.address), &e)
        };
        if let Reach::Inside(mut pod) = reach
            && let Some(link) = link::find(attachment, pod.as_mut()).map_err(told)?
        {
            self.quiet(attachment, link.index);
            leave(pod.as_mut(), &link, lent, &attachment.parked_name()).map_err(told)?;
        }
        failpoint::pass("del.home");
        let Some(vf) = self.what_is_left(attachment, vf)? else { return Ok(None) };
        let mut host = self.kernel.host().map_err(told)?;
        let link = appear(host.as_mut(), vf.address, APPEARS).map_err(told)?;
        let link = link.ok_or_else(|| still_away(vf))?;
        let (link, waits) = self.put_settings_back(host.as_mut(), vf, &vf, link, lent.was.mac)?;
        let link = match wrong(&link, lent.was.mac) {
            Some(mac) => self.mac_back(host.as_mut(), vf, link, mac).map_err(told)?,
            None => link,
        };
        if let Some(mac) = wrong(&link, lent.was.mac) {
            tracing::warn!(pci = %vf.address, was = %mac,
                "a VF keeps the MAC address that its PF has for it");
        }
        let named = self.pools.names(vf.address);
        let limit = if named { Duration::ZERO } else { NAMED };
        match dress(host.as_mut(), vf.address, link, &lent.was.look(), limit, |_, _| Ok::<(), NetError>(())) {
            // Its pool gives it its name and look when it is ready, and waits for another VF that has its name by chance.
            Err(e) if e.errno() == Some(Errno::EEXIST) && named => {
                tracing::info!(pci = %vf.address, name = lent.was.name,
                    "the name of a VF that comes home is taken: its pool sees to it");
                Ok(waits)
            }
            other => other.map(|_| waits).map_err(told),
        }
    }

    /// Its own MAC address again. One of a pool that does not end resetting has it from that, as its settings.
    fn mac_back(&self, host: &mut dyn Net, vf: &LentVf, link: Link, mac: Mac) -> Result<Link, NetError> {
        match self.kernel_vf(vf).take_back(host, &link, mac) {
            Err(error) if is_resetting(&error) && self.pools.sets(vf.address) => {
                tracing::info!(pci = %vf.address, %error, "its pool gives a VF its MAC address back");
                Ok(interface(host, vf.address, std::slice::from_ref(&link.name))?.unwrap_or(link))
            }
            done => done,
        }
    }

    /// The VF under its driver, if it is still there and nobody has given it another.
    fn what_is_left(&self, attachment: &Attachment, vf: &LentVf) -> Result<Option<VfDevice>, CniError> {
        let Some(vf) = self.still_there(vf)? else { return Ok(None) };
        match &vf.driver {
            Some(driver) if *driver == vf.driver => {}
            Some(_) => return self.leave_to_another(attachment, vf, &vf).map(|()| None),
            // It was being bound anew, or somebody took it away.
            None => self.kernel.bind(&vf.address.to_string(), &vf.driver, Override::Keep).map_err(|e| {
                errors::kernel(&attachment.key.network, &format!("bringing VF {} home", vf.address), &e)
            })?,
        }
        Ok(Some(vf))
    }

    /// A VF that somebody has bound to another driver keeps that; the settings of its pod it does not keep, unless a
    /// process has it by now.
    fn leave_to_another(
        &self,
        attachment: &Attachment,
        vf: &LentVf,
        vf: &VfDevice,
    ) -> Result<(), CniError> {
        let is_given = vf.driver.as_deref() == Some(VFIO_PCI);
        let process = if is_given { self.process_with(attachment, vf)? } else { None };
        tracing::warn!(pci = %vf.address, driver = ?vf.driver, in_use = process.is_some(),
            "a lent VF has another driver now: it is left to whoever gave it that");
        let waits = if process.is_some() { None } else { self.undo_settings(vf, vf)? };
        Waits::nothing(waits)
    }

    /// The VF; one that is gone is told.
    pub(super) fn still_there(&self, vf: &LentVf) -> Result<Option<VfDevice>, CniError> {
        match self.inventory.vf(vf.address) {
            Ok(vf) => Ok(Some(vf)),
            Err(
                e @ (InventoryError::Absent(_)
                | InventoryError::Disowned { .. }
                | InventoryError::NotVirtual(_)),
            ) => {
                tracing::warn!(pci = %vf.address, error = %e, "a lent VF is gone");
                Ok(None)
            }
            Err(e) => Err(vfs::unusable(&e)),
        }
    }

    /// The settings that ADD changed, as they were; only what differs is sent.
    fn put_settings_back(
        &self,
        host: &mut dyn Net,
        vf: &LentVf,
        vf: &VfDevice,
        mut link: Link,
        mac: Option<Mac>,
    ) -> Result<(Link, Option<Waits>), CniError> {
        if vf.before.is_empty() {
            return Ok((link, None));
        }
        let told = |e: NetError| {
            errors::kernel("", &format!("giving VF {} its settings back", vf.address), &e)
        };
        let Some(mut now) = self.unless_its_pools(vf, self.admin.settings(vf))? else {
            return Ok((link, None));
        };
        if let (Some(mac), Some(true)) = (wrong(&link, mac), now.trust) {
            // Trusted, it may have taken another one; when it is trusted no more it cannot take its own any more.
            link = self.kernel_vf(vf).try_mac(host, &link, mac).map_err(told)?.unwrap_or(link);
            now = self.admin.settings(vf).map_err(|e| errors::setting(&e))?;
        }
        let change = VfProfile::from(&vf.before).plan(&now).change;
        if change.is_empty() {
            return Ok((link, None));
        }
        let waits = self.put_back(vf, vf, &change)?;
        // Its MAC address may have followed.
        let now = interface(host, vf.address, std::slice::from_ref(&link.name)).map_err(told)?;
        now.map(|link| (link, waits)).ok_or_else(|| still_away(vf))
    }

    /// The same for one that has no interface.
    pub(super) fn undo_settings(&self, vf: &LentVf, vf: &VfDevice) -> Result<Option<Waits>, CniError> {
        if vf.before.is_empty() {
            return Ok(None);
        }
        let Some(now) = self.unless_its_pools(vf, self.admin.settings(vf))? else { return Ok(None) };
        self.put_back(vf, vf, &VfProfile::from(&vf.before).plan(&now).change)
    }

    /// What a VF of a pool does not take now it has from that before anybody else has it: its rates when there is a
    /// carrier, all of them when it has ended resetting. No pod stays for it.
    fn unless_its_pools<T>(&self, vf: &LentVf, done: Result<T, SettingError>) -> Result<Option<T>, CniError> {
        let passes = |e: &SettingError| {
            matches!(e, SettingError::Dark { .. } | SettingError::Stuck { .. } | SettingError::Untold { .. })
        };
        match done {
            Err(error) if passes(&error) && self.pools.sets(vf.address) => {
                tracing::info!(pci = %vf.address, %error, "its pool gives a VF its settings back");
                Ok(None)
            }
            other => other.map(Some).map_err(|e| errors::setting(&e)),
        }
    }

    /// Settings as they were, in one message. What the NIC refuses to take back is told and passed over: nothing would be
    /// better if it were tried for ever. What it will take later is tried again, here or by the VF's pool.
    fn put_back(
        &self,
        vf: &LentVf,
        vf: &VfDevice,
        change: &VfChange,
    ) -> Result<Option<Waits>, CniError> {
        let done = match self.admin.set_what_is_taken(vf, change) {
            Err(dark @ SettingError::Dark { .. }) if !self.pools.sets(vf.address) => {
                return Ok(Some(Waits(errors::setting(&dark))));
            }
            done => done,
        };
        let Some(refused) = self.unless_its_pools(vf, done)? else { return Ok(None) };
        for error in &refused {
            tracing::error!(pci = %vf.address, %error, "a VF cannot have a setting back as it was");
        }
        if refused.is_empty()
            && let Err(error) = self.admin.settle(vf, change)
        {
            tracing::warn!(pci = %vf.address, %error, "a VF's settings are not as they were");
        }
        Ok(None)
    }
}

/// The MAC address that an interface should have and has not.
fn wrong(link: &Link, mac: Option<Mac>) -> Option<Mac> {
    mac.filter(|mac| link.mac != Some(*mac))
}

/// Out of the pod, under its own name; where another has that now, under one that nobody has.
fn leave(pod: &mut dyn Net, link: &Link, lent: &Lent, parked: &str) -> Result<(), NetError> {
    let index = link.index;
    let home = |name: &str| Op::MoveToHost { index, name: name.to_owned() };
    pod.batch(&[Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() })])?;
    match pod.batch(&[home(&lent.was.name)]) {
        Err(e) if e.errno() == Some(Errno::EEXIST) => pod.batch(&[home(parked)]),
        other => other,
    }
}

pub(super) fn still_away(vf: &LentVf) -> CniError {
    CniError::new(
        Code::TryAgain,
        format!("VF {} is in no pod of its attachment and not in the host's namespace", vf.address),
    )
    .with("it comes home when the namespace that it is in ends; if somebody has moved it, move it back")
}
