//! Is an uplink one that can be? What its descriptors are shows when they are mapped.

use std::os::fd::OwnedFd;

use fairlead_host::Uplink;
use fairlead_host::uplink::{MOST_MTU, MOST_QUEUES};

use super::messages::{Refusal, RefusalCode};
use super::port_config_check::check_network;
use crate::port::UplinkConfig;

const MTUS: std::ops::RangeInclusive<u16> = 68..=MOST_MTU;

/// Checks every field, and puts the descriptors together.
pub(super) fn take(config: &UplinkConfig, descriptors: Vec<OwnedFd>) -> Result<Uplink, Refusal> {
    let wrong =
        |what: String| Refusal::new(RefusalCode::BadConfig, format!("uplink {:?}: {what}", config.interface));
    check_network(&config.network).map_err(wrong)?;
    if !MTUS.contains(&config.mtu) {
        return Err(wrong(format!("an MTU of {} bytes; take 68 to {MOST_MTU}", config.mtu)));
    }
    let count = descriptors.len();
    Uplink::of_descriptors(config.native, descriptors).ok_or_else(|| {
        let reason = format!(
            "{count} descriptors came with the request; send the attachment, and socket and memory of 1 to {MOST_QUEUES} queues"
        );
        Refusal::new(RefusalCode::BadSocket, reason)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn an_uplink_has_an_attachment_and_a_socket_and_memory_of_each_queue() {
        let config =
            |mtu| UplinkConfig { network: "a".into(), interface: "eth1".into(), index: 7, mtu, native: true };
        let some = |count| (0..count).map(|_| OwnedFd::from(File::open("/dev/null").unwrap())).collect();
        assert_eq!(take(&config(1_500), some(3)).unwrap().queues.len(), 1);
        assert_eq!(take(&config(1_500), some(17)).unwrap().queues.len(), 8);
        for count in [0, 1, 2, 4, 19] {
            assert_eq!(
                take(&config(1_500), some(count)).unwrap_err().code,
                RefusalCode::BadSocket,
                "{count}"
            );
        }
        let refused = take(&config(9_000), some(3)).unwrap_err();
        assert_eq!(refused.reason, "uplink \"eth1\": an MTU of 9000 bytes; take 68 to 3818");
    }
}
