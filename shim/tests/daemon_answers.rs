//! The protocol with a daemon that answers, and with one that answers something else than the protocol allows.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

mod rig;

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::thread;
use std::time::Duration;

use fairlead_cni::wire::{Inode, RECEIVED, WIRE};
use nix::libc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;
use rig::{Daemon, RESULT, Rig, answer, not_begun, ok};

nix::getsockopt_impl!(NetnsCookie, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, u64, GetStruct<u64>);

#[derive(Debug, Clone, Copy)]
struct NetnsCookie;

#[test]
fn k01_a_call_becomes_one_request_and_its_answer_is_printed() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok(RESULT));
    let outcome = rig.call("ADD").set("TRACEPARENT", "00-1-2-01").run();
    assert_eq!((outcome.ok, outcome.stdout.as_str()), (true, RESULT));
    let arrived = daemon.arrived.recv().unwrap();
    assert!(arrived.head.starts_with("POST /addNetwork HTTP/1.1\r\nHost: fairlead\r\n"), "{}", arrived.head);
    assert!(
        arrived.head.contains("Content-Type: application/json") && arrived.head.contains("Connection: close")
    );
    let request = arrived.request;
    let own = std::fs::metadata("/proc/self/ns/net").unwrap();
    let own = Some(Inode { dev: own.dev(), ino: own.ino() });
    assert_eq!((request.wire, request.netns_inode), (WIRE, own));
    let socket = UnixDatagram::unbound().unwrap();
    match getsockopt(&socket, NetnsCookie) {
        Ok(cookie) => assert_eq!((request.own_netns_cookie, request.own_netns), (Some(cookie), None)),
        // Before Linux 5.14.
        Err(_) => assert_eq!((request.own_netns_cookie, request.own_netns), (None, own)),
    }
    assert_eq!((request.container_id.as_str(), request.ifname.as_str()), ("c1", "eth0"));
    assert_eq!((request.args.as_str(), request.path.as_str()), ("IgnoreUnknown=1", "/opt/cni/bin"));
    assert_eq!((request.netns.as_str(), request.config.as_str()), ("/proc/self/ns/net", rig::CONFIG));
    assert!(request.env.contains(&("TRACEPARENT".into(), "00-1-2-01".into())));
    assert!((1000..=2000).contains(&request.deadline_ms), "{}", request.deadline_ms);
    assert!(request.spooled.is_none() && daemon.arrived.try_recv().is_err());
}

#[test]
fn the_daemon_hears_that_an_adds_result_reached_the_runtime_and_nothing_where_it_did_not() {
    let rig = Rig::new();
    let (told, heard) = std::sync::mpsc::channel();
    let (answer_now, go_on) = std::sync::mpsc::channel::<()>();
    let _daemon = Daemon::listen(&rig.socket(), move |_, _, mut connection| {
        go_on.recv().unwrap();
        connection.write_all(ok(RESULT).as_bytes()).unwrap();
        let mut after = Vec::new();
        connection.read_to_end(&mut after).unwrap();
        told.send(after).unwrap();
    });
    answer_now.send(()).unwrap();
    assert!(rig.call("ADD").run().ok);
    assert_eq!(heard.recv().unwrap(), RECEIVED);

    let mut call = rig.call("ADD").start();
    drop(call.child.stdout.take());
    answer_now.send(()).unwrap();
    assert!(!call.child.wait().unwrap().success());
    assert!(heard.recv().unwrap().is_empty());
}

#[test]
fn k01_every_command_has_its_path() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok(""));
    for (command, path) in
        [("DEL", "/delNetwork"), ("CHECK", "/checkNetwork"), ("GC", "/gcNetworks"), ("STATUS", "/status")]
    {
        rig.call(command).run().silent_success();
        assert!(daemon.arrived.recv().unwrap().head.starts_with(&format!("POST {path} ")));
    }
}

#[test]
fn a_namespace_that_can_not_be_opened_is_left_to_the_daemon_and_a_pipe_does_not_block() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok(RESULT));
    assert!(rig.call("ADD").set("CNI_NETNS", rig.path("none")).run().ok);
    assert_eq!(daemon.arrived.recv().unwrap().request.netns_inode, None);
    let pipe = rig.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let outcome = rig.call("ADD").set("CNI_NETNS", &pipe).run();
    assert!(outcome.ok, "{outcome:?}");
    assert!(daemon.arrived.recv().unwrap().request.netns_inode.is_some());
}

