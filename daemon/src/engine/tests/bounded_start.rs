//! A start whatever hangs: VFs that are nowhere, sysfs that does not answer. With the threads of a real start.

use std::fs::{self, File};
use std::io::Write;
use std::sync::mpsc::channel;
use std::thread;

use fairlead_cni::Code;

use super::*;

/// So many VFs have not fallen out of their dead namespaces; each is waited for, 5 s.
const ABSENT: u32 = 24;
const NIC: &str = "0000:81:00.0";
const POOL: &str = "pools: [{name: radio, selectors: {pciAddresses: ['0000:21:10.0']}}]";
/// Less than the absent VFs take one after the other, and more than what the start waits for.
const SOON: Duration = Duration::from_secs(40);

fn address(n: u32) -> String {
    format!("0000:81:{:02x}.{}", 8 + n / 8, n % 8)
}

fn pod(n: u32) -> String {
    format!("/run/netns/pod{n}")
}

/// A dead daemon that has left VFs with pods that are dead too, whose netdevs come home only after a while.
fn rig() -> Rig {
    let mut rig = Rig::new();
    let sys = rig.dir.path().join("sys");
    let pf = rig.kernel.add_host_link("ens81");
    for n in 0..ABSENT {
        let name = format!("ens81v{n}");
        rig.kernel.add_vf(pf, &address(n), &name);
        vf::plug(&sys, (NIC, "ens81"), n, (&address(n), &name));
        vf::driven(&sys, &address(n), "iavf");
        rig.kernel.add_namespace(pod(n));
    }
    rig.kernel.show_in(&sys);
    for n in 0..ABSENT {
        let config = pools::config(&address(n), r#","ipam":{}"#);
        let request = rig.request(Command::Add, &format!("c{n}"), &config);
        rig.call(Request { netns: pod(n), ..request }).unwrap();
    }
    rig.engine = None;
    rig.kernel.fall_home_after(Duration::from_secs(7));
    (0..ABSENT).for_each(|n| rig.kernel.kill_namespace(pod(n)));
    rig.settings = pools::settings(POOL);
    rig
}

/// Starts a daemon as it is started on a node; panics when that takes too long.
fn start(rig: &mut Rig) {
    let (inputs, exposition) = engine_inputs(&rig.kernel, &rig.root, rig.settings.clone());
    let (paths, call_settings) = (paths(rig.dir.path(), &rig.root), rig.call_settings.clone());
    let (sender, started) = channel();
    thread::spawn(move || sender.send(Engine::start(&paths, call_settings, inputs)));
    let engine = started.recv_timeout(SOON).expect("the start is held up").unwrap();
    (rig.engine, rig.exposition) = (Some(engine), exposition);
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let limit = Instant::now() + SOON;
    while !is() {
        assert!(Instant::now() < limit, "it never came that {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_start_waits_for_no_vf_that_is_not_there_and_no_sysfs_that_hangs_and_both_are_seen_to_later() {
    let mut rig = rig();
    let vendor = rig.dir.path().join("sys/bus/pci/devices").join(VF).join("vendor");
    fs::remove_file(&vendor).unwrap();
    nix::unistd::mkfifo(&vendor, nix::sys::stat::Mode::S_IRWXU).unwrap();
    start(&mut rig);
    let left = rig.engine().core.start.wait(Instant::now());
    assert!(left.contains(&StartStep::Pools), "the first look hangs: {left:?}");
    assert!(rig.engine().core.store.all().len() > 12, "the VFs are still on record");
    // Who needs none of it is served, and a VF whose pool was not looked at is nobody's.
    rig.add(&macvlan()).unwrap();
    rig.del(&macvlan()).unwrap();
    let request = rig.request(Command::Add, "c1", &pools::config(VF, r#","ipam":{}"#));
    let refused = rig.serve(request, Instant::now(), Duration::from_millis(50)).outcome.unwrap_err();
    assert_eq!(refused.code, Code::TryAgain);
    assert!(refused.msg.contains("have not been looked through since the daemon's start"), "{refused}");

    until("the VFs are home", || rig.engine().core.store.all().is_empty());
    let mut hung = File::options().read(true).write(true).open(&vendor).unwrap();
    let beside = vendor.with_extension("new");
    fs::write(&beside, "0x8086").unwrap();
    fs::rename(&beside, &vendor).unwrap();
    hung.write_all(b"0x8086").unwrap();
    drop(hung);
    until("the start has ended", || rig.engine().core.start.wait(Instant::now()).is_empty());
    until("the pool has its VF ready", || rig.states() == ["ready"]);
    rig.engine().stop();
}

/// More than all the threads that removals have together.
const HANGING: u32 = 40;

#[test]
fn removals_whose_programs_hang_delay_the_end_of_no_other() {
    let mut rig = Rig::on_this_host();
    let (bin, data) = (rig.dir.path().join("bin"), rig.dir.path().join("data"));
    fs::create_dir(&bin).unwrap();
    let script = r#"cat >/dev/null
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.66.0.2/24"}]}' ;;
DEL) echo >>"$0.hangs"; while [ ! -e "$0.ends" ]; do sleep 0.1; done ;;
esac"#;
    crate::delegate::script::write(&bin.join("lease"), script);
    rig.engine = None;
    start(&mut rig);
    let leased =
        r#"{"cniVersion":"1.0.0","name":"leased","type":"macvlan","master":"eth0","ipam":{"type":"lease"}}"#;
    let (hung, path) = ("/run/netns/hung", bin.display().to_string());
    rig.kernel.add_namespace(hung);
    for n in 0..HANGING {
        let request = rig.request(Command::Add, &format!("c{n}"), leased);
        let (netns, ifname) = (hung.to_owned(), format!("net{n}"));
        rig.call(Request { netns, ifname, path: path.clone(), ..request }).unwrap();
    }
    let hanging = || fs::read_to_string(bin.join("lease.hangs")).map_or(0, |text| text.lines().count());
    rig.kernel.kill_namespace(hung);
    rig.engine().core.sweep();
    until("its removals hang", || hanging() >= 4);
    // As long as a thread takes to stand by for others that hang, many times over.
    thread::sleep(Duration::from_secs(3));
    let free = format!(
        r#"{{"cniVersion":"1.0.0","name":"free","type":"macvlan","master":"eth0","ipam":{{"type":"host-local","dataDir":"{}","subnet":"10.1.0.0/24"}}}}"#,
        data.display()
    );
    rig.call(rig.request(Command::Add, "other", &free)).unwrap();
    rig.call(rig.request(Command::Del, "other", &free)).unwrap();
    let begun = Instant::now();
    // The operator waits for none of them, and a call that is at work on a container is no failure of its removal.
    let told = rig.engine().collect(None).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let errors = told["errors"].as_array().unwrap();
    assert_eq!(errors.len(), HANGING as usize, "{told}");
    assert!(errors[0].as_str().unwrap().contains("has not ended in 5 s and goes on"), "{told}");
    assert_eq!(rig.engine().table("removals"), Some(serde_json::json!([])), "none has failed");
    until("its address is free", || !data.join("free/10.1.0.2").exists());
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(hanging(), 4, "so many threads has one network");
    fs::write(bin.join("lease.ends"), "").unwrap();
    until("all that hung are done", || rig.engine().core.store.all().is_empty());
    assert_eq!(hanging(), HANGING as usize);
}
