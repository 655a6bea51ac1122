//! The annotations: both forms, the legacy one, every field, every refusal.

use proptest::prelude::*;
use serde_json::json;

use super::super::{
    Bandwidth, DEFAULT_NETWORK, InterfaceNames, LEGACY_NETWORKS, MAX_ANNOTATION, MAX_NETWORKS, NETWORKS,
    ObjectKind,
};
use super::{asked, networks, references};

#[test]
fn m1_a_list_with_commas_names_networks_and_spaces_do_not_count() {
    let requested = networks(" net-a, other/net-b@radio0 ,net-a ").unwrap();
    assert_eq!(references(&requested), ["shop/net-a", "other/net-b", "shop/net-a"]);
    assert_eq!(requested.networks[1].interface.as_deref(), Some("radio0"));
    assert_eq!(requested.default_network, None);
    assert_eq!(requested.networks[0].object, ObjectKind::NetworkAttachmentDefinition);
}

#[test]
fn m1_an_empty_namespace_or_interface_of_a_list_with_commas_is_not_given_as_with_multus() {
    let requested = networks("radio@, /radio, / radio @ ,other/radio@").unwrap();
    assert_eq!(references(&requested), ["shop/radio", "shop/radio", "shop/radio", "other/radio"]);
    assert!(requested.networks.iter().all(|network| network.interface.is_none()));
    let own = asked(&[(DEFAULT_NETWORK, "/calico@")]).unwrap().default_network.unwrap();
    assert_eq!((own.reference().as_str(), own.interface), ("kube-system/calico", None));
}

#[test]
fn m1_names_are_those_that_the_api_lets_objects_have() {
    let (namespace, longer, longest) = ("n".repeat(63), "a".repeat(64), "a".repeat(253));
    for taken in [format!("{namespace}/{longer}"), format!("x.{longer}"), longest.clone()] {
        let requested = networks(&taken).unwrap();
        assert_eq!(references(&requested)[0].trim_start_matches("shop/"), taken);
    }
    for refused in [format!("n{namespace}/x"), format!("{longest}a")] {
        assert!(networks(&refused).is_err(), "{refused}");
    }
    for refused in ["a..b", ".a", "a.", "a.-b", "A", "x/", "@net1"] {
        assert!(networks(refused).is_err(), "{refused}");
    }
}

