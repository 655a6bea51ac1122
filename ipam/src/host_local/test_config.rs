//! Configurations for tests, read the way a runtime's are.

use fairlead_cni::args::Args;
use fairlead_cni::config::{HostLocal, NetConf};

/// A host-local configuration with these keys in `ipam`.
pub(super) fn host_local(ipam: &str) -> HostLocal {
    let text = format!(
        r#"{{"cniVersion":"1.1.0","name":"pods","type":"macvlan","ipam":{{"type":"host-local",{ipam}}}}}"#
    );
    HostLocal::parse(&NetConf::parse(&text).unwrap(), &Args::default()).unwrap()
}
