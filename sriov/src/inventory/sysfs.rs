//! How a device's directory of sysfs is read: links, names, attributes. What is not there, or went away meanwhile, is
//! nothing and no error.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::InventoryError;
use crate::PciAddr;

/// What sysfs answers when a device is removed between the opening of its file and the reading.
const ENODEV: i32 = 19;

fn failed(path: &Path) -> impl FnOnce(io::Error) -> InventoryError {
    let path = path.to_owned();
    move |source| InventoryError::Io { path, source }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(ENODEV)
}

/// The same, or the driver does not say: an interface that is down has no `carrier`, one that no switch made no
/// `phys_port_name` (EINVAL, EOPNOTSUPP).
fn is_untold(error: &io::Error) -> bool {
    is_absent(error) || matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// Where a link leads; `None` where there is none.
pub(super) fn target(link: &Path) -> Result<Option<PathBuf>, InventoryError> {
    match fs::read_link(link) {
        Ok(path) => Ok(Some(path)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(failed(link)(e)),
    }
}

/// The last part of what a link leads to; `None` where there is none.
pub(super) fn target_name(link: &Path) -> Result<Option<String>, InventoryError> {
    Ok(target(link)?.and_then(|path| last(&path)))
}

/// The last part of a path.
pub(super) fn last(path: &Path) -> Option<String> {
    path.file_name().and_then(|name| name.to_str()).map(str::to_owned)
}

/// The PCI device that a link leads to.
pub(super) fn pci_address(link: &Path, to: &Path) -> Result<PciAddr, InventoryError> {
    let name = last(to).and_then(|name| name.parse().ok());
    name.ok_or_else(|| InventoryError::Astray(link.to_owned()))
}

/// The inode number of a directory, or of the one that a link leads to; `None` where there is none.
pub(super) fn inode(dir: &Path) -> Result<Option<u64>, InventoryError> {
    match fs::metadata(dir) {
        Ok(found) => Ok(Some(found.ino())),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(failed(dir)(e)),
    }
}

/// What is in a directory, in order; nothing where there is none.
pub(super) fn names(dir: &Path) -> Result<Vec<String>, InventoryError> {
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        Err(e) if is_absent(&e) => return Ok(Vec::new()),
        Err(e) => return Err(failed(dir)(e)),
    };
    let mut found = Vec::new();
    for entry in read {
        found.extend(entry.map_err(failed(dir))?.file_name().into_string().ok());
    }
    found.sort();
    Ok(found)
}

/// An attribute's text; `None` where there is none, or none now.
pub(super) fn text(file: &Path) -> Result<Option<String>, InventoryError> {
    match at_once(file) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(e) if is_untold(&e) => Ok(None),
        Err(e) => Err(failed(file)(e)),
    }
}

/// An attribute is a page at most, and comes whole with the first reading.
fn at_once(file: &Path) -> io::Result<String> {
    let mut page = [0; 4096];
    let read = File::open(file)?.read(&mut page)?;
    Ok(String::from_utf8_lossy(&page[..read]).into_owned())
}

/// An attribute that is a number in decimal; `None` for anything else (-1 is how sysfs says that there is none).
pub(super) fn number<T: FromStr>(file: &Path) -> Result<Option<T>, InventoryError> {
    Ok(text(file)?.and_then(|text| text.parse().ok()))
}

/// An attribute that is a number in hexadecimal with `0x` before it.
pub(super) fn hexadecimal(file: &Path) -> Result<Option<u32>, InventoryError> {
    let digits = text(file)?.and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok());
    Ok(digits)
}
