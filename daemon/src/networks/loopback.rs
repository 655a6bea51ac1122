//! `loopback`: the namespace's own `lo`, set up. Its addresses come from the kernel.

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;

/// Takes any configuration, as the reference plugin does.
///
/// # Errors
/// None today; the shape is that of the other types.
pub fn validate(_conf: &NetConf) -> Result<(), CniError> {
    Ok(())
}
