//! Pools that kubelet gives out, with a fake kubelet: the lists that it is told, and what a pod has of them.

mod allocated_vfs;
mod announced_lists;
mod preferred_vfs;

use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_kubelet::fake_kubelet::{AnnouncedDevice, FakeKubelet, LONG, pod};

use super::pools::with;
use super::*;

const RADIO: &str = "intel.com/radio";
const NETWORK: &str =
    r#"{"cniVersion":"1.1.0","name":"radio","type":"sriov","resourceName":"intel.com/radio"}"#;

fn pool(more: &str) -> String {
    format!("pools: [{{name: radio, selectors: {{vendors: ['8086']}}, resourceName: {RADIO}{more}}}]")
}

/// A machine with two VFs, this configuration and a kubelet that has heard of nothing yet.
fn rig(text: &str) -> (Rig, FakeKubelet) {
    let mut rig = with(text);
    rig.restart();
    let kubelet = FakeKubelet::running(&rig.root);
    rig.engine().offer_to_kubelet();
    (rig, kubelet)
}

/// The first VF is on its way home from a pod that kubelet gave it to.
fn a_pod_came_and_went(rig: &Rig, kubelet: &FakeKubelet) {
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])])];
    rig.of_pod(Command::Add, "net1").unwrap();
    rig.of_pod(Command::Del, "net1").unwrap();
    rig.reap();
}

/// Another daemon serves this kubelet, and takes what that allocates next for another pod's.
fn serve_by_another_daemon(rig: &mut Rig, kubelet: &FakeKubelet) {
    rig.restart();
    rig.keep();
    rig.engine().offer_to_kubelet();
    hears(kubelet, "0 2");
}

/// Waits for a list: each device by the last digit of its address, with `!` where it is not healthy.
fn hears(kubelet: &FakeKubelet, wanted: &str) {
    let short = |(id, health, _): &AnnouncedDevice| {
        let sick = if health == "Healthy" { "" } else { "!" };
        format!("{}{sick}", id.rsplit('.').next().unwrap())
    };
    let limit = Instant::now() + LONG;
    loop {
        let list: Vec<String> = kubelet.next_list().1.iter().map(short).collect();
        if list.join(" ") == wanted {
            return;
        }
        assert!(Instant::now() < limit, "{list:?} instead of {wanted}");
    }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let limit = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Rig {
    fn of_pod(&self, command: Command, ifname: &str) -> Result<String, CniError> {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0".to_owned();
        let request = self.request(command, "c1", NETWORK);
        self.call(Request { ifname: ifname.to_owned(), args, ..request })
    }
}

/// What kubelet is answered, while the pool reconciler works.
fn allocated(rig: &Rig, kubelet: &FakeKubelet, id: &str) -> Result<(), String> {
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !answered.load(Ordering::Relaxed) {
                rig.engine().core.kinds.sriov.pools.work_here();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let answer = kubelet.allocate(RADIO, &[&[id]]);
        answered.store(true, Ordering::Relaxed);
        answer.map(drop).map_err(|refused| refused.message().to_owned())
    })
}
