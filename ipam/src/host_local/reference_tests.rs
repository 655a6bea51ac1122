//! Fairlead and the reference plugin on one directory at once.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::process::{Command, Stdio};

use parking_lot::Mutex;

use super::*;
use crate::NothingPending;

/// The reference plugin as Debian's package `containernetworking-plugins` installs it.
const REFERENCE: &str = "/usr/lib/cni/host-local";

/// A directory that both work on, and who has which address right now.
struct Both {
    dir: tempfile::TempDir,
    ipam: HostLocal,
    given: Mutex<HashMap<IpAddr, String>>,
}

impl Both {
    fn new() -> Both {
        let dir = tempfile::tempdir().unwrap();
        let ipam = HostLocal::new("/".into(), dir.path(), "boot").unwrap();
        Both { dir, ipam, given: Mutex::default() }
    }

    fn ipam_keys(&self, keys: &str) -> String {
        format!(r#""dataDir":"{}",{keys}"#, self.dir.path().display())
    }

    fn ours(&self, config: &Config, id: &str) -> IpAddr {
        let directory = &NetworkDir::of_administrator(&config.data_dir, "pods");
        let request = LeaseRequest { directory, container_id: id, ifname: "eth0", reserved: &[] };
        self.ipam.allocate(config, &request, &NothingPending).unwrap().ips[0].address.addr()
    }

    fn reference(&self, keys: &str, command: &str, id: &str) -> String {
        let config = format!(
            r#"{{"cniVersion":"1.0.0","name":"pods","type":"x","ipam":{{"type":"host-local",{}}}}}"#,
            self.ipam_keys(keys)
        );
        let mut plugin = Command::new(REFERENCE)
            .env_clear()
            .envs([("CNI_COMMAND", command), ("CNI_CONTAINERID", id), ("CNI_IFNAME", "eth0")])
            .envs([("CNI_NETNS", "/n"), ("CNI_PATH", "/usr/lib/cni")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        plugin.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
        let output = plugin.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{command} {id}: {text}");
        text
    }

    fn theirs(&self, keys: &str, id: &str) -> IpAddr {
        let answer: serde_json::Value = serde_json::from_str(&self.reference(keys, "ADD", id)).unwrap();
        let address: ipnet::IpNet = answer["ips"][0]["address"].as_str().unwrap().parse().unwrap();
        address.addr()
    }

    fn give(&self, ip: IpAddr, id: &str) {
        let before = self.given.lock().insert(ip, id.to_owned());
        assert_eq!(before, None, "{ip} was given to {id} too");
    }

    fn take_back(&self, ip: IpAddr, id: &str) {
        assert_eq!(self.given.lock().remove(&ip).as_deref(), Some(id));
    }
}

#[test]
fn no_address_is_given_twice_while_the_reference_plugin_works_on_the_same_directory() {
    const KEYS: &str = r#""subnet":"10.0.0.0/24""#;
    const EACH: usize = 50;
    const HELD: usize = 20;
    let both = Both::new();
    let config = test_config::host_local(&both.ipam_keys(KEYS));
    let data = both.dir.path().to_str().unwrap();
    let worker = |name: &str, ours: bool| {
        let mut held = VecDeque::new();
        for n in 0..EACH {
            let id = format!("{name}-{n}");
            let ip = if ours { both.ours(&config, &id) } else { both.theirs(KEYS, &id) };
            both.give(ip, &id);
            held.push_back((ip, id));
            if held.len() > HELD {
                let (ip, id) = held.pop_front().unwrap();
                both.take_back(ip, &id);
                if ours {
                    assert_eq!(
                        both.ipam.release(&NetworkDir::of_administrator(data, "pods"), &id, "eth0").unwrap(),
                        1
                    );
                } else {
                    both.reference(KEYS, "DEL", &id);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || worker(&format!("ours{n}"), true));
            scope.spawn(move || worker(&format!("theirs{n}"), false));
        }
    });
    let listed: HashMap<IpAddr, Owner> = both
        .ipam
        .list(&NetworkDir::of_administrator(data, "pods"))
        .unwrap()
        .into_iter()
        .map(|a| (a.ip, a.owner))
        .collect();
    let given: HashMap<IpAddr, Owner> = both
        .given
        .lock()
        .iter()
        .map(|(ip, id)| (*ip, Owner::Attachment { container_id: id.clone(), ifname: "eth0".into() }))
        .collect();
    assert_eq!(given.len(), 8 * HELD);
    assert_eq!(listed, given, "what is on the disk is what was given");
}

#[test]
fn each_side_goes_on_round_where_the_other_one_stopped() {
    const KEYS: &str = r#""ranges":[[{"subnet":"10.0.0.0/29","gateway":"10.0.0.3"},{"subnet":"10.0.1.0/29","rangeStart":"10.0.1.2","rangeEnd":"10.0.1.3"}]]"#;
    let both = Both::new();
    let config = test_config::host_local(&both.ipam_keys(KEYS));
    let mut given = Vec::new();
    for n in 0..20_usize {
        let id = format!("c{n}");
        let ip = if n % 2 == 0 { both.ours(&config, &id) } else { both.theirs(KEYS, &id) };
        given.push(ip.to_string());
        // Three are held at a time; each side gives back what the other one gave out.
        if let Some(old) = n.checked_sub(3) {
            let id = format!("c{old}");
            if old % 2 == 0 {
                both.reference(KEYS, "DEL", &id);
            } else {
                let released = both.ipam.release(
                    &NetworkDir::of_administrator(both.dir.path().to_str().unwrap(), "pods"),
                    &id,
                    "eth0",
                );
                assert_eq!(released.unwrap(), 1);
            }
        }
    }
    let once = ["10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.1.2", "10.0.1.3"];
    let expected: Vec<&str> = once.into_iter().cycle().take(20).collect();
    assert_eq!(given, expected);
}

#[test]
fn the_reference_plugin_releases_what_fairlead_gave_and_the_other_way_round() {
    const KEYS: &str = r#""subnet":"10.0.0.0/24""#;
    let both = Both::new();
    let config = test_config::host_local(&both.ipam_keys(KEYS));
    let data = both.dir.path().to_str().unwrap().to_owned();
    both.ours(&config, "a");
    both.theirs(KEYS, "b");
    both.reference(KEYS, "CHECK", "a");
    both.ipam.check(&NetworkDir::of_administrator(&data, "pods"), "b", "eth0").unwrap();
    both.reference(KEYS, "DEL", "a");
    assert_eq!(both.ipam.release(&NetworkDir::of_administrator(&data, "pods"), "b", "eth0").unwrap(), 1);
    assert!(both.ipam.list(&NetworkDir::of_administrator(&data, "pods")).unwrap().is_empty());
}
