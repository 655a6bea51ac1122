//! What `describe` and the tables tell of a pod and its networks (X14).

use nix::errno::Errno;
use serde_json::{Value, json};

use super::pod_networks::{Cluster, NETWORKS, definition};
use super::*;

/// What `describe` says of the pod's networks: interface, network, and the phase or why there is none.
fn described(cluster: &Cluster, named: &str) -> (Value, Vec<[String; 3]>) {
    let value = Service::describe(cluster.rig.engine(), named);
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let networks = value["asked"][0]["networks"].as_array().into_iter().flatten();
    let how = |row: &Value| word(row, "phase") + &word(row, "why");
    let rows = networks.map(|row| [word(row, "interface"), word(row, "network"), how(row)]).collect();
    (value, rows)
}

#[test]
fn x14_describe_tells_the_networks_that_a_pod_asks_for_beside_those_that_it_got() {
    let cluster = Cluster::asking("radio,later@data0");
    let (value, rows) = described(&cluster, "web-0");
    let why = value["why"].as_str().unwrap();
    assert!(why.contains("the pod is on this node, and the runtime has not asked"), "{value}");
    assert!(rows[0][2].contains("the runtime has not asked"), "{value}");

    cluster.add().unwrap_err();
    let (value, rows) = described(&cluster, "shop/web-0");
    assert_eq!((&value["why"], value["failures"].as_array().unwrap().len()), (&Value::Null, 1), "{value}");
    assert!(rows[0][2].contains("another network of the pod has failed"), "{value}");
    let lacking = &rows[1];
    assert_eq!((lacking[0].as_str(), lacking[1].as_str()), ("data0", "shop/later"));
    assert!(lacking[2].contains("the API has no NetworkAttachmentDefinition shop/later"), "{value}");

    cluster.api.put_definition("shop", "later", &definition("later", "10.7.0.0/24"), None);
    cluster.add().unwrap();
    // By the container too, which is no pod's name.
    for named in ["web-0", "u-1", "c1"] {
        let (value, rows) = described(&cluster, named);
        let got = ["net1", "shop/radio", "attached", "data0", "shop/later", "attached"];
        assert_eq!(rows.concat(), got, "{value}");
        assert_eq!(value["asked"][0]["toldBy"], "the API", "{value}");
    }
}

#[test]
fn x14_describe_tells_an_annotation_that_is_wrong_and_a_pod_that_is_not_on_this_node() {
    let cluster = Cluster::asking("[{\"name\": 7}]");
    let (value, _) = described(&cluster, "web-0");
    let refused = value["asked"][0]["refused"].as_str().unwrap();
    assert!(refused.contains(NETWORKS), "{value}");
    let (value, rows) = described(&cluster, "shop/web-7");
    assert_eq!((rows.len(), &value["asked"]), (0, &json!([])));
    assert!(value["why"].as_str().unwrap().contains("pod shop/web-7 is not known on this node"), "{value}");
    let (value, _) = described(&cluster, "web-7");
    assert!(value["why"].as_str().unwrap().contains("no pod of this name"), "{value}");
}

#[test]
fn x14_a_removal_that_fails_and_an_address_without_owner_are_told_with_their_pod() {
    let cluster = Cluster::asking("radio");
    cluster.add().unwrap();
    cluster.rig.kernel.fail_from(0, Errno::EBUSY);
    cluster.del().unwrap_err();
    cluster.rig.kernel.heal();
    let removals = cluster.rig.engine().table("removals").unwrap();
    let row = &removals[0];
    assert_eq!((&row["pod"], &row["podUid"]), (&json!("shop/web-0"), &json!("u-1")), "{removals}");

    let root = cluster.rig.dir.path().join("root/var/lib/cni");
    std::fs::create_dir_all(root.join("results")).unwrap();
    let call = r#"{"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","gone-0"]]}"#;
    std::fs::write(root.join("results/net-c9-eth0"), call).unwrap();
    std::fs::write(root.join("networks/net/10.1.0.99"), "c9\r\neth0").unwrap();
    let orphans = cluster.rig.engine().table("orphans").unwrap();
    let of = |ip: &str| orphans.as_array().unwrap().iter().find(|row| row["ip"] == ip).cloned();
    assert_eq!(of("10.1.0.99").unwrap()["pod"], "shop/gone-0", "{orphans}");
}

#[test]
fn x14_the_row_of_a_lists_plugin_names_the_list_and_each_row_its_pod() {
    let cluster = Cluster::asking("radio");
    cluster.add().unwrap();
    let rows = Service::table(cluster.rig.engine(), "attachments").unwrap();
    let told: Vec<_> = rows.as_array().unwrap().iter().collect();
    for row in &told {
        assert_eq!((&row["pod"], &row["podUid"]), (&json!("shop/web-0"), &json!("u-1")), "{row}");
    }
    let of = |ifname: &str| {
        let rows = told.iter().filter(|row| row["ifname"] == ifname);
        rows.map(|row| [&row["network"], &row["list"], &row["chosen"]]).collect::<Vec<_>>()
    };
    let (net, macvlan) = (json!("net"), json!("macvlan"));
    assert_eq!(
        of("eth0"),
        [[&net, &Value::Null, &macvlan], [&net, &net, &macvlan]],
        "as network-status has it"
    );
    assert!(told.iter().any(|row| row["runtimeNetwork"] == "cluster"), "{rows}");
    assert_eq!(of("net1"), [[&json!("radio"), &Value::Null, &macvlan]], "no list");
}
