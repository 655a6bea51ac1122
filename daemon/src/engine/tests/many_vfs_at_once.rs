//! Many pods at once on the VFs of one NIC whose driver resets a VF after each change.

use std::sync::Barrier;
use std::thread;

use fairlead_cni::Code;
use fairlead_host::Op;
use fairlead_host::double::{KernelRequest, Resets};

use super::*;

const MANY: u32 = 64;
/// The one that asks for what this NIC does not take.
const REFUSED: u32 = 13;
const NIC: &str = "0000:81:00.0";

fn address(n: u32) -> String {
    format!("0000:81:{:02x}.{}", 8 + n / 8, n % 8)
}

fn pod(n: u32) -> String {
    format!("/run/netns/pod{n}")
}

fn config(n: u32) -> String {
    let settings = match n {
        REFUSED => r#""vlan":100,"link_state":"enable","trust":"on""#.to_owned(),
        n if n % 3 == 0 => format!(r#""vlan":{},"spoofchk":"off","max_tx_rate":200"#, 100 + n),
        n if n % 3 == 1 => format!(r#""mac":"02:00:00:00:01:{n:02x}","trust":"on""#),
        n => format!(r#""vlan":{},"vlanQoS":3,"mac":"02:00:00:00:01:{n:02x}""#, 100 + n),
    };
    let device = address(n);
    format!(r#"{{"cniVersion":"1.1.0","name":"lab-net","type":"sriov","deviceID":"{device}",{settings}}}"#)
}

fn rig() -> Rig {
    let rig = Rig::new();
    let sys = rig.dir.path().join("sys");
    let pf = rig.kernel.add_host_link("ens81");
    for n in 0..MANY {
        let name = format!("ens81v{n}");
        assert_eq!(rig.kernel.add_vf(pf, &address(n), &name), n);
        vf::plug(&sys, (NIC, "ens81"), n, (&address(n), &name));
        vf::driven(&sys, &address(n), "iavf");
        rig.kernel.add_namespace(pod(n));
    }
    rig.kernel.show_in(&sys);
    rig.kernel.refuse_what_igb_refuses();
    let ms = Duration::from_millis;
    rig.kernel.reset_vfs(Resets { message: ms(50), reading: ms(100), reset: ms(60) });
    rig
}

/// All at the same time, each on a thread of its own.
fn at_once(rig: &Rig, command: Command) -> Vec<Result<String, CniError>> {
    let begin = Barrier::new(MANY as usize);
    let call = |n| {
        let netns = pod(n);
        let request = Request { netns, ..rig.request(command, &format!("c{n}"), &config(n)) };
        begin.wait();
        rig.call(request)
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..MANY).map(|n| scope.spawn(move || call(n))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

fn count(rig: &Rig, is: impl Fn(&KernelRequest) -> bool) -> usize {
    rig.kernel.calls().iter().filter(|call| is(&call.request)).count()
}

fn messages(rig: &Rig) -> usize {
    count(rig, |asked| matches!(asked, KernelRequest::Op(Op::SetVfs { .. })))
}

fn readings(rig: &Rig) -> usize {
    count(rig, |asked| matches!(asked, KernelRequest::Vfs(_)))
}

#[test]
fn x08_64_pods_at_once_on_one_nic_share_messages_and_readings_and_only_the_one_that_is_refused_fails() {
    let rig = rig();
    let before = rig.state();
    let settings = rig.kernel.snapshot().vfs;
    rig.kernel.forget_calls();
    for (n, answer) in (0..).zip(at_once(&rig, Command::Add)) {
        match answer {
            Ok(result) if n != REFUSED => {
                let mac = format!("02:00:00:00:01:{n:02x}");
                assert_eq!(result.contains(&mac), n % 3 != 0, "{n}: {result}");
            }
            Err(error) if n == REFUSED => {
                assert_eq!(error.code, Code::InvalidConfig, "{error}");
                let says = format!("setting link_state enable for VF {}", address(n));
                assert!(error.msg.contains(&says), "{error}");
            }
            other => panic!("{n}: {other:?}"),
        }
    }
    let told = (messages(&rig), readings(&rig));
    assert!(told.0 < 40 && told.1 < 60, "{told:?} messages and readings");
    for (vf, was) in
        rig.kernel.snapshot().vfs.values().last().unwrap().iter().zip(settings.values().last().unwrap())
    {
        let vlan = vf.vlan.unwrap().id;
        match vf.index {
            REFUSED => assert_eq!(vf, was),
            n => assert_eq!(u32::from(vlan), if n % 3 == 1 { 0 } else { 100 + n }),
        }
    }
    for (n, answer) in (0..).zip(at_once(&rig, Command::Del)) {
        answer.unwrap_or_else(|e| panic!("{n}: {e}"));
    }
    assert!(rig.state() == before, "every VF is as it was");
    assert_eq!(
        count(&rig, |asked| matches!(asked, KernelRequest::Bind(..))),
        0,
        "this driver follows by itself"
    );
}

#[test]
fn x08_a_lone_pod_pays_for_one_message_and_one_reading() {
    let rig = rig();
    rig.add(&config(0)).unwrap();
    assert_eq!((messages(&rig), readings(&rig)), (1, 1));
}
