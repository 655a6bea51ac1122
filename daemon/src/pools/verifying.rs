//! Whether a member is what it is to be. Looks only, changes nothing.

use fairlead_host::Vf;
use fairlead_sriov::interface::Look;
use fairlead_sriov::{Function, UnfitForVfio, fit_for_vfio};

use super::record::Record;
use super::sight::Sight;
use super::trouble::Trouble;
use super::workshop::{Known, VFIO, Wish, Workshop};

impl Workshop {
    /// Whether a member is ready as it stands. `settings` are its physical function's, read once for all.
    pub(super) fn compare(
        &self,
        function: &Function,
        wish: &Wish,
        settings: &[Vf],
        sight: &Sight<'_>,
    ) -> Result<Known, Trouble> {
        self.may_be_had(function, wish, sight)?;
        let record = self.record(function.address)?;
        let was = record.was_in(&self.boot_id);
        let was = was.ok_or_else(|| Trouble::Changed("it was not adopted in this boot".to_owned()))?;
        let driver = wish.driver(was);
        if function.driver.as_deref() != Some(driver) {
            if function.driver.is_none() && wish.is_bound_by_others() {
                self.owner_is_done(function, wish, was)?;
            }
            let now = function.driver.as_deref().unwrap_or("no driver");
            return Err(Trouble::Changed(format!("it has {now} instead of {driver}")));
        }
        let settings = settings.iter().find(|vf| vf.index == function.index).cloned();
        let settings = settings.ok_or_else(|| {
            let physical = function.physical.address;
            Trouble::Changed(format!("{physical} does not tell its settings: it is being reset"))
        })?;
        let plan = wish.settings(&record, was).plan(&settings);
        if !plan.change.is_empty() {
            return Err(Trouble::Changed(format!(
                "somebody has set {} instead of {}",
                plan.undo.describe(),
                plan.change.describe()
            )));
        }
        let known = Known { function: function.clone(), driver: driver.to_owned(), settings };
        self.verify(&record, wish, &known, sight)?;
        Ok(known)
    }

    /// Looks at all that a ready member must be.
    pub(super) fn verify(
        &self,
        record: &Record,
        wish: &Wish,
        known: &Known,
        sight: &Sight<'_>,
    ) -> Result<(), Trouble> {
        let function = &known.function;
        if !sight.answers(function.address)? {
            return Err(Trouble::Unfit("its configuration space does not answer".to_owned()));
        }
        if known.driver == VFIO {
            return self.verify_group(function, wish, sight);
        }
        let link = self.interface(function)?;
        let link = link.ok_or_else(|| Trouble::Changed("it has no interface".to_owned()))?;
        if link.mac != Some(record.mac) {
            return Err(Trouble::Changed(format!(
                "its interface {:?} has not taken its MAC address {} over",
                link.name, record.mac
            )));
        }
        let was = record.was.as_ref().and_then(|was| was.interface.as_ref());
        let look = was.map(|was| Look { up: None, ..wish.look(was) });
        match look.is_some_and(|look| !look.restored(&link).is_empty()) {
            true => {
                Err(Trouble::Changed(format!("its interface {:?} does not look as it should", link.name)))
            }
            false => Ok(()),
        }
    }

    fn verify_group(&self, function: &Function, wish: &Wish, sight: &Sight<'_>) -> Result<(), Trouble> {
        match fit_for_vfio(&self.inventory, function, |group| sight.group(group)) {
            Ok(_) => {}
            Err(UnfitForVfio::NoIommu { .. }) if wish.allow_no_iommu => {}
            Err(unfit @ UnfitForVfio::NoIommu { .. }) => {
                return Err(Trouble::Unfit(format!("{unfit}; allowNoIommu: true permits that")));
            }
            Err(in_use @ UnfitForVfio::InUse { .. }) => return Err(Trouble::Taken(in_use.to_string())),
            Err(unfit) => return Err(Trouble::Unfit(unfit.to_string())),
        }
        // vfio would let two functions share a group; two pods must not.
        match self.inventory.group_of(function.address)?.iter().find(|other| !other.bridge) {
            Some(other) => Err(Trouble::Unfit(format!(
                "{} is in its IOMMU group too: they cannot go to two pods",
                other.device
            ))),
            None => Ok(()),
        }
    }
}