#[test]
fn m1_a_json_list_names_networks_too() {
    let requested =
        networks(r#"[{"name":"net-a"},{"name":"net.b","namespace":"other","interface":"radio0"}]"#);
    let requested = requested.unwrap();
    assert_eq!(references(&requested), ["shop/net-a", "other/net.b"]);
    assert_eq!(requested.networks[1].interface.as_deref(), Some("radio0"));
}

#[test]
fn m1_m7_the_legacy_annotation_makes_its_first_entry_the_default_network_in_the_pods_namespace() {
    let requested = asked(&[(LEGACY_NETWORKS, " a, b ,c")]).unwrap();
    let first = requested.default_network.as_ref().unwrap();
    assert_eq!((first.reference().as_str(), first.object), ("shop/a", ObjectKind::Network));
    assert_eq!(references(&requested), ["shop/b", "shop/c"]);
    assert!(requested.networks.iter().all(|network| network.object == ObjectKind::Network));
    let error = asked(&[(LEGACY_NETWORKS, "a,other/b")]).unwrap_err().to_string();
    assert_eq!(
        error,
        "annotation alpha.network.k8s.io/networks, entry 2 (other/b): \"other/b\" is no name of a network; \
         name Network objects of the pod's own namespace, with commas between them"
    );
}

#[test]
fn m7_the_specifications_annotation_counts_before_the_legacy_one_and_that_is_told() {
    let requested = asked(&[(NETWORKS, "a"), (LEGACY_NETWORKS, "b,c")]).unwrap();
    assert_eq!((references(&requested), requested.default_network), (vec!["shop/a".to_owned()], None));
    assert_eq!(
        requested.ignored[0].to_string(),
        "annotation alpha.network.k8s.io/networks has no effect beside k8s.v1.cni.cncf.io/networks"
    );
    // One that is blank is none.
    let requested = asked(&[(NETWORKS, " "), (LEGACY_NETWORKS, "b")]).unwrap();
    assert_eq!(requested.default_network.unwrap().name, "b");
    assert_eq!(asked(&[]).unwrap(), super::super::Requested::default());
}

#[test]
fn m7_a_pod_replaces_the_default_network_by_one_definition_of_the_systems_namespace() {
    let own = |text| asked(&[(DEFAULT_NETWORK, text)]).map(|requested| requested.default_network);
    assert_eq!(own("calico").unwrap().unwrap().reference(), "kube-system/calico");
    assert_eq!(own(r#"[{"name":"calico","namespace":"net"}]"#).unwrap().unwrap().reference(), "net/calico");
    assert_eq!(own(" ").unwrap(), None);
    assert_eq!(
        own("a,b").unwrap_err().to_string(),
        "annotation v1.multus-cni.io/default-network: it names 2 networks, and a pod has one default network; \
         name one, and further ones by k8s.v1.cni.cncf.io/networks"
    );
    let both = asked(&[(DEFAULT_NETWORK, "a"), (LEGACY_NETWORKS, "b")]).unwrap_err().to_string();
    assert!(both.contains("alpha.network.k8s.io/networks makes b the default network already"), "{both}");
}

#[test]
fn m14_every_field_of_the_specification_is_read() {
    let text = r#"[{"name":"net-b","ips":["10.2.2.42/24","2001:db8::5"],"mac":"02:23:45:67:89:01",
        "infiniband-guid":"24:8a:07:03:00:8d:ae:2f","interface":"radio0","cni-args":{"spoofChk":"on","Deep":{"A":[1]}},
        "portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"TCP"},
                        {"hostPort":53,"containerPort":53,"hostIP":"10.0.0.9"}],
        "bandwidth":{"ingressRate":2048,"ingressBurst":300,"egressRate":8000,"egressBurst":200},
        "default-route":["10.2.2.1","2001:db8::1"]}]"#;
    let requested = networks(text).unwrap();
    let network = &requested.networks[0];
    assert_eq!(network.ips, ["10.2.2.42/24", "2001:db8::5"]);
    assert_eq!(network.mac.as_deref(), Some("02:23:45:67:89:01"));
    assert_eq!(network.infiniband_guid.as_deref(), Some("24:8a:07:03:00:8d:ae:2f"));
    // The keys of the user's own map stay as they are, although those of the list match in any case.
    assert_eq!(json!(network.cni_args), json!({"spoofChk":"on","Deep":{"A":[1]}}));
    assert_eq!(
        json!(network.port_mappings),
        json!([{"hostPort":8080,"containerPort":80,"protocol":"TCP"},
               {"hostPort":53,"containerPort":53,"protocol":"tcp","hostIP":"10.0.0.9"}])
    );
    let limits = Bandwidth { ingress_rate: 2048, ingress_burst: 300, egress_rate: 8000, egress_burst: 200 };
    assert_eq!(network.bandwidth, Some(limits));
    let gateways: Vec<String> = network.default_route.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(gateways, ["10.2.2.1", "2001:db8::1"]);
    assert_eq!(requested.ignored, []);
}

#[test]
fn keys_match_in_any_case_and_empty_values_are_none_as_gos_decoder_takes_them() {
    let text = r#"[{"Name":"a","NAMESPACE":null,"ips":[],"mac":"","interfaceRequest":"old0","bandwidth":{},"cni-args":null,
        "portMappings":null,"default-route":[],"ipam-claim-reference":""}]"#;
    let requested = networks(text).unwrap();
    let network = &requested.networks[0];
    assert_eq!(network.reference(), "shop/a");
    assert_eq!((network.ips.len(), &network.mac, network.bandwidth), (0, &None, None));
    assert_eq!(network.interface.as_deref(), Some("old0"));
    // An empty list is a request all the same: the network keeps the default route of its own configuration.
    assert_eq!(network.default_route, Some(vec![]));
    assert_eq!(requested.ignored, []);
}

#[test]
fn a_key_without_a_meaning_is_told_and_one_of_another_program_is_not() {
    let requested =
        networks(r#"[{"name":"a"},{"name":"b","gateway":"10.0.0.1","org.example.note":"x"}]"#).unwrap();
    let told: Vec<String> = requested.ignored.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "annotation k8s.v1.cni.cncf.io/networks, entry 2 (shop/b): the key \"gateway\" has no meaning and no effect"
        ]
    );
}

