use super::*;

fn spec() -> PortSpec {
    PortSpec {
        name: PortName::new("p0").unwrap(),
        bridge: "br0".to_owned(),
        makes_bridge: false,
        socket: VhostSocket::OvsListens,
        vlans: Vlans::Untagged,
        policing: None,
        mtu: None,
        mac: None,
        owner: PortOwner {
            namespace: String::new(),
            pod: String::new(),
            uid: String::new(),
            container: "c".to_owned(),
            ifname: "net1".to_owned(),
        },
    }
}

#[test]
fn names_that_ovs_would_cut_or_take_for_a_path_are_refused() {
    for good in ["a", "vhu-0_1.2", "abcdefghijklmno"] {
        assert_eq!(PortName::new(good).unwrap().as_str(), good);
    }
    for bad in ["", "abcdefghijklmnop", "0a", "-a", "a/b", "a b", "ä", "..", "a\0"] {
        assert!(PortName::new(bad).is_err(), "{bad:?}");
        assert!(serde_json::from_value::<PortName>(bad.into()).is_err());
    }
}

#[test]
fn the_name_of_an_attachment_is_always_the_same_and_differs_from_others() {
    let name = PortName::of_attachment("4f2c", "net1");
    assert_eq!(name.as_str(), "vhuk3w3xd4yk56i");
    assert!(PortName::new(name.as_str()).is_ok());
    assert_ne!(name, PortName::of_attachment("4f2c", "net2"));
    assert_ne!(PortName::of_attachment("ab", "c"), PortName::of_attachment("a", "bc"));
}

#[test]
fn a_spec_that_ovs_cannot_take_is_refused_with_the_thing_and_the_reason() {
    let long = PathBuf::from(format!("/{}", "x".repeat(107)));
    let trunk = |vlans: &[u16], native| Vlans::Trunk { allowed: vlans.iter().copied().collect(), native };
    let policing = Some(Policing { rate_kbps: 0, burst_kb: 9 });
    let cases = [
        (PortSpec { bridge: "a/b".to_owned(), ..spec() }, "\"a/b\" is no name of an OVS bridge"),
        (
            PortSpec { socket: VhostSocket::PodListens(long), ..spec() },
            "has 108 bytes, a Unix socket's has at most 107",
        ),
        (PortSpec { socket: VhostSocket::PodListens("x.sock".into()), ..spec() }, "is not absolute"),
        (PortSpec { vlans: Vlans::Access(0), ..spec() }, "0 is no VLAN"),
        (PortSpec { vlans: Vlans::Access(4095), ..spec() }, "4095 is no VLAN"),
        (PortSpec { vlans: trunk(&[], None), ..spec() }, "a trunk needs at least one VLAN"),
        (PortSpec { vlans: trunk(&[5, 4096], None), ..spec() }, "4096 is no VLAN"),
        (PortSpec { vlans: trunk(&[5], Some(0)), ..spec() }, "0 is no VLAN"),
        (PortSpec { mtu: Some(67), ..spec() }, "67 bytes are no MTU"),
        (PortSpec { policing, ..spec() }, "a rate limit is 1 to"),
        (
            PortSpec { owner: PortOwner { ifname: String::new(), ..spec().owner }, ..spec() },
            "the owner's ifname is empty",
        ),
    ];
    spec().check().unwrap();
    for (spec, reason) in cases {
        let error = spec.check().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("port p0"), "{error}");
    }
}
