//! What the daemon that runs here says is wrong: with itself, its removals, its records and its pools.

use std::path::Path;

use serde_json::Value;

use super::in_a_pod;
use crate::finding::{Finding, good, less, wrong};
use crate::operator_client::{ClientError, get};

const DAEMON: &str = "daemon";

/// The finding where the daemon gave no answer.
pub(super) fn unanswered(error: &ClientError) -> Finding {
    let remedy = match error {
        ClientError::SocketGone { .. } if in_a_pod() => "delete this pod: its DaemonSet makes a new one",
        _ if in_a_pod() => {
            "see why its container does not answer: kubectl logs of this pod, with --previous after a restart"
        }
        ClientError::Silent { .. } => "kill -CONT and its pid, or systemctl restart fairleadd",
        ClientError::SocketGone { .. } => "systemctl restart fairleadd",
        ClientError::Unreachable { .. } | ClientError::Strange { .. } | ClientError::Refused(_) => {
            "systemctl start fairleadd"
        }
    };
    wrong(DAEMON, error.to_string(), remedy)
}

/// Whether the daemon knows all that it waits for at its start, the cluster's objects included.
pub(super) fn is_ready(status: &Value) -> bool {
    status["readiness"].as_array().is_some_and(|all| all.iter().all(|condition| condition["met"] == true))
}

/// Looks at what the daemon says of itself, of removals and of its pools.
pub(super) fn findings(socket: &Path, status: &Value) -> Vec<Finding> {
    let ours = env!("CARGO_PKG_VERSION");
    let theirs = status["version"].as_str().unwrap_or("?");
    let mut findings = vec![match theirs == ours {
        true => good(DAEMON, format!("version {theirs} answers at {}", socket.display())),
        false => wrong(
            DAEMON,
            format!("it is version {theirs}, this program {ours}"),
            "restart the daemon after an upgrade",
        ),
    }];
    let all = ["readiness", "health"].into_iter().flat_map(|k| status[k].as_array().into_iter().flatten());
    for unmet in all.filter(|c| c["met"] == false) {
        let text = |key: &str| unmet[key].as_str().unwrap_or("?").to_owned();
        findings.push(wrong(DAEMON, format!("{}: {}", text("name"), text("reason")), "its log says more"));
    }
    findings.extend(metrics_port(status));
    findings.extend(failing_removals(status));
    findings.extend(late_network_status(status));
    findings.extend(left_to_newer(status));
    findings.push(orphans(socket));
    findings.extend(pools(socket));
    findings
}

/// A port for metrics that is configured and does not listen.
fn metrics_port(status: &Value) -> Option<Finding> {
    let reason = status["daemon"]["metricsPort"]["failing"].as_str()?;
    Some(wrong(
        "metrics port",
        format!("metrics are not served: {reason}"),
        "correct `metrics` in the configuration, or the files that it names; the daemon tries it again every few seconds",
    ))
}

/// Removals that have failed, each with its count and age.
fn failing_removals(status: &Value) -> Vec<Finding> {
    const ABOUT: &str = "removals";
    let rows = status["removals"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return vec![good(ABOUT, "none fails")];
    }
    let one = |row: &Value| {
        let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        let (container, ifname, network) = (word("container"), word("ifname"), word("network"));
        let pod = row["pod"].as_str().map_or_else(String::new, |pod| format!("{pod}, "));
        let seen = format!(
            "that of {ifname} of {pod}container {container} (network {network}) has failed {} times in {}: {}",
            row["failures"],
            word("for"),
            word("reason")
        );
        let remedy = format!(
            "mend that, it is tried again by itself; to give it up: fairleadd forget {container} {ifname}"
        );
        wrong(ABOUT, seen, remedy)
    };
    rows.iter().map(one).collect()
}

/// Pods whose addresses whereabouts frees while they run, as their network-status has not been written for long.
fn late_network_status(status: &Value) -> Option<Finding> {
    let pods: Vec<&str> = status["lateNetworkStatus"].as_array()?.iter().filter_map(Value::as_str).collect();
    let first = pods.first()?;
    let others = match pods.len() - 1 {
        0 => String::new(),
        others => format!(" and of {others} more"),
    };
    let seen = format!(
        "that of {first}{others} has not been written for ten minutes or more, and whereabouts' reconciler (by default daily at 04:30) frees the \
         addresses of running pods that it does not find there: they are given out twice"
    );
    let remedy = "before its next run mend what keeps it (422: token or admission policy; 403: the account's rights), or suspend the reconciler";
    Some(wrong("network-status", seen, remedy))
}

/// Attachments that a newer version has on record.
fn left_to_newer(status: &Value) -> Vec<Finding> {
    let one = |row: &Value| {
        let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        let seen = format!("the record of {} was {}", word("label"), word("broken"));
        wrong("records", seen, "start that version of fairleadd again; until then its DEL gets code 11")
    };
    status["newer"].as_array().into_iter().flatten().map(one).collect()
}