#[test]
fn k04_the_daemons_error_object_is_printed_as_it_is_whatever_the_http_status() {
    let rig = Rig::new();
    let body = r#"{"cniVersion":"0.4.0","code":7,"msg":"no master","details":"name one"}"#;
    for status in ["400 Bad Request", "413 Payload Too Large", "500 Internal Server Error"] {
        let _daemon = Daemon::answering(&rig.socket(), answer(status, "", body));
        let outcome = rig.call("DEL").run();
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), body));
    }
}

#[test]
fn k04_an_answer_that_is_no_cni_answer_is_code_999_and_never_an_empty_body() {
    let rig = Rig::new();
    for garbage in [
        "SSH-2.0-OpenSSH_9.2\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\n\r\n{}".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}".to_owned(),
        format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(4000)),
        answer("404 Nope", "", "page unknown"),
        answer("500 Oops", "", ""),
        ok(""),
        ok("hello"),
        "\u{0}\u{1}\u{2}".to_owned(),
    ] {
        let _daemon = Daemon::answering(&rig.socket(), garbage.clone());
        let outcome = rig.call("ADD").run();
        assert_eq!(outcome.refused(), 999, "{garbage:.60}");
        outcome.took_less_than(10_000);
    }
}

#[test]
fn k03_a_connection_lost_in_mid_add_is_code_11_and_nothing_is_sent_twice() {
    let whole = ok(RESULT);
    for part in [0, 5, 20, whole.len() - 1] {
        let rig = Rig::new();
        let daemon = Daemon::answering(&rig.socket(), &whole.as_bytes()[..part]);
        for command in ["ADD", "CHECK"] {
            let outcome = rig.call(command).run();
            assert_eq!(outcome.refused(), 11, "{part}");
            assert!(outcome.error().msg.contains("was lost"), "{outcome:?}");
            outcome.took_less_than(10_000);
        }
        assert_eq!(daemon.arrived.try_iter().count(), 2, "{part}");
    }
}

#[test]
fn an_add_that_a_dying_daemon_had_not_read_waits_for_the_next_daemon() {
    let rig = Rig::new();
    let dying = UnixListener::bind(rig.socket()).unwrap();
    let call = rig.call("ADD").start();
    let (mut connection, _) = dying.accept().unwrap();
    connection.read_exact(&mut [0; 10]).unwrap();
    std::fs::remove_file(rig.socket()).unwrap();
    drop(dying);
    drop(connection);
    let daemon = Daemon::answering(&rig.socket(), ok(RESULT));
    assert!(call.end().ok);
    assert_eq!(daemon.arrived.try_iter().count(), 1);
}

#[test]
fn a_del_whose_connection_is_lost_is_sent_again_because_it_does_no_harm() {
    let rig = Rig::new();
    for command in ["DEL", "GC"] {
        let daemon = Daemon::listen(&rig.socket(), |number, _, mut connection| {
            if number > 0 {
                connection.write_all(ok("").as_bytes()).unwrap();
            }
        });
        rig.call(command).run().silent_success();
        assert_eq!(daemon.arrived.iter().take(2).count(), 2);
        assert!(rig.entries().is_empty());
    }
}

#[test]
fn a_daemon_that_never_answers_ends_every_command_but_status_at_its_deadline() {
    let rig = Rig::new();
    let _daemon = Daemon::listen(&rig.socket(), |_, _, connection| {
        thread::spawn(move || (thread::sleep(Duration::from_secs(5)), drop(connection)));
    });
    for (command, code) in [("ADD", 11), ("CHECK", 11), ("DEL", 11), ("GC", 11)] {
        let outcome = rig.call(command).set("FAIRLEAD_TIMEOUT", "0.3").run();
        assert_eq!(outcome.refused(), code, "{command}");
        outcome.took_at_least(300);
        outcome.took_less_than(10_000);
    }
    assert!(rig.entries().is_empty());
}

