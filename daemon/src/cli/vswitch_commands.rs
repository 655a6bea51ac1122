//! What the switch of vhost-user ports has: its ports, what went through them, the addresses that it knows.

use fairlead_vhost::port::LOST;
use serde_json::{Value, json};

use super::CliError;
use super::arguments::{ListArgs, VswitchQuestion};
use super::capture_command::capture;
use super::listings::list_unless;
use super::table::{Extent, rows, table};

pub(super) fn vswitch(question: &VswitchQuestion) -> Result<(), CliError> {
    match question {
        VswitchQuestion::Ports(args) => ports(args),
        VswitchQuestion::Stats(args) => stats(args),
        VswitchQuestion::MacTable(args) => mac_table(args),
        VswitchQuestion::Capture(args) => capture(args),
    }
}

fn ports(args: &ListArgs) -> Result<(), CliError> {
    let answered = |value: &Value| if are_of_ovs_alone(value) { Ok(()) } else { answers(value) };
    list_unless(args, "/v1/vswitch-ports", answered, ports_table)
}

fn ports_table(value: &Value, extent: Extent) -> String {
    const NARROW: [&str; 6] = ["port", "network", "connected", "received", "sent", "dropped"];
    const WIDE: [&str; 16] = [
        "port",
        "pod",
        "network",
        "vlan",
        "trunk",
        "mac",
        "mtu",
        "queues",
        "thread",
        "node",
        "connected",
        "received",
        "sent",
        "dropped",
        "drops",
        "reason",
    ];
    let columns: &[&str] = if extent == Extent::Wide { &WIDE } else { &NARROW };
    let uplinks = uplinks(value).map(|uplink| uplink_row(&uplink));
    let ports = uplinks.chain(rows(&value["ports"]).iter().map(port_row));
    let shown: Vec<Value> = ports.chain(rows(&value["ovs"]).iter().map(ovs_row)).collect();
    if are_of_ovs_alone(value) {
        return table(&shown, columns, extent);
    }
    of_switch(value, &shown, columns, extent, "the switch has no ports\n")
}

/// Whether pods have ports of OVS, and none of our own switch, which need not run then.
fn are_of_ovs_alone(value: &Value) -> bool {
    value["waiting"] == 0 && !rows(&value["ovs"]).is_empty()
}

fn mac_table(args: &ListArgs) -> Result<(), CliError> {
    const COLUMNS: [&str; 5] = ["mac", "network", "vlan", "port", "age_s"];
    list_unless(args, "/v1/vswitch-addresses", answers, |value, extent| {
        let entries = rows(&value["addresses"]);
        of_switch(value, entries, &COLUMNS, extent, "the switch knows no addresses\n")
    })
}

fn stats(args: &ListArgs) -> Result<(), CliError> {
    list_unless(args, "/v1/vswitch-ports", answers, stats_table)
}

/// Two rows for each uplink and each port, one for each direction. Why frames were dropped is a line of its own, because no column is wide enough.
fn stats_table(value: &Value, extent: Extent) -> String {
    const NARROW: [&str; 6] = ["port", "pod", "direction", "frames", "bytes", "dropped"];
    const WIDE: [&str; 8] = ["port", "pod", "network", "direction", "frames", "bytes", "dropped", "drops"];
    let of_uplinks = uplinks(value).flat_map(|uplink| stats_rows(&uplink));
    let shown: Vec<Value> = of_uplinks.chain(rows(&value["ports"]).iter().flat_map(stats_rows)).collect();
    let columns: &[&str] = if extent == Extent::Wide { &WIDE } else { &NARROW };
    let mut text = of_switch(value, &shown, columns, extent, "the switch has no ports\n");
    if extent == Extent::Narrow {
        for row in shown.iter().filter(|row| row["dropped"] != 0) {
            let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
            text.push_str(&format!("{} {}: {}\n", word("port"), word("direction"), word("drops")));
        }
    }
    text
}

fn stats_rows(port: &Value) -> [Value; 2] {
    let (config, counters) = (&port["config"], &port["counters"]);
    [("sent", "from_guest"), ("received", "to_guest")].map(|(direction, counted)| {
        let of = |what: &str| &counters[format!("{counted}_{what}")];
        json!({
            "port": config["name"], "pod": port["pod"], "network": config["network"], "direction": direction,
            "frames": of("frames"), "bytes": of("bytes"), "dropped": dropped(of("drops")), "drops": reasons(of("drops")),
        })
    })
}

