//! Ports of a switch in user space: the real control socket and real sockets in a pod's volume, and a switch that only remembers.

use std::cell::Cell;
use std::fs::{self, File, create_dir_all};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, Code};
use fairlead_host::socket_file;
use fairlead_vhost::control::{PortCommands, Server};
use fairlead_vhost::fake_switch::{self, FakePorts};
use fairlead_vhost::port::PortConfig;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Rig;
use crate::engine::metrics_of_ports;

const UID: &str = "0f3c2a54-6d3e-4b0e-9f5e-3b8f0b7d7a11";
pub(super) const PORT: &str = "c1/net1";

/// A switch at the socket where the daemon looks for one.
pub(super) fn switch(rig: &Rig) -> (Server, FakePorts) {
    fake_switch::serve(&rig.dir.path().join("run/vswitch.sock"))
}

impl Rig {
    pub(super) fn volume(&self) -> PathBuf {
        let below = format!("root/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/vhost-user");
        self.dir.path().join(below)
    }

    pub(super) fn with_volume() -> Rig {
        let rig = Rig::new();
        create_dir_all(rig.volume()).unwrap();
        rig
    }

    pub(super) fn of_kubelets_pod(&self, command: Command, config: &str) -> Result<String, CniError> {
        let mut request = self.request(command, "c1", config);
        request.args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID={UID}");
        self.call(request)
    }

    pub(super) fn port(&self, keys: &str) -> Result<Value, CniError> {
        let answer = self.of_kubelets_pod(Command::Add, &config(keys))?;
        Ok(serde_json::from_str(&answer).unwrap())
    }

    /// What network-status says of the device of the one attachment: by the record alone.
    pub(super) fn known_device_info(&self) -> Value {
        let core = &self.engine().core;
        core.kinds.known_device_info(&core.store.all()[0]).unwrap()
    }

    /// Runs what keeps the switch's ports up until it is so.
    pub(super) fn kept_up_until(&self, is_so: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        let goes_on = || !is_so() && Instant::now() < until;
        self.engine().core.kinds.vhost_user.keep_up(&goes_on);
        assert!(is_so(), "not in 60 s");
    }
}

pub(super) fn connect(socket: &Path) -> io::Result<OwnedFd> {
    let dir = File::open(socket.parent().unwrap())?;
    socket_file::connect_to(dir, socket.file_name().unwrap().to_str().unwrap())
}

pub(super) fn config(keys: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"blue","type":"vhost-user"{keys}}}"#)
}

