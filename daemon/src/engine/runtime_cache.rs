//! What the runtime remembers of its calls (libcni's cache, which containerd and CRI-O use): whose container one was. It is looked at
//! for the operator's tables only; nothing is decided by it.

use std::path::Path;

use fairlead_cni::args::Args;
use fairlead_host::host_root::HostRoot;
use fairlead_kube::PodRef;
use serde::Deserialize;

/// Where libcni keeps a file for each interface: `<network>-<container>-<interface>`.
const RESULTS: &str = "/var/lib/cni/results";
/// The longest file that is read, in bytes.
const MOST_BYTES: u64 = 1024 * 1024;

#[derive(Deserialize)]
struct CachedCall {
    /// The pairs of `CNI_ARGS`.
    #[serde(rename = "cniArgs", default)]
    cni_args: Vec<(String, String)>,
}

/// The pod of a container's interface, where the runtime remembers a call for it by one of these networks.
pub(super) fn pod_of(root: &HostRoot, networks: &[&str], container: &str, ifname: &str) -> Option<PodRef> {
    networks.iter().find_map(|network| {
        let name = format!("{network}-{container}-{ifname}");
        let is_a_name = !name.contains('/');
        let text = is_a_name.then(|| root.read_trusted(&Path::new(RESULTS).join(name), MOST_BYTES))?.ok()?;
        let call: CachedCall = serde_json::from_str(&text).ok()?;
        let pairs: Vec<String> = call.cni_args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        PodRef::of_args(&Args::parse(&pairs.join(";")).ok()?)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_pod_of_a_container_is_read_from_the_runtimes_cache_and_no_other_file() {
        let root = tempfile::tempdir().unwrap();
        let results = root.path().join("var/lib/cni/results");
        fs::create_dir_all(&results).unwrap();
        let call = r#"{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"pods",
            "cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web-0"]],"result":{}}"#;
        fs::write(results.join("pods-c1-eth0"), call).unwrap();
        fs::write(root.path().join("var/lib/cni/pods-c2-eth0"), call).unwrap();
        fs::write(results.join("pods-c3-eth0"), "{").unwrap();
        let host = HostRoot::new(root.path().to_owned());
        let of = |container: &str| pod_of(&host, &["other", "pods"], container, "eth0");
        assert_eq!(of("c1").unwrap().to_string(), "shop/web-0");
        assert_eq!((of("c2"), of("c3")), (None, None));
        assert_eq!(pod_of(&host, &["../pods"], "c2", "eth0"), None);
    }
}
