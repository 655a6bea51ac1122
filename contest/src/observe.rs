//! Records everything that can be seen of a network namespace, and of the files that plugins keep.
//!
//! What is keyed by a name, an address or a destination becomes a map, so that a difference is named and not located
//! by position. Only looks; the values are made comparable by [`crate::normalise`].

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::node_commands::{self, NodeError};

const SETTLING: Duration = Duration::from_secs(8);

/// The directories of a test node in which plugins may leave files, and what is not theirs in them.
const KEPT: [&str; 2] = ["/var/lib", "/run"];
const NOT_KEPT: [&str; 4] = ["/run/contest", "/run/netns", "/run/fairlead", "/var/lib/fairlead"];

/// Everything of the current network namespace: interfaces, routes, rules, sysctls.
pub fn namespace() -> Result<Value, NodeError> {
    let interfaces = listed(["addr", "link"])?;
    let sysctl: Map<String, Value> = interfaces.keys().map(|name| (name.clone(), sysctls(name))).collect();
    let (mut routes, mut rules) = (Map::new(), Map::new());
    for (option, family) in [("-4", "ipv4"), ("-6", "ipv6")] {
        let [of_routes, of_rules] = tables(&["-j", option], ["route show table all", "rule"])?;
        let mut by = vec!["dst", "via", "gateway", "dev", "table", "metric"];
        by.retain(|key| family == "ipv4" || *key != "via");
        routes.append(&mut keyed(&of_routes, family, &by));
        rules.append(&mut keyed(&of_rules, family, &["priority", "src", "table"]));
    }
    Ok(json!({"interfaces": interfaces, "routes": routes, "rules": rules, "sysctl": sysctl}))
}

/// The interfaces of the current namespace with their addresses, one object each.
pub fn interfaces() -> Result<Map<String, Value>, NodeError> {
    listed(["addr"])
}

/// The names of the interfaces of the current namespace. No program is started for it, because it is asked again
/// and again.
pub fn names() -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned()).collect()
}

/// The destinations of the current namespace's IPv6 routes, but for `lo`'s and those that every interface has by itself. No program is
/// started for it.
pub fn ipv6_routes() -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
    let route = |line: &str| match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        [dst, length, .., by] if *by != "lo" && !dst.starts_with("fe80") && !dst.starts_with("ff") => {
            Some(format!("{dst}/{length}"))
        }
        _ => None,
    };
    table.lines().filter_map(route).collect()
}

/// Joins these listings of `ip`: one object per interface.
fn listed<const N: usize>(listings: [&str; N]) -> Result<Map<String, Value>, NodeError> {
    let mut all = Map::new();
    for listing in tables(&["-j", "-d"], listings)? {
        for mut entry in listing {
            let Some(name) = entry.get("ifname").and_then(Value::as_str).map(str::to_owned) else { continue };
            let known = all.entry(name).or_insert_with(|| json!({}));
            if let (Some(known), Some(entry)) = (known.as_object_mut(), entry.as_object_mut()) {
                if let Some(addresses) = entry.remove("addr_info") {
                    list_addresses(known, &addresses);
                }
                known.append(entry);
            }
        }
    }
    Ok(all)
}

fn list_addresses(interface: &mut Map<String, Value>, addresses: &Value) {
    let mut by_address = Map::new();
    let mut order = Vec::new();
    for address in addresses.as_array().into_iter().flatten().filter(|a| a.get("local").is_some()) {
        let text = |key: &str| address.get(key).map(plain).unwrap_or_default();
        let key = format!("{}/{}", text("local"), text("prefixlen"));
        order.push(json!(key));
        by_address.insert(key, address.clone());
    }
    interface.insert("addresses".into(), Value::Object(by_address));
    interface.insert("address order".into(), Value::Array(order));
}

/// The global IPv6 addresses of the current namespace that can't be used yet.
pub fn unusable() -> Result<Vec<String>, NodeError> {
    let mut waiting = Vec::new();
    for (_, interface) in interfaces()? {
        for (text, address) in interface["addresses"].as_object().into_iter().flatten() {
            let is = |flag: &str| address.get(flag).and_then(Value::as_bool).unwrap_or(false);
            if address["scope"] == "global" && is("tentative") && !is("optimistic") {
                waiting.push(text.clone());
            }
        }
    }
    Ok(waiting)
}

