//! The same network in every version of the specification.

use serde_json::json;

use super::network;
use crate::case::Case;
use crate::disturbance::Disturbance;

pub(super) fn rows() -> Vec<Case> {
    let config = |version: &str| {
        network(
            "macvlan",
            &json!({"cniVersion": version, "dns": {"nameservers": ["192.0.2.7"]},
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/24"}],
                [{"subnet": "fd00:1::/64"}]],
                     "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd00:9::/64", "gw": "fd00:1::7"}]}}),
        )
    };
    let mut rows: Vec<Case> = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .into_iter()
        .map(|version| Case::new(format!("two families, cniVersion {version}"), "macvlan", &config(version)))
        .collect();
    rows.extend([
        Case::new("cniVersion absent", "macvlan", &network("macvlan", &json!({"cniVersion": null}))),
        Case::new("cniVersion empty", "macvlan", &network("macvlan", &json!({"cniVersion": ""}))),
        Case::new("cniVersion 2.0.0", "macvlan", &config("2.0.0")).fails(),
        Case::new("cniVersion 0.9.9", "macvlan", &config("0.9.9")).fails(),
        Case::new(
            "two v4 sets in 0.2.0",
            "macvlan",
            &network(
                "macvlan",
                &json!({"cniVersion": "0.2.0",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/24"}],
                [{"subnet": "10.1.3.0/24"}]]}}),
            ),
        )
        .fails(),
        Case::new("collected by GC", "macvlan", &config("1.1.0")).probing(&[Disturbance::Collect]).allow(
            "probe gc > found > not listed > files",
            "GC frees what is not listed (X3); the reference's plugins have no GC of their own",
        ),
    ]);
    rows
}
