//! Configurations that change, overlap or cannot be read, and what becomes of members then.

use fairlead_host::double::KernelRequest;

use super::*;

#[test]
fn a_changed_profile_is_given_to_what_is_ready_at_once() {
    let mut rig = kept(POOL);
    rig.configuration = configuration(&POOL.replace("vlan: 7", "vlan: 9"));
    rig.pools().configure(rig.configuration.clone());
    assert_eq!(rig.pools().next_look(Instant::now() + Duration::from_secs(9)), Some(Look::Thorough));
    rig.check_pools();
    let vfs = rig.kernel.snapshot().vfs;
    assert!(vfs.values().next().unwrap().iter().all(|vf| vf.vlan.unwrap().id == 9));
}

#[test]
fn a_pool_that_went_from_the_configuration_while_the_daemon_was_down_is_given_back() {
    let mut rig = with(POOL);
    let before = rig.machine();
    rig.restart();
    rig.keep();
    rig.configuration = PoolsConfiguration::default();
    rig.restart();
    rig.keep();
    assert_eq!((rig.members().len(), rig.machine()), (0, before));
}

#[test]
fn a_vf_goes_to_the_first_pool_that_selects_it_and_two_announcers_are_a_fault() {
    let overlap = "pools: [{name: a, selectors: {pfNames: ['pf0#1']}, resourceName: x/a}, \
                   {name: b, selectors: {vendors: ['8086']}, resourceName: x/b}]";
    let rig = kept(overlap);
    let pools: Vec<String> =
        rig.members().iter().map(|row| row["pool"].as_str().unwrap().to_owned()).collect();
    assert_eq!(pools, ["a", "b"]);
    let notices = rig.table()["notices"].clone();
    assert_eq!(notices[0]["wrong"], true);
    assert!(
        notices[0]["seen"].as_str().unwrap().contains(&format!("both would announce {SECOND}")),
        "{notices}"
    );
    let drawn = rig.pools().draw("a", |_| Some(0)).err();
    assert_eq!(drawn, Some(DrawError::NotDrawnFrom("a".to_owned())));
}

