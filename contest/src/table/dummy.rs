//! dummy: an interface without a wire. Needs a kernel with dummy.

use serde_json::json;

use super::network;
use crate::case::Case;
use crate::disturbance::DISTURBANCES;
use crate::kernel_kinds::Kind;

const STRICTER: &str = "CHECK really looks (X4): the reference does not see this";

pub(super) fn rows() -> Vec<Case> {
    let dummy = |title: &str, more: serde_json::Value| {
        let mut config = network("dummy", &more);
        config.as_object_mut().map(|keys| keys.remove("master"));
        Case::new(title, "dummy", &config)
    };
    let both =
        json!({"type": "static", "addresses": [{"address": "10.1.2.9/24"}, {"address": "fd00:1::9/64"}]});
    [
        dummy("dummy", json!({})).probing(&DISTURBANCES).refuses("probe route gone > found", STRICTER),
        dummy("dummy, static addresses of both families", json!({"ipam": both})),
        dummy("dummy, ipam absent", json!({"ipam": null})).fails(),
        dummy("dummy, ipam empty", json!({"ipam": {}})).fails(),
        dummy("dummy, the name is taken", json!({})).in_pod("link add name eth0 type dummy").fails(),
    ]
    .into_iter()
    .map(|row| row.needs(Kind::Dummy))
    .collect()
}