#[test]
fn m14_what_is_wrong_is_refused_with_annotation_entry_reason_and_remedy() {
    let cases = [
        (r#"{"name":"a"}"#, "the JSON is no list"),
        (r#"[{"name":"a"}"#, "the JSON cannot be read"),
        (r#"[{"name":"ok"},{"namespace":"x"}]"#, "entry 2: \"name\" is missing"),
        (r#"["a"]"#, "entry 1: the JSON is the string \"a\""),
        (r#"[null]"#, "entry 1: the JSON is null"),
        (r#"[{"name":7}]"#, "entry 1: \"name\" is the number 7"),
        (r#"[{"name":"A"}]"#, "entry 1 (shop/A): \"A\" is no name of a network"),
        (r#"[{"name":"a","namespace":"../x"}]"#, "the namespace \"../x\" is no name"),
        (
            r#"[{"name":"a","ips":["10.0.0.300"]}]"#,
            "entry 1 (shop/a): \"ips[0]\" is \"10.0.0.300\", expected an IP",
        ),
        (r#"[{"name":"a","ips":"10.0.0.3"}]"#, "\"ips\" is the string \"10.0.0.3\", expected a list"),
        (r#"[{"name":"a","ips":["10.0.0.3/33"]}]"#, "\"ips[0]\""),
        (
            r#"[{"name":"a","mac":"02:00:00:00:00"}]"#,
            "\"mac\" \"02:00:00:00:00\" is no MAC address of 6 bytes",
        ),
        (r#"[{"name":"a","mac":"02-00:00-00:00-01"}]"#, "is no MAC address"),
        (r#"[{"name":"a","mac":"03:00:00:00:00:01"}]"#, "is the address of a group"),
        (r#"[{"name":"a","mac":"0000.0000.0000"}]"#, "is all zeros"),
        (r#"[{"name":"a","infiniband-guid":"24:8a:07:03:00:8d"}]"#, "is no GUID of 8 bytes"),
        (
            r#"[{"name":"a","interface":"a-name-of-17-byte"}]"#,
            "the interface \"a-name-of-17-byte\" is 17 bytes long",
        ),
        (r#"[{"name":"a","interface":"net%d"}]"#, "the interface \"net%d\" holds '%'"),
        (r#"[{"name":"a","interface":"lo"}]"#, "is the pod's loopback"),
        (r#"[{"name":"a","cni-args":[1]}]"#, "\"cni-args\" is a list, expected an object"),
        (r#"[{"name":"a","portMappings":[{"hostPort":0,"containerPort":1}]}]"#, "hostPort\" is 0, expected"),
        (r#"[{"name":"a","portMappings":[{"hostPort":1}]}]"#, "\"portMappings[0].containerPort\" is missing"),
        (
            r#"[{"name":"a","portMappings":[{"hostPort":1,"containerPort":1,"protocol":"icmp"}]}]"#,
            "\"portMappings[0].protocol\" is \"icmp\", expected TCP, UDP or SCTP",
        ),
        (
            r#"[{"name":"a","portMappings":[{"hostPort":1,"containerPort":1,"hostIP":"node"}]}]"#,
            "\"portMappings[0].hostIP\" is \"node\", expected an IP address",
        ),
        (r#"[{"name":"a","bandwidth":{"ingressRate":-1}}]"#, "\"bandwidth.ingressRate\" is negative"),
        (
            r#"[{"name":"a","bandwidth":{"egressBurst":5}}]"#,
            "\"bandwidth.egressBurst\" is there without \"egressRate\"",
        ),
        (
            r#"[{"name":"a","default-route":["10.0.0.0/8"]}]"#,
            "\"default-route[0]\" is \"10.0.0.0/8\", expected",
        ),
        (r#"[{"name":"a","default-route":["0.0.0.0"]}]"#, "expected the IP address of a gateway"),
        (
            r#"[{"name":"a","default-route":["10.0.0.1","10.0.0.2"]}]"#,
            "\"default-route\" names 2 gateways of one",
        ),
        (
            r#"[{"name":"a","default-route":["10.0.0.1"]},{"name":"b","default-route":[]}]"#,
            "entry 2 (shop/b): \"default-route\" is asked for shop/a already",
        ),
        (r#"[{"name":"a","ipam-claim-reference":"vm1"}]"#, "\"ipam-claim-reference\" is not built yet"),
        (
            r#"[{"name":"a","ips":["10.0.0.3"],"ipam-claim-reference":"vm1"}]"#,
            "\"ips\" and \"ipam-claim-reference\" are both there",
        ),
        (r#"[{"name":"a","deviceID":"0000:03:00.1"}]"#, "\"deviceID\" is not for a pod to choose"),
        ("a,,b", "entry 2: it is empty; remove the comma that is too many"),
        ("a/b/c", "entry 1 (a/b/c): it has too many '/' or '@'"),
        ("a@b@c", "it has too many '/' or '@'"),
        ("//a", "it has too many '/' or '@'"),
        ("a@@", "it has too many '/' or '@'"),
        ("a.b/c", "the namespace \"a.b\" is no name; a namespace has at most 63 lower-case letters"),
        ("/", "\"\" is no name of a network; a name has at most 253 lower-case letters"),
    ];
    for (text, expected) in cases {
        let error = networks(text).expect_err(text).to_string();
        assert!(error.starts_with("annotation k8s.v1.cni.cncf.io/networks"), "{error}");
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.contains("; "), "{text} has no remedy: {error}");
    }
}

#[test]
fn one_network_may_have_the_default_route_of_ipv4_and_another_that_of_ipv6_as_with_multus() {
    let text = r#"[{"name":"a","default-route":["10.0.0.1"]},{"name":"b","default-route":["2001:db8::1"]}]"#;
    assert!(networks(text).is_ok());
}

#[test]
fn too_much_is_refused_by_name() {
    let many = vec!["a"; MAX_NETWORKS + 1].join(",");
    let error = networks(&many).unwrap_err().to_string();
    assert!(error.contains("it asks for 65 networks, more than 64"), "{error}");
    assert!(networks(&vec!["a"; MAX_NETWORKS].join(",")).is_ok());
    let many = format!("[{}]", vec![r#"{"name":"a"}"#; MAX_NETWORKS + 1].join(","));
    assert!(networks(&many).unwrap_err().to_string().contains("it asks for 65 networks"), "JSON too");
    let error = networks(&"a".repeat(MAX_ANNOTATION + 1)).unwrap_err().to_string();
    assert!(error.contains("it has 262145 bytes, more than 262144"), "{error}");
    let deep = format!("[{}", "[".repeat(200_000));
    assert!(networks(&deep).unwrap_err().to_string().len() < 400);
    let error = networks(&"\u{1b}[31m".repeat(40_000)).unwrap_err().to_string();
    assert!(error.len() < 600 && !error.contains('\u{1b}'), "{error}");
}

proptest! {
    #[test]
    fn any_text_is_taken_or_refused_in_few_words(text in "[ -~\\x00-\\x1f\u{e9}@/,\\[{\"]{0,80}") {
        for annotation in [NETWORKS, LEGACY_NETWORKS, DEFAULT_NETWORK] {
            match asked(&[(annotation, &text)]) {
                Ok(requested) => {
                    let names = InterfaceNames { default: "eth0", added: 0 }.of(&requested);
                    prop_assert!(names.is_err() || names.unwrap().len() == requested.networks.len());
                }
                Err(error) => prop_assert!(error.to_string().len() < 1000, "{}", error),
            }
        }
    }

    #[test]
    fn a_list_with_commas_is_what_the_json_of_the_same_words_is(
        entries in prop::collection::vec(("[a-z0-9]{1,9}", "[a-z]{1,8}", prop::option::of("[a-z]{3,9}")), 1..9),
    ) {
        let text = |(namespace, name, interface): &(String, String, Option<String>)| match interface {
            Some(interface) => format!("{namespace}/{name}@{interface}"),
            None => format!("{namespace}/{name}"),
        };
        let object = |(namespace, name, interface): &(String, String, Option<String>)| {
            json!({"namespace": namespace, "name": name, "interface": interface})
        };
        let commas: Vec<String> = entries.iter().map(text).collect();
        let objects: Vec<serde_json::Value> = entries.iter().map(object).collect();
        prop_assert_eq!(networks(&commas.join(" , ")), networks(&json!(objects).to_string()));
    }
}

#[test]
fn the_examples_of_the_documentation_are_taken() {
    let text = include_str!("../../../../docs/kubernetes.md");
    let blocks = text.split("```json\n").skip(1).filter_map(|block| block.split("```").next());
    let mut examples: Vec<&str> = blocks.filter(|block| block.starts_with("[\n")).collect();
    examples
        .push(text.split('`').find_map(|word| word.strip_prefix("k8s.v1.cni.cncf.io/networks: ")).unwrap());
    for example in &examples {
        let requested = networks(example).unwrap();
        assert_eq!((requested.networks.len(), requested.ignored.len()), (2, 0), "{example}");
        let names = InterfaceNames { default: "eth0", added: 0 }.of(&requested).unwrap();
        assert_eq!(names.len(), 2);
    }
    assert_eq!(examples.len(), 2);
}
