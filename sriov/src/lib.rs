//! Virtual functions of SR-IOV devices: where they are ([`Inventory`]), how one is to be set up ([`VfProfile`]), and what
//! has to change for that ([`VfProfile::plan`], pure).
//!
//! It reads sysfs, whose root it is given, and changes nothing: that is done through the kernel's seam.

#![forbid(unsafe_code)]

mod address;
mod inventory;
mod profile;

pub use address::{BadPciAddr, PciAddr};
pub use inventory::{Function, Inventory, InventoryError, Physical};
pub use profile::{Plan, VfProfile};