#[test]
fn of_two_resources_of_the_device_plugins_file_the_first_has_what_both_select_and_that_is_no_fault() {
    let mut rig = with("");
    let file = rig.dir.path().join("config.json");
    let all = r#"{"resourceName":"a","selectors":[{"pfNames":["pf0#1"]}]},{"resourceName":"b","selectors":[{"vendors":["8086"]}]}"#;
    fs::write(&file, format!(r#"{{"resourceList":[{all}]}}"#)).unwrap();
    let of_file = format!("devicePluginConfig: {}", file.display());
    rig.configuration = configuration(&of_file);
    rig.restart();
    rig.keep();
    let pools: Vec<Value> = rig.members().iter().map(|row| row["pool"].clone()).collect();
    assert_eq!(pools, ["intel.com/a", "intel.com/b"]);
    let notices = rig.table()["notices"].clone();
    let seen = format!(
        r#"pools "intel.com/a" and "intel.com/b" both select {SECOND}; "intel.com/a" has them, because it comes first"#
    );
    assert_eq!(notices[0]["wrong"], false, "{notices}");
    assert_eq!(notices[0]["seen"], seen);
    // Of a pool of ours and a resource of the file nothing says which one is meant.
    rig.configure(&format!(
        "{of_file}\npools: [{{name: ours, selectors: {{pfNames: ['pf0#1']}}, resourceName: intel.com/c}}]"
    ));
    let notices = rig.table()["notices"].clone();
    let wrong: Vec<&Value> = notices.as_array().unwrap().iter().filter(|one| one["wrong"] == true).collect();
    assert!(!wrong.is_empty(), "{notices}");
    assert!(wrong.iter().all(|one| one["seen"].to_string().contains(r#"pools \"ours\" and"#)), "{notices}");
}

#[test]
fn a_pool_that_matches_no_vf_is_told_with_the_selectors_that_matched_nothing() {
    for (selectors, told) in [
        ("{vendors: ['15b3']}", "vendors: no VF of this node has 15b3 (found 8086)"),
        (
            "{vendors: ['8086'], drivers: [mlx5_core, ixgbevf]}",
            "drivers: no VF of this node has mlx5_core, ixgbevf (found igbvf)",
        ),
        ("{isRdma: true}", "isRdma: no VF of this node has an RDMA device (found none)"),
        (
            "[{vendors: ['15b3']}, {pfNames: ['pf0#7']}]",
            "vendors: no VF of this node has 15b3 (found 8086); or pfNames: no VF of this node has pf0#7 (found pf0#0, pf0#1)",
        ),
        (
            &format!("{{pfNames: ['pf0#0'], pciAddresses: ['{SECOND}']}}"),
            &format!("no VF of this node has all of pciAddresses {SECOND}; pfNames pf0#0"),
        ),
        ("{vendors: ['8086']}", "earlier pools have all that its selectors match"),
    ] {
        let text = format!(
            "pools: [{{name: b, selectors: {{vendors: ['8086']}}}}, {{name: a, selectors: {selectors}}}]"
        );
        let notices = kept(&text).table()["notices"].clone();
        let seen: Vec<&str> =
            notices.as_array().unwrap().iter().filter_map(|one| one["seen"].as_str()).collect();
        assert!(seen.contains(&&*format!("pool \"a\" has no VF: {told}")), "{selectors}: {notices}");
        assert!(notices.as_array().unwrap().iter().all(|one| one["wrong"] == false), "{notices}");
    }
}

#[test]
fn what_a_pool_asks_for_and_no_pod_gets_is_told_and_costs_no_other_vf_its_pool() {
    let both = "{linkTypes: [ether, infiniband]}";
    for (pools, told) in [
        (format!("{{name: a, selectors: {both}}}"), None),
        (
            format!("{{name: ib, selectors: {{linkTypes: [infiniband]}}}}, {{name: a, selectors: {both}}}"),
            Some(r#"pool "ib": linkTypes: [infiniband] selects VFs of InfiniBand, which are not served yet"#),
        ),
        (
            "{name: a, selectors: [{vendors: ['8086']}, {pKeys: ['0x8abc']}]}".to_owned(),
            Some(r#"pool "a": pKeys selects VFs of InfiniBand, which are not served yet"#),
        ),
        (
            "{name: a, selectors: [{vendors: ['8086']}, {isRdma: true}], driver: vfio-pci}".to_owned(),
            Some(r#"pool "a": isRdma selects VFs by their RDMA devices, and under vfio-pci no pod gets one"#),
        ),
    ] {
        let mut rig = with(&format!("pools: [{pools}]"));
        [(VF, "vf0"), (SECOND, "vf1")].iter().for_each(|(vf, name)| rig.speaks(vf, name, "1\n"));
        rig.restart();
        rig.keep();
        let notices = rig.table()["notices"].clone();
        assert_eq!(rig.states(), ["ready", "ready"], "{pools}: {notices}");
        let all = notices.as_array().unwrap();
        assert!(all.iter().all(|one| one["wrong"] == false), "{notices}");
        assert_eq!(all.first().and_then(|one| one["seen"].as_str()), told, "{pools}: {notices}");
    }
}

#[test]
fn a_resource_of_the_device_plugins_file_that_means_a_pf_or_another_nic_is_told_to_be_unserved() {
    let mut rig = with("");
    rig.without_vfs();
    let file = rig.dir.path().join("config.json");
    let resource = |name: &str, pf: &str| {
        format!(r#"{{"resourceName":"{name}","selectors":[{{"vendors":["8086"],"pfNames":["{pf}"]}}]}}"#)
    };
    let list = [resource("pf", PF), resource("nic", VFIO_LINK), resource("vfs", "pf0#0-1")].join(",");
    fs::write(&file, format!(r#"{{"resourceList":[{list}]}}"#)).unwrap();
    rig.configuration = configuration(&format!("devicePluginConfig: {}", file.display()));
    rig.restart();
    rig.keep();
    let notices = rig.table()["notices"].clone();
    let seen: Vec<&str> = notices.as_array().unwrap().iter().filter_map(|one| one["seen"].as_str()).collect();
    let of = |resource: &str, why: &str| format!("pool \"intel.com/{resource}\" has no VF: {why}");
    let wanted = [
        of("pf", &format!("its selectors match PF {PHYSICAL} without VFs: only VFs are served")),
        of("nic", &format!("its selectors match NIC {VFIO_PF} without SR-IOV: only VFs are served")),
        of("vfs", "this node has none"),
    ];
    assert_eq!(seen, wanted);
    assert!(rig.metrics().contains("fairlead_pool_notices 3"), "{}", rig.metrics());
    // Of a pool of ours nobody means a PF.
    rig.configure("pools: [{name: a, selectors: {pfNames: [pf0]}}]");
    assert!(!rig.table()["notices"].to_string().contains("only VFs are served"));
}

#[test]
fn a_device_plugins_file_that_cannot_be_read_just_now_is_no_order_to_give_everything_back() {
    let mut rig = with("");
    let file = rig.dir.path().join("config.json");
    let text = format!("devicePluginConfig: {}", file.display());
    fs::write(&file, r#"{"resourceList":[{"resourceName":"radio","selectors":[{"vendors":["8086"]}]}]}"#)
        .unwrap();
    rig.configuration = configuration(&text);
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    fs::write(&file, "{").unwrap();
    rig.configure(&text);
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.restart();
    rig.keep();
    let notices = rig.table()["notices"].to_string();
    assert!(notices.contains("config.json"), "{notices}");
    fs::write(&file, r#"{"resourceList":[{"resourceName":"radio","selectors":[{"vendors":["8086"]}]}]}"#)
        .unwrap();
    rig.configuration = configuration(&text);
    rig.kernel.forget_calls();
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(), "ready".to_owned()], 0));
}

#[test]
fn a_configuration_that_is_refused_at_the_start_is_no_order_to_give_everything_back() {
    let mut rig = kept(POOL);
    let whole = std::mem::replace(
        &mut rig.configuration,
        PoolsConfiguration { unreadable: true, ..PoolsConfiguration::default() },
    );
    rig.kernel.forget_calls();
    rig.restart();
    rig.keep();
    rig.check_pools();
    assert_eq!((rig.members().len(), rig.changes()), (0, 0));
    rig.pools().configure(whole);
    rig.keep();
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(), "ready".to_owned()], 0));
}

#[test]
fn what_was_counted_of_a_pool_goes_with_it() {
    let mut rig = kept(POOL);
    rig.configure("pools: []");
    assert!(rig.members().is_empty());
    rig.configure("pools: [{name: other, selectors: {vendors: ['15b3']}}]");
    let text = rig.metrics();
    assert!(!text.contains(r#"pool="radio""#) && text.contains(r#"pool="other",state="ready"} 0"#), "{text}");
}

#[test]
fn a_vf_that_a_call_has_in_hands_when_its_pool_turns_out_to_be_gone_is_given_back_after_that() {
    let mut rig = with(POOL);
    let before = rig.machine();
    rig.restart();
    rig.keep();
    rig.configuration = PoolsConfiguration { unreadable: true, ..PoolsConfiguration::default() };
    rig.restart();
    rig.kernel.forget_calls();
    let loan = rig.pools().lend(SECOND.parse().unwrap(), Instant::now()).unwrap();
    rig.pools().configure(PoolsConfiguration::default());
    rig.keep();
    let touched = |asked: &KernelRequest| *asked == KernelRequest::Unbind(SECOND.to_owned());
    assert_eq!((rig.asked(touched), rig.members().len()), (0, 0), "the other one is given back");
    drop(loan);
    assert_eq!(rig.look_due(), Look::Quick);
    rig.keep();
    assert_eq!((rig.asked(touched), rig.members().len(), rig.machine()), (1, 0, before));
}