/// Waits until the kernel has done by itself what follows a change: link-local addresses exist, none is
/// tentative, and the operational state agrees with the carrier. False if that has not come within eight seconds.
pub fn settle() -> Result<bool, NodeError> {
    let deadline = Instant::now() + SETTLING;
    while Instant::now() < deadline {
        // A program is started only when it is likely to see that.
        if no_address_is_tentative() && interfaces()?.values().all(settled) {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(false)
}

fn no_address_is_tentative() -> bool {
    const TENTATIVE: u32 = 0x40; // IFA_F_TENTATIVE
    let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    let flags = |line: &str| u32::from_str_radix(line.split_whitespace().nth(4)?, 16).ok();
    addresses.lines().filter_map(flags).all(|flags| flags & TENTATIVE == 0)
}

fn settled(interface: &Value) -> bool {
    let flags: Vec<&str> =
        interface["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if interface["link_type"] == "loopback" || !flags.contains(&"UP") {
        return true;
    }
    if !flags.contains(&"LOWER_UP") {
        return interface["operstate"] != "UP";
    }
    let addresses: Vec<&Value> =
        interface["addresses"].as_object().map(|a| a.values().collect()).unwrap_or_default();
    let name = interface["ifname"].as_str().unwrap_or_default();
    let ipv6 = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"));
    let wants_link_local = ipv6.is_ok_and(|s| s.trim() == "0") && interface["inet6_addr_gen_mode"] != "none";
    let link_local = addresses.iter().any(|a| a["family"] == "inet6" && a["scope"] == "link");
    let is_up = match interface["linkinfo"]["info_kind"].as_str() {
        Some("dummy") => true, // its operational state stays unknown
        _ => interface["operstate"] == "UP",
    };
    is_up && (link_local || !wants_link_local) && addresses.iter().all(|a| a.get("tentative").is_none())
}

/// The parsed output of several `ip` listings, made by one process.
fn tables<const N: usize>(options: &[&str], listings: [&str; N]) -> Result<[Vec<Value>; N], NodeError> {
    let text = node_commands::ip_listings(options, &listings.map(str::to_owned))?;
    let mut listings_of_ip = serde_json::Deserializer::from_str(&text).into_iter::<Vec<Value>>();
    Ok(listings.map(|_| listings_of_ip.next().and_then(Result::ok).unwrap_or_default()))
}

fn keyed(entries: &[Value], family: &str, by: &[&str]) -> Map<String, Value> {
    let mut map = Map::new();
    for entry in entries {
        let words: Vec<String> = by
            .iter()
            .filter_map(|key| entry.get(*key).map(|value| format!("{key} {}", plain(value))))
            .collect();
        let kind = entry.get("type").map(plain).unwrap_or_default();
        let key = format!("{family} {kind} {}", words.join(" ")).replace("  ", " ");
        map.insert(key, entry.clone());
    }
    map
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn sysctls(interface: &str) -> Value {
    let mut groups = Map::new();
    for group in ["ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh"] {
        let Ok(entries) = fs::read_dir(format!("/proc/sys/net/{group}/{interface}")) else { continue };
        let values: BTreeMap<String, String> = entries
            .flatten()
            // Unset `stable_secret` and write-only entries can't be read; that is the same for everybody.
            .filter_map(|e| Some((e.file_name().into_string().ok()?, fs::read_to_string(e.path()).ok()?)))
            .map(|(name, value)| (name, value.trim().to_owned()))
            .collect();
        groups.insert(group.to_owned(), json!(values));
    }
    Value::Object(groups)
}

/// The files that plugins left on the current test node: path → mode and content.
pub fn files() -> Value {
    let mut found = Map::new();
    for root in KEPT {
        gather(Path::new(root), &mut found);
    }
    Value::Object(found)
}

fn gather(dir: &Path, found: &mut Map<String, Value>) {
    if NOT_KEPT.iter().any(|other| dir == Path::new(other)) {
        return;
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            gather(&path, found);
            continue;
        }
        let mode =
            entry.metadata().map(|m| format!("{:04o}", m.permissions().mode() & 0o7777)).unwrap_or_default();
        let content = fs::read(&path).map(|c| String::from_utf8_lossy(&c).into_owned()).unwrap_or_default();
        found.insert(path.display().to_string(), json!({"mode": mode, "content": content}));
    }
}