/// How many frames were dropped, for whichever reason.
fn dropped(drops: &Value) -> u64 {
    drops.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

/// The reasons, each with its number.
fn reasons(drops: &Value) -> String {
    let told = drops.as_object().into_iter().flatten().map(|(reason, count)| format!("{reason} {count}"));
    told.collect::<Vec<String>>().join(", ")
}

/// Whether the switch has answered the daemon.
fn answers(value: &Value) -> Result<(), CliError> {
    value["lacks"].as_str().map_or(Ok(()), |why| Err(CliError::NoSwitch(why.to_owned())))
}

/// A table of the switch; for whoever watches it, also why there is none.
fn of_switch(value: &Value, shown: &[Value], columns: &[&str], extent: Extent, none: &str) -> String {
    match value["lacks"].as_str() {
        Some(why) => format!("{why}\n"),
        None if shown.is_empty() => none.to_owned(),
        None => table(shown, columns, extent),
    }
}

/// A port as it is shown: what the pod received and sent, in frames, and what was dropped for whichever reason.
fn port_row(port: &Value) -> Value {
    let (config, counters) = (&port["config"], &port["counters"]);
    let both = [&counters["from_guest_drops"], &counters["to_guest_drops"]];
    let told = both.map(reasons).into_iter().filter(|told| !told.is_empty());
    json!({
        "port": config["name"], "pod": port["pod"], "network": config["network"], "vlan": config["vlan"],
        "trunk": config["trunk"], "mac": config["mac"], "mtu": config["mtu"], "queues": port["active_queues"],
        "thread": port["thread"]["number"], "node": port["thread"]["numa_node"],
        "connected": port["connected"], "received": counters["to_guest_frames"], "sent": counters["from_guest_frames"],
        "dropped": both.map(dropped).iter().sum::<u64>(), "drops": told.collect::<Vec<String>>().join(", "),
        "reason": port["reason"],
    })
}

/// A port of OVS, in whose bridge it is. Its frames are counted by OVS.
fn ovs_row(port: &Value) -> Value {
    let mut row = port_row(port);
    row["dropped"] = Value::Null;
    row
}

/// The uplinks in the form of ports, with the interface's name: what came from the wire is what they sent, and what went there what they
/// received. Frames that the kernel had no room for are among the drops of those that came.
fn uplinks(value: &Value) -> impl Iterator<Item = Value> + '_ {
    rows(&value["uplinks"]).iter().map(|uplink| {
        let mut port = uplink.clone();
        port["config"]["name"] = uplink["config"]["interface"].clone();
        if uplink["lost_frames"] != 0 {
            port["counters"]["from_guest_drops"][LOST] = uplink["lost_frames"].clone();
        }
        port
    })
}

/// An uplink among the ports, with the way in which it has its frames.
fn uplink_row(uplink: &Value) -> Value {
    let config = &uplink["config"];
    let way = match (config["native"] == true, uplink["zero_copy"] == true) {
        (true, true) => "zero-copy",
        (true, false) => "native",
        (false, _) => "generic",
    };
    let mut row = port_row(uplink);
    (row["connected"], row["queues"]) = (way.into(), uplink["queues"].clone());
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_ovs_are_listed_with_the_reason_where_our_own_switch_need_not_run() {
        let config = json!({"name": "fl-1", "network": "br0"});
        let port = json!({"config": config, "pod": "ran/du-0", "connected": false, "reason": "no socket"});
        let mut value = json!({"lacks": "it does not run", "waiting": 0, "ovs": [port]});
        let told = ports_table(&value, Extent::Wide);
        assert!(told.contains("fl-1") && told.contains("br0") && told.contains("no socket"), "{told}");
        value["waiting"] = 1.into();
        assert_eq!(ports_table(&value, Extent::Wide), "it does not run\n");
    }

    #[test]
    fn the_stats_of_a_port_are_frames_bytes_and_drops_by_reason_in_both_directions_in_80_columns() {
        let counters = json!({
            "from_guest_frames": 1_234_567_890_123_u64, "from_guest_bytes": 79_012_344_967_872_u64,
            "to_guest_frames": 7, "to_guest_bytes": 448,
            "from_guest_drops": {"spoofed": 3, "storm": 4}, "to_guest_drops": {"no-room": 5},
        });
        let config = json!({"name": "0123456789abcdef/net1", "network": "default/blue"});
        let ports = json!({"ports": [{"config": config, "pod": "default/web-0", "counters": counters}]});
        let told = stats_table(&ports, Extent::Narrow);
        let wanted = "\
PORT            POD            DIRECTION  FRAMES         BYTES           DROPPED
0123456…f/net1  default/web-0  sent       1234567890123  79012344967872  7
0123456…f/net1  default/web-0  received   7              448             5
0123456789abcdef/net1 sent: spoofed 3, storm 4
0123456789abcdef/net1 received: no-room 5
";
        assert_eq!(told, wanted);
        let wide = stats_table(&ports, Extent::Wide);
        assert!(wide.contains("default/blue") && wide.contains("7        spoofed 3, storm 4\n"), "{wide}");
        let uplink = json!({"interface": "ens1f0", "network": "default/blue", "native": true});
        let went = json!({"from_guest_frames": 9, "from_guest_bytes": 600, "from_guest_drops": {"unknown": 2},
            "to_guest_frames": 3, "to_guest_bytes": 180, "to_guest_drops": {}});
        let uplinks =
            json!({"ports": [], "uplinks": [{"config": uplink, "counters": went, "lost_frames": 5}]});
        let told = "\
PORT    DIRECTION  FRAMES  BYTES  DROPPED
ens1f0  sent       9       600    7
ens1f0  received   3       180    0
ens1f0 sent: lost 5, unknown 2
";
        assert_eq!(stats_table(&uplinks, Extent::Narrow), told);
        assert_eq!(stats_table(&json!({"ports": []}), Extent::Narrow), "the switch has no ports\n");
        let gone = json!({"lacks": "it does not run"});
        assert_eq!(stats_table(&gone, Extent::Narrow), "it does not run\n");
    }
}