#[test]
fn a_daemon_that_trickles_its_answer_does_not_stretch_the_deadline() {
    let rig = Rig::new();
    let _daemon = Daemon::listen(&rig.socket(), |_, _, mut connection| {
        for byte in ok(RESULT).into_bytes() {
            if connection.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(40));
        }
    });
    let outcome = rig.call("ADD").set("FAIRLEAD_TIMEOUT", "0.4").run();
    assert_eq!(outcome.refused(), 11);
    outcome.took_less_than(10_000);
}

#[test]
fn x01_a_full_backlog_is_a_busy_daemon_that_is_waited_for() {
    let rig = Rig::new();
    let socket = rig.socket();
    let listener = full_backlog(&socket);
    let held: Vec<_> = std::iter::from_fn(|| connect_at_once(&socket)).collect();
    assert!(!held.is_empty());
    for (command, code) in [("ADD", 11), ("DEL", 11), ("STATUS", 50)] {
        let outcome = rig.call(command).set("FAIRLEAD_TIMEOUT", "0.3").run();
        assert_eq!(outcome.refused(), code);
        assert!(outcome.error().msg.contains("busy"), "{outcome:?}");
    }
    assert!(rig.entries().is_empty(), "a busy daemon is no dead one");
    let call = rig.call("ADD").start();
    thread::sleep(Duration::from_millis(100));
    drop(held);
    let _daemon =
        Daemon::serve(listener, |_, _, mut connection| connection.write_all(ok(RESULT).as_bytes()).unwrap());
    assert!(call.end().ok);
}

#[test]
fn x01_while_the_daemon_says_that_it_did_not_begin_add_goes_on_and_reaches_the_next_one() {
    let rig = Rig::new();
    let daemon = Daemon::listen(&rig.socket(), |number, _, mut connection| {
        let text = if number < 3 { not_begun() } else { ok(RESULT) };
        connection.write_all(text.as_bytes()).unwrap();
    });
    let outcome = rig.call("ADD").run();
    assert_eq!((outcome.ok, outcome.stdout.as_str()), (true, RESULT));
    assert_eq!(daemon.arrived.iter().take(4).count(), 4);
}

#[test]
fn a_daemon_that_stops_for_ever_is_code_11_at_the_deadline() {
    let rig = Rig::new();
    let _daemon = Daemon::answering(&rig.socket(), not_begun());
    let outcome = rig.call("ADD").set("FAIRLEAD_TIMEOUT", "0.3").run();
    assert_eq!(outcome.refused(), 11);
    assert!(outcome.error().msg.contains("stopping"), "{outcome:?}");
    outcome.took_less_than(10_000);
}

#[test]
fn an_early_answer_to_a_request_that_is_not_read_to_its_end_is_printed() {
    let rig = Rig::new();
    let body = r#"{"cniVersion":"1.1.0","code":7,"msg":"too large"}"#;
    let listener = UnixListener::bind(rig.socket()).unwrap();
    let config = format!("{} ", rig::CONFIG).repeat(15_000);
    let call = thread::spawn(move || rig.call("ADD").config(config).run());
    let (mut connection, _) = listener.accept().unwrap();
    connection.read_exact(&mut [0; 100]).unwrap();
    connection.write_all(answer("413 Payload Too Large", "", body).as_bytes()).unwrap();
    drop(connection);
    assert_eq!(call.join().unwrap().stdout, body);
}

#[test]
fn a_runtime_that_reads_no_answer_gets_a_failing_status_and_no_signal() {
    let rig = Rig::new();
    let _daemon = Daemon::listen(&rig.socket(), |_, _, mut connection| {
        thread::sleep(Duration::from_millis(100));
        connection.write_all(ok(RESULT).as_bytes()).unwrap();
    });
    let mut call = rig.call("ADD").start();
    drop(call.child.stdout.take());
    assert_eq!(call.child.wait().unwrap().code(), Some(1));
}

fn full_backlog(socket: &std::path::Path) -> UnixListener {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen};
    let fd = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
        .unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(socket).unwrap()).unwrap();
    listen(&fd, Backlog::new(0).unwrap()).unwrap();
    UnixListener::from(fd)
}

fn connect_at_once(socket: &std::path::Path) -> Option<std::os::fd::OwnedFd> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect};
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(socket).unwrap()).ok().map(|()| fd)
}
