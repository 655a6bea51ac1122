//! How the executable reads its environment and its standard input, without a daemon.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

mod rig;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use rig::{CONFIG, Daemon, Rig, ok};

#[test]
fn k04_missing_variables_are_code_4_and_all_are_named_before_the_daemon_is_asked() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok("{}"));
    for (command, unset, named) in [
        (
            "ADD",
            &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"][..],
            "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME]",
        ),
        ("CHECK", &["CNI_NETNS"][..], "[CNI_NETNS]"),
        ("DEL", &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"][..], "[CNI_CONTAINERID,CNI_IFNAME]"),
    ] {
        let call = unset.iter().fold(rig.call(command), |call, name| call.unset(name));
        let error = call.run().error();
        assert_eq!((error.code.number(), error.msg), (4, format!("required env variables {named} missing")));
    }
    assert!(daemon.arrived.try_recv().is_err());
}

#[test]
fn k04_closed_standard_streams_are_empty_and_nothing_else_gets_their_numbers() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok("{}"));
    let run = |closed: &str| {
        let script = format!("printf %s '{CONFIG}' | \"$0\" {closed}");
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_fairlead")]).env_clear();
        shell.envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")]);
        shell.env("CNI_NETNS", "/proc/self/ns/net").env("FAIRLEAD_SOCKET", rig.socket()).output().unwrap()
    };
    assert!(String::from_utf8(run("<&-").stdout).unwrap().contains("no network configuration"));
    assert!(daemon.arrived.try_recv().is_err());
    let unread = run(">&- 2>&-");
    assert!(unread.status.success() && unread.stdout.is_empty());
    assert_eq!(daemon.arrived.try_recv().unwrap().request.config, CONFIG);
}

#[test]
fn k04_gc_and_status_need_no_container_and_del_no_namespace() {
    let rig = Rig::new();
    let _daemon = Daemon::answering(&rig.socket(), ok(""));
    for command in ["GC", "STATUS"] {
        let call = rig.call(command).unset("CNI_CONTAINERID").unset("CNI_NETNS").unset("CNI_IFNAME");
        call.run().silent_success();
    }
    rig.call("DEL").unset("CNI_NETNS").run().silent_success();
}

#[test]
fn k04_ids_and_names_outside_the_grammar_are_code_4() {
    let rig = Rig::new();
    let latin1 = OsStr::from_bytes(b"c\xe9");
    for (name, value) in [
        ("CNI_CONTAINERID", OsStr::new("../etc")),
        ("CNI_CONTAINERID", OsStr::new("-x")),
        ("CNI_CONTAINERID", latin1),
        ("CNI_IFNAME", OsStr::new("a/b")),
        ("CNI_IFNAME", OsStr::new("sixteen-letters!")),
        ("CNI_IFNAME", OsStr::new("..")),
        ("CNI_ARGS", latin1),
        ("CNI_COMMAND", OsStr::new("EXPLODE")),
        ("CNI_COMMAND", latin1),
        ("FAIRLEAD_TIMEOUT", OsStr::new("soon")),
        ("FAIRLEAD_TIMEOUT", OsStr::new("-1")),
        ("FAIRLEAD_SOCKET", OsStr::new(&"x".repeat(108))),
    ] {
        let error = rig.call("DEL").set(name, value).run().error();
        assert_eq!(error.code.number(), 4, "{name} {value:?}");
        assert!(error.msg.contains(name), "{}", error.msg);
    }
    assert!(rig.files().is_empty());
}

#[test]
fn without_a_command_it_says_what_it_is_and_is_code_4() {
    let outcome = Rig::new().call("").unset("CNI_COMMAND").stdin_stays_open().run();
    assert_eq!(outcome.refused(), 4);
    assert!(
        outcome.stderr.starts_with("fairlead ") && outcome.stderr.lines().count() == 1,
        "{}",
        outcome.stderr
    );
}

