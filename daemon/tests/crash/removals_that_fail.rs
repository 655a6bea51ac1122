//! Removals that cannot succeed, on the real kernel and with real plugins: told, and given up by the operator's order.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::executed_plugins::Ledger;
use super::newer_version::order;
use super::rig::{Reply, Rig, until};

#[test]
fn an_add_of_a_list_of_which_a_plugin_is_not_installed_does_nothing_and_leaves_no_record() {
    for missing in [0, 1] {
        let rig = Rig::new();
        let (config, pod) = (rig.cluster_network(), rig.pod("pod"));
        let mut plugins = vec![rig.macvlan("cluster"), json!({ "type": "ledger" })];
        plugins.insert(missing, json!({ "type": "nowhere" }));
        let list = json!({ "cniVersion": "1.0.0", "name": "cluster", "plugins": plugins });
        fs::write(rig.path("net.d/10-cluster.conflist"), list.to_string()).unwrap();
        let _daemon = rig.start();
        let before = rig.leftovers(&[&pod]);
        let reply = rig.call("c1", &pod, &config).add();
        let Reply::Refused(error) = &reply else { panic!("{reply:?}") };
        assert!(error.to_string().contains(r#""nowhere" is in no directory"#), "{error}");
        assert_eq!(rig.calls(), [] as [&str; 0], "nothing was executed");
        assert_eq!(rig.leftovers(&[&pod]), before);
    }
}

#[test]
fn an_add_whose_plugin_cannot_be_started_leaves_no_record_as_a_plugin_of_a_list_and_as_an_ipam() {
    for content in ["#!/no/such/interpreter\n", "no program"] {
        let rig = Rig::new();
        let (config, pod) = (rig.cluster_network(), rig.pod("pod"));
        fs::write(rig.path("bin/broken"), content).unwrap();
        fs::set_permissions(rig.path("bin/broken"), fs::Permissions::from_mode(0o755)).unwrap();
        let _daemon = rig.start();
        let before = rig.leftovers(&[&pod]);
        let mut by_ipam = rig.macvlan("net");
        by_ipam["ipam"] = json!({ "type": "broken" });
        let (reply, told) = (rig.call("c1", &pod, &by_ipam).add(), r#"plugin "broken", ADD"#);
        assert!(matches!(&reply, Reply::Refused(e) if e.to_string().contains(told)), "{reply:?}");
        rig.is_as(&before, &[&pod], "an IPAM that cannot be started");
        for place in [0, 2] {
            let mut plugins = vec![rig.macvlan("cluster"), json!({ "type": "ledger" })];
            plugins.insert(place, json!({ "type": "broken" }));
            let list = json!({ "cniVersion": "1.0.0", "name": "cluster", "plugins": plugins });
            fs::write(rig.path("net.d/10-cluster.conflist"), list.to_string()).unwrap();
            let mut reply = Reply::Lost;
            // The list is taken when the watch of its directory has seen it.
            until("the broken plugin is called", || {
                reply = rig.call("c1", &pod, &config).add();
                match &reply {
                    Reply::Done(_) => {
                        rig.call("c1", &pod, &config).del().succeeds();
                        false
                    }
                    _ => true,
                }
            });
            assert!(matches!(&reply, Reply::Refused(e) if e.to_string().contains(told)), "{reply:?}");
            rig.is_as(&before, &[&pod], "a plugin that cannot be started");
        }
    }
}

#[test]
fn a_removal_that_keeps_failing_is_told_after_a_kill_too_until_it_is_given_up() {
    let rig = Rig::new();
    let (config, pod) = (rig.cluster_network(), rig.pod("pod"));
    let call = rig.call("c1", &pod, &config);
    let daemon = rig.start();
    call.add().succeeds();
    fs::remove_file(rig.path("bin/ledger")).unwrap();
    assert!(matches!(call.del(), Reply::Refused(_)));
    let told = |rig: &Rig| {
        let (_, status) = order(rig, &["status"]);
        let (well, doctor) = order(rig, &["doctor"]);
        let metrics = rig.metrics();
        let oldest = "fairlead_removals_failing_oldest_seconds ";
        status.contains("removal fails: eth0 of c1 (network all), ")
            && status.contains("\"ledger\" is in no directory")
            && doctor.contains("that of eth0 of container c1 (network all) has failed ")
            && doctor.contains("fairleadd forget c1 eth0")
            && !well
            && metrics.contains("fairlead_removals_failing 1\n")
            && metrics.contains(oldest)
    };
    assert!(told(&rig), "{:?}", order(&rig, &["status"]));
    daemon.kill();
    // Its age goes on: it is on record since when it is under way.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let daemon = rig.start();
    until("it is told after the restart", || told(&rig));
    assert!(!rig.metrics().contains("fairlead_removals_failing_oldest_seconds 0\n"), "its age begins anew");
    let (done, text) = order(&rig, &["forget", "c1", "eth0"]);
    assert!(!done && text.contains("what macvlan, ledger made or hold") && text.contains("--yes"), "{text}");
    assert!(rig.attachments().iter().any(|row| row["container"] == "c1"));
    let (done, text) = order(&rig, &["forget", "c1", "eth0", "--network", "all", "--yes"]);
    assert!(done, "{text}");
    assert!(rig.log().contains("an attachment was given up by the operator's order"));
    assert!(rig.attachments().is_empty() && order(&rig, &["status"]).1.lines().all(|l| !l.contains("fails")));
    daemon.kill();
    let _daemon = rig.start();
    assert!(rig.attachments().is_empty());
    assert!(rig.metrics().contains("fairlead_removals_failing 0\n"));
}

#[test]
fn a_daemon_that_is_killed_while_it_gives_one_up_still_has_it_on_record() {
    let rig = Rig::new();
    let (config, pod) = (rig.cluster_network(), rig.pod("pod"));
    let call = rig.call("c1", &pod, &config);
    let daemon = rig.start_dying_at("forget.released");
    call.add().succeeds();
    fs::remove_file(rig.path("bin/ledger")).unwrap();
    assert!(matches!(call.del(), Reply::Refused(_)));
    let (done, text) = order(&rig, &["forget", "c1", "eth0", "--yes"]);
    assert!(!done, "{text}");
    daemon.dies();
    let _daemon = rig.start();
    // The interface that the list's own plugin made is another record, whose removal ends meanwhile.
    assert!(rig.attachments().iter().any(|row| row["runtimeNetwork"] == "all"));
    until("its removal has failed again", || order(&rig, &["forget", "c1", "eth0", "--yes"]).0);
    until("nothing is on record", || rig.attachments().is_empty());
}

#[test]
fn orphaned_addresses_are_listed_before_anybody_is_asked_and_freed_only_then() {
    let rig = Rig::new();
    let (config, pod) = (rig.macvlan("net"), rig.pod("pod"));
    let _daemon = rig.start();
    rig.call("c1", &pod, &config).add().succeeds();
    // As the reference plugin leaves them, when its pod's DEL never came.
    for address in ["10.73.0.77", "fd00:73::77"] {
        fs::write(rig.path("data/net").join(address), "dead-pod\r\neth7").unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let (done, text) = order(&rig, &["gc", "--orphans"]);
    assert!(!done && text.contains("Nobody can be asked here; --yes"), "{text}");
    let row = text.lines().find(|line| line.contains("10.73.0.77")).unwrap();
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!(words[..4], ["net", "10.73.0.77", "dead-pod", "eth7"], "{text}");
    assert!(words[4].ends_with('s'), "its age: {text}");
    assert_eq!(rig.allocations().len(), 4, "nothing was freed");
    let (done, text) = order(&rig, &["gc", "--orphans", "--yes"]);
    assert!(done && text.contains("dead-pod"), "{text}");
    assert_eq!(rig.allocations().len(), 2, "the living pod keeps its addresses");
}
