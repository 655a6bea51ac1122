//! Forms of IPAM, on a macvlan: host-local in all its shapes, static, requested addresses, routes.

use serde_json::{Value, json};

use super::{network, with_ipam};
use crate::case::Case;
use crate::disturbance::{DISTURBANCES, Disturbance};

const GO_MAP_ORDER: &str =
    "which of the two addresses the reference tries first is its map's order: it differs from run to run";
const ROUTE_METRICS: &str =
    "mtu and advmss of a route (1.1.0) are set; the reference's plugins leave them out";
const STRICTER: &str = "CHECK really looks (X4): the reference does not see this";

pub(super) fn rows() -> Vec<Case> {
    let mut rows = host_local();
    rows.extend(requested());
    rows.extend(routes());
    rows.extend(statics());
    rows.into_iter()
        .map(|c| {
            c.refuses("probe link down > found", STRICTER).refuses("probe mtu changed > found", STRICTER)
        })
        .collect()
}

fn host(title: &str, more: Value) -> Case {
    let mut ipam = json!({"type": "host-local"});
    if let (Some(ipam), Value::Object(more)) = (ipam.as_object_mut(), more) {
        ipam.extend(more);
    }
    Case::new(title, "macvlan", &with_ipam(&ipam))
}

fn host_local() -> Vec<Case> {
    vec![
        host("host-local, one subnet, no routes", json!({"subnet": "10.1.2.0/24"})).probing(&DISTURBANCES),
        host(
            "host-local, rangeStart, rangeEnd, gateway",
            json!({"subnet": "10.1.2.0/24",
            "rangeStart": "10.1.2.40", "rangeEnd": "10.1.2.41", "gateway": "10.1.2.254"}),
        ),
        host("host-local, subnet with host bits", json!({"subnet": "10.1.2.77/24"})).fails(),
        host("host-local, dataDir of its own", json!({"subnet": "10.1.2.0/24", "dataDir": "/run/addresses"})),
        host(
            "host-local, resolvConf",
            json!({"subnet": "10.1.2.0/24",
            "resolvConf": "/run/contest/resolv.conf"}),
        ),
        host(
            "host-local, one range set of two subnets",
            json!({"ranges": [[{"subnet": "10.1.2.0/29",
            "rangeStart": "10.1.2.6", "rangeEnd": "10.1.2.6"}, {"subnet": "10.1.3.0/24"}]]}),
        ),
        host(
            "host-local, two v4 sets",
            json!({"ranges": [[{"subnet": "10.1.2.0/24"}],
            [{"subnet": "10.1.3.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}),
        ),
        host(
            "host-local, subnet and ranges together",
            json!({"subnet": "10.1.2.0/24",
            "ranges": [[{"subnet": "10.1.3.0/24"}]]}),
        ),
        host(
            "host-local, both families",
            json!({"ranges": [[{"subnet": "10.1.2.0/24"}],
            [{"subnet": "fd00:1::/64"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}),
        )
        .with_dad()
        .probing(&[Disturbance::Address, Disturbance::Route]),
        host(
            "host-local, IPv6 alone",
            json!({"ranges": [[{"subnet": "fd00:1::/64",
            "rangeStart": "fd00:1::f00", "gateway": "fd00:1::fe"}]], "routes": [{"dst": "::/0"}]}),
        )
        .with_dad(),
        host("host-local, a /31", json!({"subnet": "10.1.2.0/31"})).fails(),
        host("host-local, a /30", json!({"subnet": "10.1.2.0/30"})),
        host("host-local, range of runtimeConfig.ipRanges", json!({"subnet": "10.1.2.0/24"}))
            .with_config(&json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.1.7.0/24"}]]}})),
        host(
            "host-local, rangeStart outside the subnet",
            json!({"subnet": "10.1.2.0/24",
            "rangeStart": "10.1.3.4"}),
        )
        .fails(),
        host(
            "host-local, rangeStart behind rangeEnd",
            json!({"subnet": "10.1.2.0/24",
            "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.4"}),
        )
        .fails(),
        host(
            "host-local, overlapping sets",
            json!({"ranges": [[{"subnet": "10.1.2.0/24"}],
            [{"subnet": "10.1.2.0/25"}]]}),
        )
        .fails(),
        host(
            "host-local, families mixed in one set",
            json!({"ranges": [[{"subnet": "10.1.2.0/24"},
            {"subnet": "fd00:1::/64"}]]}),
        )
        .fails(),
        host("host-local, no range", json!({})).fails(),
        host(
            "host-local, resolvConf that is not there",
            json!({"subnet": "10.1.2.0/24",
            "resolvConf": "/run/contest/none"}),
        )
        .fails(),
    ]
}

fn requested() -> Vec<Case> {
    let both = json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]});
    let one = || host_section(&json!({"subnet": "10.1.2.0/24"}));
    vec![
        host("address by runtimeConfig.ips", json!({"subnet": "10.1.2.0/24"}))
            .with_config(&json!({"runtimeConfig": {"ips": ["10.1.2.88"]}})),
        host("addresses by runtimeConfig.ips with lengths", both)
            .with_config(&json!({"runtimeConfig": {"ips": ["10.1.2.88/24", "fd00:1::88/64"]}}))
            .with_dad(),
        host("address by args.cni.ips", json!({"subnet": "10.1.2.0/24"}))
            .with_config(&json!({"args": {"cni": {"ips": ["10.1.2.89"]}}})),
        Case::new("address by CNI_ARGS", "macvlan", &with_ipam(&one())).args("IgnoreUnknown=1;IP=10.1.2.90"),
        Case::new("address by CNI_ARGS outside the range", "macvlan", &with_ipam(&one()))
            .args("IgnoreUnknown=1;IP=10.9.9.90")
            .fails(),
        Case::new("address by CNI_ARGS that is none", "macvlan", &with_ipam(&one()))
            .args("IgnoreUnknown=1;IP=ten")
            .fails(),
        Case::new("address by CNI_ARGS that is the gateway's", "macvlan", &with_ipam(&one()))
            .args("IgnoreUnknown=1;IP=10.1.2.1")
            .fails(),
        host("two addresses asked of one range", json!({"subnet": "10.1.2.0/24"}))
            .with_config(&json!({"runtimeConfig": {"ips": ["10.1.2.88", "10.1.2.89"]}}))
            .fails()
            .allow("added > files > /var/lib/cni/networks/net/last_reserved_ip.0 > content", GO_MAP_ORDER)
            .allow("removed > files > /var/lib/cni/networks/net/last_reserved_ip.0 > content", GO_MAP_ORDER),
    ]
}

fn host_section(more: &Value) -> Value {
    let mut ipam = json!({"type": "host-local"});
    if let (Some(ipam), Some(more)) = (ipam.as_object_mut(), more.as_object()) {
        ipam.extend(more.clone());
    }
    ipam
}

fn routes() -> Vec<Case> {
    let on_1_1 = |title: &str, routes: Value| {
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/24"}],
            [{"subnet": "fd00:1::/64"}]], "routes": routes});
        Case::new(title, "macvlan", &network("macvlan", &json!({"cniVersion": "1.1.0", "ipam": ipam})))
            .with_dad()
    };
    vec![
        host(
            "routes with gw",
            json!({"subnet": "10.1.2.0/24", "routes": [{"dst": "192.168.0.0/16",
            "gw": "10.1.2.7"}, {"dst": "0.0.0.0/0", "gw": "10.1.2.9"}]}),
        )
        .probing(&[Disturbance::Route]),
        host(
            "routes without gw",
            json!({"subnet": "10.1.2.0/24", "routes": [{"dst": "192.168.0.0/16"},
            {"dst": "172.16.0.0/12"}]}),
        ),
        host(
            "a default route with gw 0.0.0.0",
            json!({"subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0", "gw": "0.0.0.0"}]}),
        ),
        host(
            "a route with host bits",
            json!({"subnet": "10.1.2.0/24",
            "routes": [{"dst": "192.168.7.7/16"}]}),
        )
        .taken("host bits of a route are cut off; the reference hands them to the kernel, which refuses them")
        .fails(),
        host(
            "a route given twice",
            json!({"subnet": "10.1.2.0/24", "routes": [{"dst": "192.168.0.0/16"},
            {"dst": "192.168.0.0/16"}]}),
        )
        .fails(),
        host(
            "a v6 route without a v6 address",
            json!({"subnet": "10.1.2.0/24",
            "routes": [{"dst": "fd00:9::/64"}]}),
        )
        .allow(
            "at del's answer > IPv6 routes > *",
            "IPv6 is switched off before the answer where the interface has a routed address of it; else its routes go with it, 1.5 s later",
        ),
        host(
            "a gw that can't be reached",
            json!({"subnet": "10.1.2.0/24",
            "routes": [{"dst": "192.168.0.0/16", "gw": "10.77.0.1"}]}),
        )
        .fails(),
        host("a dst that is no network", json!({"subnet": "10.1.2.0/24", "routes": [{"dst": "everywhere"}]}))
            .fails(),
        on_1_1(
            "1.1.0 routes: mtu and advmss",
            json!([{"dst": "192.168.0.0/16", "mtu": 1400, "advmss": 1300},
            {"dst": "fd00:9::/64", "mtu": 1390}]),
        )
        .adds("added > pod > routes > * > metrics", ROUTE_METRICS),
        on_1_1(
            "1.1.0 routes: priority",
            json!([{"dst": "0.0.0.0/0", "priority": 700}, {"dst": "::/0",
            "priority": 701}]),
        ),
        on_1_1(
            "1.1.0 routes: table",
            json!([{"dst": "192.168.0.0/16", "table": 77}, {"dst": "fd00:9::/64",
            "table": 77}]),
        )
        .succeeds("check", "CHECK looks into the route's own table; the reference looks into the main one"),
        on_1_1(
            "1.1.0 routes: scope link through a gateway",
            json!([{"dst": "192.168.0.0/16", "scope": 253}]),
        )
        .fails(),
        Case::new(
            "1.1.0 routes: scope link on the link",
            "macvlan",
            &network(
                "macvlan",
                &json!({"cniVersion": "1.1.0",
            "ipam": {"type": "static", "addresses": [{"address": "10.5.0.3/24"}],
                "routes": [{"dst": "192.168.0.0/16", "scope": 253}]}}),
            ),
        ),
    ]
}

fn statics() -> Vec<Case> {
    let fixed = |title: &str, more: Value| {
        let mut ipam = json!({"type": "static"});
        if let (Some(ipam), Value::Object(more)) = (ipam.as_object_mut(), more) {
            ipam.extend(more);
        }
        Case::new(title, "macvlan", &with_ipam(&ipam))
    };
    let one = json!({"addresses": [{"address": "10.5.0.3/24", "gateway": "10.5.0.1"}],
        "routes": [{"dst": "0.0.0.0/0"}]});
    vec![
        fixed("static, one address", one.clone()).probing(&DISTURBANCES),
        fixed(
            "static, two families, dns",
            json!({"addresses": [{"address": "10.5.0.3/24",
            "gateway": "10.5.0.1"}, {"address": "fd00:5::3/64", "gateway": "fd00:5::1"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00:5::9"}],
                "dns": {"nameservers": ["192.0.2.1"], "search": ["a.org"]}}),
        )
        .with_dad(),
        fixed("static, no gateway", json!({"addresses": [{"address": "10.5.0.3/16"}]})),
        fixed("static, address by runtimeConfig.ips", one.clone())
            .with_config(&json!({"runtimeConfig": {"ips": ["10.6.0.9/24"]}})),
        fixed("static, address by args.cni.ips", one)
            .with_config(&json!({"args": {"cni": {"ips": ["10.6.0.8/24"]}}})),
        fixed("static, address and gateway by CNI_ARGS", json!({}))
            .args("IgnoreUnknown=1;IP=10.6.0.7/24;GATEWAY=10.6.0.1"),
        fixed("static, no address at all", json!({})).fails(),
        fixed("static, an address without length", json!({"addresses": [{"address": "10.5.0.3"}]})).fails(),
    ]
}
