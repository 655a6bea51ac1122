//! `loopback`: the namespace's own `lo`, set up. Its addresses come from the kernel.

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;
use fairlead_host::Link;

/// Takes any configuration, as the reference plugin does.
///
/// # Errors
/// None today; the shape is that of the other types.
pub fn validate(_conf: &NetConf) -> Result<(), CniError> {
    Ok(())
}

/// Whether `lo` is up.
pub fn check(link: &Link) -> Result<(), String> {
    if link.up { Ok(()) } else { Err(format!("{:?} is down", link.name)) }
}