#[test]
fn k29_x16_a_port_is_a_socket_in_the_pods_volume_with_its_mac_and_addresses_told() {
    let rig = Rig::with_volume();
    let (_server, ports) = switch(&rig);
    let info = "/var/run/k8s.cni.cncf.io/devinfo/cni/blue.json";
    let keys = format!(
        r#","vlan":100,"mac":"02:00:00:00:00:07","mountPath":"/sockets","mtu":9000,"queues":2,
           "ipam":{{"type":"static","addresses":[{{"address":"10.1.0.5/24"}}]}},"runtimeConfig":{{"CNIDeviceInfoFile":"{info}"}}"#
    );
    let answer = rig.port(&keys).unwrap();
    let socket = rig.volume().join("net1.sock");
    assert!(fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
    let on_host = format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/vhost-user/net1.sock");
    let told = &answer["interfaces"][0];
    assert_eq!((&told["socketPath"], &told["mac"]), (&json!(on_host), &json!("02:00:00:00:00:07")));
    assert_eq!((&told["mtu"], &answer["ips"][0]["address"]), (&json!(9000), &json!("10.1.0.5/24")));
    let port = ports.only();
    assert_eq!((port.name.as_str(), port.network.as_str(), port.vlan), (PORT, "blue", Some(100)));
    assert!(port.spoof_check && port.queues == 2 && port.mtu == 9000);
    connect(&socket).unwrap();
    let info = fs::read_to_string(rig.dir.path().join(format!("root{info}"))).unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    let wanted = json!({"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "client", "path": "/sockets/net1.sock"},
        "fairlead": {"mac": "02:00:00:00:00:07", "mtu": 9000, "addresses": ["10.1.0.5/24"]}});
    assert_eq!(info, wanted);
    assert_eq!(rig.known_device_info(), wanted, "as the record has it");

    let with = format!(r#"{keys},"prevResult":{answer}"#);
    rig.of_kubelets_pod(Command::Check, &config(&with)).unwrap();
    fs::remove_file(&socket).unwrap();
    let gone = rig.of_kubelets_pod(Command::Check, &config(&with)).unwrap_err();
    assert!(gone.code == Code::Changed && gone.msg.contains("net1.sock is gone"), "{gone}");
    ports.remove_port(PORT).unwrap();
    assert!(rig.of_kubelets_pod(Command::Check, &config(&with)).unwrap_err().msg.contains("has no port"));
}

#[test]
fn the_switch_and_the_application_are_told_the_pods_numa_node_also_after_a_restart_of_the_switch() {
    let rig = Rig::with_volume();
    let (server, ports) = switch(&rig);
    let info = "/var/run/k8s.cni.cncf.io/devinfo/cni/blue.json";
    rig.port(&format!(
        r#","args":{{"cni":{{"numaNodes":[1]}}}},"runtimeConfig":{{"CNIDeviceInfoFile":"{info}"}}"#
    ))
    .unwrap();
    let node = |ports: &FakePorts| ports.ports().first().map(|port| port.thread.numa_node);
    assert_eq!(node(&ports), Some(Some(1)));
    let info = fs::read_to_string(rig.dir.path().join(format!("root{info}"))).unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["fairlead"]["numaNode"], 1);
    assert_eq!(info["fairlead"].get("addresses"), None, "it was given none");
    drop(server);
    let (_server, ports) = switch(&rig);
    rig.kept_up_until(|| node(&ports).is_some());
    assert_eq!(node(&ports), Some(Some(1)));
}

#[test]
fn x16_addresses_of_both_families_are_told_in_the_device_information_also_after_a_restart_of_the_daemon() {
    let mut rig = Rig::with_volume();
    let (_server, _ports) = switch(&rig);
    rig.port(
        r#","ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"},{"address":"fd00:1::5/64"}]}"#,
    )
    .unwrap();
    let told = rig.known_device_info();
    assert_eq!(told["fairlead"]["addresses"], json!(["10.1.0.5/24", "fd00:1::5/64"]));
    rig.restart();
    assert_eq!(rig.known_device_info(), told);
}

/// What a port is without any keys.
fn plain() -> PortConfig {
    PortConfig {
        name: PORT.into(),
        network: "blue".into(),
        mac: "02:00:00:00:00:07".parse().unwrap(),
        vlan: None,
        trunk: vec![],
        spoof_check: true,
        isolated: false,
        queues: 1,
        mtu: 1500,
        from_guest_bits: None,
        to_guest_bits: None,
    }
}

#[test]
fn every_key_of_a_configuration_is_in_the_port_that_the_switch_is_told_of() {
    for (keys, port) in [
        ("", plain()),
        (
            r#","network":"green","vlan":100,"spoofchk":"off","isolated":true,"queues":4,"mtu":9000,
               "max_tx_rate":50,"max_rx_rate":70"#,
            PortConfig {
                network: "green".into(),
                vlan: Some(100),
                spoof_check: false,
                isolated: true,
                queues: 4,
                mtu: 9000,
                from_guest_bits: Some(50_000_000),
                to_guest_bits: Some(70_000_000),
                ..plain()
            },
        ),
        (r#","trunk":[100,200]"#, PortConfig { trunk: vec![100, 200], ..plain() }),
    ] {
        let rig = Rig::with_volume();
        let (_server, ports) = switch(&rig);
        rig.port(&format!(r#"{keys},"mac":"02:00:00:00:00:07""#)).unwrap();
        assert_eq!(ports.only(), port, "{keys}");
    }
}

#[test]
fn networks_of_one_name_in_two_namespaces_and_the_administrators_are_three_networks_of_the_switch() {
    let rig = Rig::with_volume();
    let (_server, ports) = switch(&rig);
    let args = format!("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID={UID}");
    for keys in ["", r#","network":"green""#] {
        for (namespace, ifname) in [("ns1", "net2"), ("ns2", "net3")] {
            rig.add_definition_with(&args, namespace, ifname, &config(keys), &Value::Null).unwrap();
        }
        rig.port(keys).unwrap();
        let network = if keys.is_empty() { "blue" } else { "green" };
        let mut networks: Vec<String> = ports.ports().into_iter().map(|port| port.config.network).collect();
        networks.sort();
        assert_eq!(networks, [network.to_owned(), format!("ns1/{network}"), format!("ns2/{network}")]);
        for ifname in ["net1", "net2", "net3"] {
            let del = rig.request(Command::Del, "c1", &config(keys));
            rig.call(Request { ifname: ifname.into(), ..del }).unwrap();
        }
        assert!(ports.names().is_empty());
    }
}

#[test]
fn the_ports_of_the_switch_are_told_in_the_metrics_and_to_the_operator_with_their_pods() {
    let rig = Rig::with_volume();
    metrics_of_ports::register(rig.engine.as_ref().unwrap(), &rig.exposition);
    assert!(!rig.exposition.text().contains("vswitch_up"), "nobody needs a switch");
    let (server, _ports) = switch(&rig);
    rig.port("").unwrap();
    let text = rig.exposition.text();
    let labels = r#"port="c1/net1",network="blue",namespace="ns",pod="pod""#;
    for line in [
        "fairlead_vswitch_up 1".to_owned(),
        format!("fairlead_vswitch_port_connected{{{labels}}} 0"),
        format!(r#"fairlead_vswitch_port_frames_total{{{labels},direction="sent"}} 0"#),
        format!(r#"fairlead_vswitch_port_bytes_total{{{labels},direction="received"}} 0"#),
        format!(r#"fairlead_vswitch_port_drops_total{{{labels},direction="sent",reason="spoofed"}} 0"#),
        format!(r#"fairlead_vswitch_port_drops_total{{{labels},direction="received",reason="no-room"}} 0"#),
        format!("fairlead_vswitch_port_memory_bytes{{{labels}}} 0"),
        format!("fairlead_vswitch_port_memory_refusals_total{{{labels}}} 0"),
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line} is not in\n{text}");
    }
    assert_eq!(text.matches(labels).count(), 1 + 2 + 2 + 13 + 2, "a port has so many series: {text}");
    assert_eq!(rig.engine().core.kinds.vhost_user.ports_table()["ports"][0]["pod"], "ns/pod");
    drop(server);
    let text = rig.exposition.text();
    assert!(text.contains("\nfairlead_vswitch_up 0\n") && !text.contains("c1/net1"), "{text}");
    rig.of_kubelets_pod(Command::Del, &config("")).unwrap();
    assert!(!rig.exposition.text().contains("vswitch_up"));
}

#[test]
fn del_takes_the_port_the_socket_and_the_device_information_away() {
    let rig = Rig::with_volume();
    let (_server, ports) = switch(&rig);
    let before = rig.state();
    for _ in 0..2 {
        rig.port("").unwrap();
        rig.of_kubelets_pod(Command::Del, &config("")).unwrap();
        rig.of_kubelets_pod(Command::Del, &config("")).unwrap();
        assert!(ports.names().is_empty() && fs::read_dir(rig.volume()).unwrap().count() == 0);
        assert_eq!(rig.state(), before);
    }
    // Kubelet may have taken the volume away, and the switch may have ended.
    rig.port("").unwrap();
    fs::remove_dir_all(rig.volume()).unwrap();
    drop(_server);
    rig.of_kubelets_pod(Command::Del, &config("")).unwrap();
    assert_eq!(rig.state(), before);
}

#[test]
fn without_the_switch_an_add_is_tried_again_and_status_says_so() {
    let rig = Rig::with_volume();
    let before = rig.state();
    let refused = rig.port("").unwrap_err();
    assert!(refused.code == Code::TryAgain && refused.details.contains("fairlead-vswitch"), "{refused}");
    assert!(refused.msg.contains("vswitch.sock: can't connect: "), "{refused}");
    assert!(refused.msg.contains("(os error 2)"), "{refused}");
    assert_eq!(rig.state(), before);
    assert_eq!(fs::read_dir(rig.volume()).unwrap().count(), 0);
    let status = || rig.call(rig.request(Command::Status, "", &config("")));
    assert_eq!(status().unwrap_err().code, Code::NotAvailable);
    let _switch = switch(&rig);
    status().unwrap();
    rig.port("").unwrap();
}

#[test]
fn a_pod_that_cannot_have_a_socket_is_told_what_it_lacks() {
    let rig = Rig::with_volume();
    let (_server, ports) = switch(&rig);
    let refused = rig.port(r#","volume":"other""#).unwrap_err();
    assert!(refused.code == Code::InvalidConfig && refused.msg.contains(r#"no volume "other""#), "{refused}");
    let refused = rig.add(&config("")).unwrap_err();
    assert!(refused.msg.contains("K8S_POD_UID") && refused.details.contains("\"directory\""), "{refused}");
    let args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=..".to_owned();
    let refused = rig.call(Request { args, ..rig.request(Command::Add, "c1", &config("")) }).unwrap_err();
    assert!(refused.msg.contains("the uid that the runtime tells, \"..\", is no plain name"), "{refused}");
    // Nothing that the pod has put there is followed or replaced.
    fs::write(rig.dir.path().join("outside"), "the host's").unwrap();
    symlink(rig.dir.path().join("outside"), rig.volume().join("net1.sock")).unwrap();
    let refused = rig.port("").unwrap_err();
    assert!(refused.msg.contains("net1.sock\" is there and is no socket"), "{refused}");
    assert_eq!(fs::read_dir(rig.volume()).unwrap().count(), 1);
    assert!(ports.names().is_empty());
    assert_eq!(fs::read_to_string(rig.dir.path().join("outside")).unwrap(), "the host's");
}

#[test]
fn a_directory_of_the_administrators_serves_containers_that_no_kubelet_knows() {
    let rig = Rig::new();
    let (_server, _ports) = switch(&rig);
    let sockets = rig.dir.path().join("root/run/sockets");
    create_dir_all(&sockets).unwrap();
    let keys = r#","directory":"/run/sockets""#;
    let answer: Value = serde_json::from_str(&rig.add(&config(keys)).unwrap()).unwrap();
    assert_eq!(answer["interfaces"][0]["socketPath"], "/run/sockets/c1-net1.sock");
    connect(&sockets.join("c1-net1.sock")).unwrap();
    rig.del(&config(keys)).unwrap();
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 0);
}

#[test]
fn where_the_pod_makes_the_socket_it_is_connected_to_as_soon_as_it_is_there_and_again() {
    let rig = Rig::with_volume();
    let (_server, ports) = switch(&rig);
    let keys = r#","mode":"server""#;
    let answer = rig.port(keys).unwrap();
    let with = format!(r#"{keys},"prevResult":{answer}"#);
    rig.of_kubelets_pod(Command::Check, &config(&with)).unwrap();
    assert!(ports.names().is_empty(), "nobody listens yet");
    let socket = rig.volume().join("net1.sock");
    // The path of a volume is longer than a socket's address may be: the pod sees a shorter one.
    let volume = File::open(rig.volume()).unwrap();
    let of_pod = UnixListener::bind(format!("/proc/self/fd/{}/net1.sock", volume.as_raw_fd())).unwrap();
    rig.kept_up_until(|| ports.names() == [PORT]);
    of_pod.accept().unwrap();
    rig.of_kubelets_pod(Command::Check, &config(&with)).unwrap();
    rig.of_kubelets_pod(Command::Del, &config(keys)).unwrap();
    assert!(ports.names().is_empty() && socket.exists(), "the socket is the pod's own");
}

#[test]
fn a_socket_that_the_pod_has_removed_is_made_again_unless_the_port_is_connected() {
    let rig = Rig::with_volume();
    let (_server, ports) = switch(&rig);
    rig.port("").unwrap();
    let socket = rig.volume().join("net1.sock");
    fs::remove_file(&socket).unwrap();
    rig.kept_up_until(|| socket.exists());
    assert_eq!((ports.names(), ports.added()), (vec![PORT.to_owned()], 1), "the port stays");
    connect(&socket).unwrap();
    // What its guest sent is being closed: there is no socket that nobody serves, nor anything beside it.
    ports.close_files(true);
    fs::remove_file(&socket).unwrap();
    let asked = ports.listings();
    rig.kept_up_until(|| ports.listings() > asked + 3);
    assert_eq!(fs::read_dir(rig.volume()).unwrap().count(), 0);
    ports.close_files(false);
    rig.kept_up_until(|| socket.exists());
    assert_eq!(ports.added(), 1);
    connect(&socket).unwrap();
    // A switch from before that could be done gets the port anew.
    ports.be_older(true);
    fs::remove_file(&socket).unwrap();
    rig.kept_up_until(|| socket.exists() && ports.added() == 2);
    assert_eq!(ports.names(), [PORT]);
    connect(&socket).unwrap();
    // A volume that goes with its pod is left alone.
    fs::remove_dir_all(rig.volume()).unwrap();
    let passes = Cell::new(0);
    rig.kept_up_until(|| passes.replace(passes.get() + 1) > 3);
    assert_eq!(ports.names(), [PORT]);
    rig.of_kubelets_pod(Command::Del, &config("")).unwrap();
}

#[test]
fn a_port_whose_socket_the_pod_has_not_made_is_listed_and_counted_with_the_reason() {
    let rig = Rig::with_volume();
    metrics_of_ports::register(rig.engine.as_ref().unwrap(), &rig.exposition);
    let (_server, ports) = switch(&rig);
    let keys = r#","mode":"server""#;
    let answer = rig.port(keys).unwrap();
    let with = config(&format!(r#"{keys},"prevResult":{answer}"#));
    let check = || rig.of_kubelets_pod(Command::Check, &with);
    let row = || rig.engine().core.kinds.vhost_user.ports_table()["ports"][0].clone();
    let reason = || row()["reason"].as_str().unwrap_or_default().to_owned();
    assert_eq!((&row()["config"]["name"], &row()["pod"]), (&json!(PORT), &json!("ns/pod")));
    assert_eq!((&row()["connected"], &row()["thread"]), (&json!(false), &Value::Null));
    assert!(reason().starts_with("the pod has not made its socket /var/lib/kubelet/"), "{}", reason());
    let labels = r#"port="c1/net1",network="blue",namespace="ns",pod="pod""#;
    let connected = format!("\nfairlead_vswitch_port_connected{{{labels}}} 0\n");
    assert!(rig.exposition.text().contains(&connected), "{}", rig.exposition.text());
    check().unwrap();
    let socket = rig.volume().join("net1.sock");
    for in_its_place in [|at: &Path| symlink("/etc/passwd", at), |at: &Path| fs::write(at, "?")] {
        in_its_place(&socket).unwrap();
        let refused = check().unwrap_err();
        assert!(refused.code == Code::Changed && refused.msg.contains("is no socket"), "{refused}");
        assert!(reason().contains("\"net1.sock\" is there and is no socket; remove it"), "{}", reason());
        fs::remove_file(&socket).unwrap();
    }
    let volume = File::open(rig.volume()).unwrap();
    let of_pod = UnixListener::bind(format!("/proc/self/fd/{}/net1.sock", volume.as_raw_fd())).unwrap();
    rig.kept_up_until(|| ports.names() == [PORT]);
    assert_eq!((row()["reason"].clone(), row()["thread"]["number"].clone()), (Value::Null, json!(0)));
    drop(of_pod);
    ports.remove_port(PORT).unwrap();
    assert!(reason().starts_with("nobody listens on the pod's socket "), "{}", reason());
    rig.of_kubelets_pod(Command::Del, &config(keys)).unwrap();
    assert_eq!(row(), Value::Null);
}

/// What is logged while a test looks.
#[derive(Debug, Default, Clone)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_no_socket_where_the_pod_should_have_made_one_is_logged_once() {
    let rig = Rig::with_volume();
    let (_server, _ports) = switch(&rig);
    rig.port(r#","mode":"server""#).unwrap();
    fs::write(rig.volume().join("net1.sock"), "?").unwrap();
    let (log, begin) = (Log::default(), Instant::now());
    let written = log.clone();
    let to_log = tracing_subscriber::fmt().with_writer(move || written.clone()).finish();
    tracing::subscriber::with_default(to_log, || {
        rig.kept_up_until(|| begin.elapsed() > Duration::from_secs(3));
    });
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    assert_eq!(text.matches("is there and is no socket").count(), 1, "{text}");
}

#[test]
fn the_next_sandbox_of_a_pod_keeps_its_socket_when_the_last_ones_del_comes_late() {
    let rig = Rig::with_volume();
    let (_server, ports) = switch(&rig);
    rig.port("").unwrap();
    let mut next = rig.request(Command::Add, "c2", &config(""));
    next.args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID={UID}");
    rig.call(next).unwrap();
    rig.of_kubelets_pod(Command::Del, &config("")).unwrap();
    assert_eq!(ports.names(), ["c2/net1"]);
    connect(&rig.volume().join("net1.sock")).unwrap();
}