#[test]
fn k02_version_is_answered_by_the_executable_alone() {
    let rig = Rig::new();
    let all = r#""supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#;
    for (config, version) in [
        (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
        ("", "1.1.0"),
        ("{", "1.1.0"),
        (r#"{"cniVersion":"7"}"#, "1.1.0"),
    ] {
        let call = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "FAIRLEAD_SOCKET"]
            .iter()
            .fold(rig.call("VERSION"), |call, name| call.unset(name));
        let outcome = call.config(config).run();
        assert!(outcome.ok, "{outcome:?}");
        assert_eq!(outcome.stdout, format!("{{\"cniVersion\":\"{version}\",{all}\n"));
    }
}

#[test]
fn version_does_not_hang_on_a_standard_input_that_stays_open() {
    let outcome = Rig::new().call("VERSION").set("FAIRLEAD_TIMEOUT", "0.2").stdin_stays_open().run();
    assert!(outcome.ok, "{outcome:?}");
    outcome.took_less_than(10_000);
}

#[test]
fn under_an_ipam_plugins_name_it_is_code_7_with_the_remedy() {
    let rig = Rig::new();
    for name in ["host-local", "static", "dhcp", "whereabouts"] {
        let path = rig.path(name);
        symlink(env!("CARGO_BIN_EXE_fairlead"), &path).unwrap();
        let error = rig.call("ADD").program(&path).run().error();
        assert_eq!(error.code.number(), 7);
        assert!(error.msg.contains(name) && error.msg.contains("IPAM"), "{}", error.msg);
        assert!(error.details.contains(path.to_str().unwrap()), "{}", error.details);
    }
}

#[test]
fn under_another_plugins_name_it_serves_what_the_configuration_says() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok(rig::RESULT));
    let path = rig.path("macvlan");
    symlink(env!("CARGO_BIN_EXE_fairlead"), &path).unwrap();
    assert!(rig.call("ADD").program(&path).run().ok);
    assert_eq!(daemon.arrived.recv().unwrap().request.config, CONFIG);
}

#[test]
fn k04_garbage_on_standard_input_is_the_right_code_and_a_sentence() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok("{}"));
    let huge = vec![b' '; 2 << 20];
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        for (config, code, words) in [
            (&b""[..], 6, "standard input"),
            (b"{\"name\":\"\xff\"}", 6, "UTF-8: the byte at 9"),
            (&huge, 7, "1048576 bytes"),
        ] {
            let error = rig.call(command).config(config).run().error();
            assert_eq!(error.code.number(), code, "{command} {words}");
            assert!(error.msg.contains(words), "{}", error.msg);
        }
    }
    assert!(daemon.arrived.try_recv().is_err());
}

#[test]
fn a_configuration_of_just_the_limit_is_passed_on_whole() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok(rig::RESULT));
    let config = format!("{CONFIG}{}", "\u{1}".repeat((1 << 20) - CONFIG.len()));
    assert!(rig.call("ADD").set("FAIRLEAD_TIMEOUT", "60").config(config.as_str()).run().ok);
    assert_eq!(daemon.arrived.recv().unwrap().request.config, config);
    assert_eq!(rig.call("ADD").config(config + " ").run().refused(), 7);
}

#[test]
fn with_no_daemon_a_configuration_that_none_could_accept_is_refused_at_once_and_never_spooled() {
    let rig = Rig::new();
    let deep = format!(r#"{{"cniVersion":"1.1.0","x":{}"#, "[".repeat(500_000));
    for (command, config, code) in [
        ("ADD", "{", 6),
        ("ADD", "[]", 6),
        ("ADD", "null", 6),
        ("ADD", deep.as_str(), 6),
        ("DEL", deep.as_str(), 6),
        ("DEL", r#"{"cniVersion":1}"#, 6),
        ("DEL", r#"{"cniVersion":"1.1.0"}"#, 7),
        ("DEL", r#"{"cniVersion":"1.1.0","name":"../x"}"#, 7),
        ("DEL", r#"{"cniVersion":"2.0.0","name":"x"}"#, 1),
        ("GC", r#"{"cniVersion":"1.0.0","name":"x"}"#, 1),
        ("CHECK", r#"{"cniVersion":"0.3.1","name":"x"}"#, 1),
    ] {
        let outcome = rig.call(command).config(config).run();
        assert_eq!(outcome.refused(), code, "{command} {outcome:?}");
        outcome.took_less_than(10_000);
    }
    assert!(rig.entries().is_empty());
}

#[test]
fn a_standard_input_that_never_closes_ends_at_the_deadline() {
    let rig = Rig::new();
    for command in ["ADD", "DEL", "STATUS"] {
        let outcome = rig.call(command).set("FAIRLEAD_TIMEOUT", "0.3").stdin_stays_open().run();
        assert_eq!(outcome.refused(), 6);
        outcome.took_at_least(300);
        outcome.took_less_than(10_000);
    }
}

#[test]
fn an_error_is_told_in_the_configurations_version() {
    let rig = Rig::new();
    let config = r#"{"type":"macvlan","name":"net","cniVersion":"0.3.1"}"#;
    let outcome = rig.call("ADD").set("FAIRLEAD_TIMEOUT", "0.1").config(config).run();
    assert!(outcome.stdout.contains(r#""cniVersion":"0.3.1""#), "{outcome:?}");
}
