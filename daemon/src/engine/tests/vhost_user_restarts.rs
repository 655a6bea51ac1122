//! A switch in user space that ends, stays away and is started again: when it is looked for, and which ports it gets.

use std::cell::Cell;
use std::fs::{self, create_dir_all};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_cni::wire::Command;
use fairlead_vhost::control::PortCommands;
use fairlead_vhost::dataplane::Socket;
use fairlead_vhost::port::PortConfig;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket};
use nix::unistd::close;

use super::Rig;
use super::vhost_user::{PORT, config, connect, switch};

/// Ends each connection at once, as a switch that comes up and dies, and counts them.
fn count_connections(rig: &Rig) -> Arc<AtomicUsize> {
    let path = rig.dir.path().join("run/vswitch.sock");
    // A switch that has ended leaves its socket.
    let _ = fs::remove_file(&path);
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(socket.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&socket, Backlog::new(16).unwrap()).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        while let Ok(connection) = accept(socket.as_raw_fd()) {
            close(connection).unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    count
}

#[test]
fn a_switch_that_is_away_for_long_is_looked_for_often_while_a_pod_has_a_port_and_hardly_ever_without() {
    let rig = Rig::with_volume();
    let looks_in = |from: Duration, to: Duration| {
        let (begin, count, before) = (Instant::now(), count_connections(&rig), Cell::new(0));
        rig.engine().core.kinds.vhost_user.keep_up(&|| {
            if begin.elapsed() < from {
                before.set(count.load(Ordering::Relaxed));
            }
            begin.elapsed() < to
        });
        count.load(Ordering::Relaxed) - before.get()
    };
    let (now, second) = (Duration::ZERO, Duration::from_secs(1));
    assert_eq!(looks_in(now, second), 1, "in the first second, without a port");
    fs::remove_file(rig.dir.path().join("run/vswitch.sock")).unwrap();
    let (server, _ports) = switch(&rig);
    rig.port("").unwrap();
    drop(server);
    // Longer than a restart takes.
    let looks = looks_in(11 * second, 12 * second);
    assert!(looks >= 10, "{looks} looks in the twelfth second");
}

#[test]
fn the_first_port_has_ports_kept_up_at_once_though_no_switch_was_looked_for_often_before() {
    let rig = Rig::with_volume();
    let (kept, ends) = (Arc::clone(&rig.engine().core.kinds.vhost_user), Arc::new(AtomicBool::new(false)));
    let (begun, ended) = (Instant::now(), Arc::clone(&ends));
    let keeper = std::thread::spawn(move || kept.keep_up(&|| !ended.load(Ordering::Relaxed)));
    // It has looked, and waits for ten seconds.
    sleep(Duration::from_millis(500));
    let (server, _ports) = switch(&rig);
    rig.port("").unwrap();
    drop(server);
    let (_server, ports) = switch(&rig);
    while ports.ports().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(9), "the port is not made again");
        sleep(Duration::from_millis(10));
    }
    ends.store(true, Ordering::Relaxed);
    keeper.join().unwrap();
}

#[test]
fn a_switch_that_was_started_again_gets_the_ports_of_the_records_and_no_others() {
    let mut rig = Rig::with_volume();
    let (server, ports) = switch(&rig);
    rig.port("").unwrap();
    let (was, socket) = (ports.only(), rig.volume().join("net1.sock"));
    drop(server);
    drop(ports);
    connect(&socket).unwrap_err();
    let (_server, ports) = switch(&rig);
    let stranger = PortConfig { name: "nobodys".into(), ..was.clone() };
    let listener = UnixListener::bind(rig.dir.path().join("other.sock")).unwrap();
    ports.add_port(stranger, Socket::Listening(listener.into()), None).unwrap();
    rig.kept_up_until(|| ports.names() == [PORT]);
    assert_eq!(ports.only(), was);
    connect(&socket).unwrap();
    // A daemon that was started again finds the port, and leaves it as it is.
    let inode = |path: &PathBuf| fs::symlink_metadata(path).unwrap().ino();
    let before = inode(&socket);
    rig.restart();
    let passes = Cell::new(0);
    rig.kept_up_until(|| passes.replace(passes.get() + 1) > 3);
    assert_eq!((ports.only(), inode(&socket)), (was, before));
    rig.of_kubelets_pod(Command::Del, &config("")).unwrap();
    assert!(ports.names().is_empty());
}

#[test]
fn a_switch_that_was_started_again_is_not_asked_what_it_has_for_each_port_that_it_gets() {
    let rig = Rig::with_volume();
    let (server, _) = switch(&rig);
    let sockets = rig.dir.path().join("root/run/sockets");
    create_dir_all(&sockets).unwrap();
    let keys = r#","directory":"/run/sockets""#;
    for n in 0..30 {
        rig.call(rig.request(Command::Add, &format!("c{n}"), &config(keys))).unwrap();
    }
    drop(server);
    let (_server, ports) = switch(&rig);
    rig.kept_up_until(|| ports.names().len() == 30);
    assert!(ports.listings() < 10, "{} times for 30 ports", ports.listings());
}
