//! Whose name resolution the answer has: the network's own or the IPAM's, as the reference plugin of its type has it.

use super::*;

const OF_NETWORK: &str = "10.0.0.99";
const OF_IPAM: &str = "10.0.0.53";

/// The name servers of the answer to an ADD of this type, with an IPAM that says so much more.
fn answered(link: &str, more_of_ipam: &str) -> serde_json::Value {
    let ipam = format!(r#"{{"type":"static","addresses":[{{"address":"10.2.0.5/24"}}]{more_of_ipam}}}"#);
    let dns = format!(r#"{{"nameservers":["{OF_NETWORK}"]}}"#);
    let config = format!(r#"{{"cniVersion":"1.0.0","name":"net",{link},"ipam":{ipam},"dns":{dns}}}"#);
    let answer = Rig::new().add(&config).unwrap_or_else(|e| panic!("{link}: {e}"));
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    answer["dns"]["nameservers"].clone()
}

#[test]
fn a_vf_and_a_dummy_have_the_ipams_name_resolution_and_other_types_the_networks_own() {
    let of_ipam = format!(r#","dns":{{"nameservers":["{OF_IPAM}"]}}"#);
    let vf = |address: &str| format!(r#""type":"sriov","deviceID":"{address}""#);
    let rows = [
        (vf(VF), OF_IPAM),
        (vf(VFIO), OF_IPAM),
        (r#""type":"dummy""#.to_owned(), OF_IPAM),
        (r#""type":"macvlan","master":"eth0""#.to_owned(), OF_NETWORK),
        (r#""type":"ipvlan","master":"eth0""#.to_owned(), OF_NETWORK),
        (r#""type":"vlan","master":"eth0","vlanId":5"#.to_owned(), OF_NETWORK),
        (r#""type":"host-device","device":"dev0""#.to_owned(), OF_NETWORK),
    ];
    for (link, wanted) in rows {
        assert_eq!(answered(&link, &of_ipam), serde_json::json!([wanted]), "{link}");
        // Where the IPAM gives none, every type has the network's own.
        assert_eq!(answered(&link, ""), serde_json::json!([OF_NETWORK]), "{link}");
    }
}
