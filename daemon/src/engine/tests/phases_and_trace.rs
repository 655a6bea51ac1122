//! Where the time of a call goes, and the caller's trace on its way to executed plugins (X15).

use std::fs;

use fairlead_cni::wire::Command;

use super::{Rig, macvlan};
use crate::delegate::script;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn x15_every_phase_of_every_command_is_in_the_metrics_by_command_and_type() {
    let rig = Rig::new();
    let config = macvlan().replace("1.0.0", "1.1.0");
    let with_result = |result: &str| config.replacen('{', &format!(r#"{{"prevResult":{result},"#), 1);
    let with_none_valid = config.replacen('{', r#"{"cni.dev/valid-attachments":[],"#, 1);
    let result = rig.add(&config).unwrap();
    for (command, config) in [
        (Command::Check, with_result(&result)),
        (Command::Status, config.clone()),
        (Command::Del, config),
        (Command::Gc, with_none_valid),
    ] {
        rig.call(rig.request(command, "c1", &config)).unwrap();
    }
    let text = rig.exposition.text();
    for (command, phases) in [
        (
            "ADD",
            &["queue", "parse", "namespace", "plan", "intent", "ipam", "link", "configure", "commit"][..],
        ),
        ("CHECK", &["queue", "parse", "namespace", "compare"]),
        ("DEL", &["queue", "parse", "remove"]),
        ("GC", &["queue", "parse", "remove"]),
        ("STATUS", &["queue", "parse", "look"]),
    ] {
        for phase in phases {
            let labels = format!(r#"{{command="{command}",type="macvlan",phase="{phase}"}} 1"#);
            let line = format!("fairlead_call_phase_seconds_count{labels}");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}

#[test]
fn x15_the_callers_trace_and_all_else_of_its_environment_reach_executed_plugins_of_an_add_and_a_later_del() {
    let rig = Rig::on_this_host();
    let plugins = tempfile::tempdir().unwrap();
    let seen = plugins.path().join("seen");
    let result = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.9/24"}]}"#;
    script::write(
        &plugins.path().join("ledger"),
        &format!("env >{}.$CNI_COMMAND; [ $CNI_COMMAND = DEL ] || echo '{result}'", seen.display()),
    );
    let config =
        r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth0","ipam":{"type":"ledger"}}"#;
    let mut add = rig.request(Command::Add, "c1", config);
    add.path = plugins.path().display().to_string();
    let callers =
        [("PATH", "/usr/bin:/bin"), ("TRACEPARENT", TRACE), ("TRACESTATE", "a=1"), ("HTTPS_PROXY", "p:1")];
    add.env = callers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut del = rig.request(Command::Del, "c1", config);
    rig.call(add).unwrap();
    // As a runtime calls it after a restart: what the plugin gets is on record with the attachment.
    del.path = "/nowhere".into();
    rig.call(del).unwrap();
    rig.reap();
    for command in ["ADD", "DEL"] {
        let environment = fs::read_to_string(seen.with_extension(command)).unwrap();
        for (name, value) in callers {
            assert!(
                environment.lines().any(|line| line == format!("{name}={value}")),
                "{command}: {environment}"
            );
        }
    }
}
