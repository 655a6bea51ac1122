use fairlead_host::Mac;
use proptest::prelude::*;

use super::super::database_mirror::Mirror;
use super::*;

/// What a database tells of a port with this spec.
fn told(spec: &PortSpec) -> Mirror {
    let (interface, port) = (json!(["uuid", "i"]), json!(["uuid", "p"]));
    let mut mirror = Mirror::default();
    let rows = json!({
        "Bridge": { "b": { "initial": { "name": spec.bridge, "ports": port } } },
        "Port": { "p": { "initial": port_row(spec, "here", &interface) } },
        "Interface": { "i": { "initial": interface_row(spec, "here") } },
    });
    mirror.update(&rows).unwrap();
    mirror
}

fn vlans() -> impl Strategy<Value = Vlans> {
    let set = prop::collection::btree_set(1_u16..4095, 1..9);
    prop_oneof![
        Just(Vlans::Untagged),
        Just(Vlans::Every),
        (1_u16..4095).prop_map(Vlans::Access),
        (set, prop::option::of(1_u16..4095)).prop_map(|(allowed, native)| Vlans::Trunk { allowed, native }),
    ]
}

prop_compose! {
    fn specs()(
        name in "[a-z][a-z0-9._-]{0,14}", bridge in "[a-z]{1,9}", path in prop::option::of("/[a-z/ \"\\\\]{1,99}"),
        vlans in vlans(), policing in prop::option::of((1_u32.., any::<u32>())),
        mtu in prop::option::of(68_u16..9217), mac in prop::option::of(any::<[u8; 6]>()),
        makes_bridge in any::<bool>(), [namespace, pod, uid] in prop::array::uniform3("\\PC{0,9}"), [container, ifname] in prop::array::uniform2("\\PC{1,9}"),
    ) -> PortSpec {
        PortSpec {
            name: PortName::new(&name).unwrap(),
            bridge,
            makes_bridge,
            socket: path.map_or(VhostSocket::OvsListens, |path| VhostSocket::PodListens(path.into())),
            vlans,
            policing: policing.map(|(rate_kbps, burst_kb)| Policing { rate_kbps, burst_kb }),
            mtu,
            mac: mac.map(Mac),
            owner: PortOwner { namespace, pod, uid, container, ifname },
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(spec in specs()) {
        prop_assert_eq!(spec.check(), Ok(()));
        let mirror = told(&spec);
        let ours = mirror.our_port("here", spec.name.as_str()).unwrap();
        prop_assert_eq!(read_spec(&ours), Some(spec.clone()));
        prop_assert!(mirror.our_port("there", spec.name.as_str()).is_none());
    }
}

fn interface(columns: &Value) -> Row {
    Row::read(columns.as_object().unwrap()).unwrap()
}

#[test]
fn what_ovs_made_of_an_interface_is_told_by_its_error_and_number() {
    let state = |columns| interface_state(&interface(&columns));
    assert_eq!(state(json!({ "ofport": 3, "error": ["set", []] })), InterfaceState::Working(3));
    assert_eq!(state(json!({ "ofport": ["set", []] })), InterfaceState::Unknown);
    assert_eq!(
        state(json!({ "ofport": -1, "error": "no memory" })),
        InterfaceState::Failed("no memory".to_owned())
    );
    assert!(matches!(state(json!({ "ofport": -1 })), InterfaceState::Failed(_)));
    assert!(connected(&interface(
        &json!({ "status": ["map", [["mode", "client"], ["status", "connected"]]] })
    )));
    assert!(!connected(&interface(&json!({ "status": ["map", [["status", "disconnected"]]] }))));
}

#[test]
fn an_owner_is_described_by_what_the_database_has() {
    let ids = json!(["map", [["iface-id", "a"], ["owner", "nova"]]]);
    assert_eq!(describe_owner(Some(&ids)), "has the external_ids iface-id=a, owner=nova");
    assert_eq!(describe_owner(Some(&json!(["map", []]))), "has no external_ids");
    assert_eq!(describe_owner(None), "has no external_ids");
}
