//! Cards in switchdev mode, as devlink tells them.

use std::fs;

use fairlead_host::double::Asked;
use fairlead_host::{DevlinkDevice, DevlinkEnd, DevlinkPort};
use nix::errno::Errno;
use serde_json::{Value, json};

use super::given::informed;
use super::pools::{POOL, SECOND, with};
use super::*;

impl Rig {
    fn switch(&self, physical: &str, switchdev: bool, representors: &[u16]) {
        let port = |number: &u16| DevlinkPort {
            end: DevlinkEnd::Function(*number),
            link: Some(format!("rep{number}")),
        };
        self.kernel.set_devlink(vec![DevlinkDevice {
            bus: "pci".to_owned(),
            name: physical.to_owned(),
            switchdev: Some(switchdev),
            ports: representors.iter().map(port).collect(),
        }]);
    }

    /// What an ADD tells of its function, and its call at which devlink is asked.
    fn representor(&self) -> (Value, Option<usize>) {
        self.kernel.forget_calls();
        self.add(&informed()).unwrap();
        let told = self.device_information()["pci"]["representor-device"].clone();
        self.del(&informed()).unwrap();
        (told, self.kernel.calls().iter().position(|call| call.asked == Asked::Devlink))
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
    assert_eq!(told, "rep0");
    rig.kernel.fail_at(asked.unwrap(), Errno::ETIMEDOUT);
    assert_eq!(rig.representor(), (Value::Null, asked), "no ADD fails because devlink does not answer");
}

#[test]
fn functions_that_have_no_representor_in_switchdev_mode_are_told() {
    let rig = {
        let mut rig = with(POOL);
        rig.restart();
        rig
    };
    let notices = |switchdev, representors: &[u16]| {
        rig.switch("0000:21:00.0", switchdev, representors);
        rig.keep();
        rig.engine().table("pools").unwrap()["notices"].clone()
    };
    assert_eq!(notices(false, &[]), json!([]));
    let told = format!(
        "pool \"radio\": 0000:21:00.0 is in switchdev mode, and the host has no representor of {SECOND}: \
         nothing reaches a function without one"
    );
    assert_eq!(notices(true, &[0])[0]["seen"], told);
    assert_eq!(notices(true, &[0, 1]), json!([]));
}
