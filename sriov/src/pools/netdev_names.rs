//! What the interfaces of members are called: as before, whatever the kernel has called those that were made anew or bound anew.

use crate::PciAddr;
use crate::interface::{Appearance, Look, NAMED, aside, dress};
use fairlead_host::{Link, Net, NetError, Op, SetLink};
use nix::errno::Errno;

use super::provision::Provisioner;
use super::provision_error::ProvisionError;
use super::records::Record;
use super::reservation::Loan;

/// Takes a member to which nothing was done, so that nobody has it or begins with it while it is held.
pub(super) type TakeIdle<'p> = &'p dyn Fn(PciAddr) -> Option<Loan<'p>>;

impl Provisioner {
    /// How its interface looks. It is called as that of the one before it was, which has vanished from its address, unless
    /// somebody else is now: the kernel gives a new one whatever name is free just then.
    pub(super) fn appearance(&self, address: PciAddr, link: &Link) -> Result<Appearance, ProvisionError> {
        let now = Appearance::of(link);
        let records = self.records.all();
        let name_of = |record: &Record| record.name_in(&self.boot_id).map(str::to_owned);
        let former = records.iter().find(|record| record.address == address).and_then(name_of);
        let Some(name) = former.filter(|name| *name != now.name) else { return Ok(now) };
        let mut others = records.iter().filter(|record| record.address != address);
        let is_wanted = others.clone().any(|other| name_of(other).as_ref() == Some(&name));
        // A function that is called so by chance is to be called otherwise itself.
        let is_free = match self.kernel.host()?.link_by_name(&name)?.map(|link| link.device) {
            None => true,
            Some(device) => {
                others.any(|other| name_of(other).is_some() && device == Some(other.address.to_string()))
            }
        };
        Ok(if is_free && !is_wanted { Appearance { name, ..now } } else { now })
    }

    /// The interface looks so, also where another member has its name by chance.
    pub(super) fn configure_netdev(
        &self,
        address: PciAddr,
        link: Link,
        look: &Look,
        idle: TakeIdle<'_>,
    ) -> Result<(), ProvisionError> {
        let mut host = self.kernel.host()?;
        dress(host.as_mut(), address, link, look, NAMED, |host, name| self.give_up_name(host, name, idle))
    }

    /// Has an idle member that is called so by chance give the name up, for its own or one that nobody has: it is bound by
    /// nobody, and would have it for ever.
    fn give_up_name(&self, host: &mut dyn Net, name: &str, idle: TakeIdle<'_>) -> Result<(), ProvisionError> {
        let Some(link) = host.link_by_name(name)? else { return Ok(()) };
        let device = link.device.as_deref().and_then(|device| device.parse().ok());
        let Some((other, _held)) = device.and_then(|other| Some((other, idle(other)?))) else {
            return Ok(());
        };
        if self.leave_alone(&self.inventory.function(other)?, false).is_err() {
            return Ok(());
        }
        let its_own =
            self.records.get(other).and_then(|record| record.name_in(&self.boot_id).map(str::to_owned));
        for new in its_own.into_iter().chain([aside(other)]) {
            match self.rename(host, &link, &new) {
                Err(e) if e.errno() == Some(Errno::EEXIST) => {}
                Err(error) => {
                    // Whoever wants the name is not to blame for it.
                    tracing::warn!(pci = %other, name, %error, "the interface of an idle function does not make way");
                    return Ok(());
                }
                Ok(()) => {
                    tracing::info!(pci = %other, from = name, to = new, "the interface of an idle function makes way");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Down for that moment where the kernel renames none that is up.
    fn rename(&self, host: &mut dyn Net, link: &Link, name: &str) -> Result<(), NetError> {
        let index = link.index;
        let set = |up| Op::SetLink(SetLink { index, up: Some(up), ..SetLink::default() });
        let renamed = Op::SetLink(SetLink { index, name: Some(name.to_owned()), ..SetLink::default() });
        if !link.up || self.kernel.renames_while_up() {
            return host.batch(&[renamed]);
        }
        let done = host.batch(&[set(false), renamed]);
        host.batch(&[set(true)])?;
        done
    }
}
