//! Cards in switchdev mode, as devlink tells them.

use std::fs;

use fairlead_host::double::KernelRequest;
use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_host::{DevlinkDevice, DevlinkEnd, DevlinkPort};
use fairlead_sriov::pools::Look;
use nix::errno::Errno;
use serde_json::{Value, json};

use super::pools::{POOL, SECOND, config, kept};
use super::vfio::{INFO, informed};
use super::*;

pub(super) const PHYSICAL: &str = "0000:21:00.0";

/// Two VFs of a pool, ready, of a card in switchdev mode in which the first one has a representor.
fn switched(text: &str) -> Rig {
    let rig = kept(text);
    let uplink = rig.sys().join("bus/pci/devices").join(PHYSICAL).join("net").join(PF);
    fs::write(uplink.join("phys_switch_id"), "1234").unwrap();
    rig.switch(PHYSICAL, true, &[0]);
    rig.keep();
    rig
}

impl Rig {
    /// What devlink tells; the names come before the PF's own.
    pub(super) fn switch(&self, physical: &str, switchdev: bool, representors: &[u16]) {
        let port =
            |number: &u16| DevlinkPort { end: DevlinkEnd::Vf(*number), link: Some(format!("of{number}")) };
        self.kernel.set_devlink(vec![DevlinkDevice {
            bus: "pci".to_owned(),
            name: physical.to_owned(),
            switchdev: Some(switchdev),
            ports: representors.iter().map(port).collect(),
        }]);
    }

    /// What an ADD tells of its VF, and its call at which devlink is asked.
    fn representor(&self) -> (Value, Option<usize>) {
        self.kernel.forget_calls();
        self.add(&informed()).unwrap();
        let told = self.device_information()["pci"]["representor-device"].clone();
        self.del(&informed()).unwrap();
        (told, self.kernel.calls().iter().position(|call| call.request == KernelRequest::Devlink))
    }
}

#[test]
fn device_information_tells_the_representor_that_devlink_names_and_asks_it_only_where_there_is_a_switch() {
    let rig = Rig::new();
    rig.switch(VFIO_PF, true, &[0]);
    assert_eq!(rig.representor(), (Value::Null, None));
    let uplink = rig.sys().join("bus/pci/devices").join(VFIO_PF).join("net").join(VFIO_LINK);
    fs::create_dir_all(&uplink).unwrap();
    fs::write(uplink.join("phys_switch_id"), "1234").unwrap();
    let (told, asked) = rig.representor();
    assert_eq!(told, "of0");
    rig.kernel.fail_at(asked.unwrap(), Errno::ETIMEDOUT);
    assert_eq!(rig.representor(), (Value::Null, asked), "no ADD fails because devlink does not answer");
}

#[test]
fn vfs_that_have_no_representor_in_switchdev_mode_are_told() {
    let rig = kept(POOL);
    let notices = |switchdev, representors: &[u16]| {
        rig.switch(PHYSICAL, switchdev, representors);
        rig.keep();
        rig.engine().table("pools").unwrap()["notices"].clone()
    };
    assert_eq!(notices(false, &[]), json!([]));
    let told = format!(
        "pool \"radio\": 0000:21:00.0 is in switchdev mode, and the host has no representor of {SECOND}: \
         nothing reaches a VF without one"
    );
    assert_eq!(notices(true, &[0])[0]["seen"], told);
    assert_eq!(notices(true, &[0, 1]), json!([]));
}

#[test]
fn an_add_of_a_pools_vf_goes_by_what_devlink_told_the_last_look_and_asks_it_not() {
    let rig = switched(POOL);
    let representor = || {
        rig.kernel.forget_calls();
        let informed = config(VF, &format!(r#","runtimeConfig":{{"CNIDeviceInfoFile":"{INFO}"}}"#));
        rig.add(&informed).unwrap();
        let told = rig.device_information()["pci"]["representor-device"].clone();
        rig.del(&informed).unwrap();
        rig.reap();
        rig.engine().core.kinds.sriov.pools.work_here();
        (told, rig.asked(|asked| *asked == KernelRequest::Devlink))
    };
    assert_eq!(representor(), (json!("of0"), 0));
    rig.switch(PHYSICAL, true, &[]);
    assert_eq!(representor(), (json!("of0"), 0), "as it was told");
    rig.keep();
    assert_eq!(representor(), (Value::Null, 0));
}

#[test]
fn news_of_a_switchs_interfaces_have_devlink_asked_again() {
    for action in [Action::Added, Action::Removed, Action::Renamed] {
        let rig = switched(POOL);
        while rig.look_due() != Look::Thorough {}
        let news = DeviceEvent::Interface { device: PHYSICAL.to_owned(), name: "of0".to_owned(), action };
        rig.engine().core.kinds.sriov.pools.device_events(&[news]);
        assert_eq!(rig.look_due(), Look::Quick, "{action:?}");
        rig.kernel.forget_calls();
        rig.engine().look_at_pools(Look::Quick);
        assert_eq!(rig.asked(|asked| *asked == KernelRequest::Devlink), 1);
    }
}
