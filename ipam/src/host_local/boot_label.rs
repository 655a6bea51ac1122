//! The label on every file that Fairlead makes: the id of the boot in which it was made, as an extended attribute.
//!
//! After a reboot no container of before is left, so what carries an older boot's id can be freed without asking anyone. The
//! reference plugin writes no label; its files are never freed that way. A file system may take no extended attributes: then an
//! allocation that a reboot orphans stays until the operator frees it.

use std::os::fd::{AsFd, OwnedFd};

use fairlead_host::trusted_file;
use rustix::fs::{OFlags, XattrFlags, fgetxattr, fsetxattr};
use rustix::io::Errno;

/// Name of the extended attribute.
pub(super) const XATTR: &str = "user.fairlead.boot";

/// Labels an open file.
pub(super) fn set(file: impl AsFd, boot_id: &str) -> Result<(), Errno> {
    fsetxattr(file, XATTR, boot_id.as_bytes(), XattrFlags::empty())
}

/// The boot id on the file `name`; `None` where Fairlead did not make the file, or could not label it.
pub(super) fn read(dir: &OwnedFd, name: &str) -> Option<String> {
    let (file, _) = trusted_file::open(dir, name, OFlags::RDONLY).ok()?;
    let mut label = [0u8; 64];
    let length = fgetxattr(&file, XATTR, &mut label[..]).ok()?;
    std::str::from_utf8(label.get(..length)?).ok().map(str::to_owned)
}
