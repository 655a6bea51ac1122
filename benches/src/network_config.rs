//! The network that every subject is measured on: macvlan in bridge mode on the private node's master, host-local
//! with ranges, a default route. Ours and the reference get the very same config.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::node::MASTER;

/// The interface asked for in every pod.
pub(crate) const IFNAME: &str = "eth0";
/// The network's name, which is also its directory in host-local's store.
const NETWORK: &str = "bench";
/// The subnet is large enough for every case, and no larger than an ordinary pod network's.
const SUBNET: &str = "10.88.0.0/16";
/// The subnet of the network that a pod asks for beside its default one.
pub(crate) const SECOND_SUBNET: &str = "10.89.0.0/16";

/// The config, with its allocations under `data_dir`.
pub(crate) fn config(data_dir: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": NETWORK, "type": "macvlan", "master": MASTER, "mode": "bridge",
        "ipam": {
            "type": "host-local", "dataDir": data_dir, "ranges": [[{"subnet": SUBNET}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

/// The config of a port of our switch, with its socket in this directory.
pub(crate) fn port_config(data_dir: &Path, directory: &Path) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "bench-ports", "type": "vhost-user", "directory": directory,
        "ipam": { "type": "host-local", "dataDir": data_dir, "ranges": [[{"subnet": SECOND_SUBNET}]] },
    })
}

/// The config for VFs, which does not name one yet.
pub(crate) fn vf_config(data_dir: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": NETWORK, "type": "sriov",
        "ipam": { "type": "host-local", "dataDir": data_dir, "ranges": [[{"subnet": SUBNET}]] },
    })
}

/// The same config for this VF.
pub(crate) fn of_vf(mut config: Value, address: &str) -> Value {
    config["deviceID"] = json!(address);
    config
}

/// The daemon's configuration, in which the VFs are pools (JSON is YAML).
pub(crate) fn pools(with_interface: &[String], in_user_space: &[String]) -> String {
    let pool =
        |driver, vfs| json!({ "name": driver, "selectors": { "pciAddresses": vfs }, "driver": driver });
    let mut pools = vec![pool("kernel", with_interface)];
    if !in_user_space.is_empty() {
        pools.push(pool("vfio-pci", in_user_space));
    }
    json!({ "pools": pools }).to_string()
}

/// A peer's config read from `file`, with `@DATA_DIR@` replaced.
pub(crate) fn peer_config(file: &Path, data_dir: &Path) -> io::Result<Value> {
    let text = fs::read_to_string(file)?.replace("@DATA_DIR@", &data_dir.display().to_string());
    Ok(serde_json::from_str(&text)?)
}

/// The standard input of a plugin: the config, for DEL with the result that its ADD returned, as libcni passes
/// it.
pub(crate) fn stdin(config: &Value, result: Option<&[u8]>) -> Vec<u8> {
    let mut config = config.clone();
    if let (Some(object), Some(Ok(result))) =
        (config.as_object_mut(), result.map(serde_json::from_slice::<Value>))
    {
        object.insert("prevResult".to_owned(), result);
    }
    config.to_string().into_bytes()
}

/// The addresses that are still allocated in any network under `data_dir`, each with the id of its container.
pub(crate) fn allocations(data_dir: &Path) -> io::Result<Vec<(IpAddr, String)>> {
    let mut held = Vec::new();
    for network in entries(data_dir)? {
        for path in entries(&network)? {
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(address) = name.and_then(|name| name.parse().ok()) {
                let text = fs::read_to_string(&path).unwrap_or_default();
                held.push((address, text.lines().next().unwrap_or_default().to_owned()));
            }
        }
    }
    Ok(held)
}

/// The entries of a directory; none when the directory does not exist.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn del_carries_the_result_of_its_add_and_add_carries_none() {
        let config = config(Path::new("/data"));
        let add: Value = serde_json::from_slice(&stdin(&config, None)).unwrap();
        assert_eq!(add, config);
        let del: Value = serde_json::from_slice(&stdin(&config, Some(br#"{"ips":[]}"#))).unwrap();
        assert_eq!(del["prevResult"], json!({"ips": []}));
        assert_eq!(del["ipam"]["dataDir"], "/data");
    }

    #[test]
    fn allocations_are_the_files_that_are_named_after_an_address() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(allocations(dir.path()).unwrap(), []);
        let network = dir.path().join(NETWORK);
        fs::create_dir(&network).unwrap();
        fs::write(network.join("10.88.0.2"), "ours-1\r\neth0").unwrap();
        fs::write(network.join("last_reserved_ip.0"), "10.88.0.2").unwrap();
        fs::write(network.join("lock"), "").unwrap();
        assert_eq!(allocations(dir.path()).unwrap(), [("10.88.0.2".parse().unwrap(), "ours-1".to_owned())]);
    }
}
