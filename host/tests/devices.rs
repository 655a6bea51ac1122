//! News of devices, on the real kernel. Needs root.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::time::Duration;

use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::watch::{Action, DeviceEvent, DeviceEvents};
use fairlead_host::{Kind, NetKernel, NewLink, Op, Parent};

#[test]
fn a_device_on_the_bus_is_told_and_a_link_that_is_on_none_wakes_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let host = ScratchNetns::new(directory.path(), "host").unwrap();
    host.inside(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut news = DeviceEvents::open().unwrap();
            let kernel = RealKernel::new().unwrap();
            let mut net = kernel.host().unwrap();
            let veth = NewLink {
                name: "eth0".to_owned(),
                index: Some(7000),
                kind: Kind::Other { name: "veth".to_owned() },
                parent: Parent::None,
                mac: None,
                mtu: None,
                up: true,
            };
            net.batch(&[Op::CreateLink(veth), Op::DeleteLink(7000)]).unwrap();
            let device = fs::read_dir("/sys/bus/pci/devices").unwrap().next().unwrap().unwrap();
            fs::write(device.path().join("uevent"), "change").unwrap();
            let device = device.file_name().into_string().unwrap();
            let first = tokio::time::timeout(Duration::from_secs(10), news.next()).await.unwrap();
            assert_eq!(first, DeviceEvent::Pci { device, action: Action::Changed });
        });
    })
    .unwrap();
}