/// VFs and ports of pools that no pod can get, and faults in the pools' configuration.
fn pools(socket: &Path) -> Vec<Finding> {
    const ABOUT: &str = "pools";
    let answer = match get(socket, "/v1/pools") {
        Ok(answer) => answer,
        Err(error) => return vec![less(ABOUT, error.to_string(), "ask again when the daemon is ready")],
    };
    let list = |key: &str| answer[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let word = |value: &Value, key: &str| value[key].as_str().unwrap_or("?").to_owned();
    let notice = |notice: &Value| {
        let finding = if notice["wrong"] == true { wrong } else { less };
        finding(ABOUT, word(notice, "seen"), word(notice, "remedy"))
    };
    let mut findings: Vec<Finding> = list("notices").iter().map(notice).collect();
    for row in list("functions") {
        let (vf, pool, reason) = (word(row, "function"), word(row, "pool"), word(row, "reason"));
        match row["state"].as_str() {
            Some("quarantined") => findings.push(wrong(
                ABOUT,
                format!("{vf} of pool {pool} is quarantined: {reason}"),
                format!("when the cause is gone: fairleadd pools release {vf}"),
            )),
            Some("foreign") => findings.push(less(
                ABOUT,
                format!("{vf} of pool {pool} is left alone: {reason}"),
                "take it from whoever uses it, or leave it out of the pool's selectors",
            )),
            Some("preparing" | "draining") if !reason.is_empty() => findings.push(less(
                ABOUT,
                format!("{vf} of pool {pool} is not ready: {reason}"),
                "it is tried again by itself; fairleadd pools fill, and its address, tries it now",
            )),
            _ => {}
        }
    }
    for row in list("ports").iter().filter(|row| row["state"] == "broken") {
        let (port, pool, reason) = (word(row, "port"), word(row, "pool"), word(row, "reason"));
        let seen = format!("port {port} of pool {pool} is kept from pods: {reason}");
        findings.push(wrong(ABOUT, seen, "make room in the run directory; it is tried again by itself"));
    }
    let stock = |pool: &Value| good(ABOUT, format!("{}: {}", word(pool, "name"), word(pool, "functions")));
    findings.extend(list("pools").iter().map(stock));
    findings
}

/// Asks for orphans on their own: host-local's directories are read for them, which may take longer than the
/// status did.
fn orphans(socket: &Path) -> Finding {
    match get(socket, "/v1/orphans").as_ref().map(Value::as_array) {
        Ok(Some(orphans)) if orphans.is_empty() => {
            good("addresses", "no orphans in the directories of host-local that the daemon has used")
        }
        Ok(Some(orphans)) => {
            let seen =
                format!("{} host-local allocations belong to no container that is known here", orphans.len());
            less(
                "addresses",
                seen,
                "fairleadd gc --orphans lists them and asks; not if another plugin uses them",
            )
        }
        Ok(None) => less("addresses", "the daemon gave no list of orphans", "use programs of one release"),
        Err(ClientError::Silent { patience, .. }) => {
            let seen = format!("the daemon did not list the orphans within {} s", patience.as_secs());
            less("addresses", seen, "see whether host-local's directories lie on a file system that hangs")
        }
        Err(error) => less("addresses", error.to_string(), "ask again when the daemon is ready"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::finding::Verdict;

    #[test]
    fn a_network_status_that_is_not_written_is_wrong_where_whereabouts_goes_by_it() {
        let status = |pods: Value| json!({ "lateNetworkStatus": pods });
        for nothing in [json!([]), Value::Null] {
            assert_eq!(late_network_status(&status(nothing)), None);
        }
        let told = late_network_status(&status(json!(["shop/web-0"]))).unwrap();
        assert!(told.verdict == Verdict::Wrong && told.seen.contains("shop/web-0 has not"), "{told:?}");
        assert!(told.seen.contains("given out twice") && told.remedy.contains("422"), "{told:?}");
        let told = late_network_status(&status(json!(["shop/web-0", "shop/web-1"]))).unwrap();
        assert!(told.seen.contains("shop/web-0 and of 1 more"), "{told:?}");
    }

    #[test]
    fn a_metrics_port_that_does_not_listen_is_told_with_its_reason() {
        let status = |port: Value| json!({ "daemon": { "metricsPort": port } });
        assert_eq!(metrics_port(&status(Value::Null)), None);
        assert_eq!(metrics_port(&status(json!({ "listening": "127.0.0.1:9808" }))), None);
        let reason = "/t/tls.crt cannot be read: No such file or directory";
        let told = metrics_port(&status(json!({ "failing": reason }))).unwrap();
        assert!(told.verdict == Verdict::Wrong && told.seen.contains(reason), "{told:?}");
        assert!(told.remedy.contains("`metrics`"), "{told:?}");
    }
}
