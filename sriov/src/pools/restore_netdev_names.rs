//! The names of members' netdevs: as before their pool had them, whatever the kernel has called a netdev that came with a new VF
//! or a new binding.
//!
//! The kernel gives a new netdev any name that is free just then. That name may belong to another member whose netdev is away for
//! a moment. A member that got another one's name in this way gives it up.

use fairlead_host::{Link, Net, NetError, Op, SetLink};
use nix::errno::Errno;

use super::provision_error::ProvisionError;
use super::provisioner::Provisioner;
use super::records::Record;
use super::reservation::Reservation;
use crate::PciAddr;
use crate::vf_netdev::{Appearance, Look, NAMED, restore_look, temporary_name};

/// Reserves a member to which nothing was done, so that nobody has it or begins with it while its interface is renamed.
pub(super) type TakeIdle<'p> = &'p dyn Fn(PciAddr) -> Option<Reservation<'p>>;

impl Provisioner {
    /// How a VF's interface looks, to come back to. It is called as the interface of the VF was that has vanished from the same
    /// address, unless somebody else has that name now.
    pub(super) fn appearance(&self, address: PciAddr, link: &Link) -> Result<Appearance, ProvisionError> {
        let now = Appearance::of(link);
        let records = self.records.all();
        let name_of = |record: &Record| record.name_in(&self.boot_id).map(str::to_owned);
        let former = records.iter().find(|record| record.address == address).and_then(name_of);
        let Some(name) = former.filter(|name| *name != now.name) else { return Ok(now) };
        let mut others = records.iter().filter(|record| record.address != address);
        let is_wanted = others.clone().any(|other| name_of(other).as_ref() == Some(&name));
        // A VF that is called so by chance is to be called otherwise itself.
        let is_free = match self.kernel.host()?.link_by_name(&name)?.map(|link| link.device) {
            None => true,
            Some(device) => {
                others.any(|other| name_of(other).is_some() && device == Some(other.address.to_string()))
            }
        };
        Ok(if is_free && !is_wanted { Appearance { name, ..now } } else { now })
    }

    /// Has an interface look as wanted, also where another member has its name by chance.
    pub(super) fn configure_netdev(
        &self,
        address: PciAddr,
        link: Link,
        look: &Look,
        idle: TakeIdle<'_>,
    ) -> Result<(), ProvisionError> {
        let mut host = self.kernel.host()?;
        restore_look(host.as_mut(), address, link, look, NAMED, |host, name| {
            self.give_up_name(host, name, idle)
        })
    }

    /// Has an idle member that is called so by chance give the name up, for its own or one that nobody has: no work would ever
    /// rename it, because nothing is done to an idle member.
    fn give_up_name(&self, host: &mut dyn Net, name: &str, idle: TakeIdle<'_>) -> Result<(), ProvisionError> {
        let Some(link) = host.link_by_name(name)? else { return Ok(()) };
        let device = link.device.as_deref().and_then(|device| device.parse().ok());
        let Some((other, _held)) = device.and_then(|other| Some((other, idle(other)?))) else {
            return Ok(());
        };
        // Until it was idle, a worker of its own may have given it its name back.
        if host.link_by_name(name)?.is_none_or(|now| now.index != link.index) {
            return Ok(());
        }
        // An interface that somebody uses keeps its name.
        if self.leave_alone(&self.inventory.vf(other)?, false).is_err() {
            return Ok(());
        }
        let its_own =
            self.records.get(other).and_then(|record| record.name_in(&self.boot_id).map(str::to_owned));
        for new in its_own.into_iter().chain([temporary_name(other)]) {
            match self.rename(host, &link, &new) {
                // Its own name is taken as well: the temporary one frees the wanted name all the same.
                Err(e) if e.errno() == Some(Errno::EEXIST) => {}
                Err(error) => {
                    // Whoever wants the name is not to blame for it.
                    tracing::warn!(pci = %other, name, %error, "the interface of an idle VF does not make way");
                    return Ok(());
                }
                Ok(()) => {
                    tracing::info!(pci = %other, from = name, to = new, "the interface of an idle VF makes way");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Renames an interface; it is down for that moment where the kernel renames none that is up.
    fn rename(&self, host: &mut dyn Net, link: &Link, name: &str) -> Result<(), NetError> {
        let index = link.index;
        let set = |up| Op::SetLink(SetLink { index, up: Some(up), ..SetLink::default() });
        let renamed = Op::SetLink(SetLink { index, name: Some(name.to_owned()), ..SetLink::default() });
        if !link.up || self.kernel.renames_while_up() {
            return host.batch(&[renamed]);
        }
        let done = host.batch(&[set(false), renamed]);
        // Also after a failed renaming: an idle VF is left as it was found.
        host.batch(&[set(true)])?;
        done
    }
}
