//! `status`: whether the daemon is ready, healthy and alive, and what waits or fails.

use std::process::ExitCode;

use serde_json::Value;

use super::CliError;
use super::arguments::{Listing, StatusArgs};
use super::table::{Extent, name, print, print_json, rows, sentence};
use crate::operator_client::get;

pub(super) fn status(args: &StatusArgs) -> Result<ExitCode, CliError> {
    let status = get(&args.ask.socket(), "/v1/status")?;
    match args.ask.output {
        Listing::Json => print_json(&status)?,
        Listing::Table | Listing::Wide => print(&spelled_out(&status, args.ask.output.extent()))?,
    }
    Ok(if is_as_asked(args, &status) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the daemon is all that is asked for.
fn is_as_asked(args: &StatusArgs, status: &Value) -> bool {
    let asked = [(args.ready, "ready"), (args.healthy, "healthy"), (args.alive, "alive")];
    asked.iter().all(|(asked, key)| !asked || status[key] == true)
}

fn spelled_out(status: &Value, extent: Extent) -> String {
    // A daemon of an earlier release says nothing of its life.
    let word = |key: &str| status[key].as_bool().map_or("?", |is_so| if is_so { "yes" } else { "NO" });
    let mut text = format!(
        "fairleadd {} (revision {}, pid {})\nready: {}\nhealthy: {}\nalive: {}\ncalls: {} at work, {} waiting\nspooled: {}\n",
        status["version"].as_str().unwrap_or("?"),
        status["revision"].as_str().unwrap_or("unknown"),
        status["pid"],
        word("ready"),
        word("healthy"),
        word("alive"),
        status["calls"]["running"],
        status["calls"]["queued"],
        status["daemon"]["spoolEntries"],
    );
    let conditions =
        ["readiness", "health"].into_iter().flat_map(|k| status[k].as_array().into_iter().flatten());
    for unmet in conditions.filter(|c| c["met"] == false) {
        let (name, reason) = (&unmet["name"], &unmet["reason"]);
        text.push_str(&format!("{}: {}\n", name.as_str().unwrap_or("?"), reason.as_str().unwrap_or("?")));
    }
    let refused = status["daemon"]["networksRefused"].as_array().into_iter().flatten();
    for refused in refused.chain([&status["daemon"]["settingsRefused"]]).filter_map(Value::as_str) {
        text.push_str(&format!("refused: {refused}\n"));
    }
    if let Some(reason) = status["daemon"]["metricsPort"]["failing"].as_str() {
        text.push_str(&format!("metrics port: not served: {reason}\n"));
    }
    text.push_str(&node_network(&status["daemon"]["nodeNetwork"], extent));
    text.push_str(&removals_and_newer(status, extent));
    text
}

/// The network that the runtime takes, and why it is not what the settings want. A daemon that has not looked yet, and one of an earlier
/// release, say nothing.
fn node_network(network: &Value, extent: Extent) -> String {
    if network.is_null() {
        return String::new();
    }
    let word = |key: &str| network[key].as_str();
    let taken = match (network["fairlead"] == true, word("clusterNetwork"), word("file")) {
        _ if network["replaced"] == true => "unknown".to_owned(),
        (true, Some(first), _) => format!("Fairlead (cluster network {})", name(first, extent)),
        (true, None, _) => "Fairlead".to_owned(),
        (false, _, Some(file)) => format!("not Fairlead: {}", sentence(file, extent)),
        (false, _, None) => "not Fairlead: the conf dir has no network".to_owned(),
    };
    let failing = word("failing").map(|why| format!("install: not as wanted: {}\n", sentence(why, extent)));
    format!("node network: {taken}\n{}", failing.unwrap_or_default())
}

/// The removals that fail, and what is left to a newer version.
fn removals_and_newer(status: &Value, extent: Extent) -> String {
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or("?").to_owned();
    let told = |row: &Value, key: &str| sentence(&word(row, key), extent);
    let whose = |row: &Value| {
        let pod = row["pod"].as_str().map_or_else(String::new, |pod| format!("{pod}, container "));
        format!(
            "{} of {pod}{} (network {})",
            word(row, "ifname"),
            word(row, "container"),
            name(&word(row, "network"), extent)
        )
    };
    let mut text = String::new();
    for row in rows(&status["removals"]) {
        let (age, why) = (word(row, "for"), told(row, "reason"));
        text.push_str(&format!("removal fails: {}, {} times in {age}: {why}\n", whose(row), row["failures"]));
    }
    for row in rows(&status["newer"]) {
        let known = row["container"] != "?";
        let which = if known { whose(row) } else { told(row, "label") };
        text.push_str(&format!("left alone: {which}: {}\n", told(row, "broken")));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::arguments::{Cli, Command};

    #[test]
    fn each_flag_asks_for_what_it_says_and_without_one_nothing_is_asked() {
        let status = |unmet: &str| {
            let is_met = |name: &str| name != unmet;
            json!({ "ready": is_met("ready"), "healthy": is_met("healthy"), "alive": is_met("alive") })
        };
        let is_so = |flags: &[&str], status: &Value| {
            let words = ["fairleadd", "status"].into_iter().chain(flags.iter().copied());
            let Command::Status(args) = Cli::parse_from(words).command else { panic!("it is status") };
            is_as_asked(&args, status)
        };
        for name in ["ready", "healthy", "alive"] {
            let flag = format!("--{name}");
            let flag = [flag.as_str()];
            assert!(is_so(&flag, &status("")) && !is_so(&flag, &status(name)), "{name}");
            assert!(is_so(&[], &status(name)), "{name}");
        }
        let full = json!({ "ready": false, "healthy": false, "alive": true });
        assert!(is_so(&["--alive"], &full) && !is_so(&["--alive", "--healthy"], &full));
        assert!(spelled_out(&full, Extent::Narrow).contains("\nhealthy: NO\nalive: yes\n"));
    }

    #[test]
    fn a_metrics_port_that_does_not_listen_is_a_line() {
        let of_port =
            |port: Value| spelled_out(&json!({ "daemon": { "metricsPort": port } }), Extent::Narrow);
        assert!(!of_port(json!({ "listening": "127.0.0.1:9808" })).contains("metrics port"));
        let text = of_port(json!({ "failing": "/t/tls.crt cannot be read" }));
        assert!(text.contains("\nmetrics port: not served: /t/tls.crt cannot be read\n"), "{text}");
    }

    #[test]
    fn the_network_that_the_runtime_takes_is_a_line_and_why_it_is_not_the_one_that_is_wanted_another() {
        let told = |network: Value| {
            let text = spelled_out(&json!({ "daemon": { "nodeNetwork": network } }), Extent::Narrow);
            let lines = text.lines().filter(|line| line.contains("network") || line.contains("install"));
            lines.map(str::to_owned).collect::<Vec<String>>()
        };
        assert_eq!(told(Value::Null), Vec::<String>::new());
        let ours = json!({ "file": "/net.d/00-x.conflist", "fairlead": true, "clusterNetwork": "pods" });
        assert_eq!(told(ours), ["node network: Fairlead (cluster network pods)"]);
        let theirs = json!({ "file": "/net.d/10-a.conflist", "fairlead": false, "failing": "no calico" });
        assert_eq!(
            told(theirs),
            ["node network: not Fairlead: /net.d/10-a.conflist", "install: not as wanted: no calico"]
        );
        let none = json!({ "file": null, "fairlead": false, "clusterNetwork": null, "failing": null });
        assert_eq!(told(none), ["node network: not Fairlead: the conf dir has no network"]);
        let replaced =
            json!({ "file": null, "fairlead": false, "failing": "another net.d", "replaced": true });
        assert_eq!(told(replaced), ["node network: unknown", "install: not as wanted: another net.d"]);
    }

    #[test]
    fn what_others_have_written_is_shortened_unless_all_is_asked_for() {
        let (network, reason) = ("n".repeat(256), "r".repeat(5000));
        let status = json!({ "removals": [{
            "ifname": "eth0", "container": "c1", "network": network, "failures": 3, "for": "5m", "reason": reason,
        }] });
        let narrow = spelled_out(&status, Extent::Narrow);
        let line =
            narrow.lines().find(|line| line.starts_with("removal fails: eth0 of c1 (network nn")).unwrap();
        assert!(line.chars().count() < 600 && line.contains('…'), "{line}");
        let wide = spelled_out(&status, Extent::Wide);
        assert!(wide.contains(&network) && wide.contains(&reason), "{wide}");
    }
}
