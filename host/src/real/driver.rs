//! Takes a PCI device from its driver and gives it back, by the files of sysfs.
//!
//! A write there lasts until the driver has done its work, and a broken driver never does: so it is done by a thread of
//! its own, and waited for no longer than a limit. What hangs keeps its thread; nothing can end it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::seam::NetError;

/// A driver has its device ready in a tenth of a second; in bad cases it tries for some.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// Unbinds the device from whatever drives it and binds it to `driver`; `sysfs` is the mount.
pub(super) fn bind_anew(sysfs: &Path, address: &str, driver: &str, limit: Duration) -> Result<(), NetError> {
    let bus = sysfs.join("bus/pci");
    let unbind = bus.join("devices").join(address).join("driver/unbind");
    if unbind.exists() {
        let doing = format!("taking it from its driver to bind {driver} anew");
        write(unbind, address, limit).map_err(failed(address, doing))?;
    }
    let bind = bus.join("drivers").join(driver).join("bind");
    write(bind, address, limit).map_err(failed(address, format!("binding it to {driver}")))
}

fn failed(address: &str, doing: String) -> impl FnOnce(io::Error) -> NetError {
    let device = address.to_owned();
    move |source| NetError::Driver { device, doing, source }
}

fn write(file: PathBuf, address: &str, limit: Duration) -> io::Result<()> {
    let (told, outcome) = channel();
    let address = address.to_owned();
    thread::Builder::new().name("pci-driver".to_owned()).spawn(move || {
        let written = fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .and_then(|mut open| open.write_all(address.as_bytes()));
        // Nobody waits any more where the limit has passed.
        let _ = told.send(written);
    })?;
    match outcome.recv_timeout(limit) {
        Ok(written) => written,
        Err(RecvTimeoutError::Timeout) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the driver did not end within {} s", limit.as_secs_f32()),
        )),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the thread that wrote it ended")),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const ADDRESS: &str = "0000:21:10.0";

    /// A device with a driver.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let pci = dir.path().join("bus/pci");
        let driver = pci.join("drivers/igbvf");
        fs::create_dir_all(&driver).unwrap();
        fs::create_dir_all(pci.join("devices").join(ADDRESS)).unwrap();
        std::os::unix::fs::symlink(&driver, pci.join("devices").join(ADDRESS).join("driver")).unwrap();
        (dir, driver)
    }

    #[test]
    fn the_address_is_written_to_unbind_and_to_bind() {
        let (dir, driver) = tree();
        for file in ["unbind", "bind"] {
            fs::write(driver.join(file), "").unwrap();
        }
        bind_anew(dir.path(), ADDRESS, "igbvf", LIMIT).unwrap();
        for file in ["unbind", "bind"] {
            assert_eq!(fs::read_to_string(driver.join(file)).unwrap(), ADDRESS, "{file}");
        }
    }

    #[test]
    fn a_device_without_a_driver_is_only_bound() {
        let (dir, driver) = tree();
        fs::write(driver.join("bind"), "").unwrap();
        bind_anew(dir.path(), ADDRESS, "igbvf", LIMIT).unwrap();
        assert_eq!(fs::read_to_string(driver.join("bind")).unwrap(), ADDRESS);
    }

    #[test]
    fn a_driver_that_hangs_is_waited_for_no_longer_than_the_limit_and_named() {
        let (dir, driver) = tree();
        mkfifo(&driver.join("unbind"), Mode::S_IRWXU).unwrap(); // opened only when somebody reads
        let error = bind_anew(dir.path(), ADDRESS, "igbvf", Duration::from_millis(50)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device 0000:21:10.0: taking it from its driver to bind igbvf anew: the driver did not end within 0.05 s"
        );
    }
}
