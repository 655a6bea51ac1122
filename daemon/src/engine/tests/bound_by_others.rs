//! Pools whose VFs somebody else binds, on a kernel in memory: they keep whatever driver they are given.

use fairlead_cni::Code;
use fairlead_host::double::KernelRequest;
use fairlead_sriov::pools::Verb;

use super::pools::{config, kept};
use super::*;

/// Ready, each by its own configuration: another plugin's VFs, and those of the SR-IOV device plugin's own file.
fn rigs() -> [Rig; 2] {
    let external =
        "pools: [{name: radio, selectors: {vendors: ['8086']}, profile: {vlan: 7}, allocator: external}]";
    let file = tempfile::NamedTempFile::new().unwrap();
    let resources = r#"{"resourceList":[{"resourceName":"radio","selectors":[{"vendors":["8086"]}]}]}"#;
    std::fs::write(file.path(), resources).unwrap();
    [external, &format!("devicePluginConfig: {}", file.path().display())].map(|text| {
        let rig = kept(text);
        assert_eq!(rig.states(), ["ready", "ready"]);
        rig.kernel.forget_calls();
        rig
    })
}

impl Rig {
    fn bound_to(&self) -> (Option<String>, Option<String>) {
        self.kernel.snapshot().drivers[VF].clone()
    }
}

#[test]
fn one_that_a_killed_daemon_has_unbound_is_bound_to_what_it_had() {
    for mut rig in rigs() {
        let call = {
            rig.engine().core.kinds.sriov.pools.lend(VF.parse().unwrap(), Instant::now()).unwrap().keep();
            rig.engine().core.kinds.sriov.pools.take_back(VF.parse().unwrap(), || Ok::<(), ()>(())).unwrap();
            rig.kernel.forget_calls();
            rig.engine().core.kinds.sriov.pools.work_here();
            let calls = rig.kernel.calls();
            calls.iter().position(|call| matches!(call.request, KernelRequest::Reset(_))).unwrap()
        };
        rig.engine().core.kinds.sriov.pools.lend(VF.parse().unwrap(), Instant::now()).unwrap().keep();
        rig.engine().core.kinds.sriov.pools.take_back(VF.parse().unwrap(), || Ok::<(), ()>(())).unwrap();
        rig.kernel.forget_calls();
        rig.kernel.fail_from(call, nix::errno::Errno::EIO);
        rig.engine().core.kinds.sriov.pools.work_here();
        rig.kernel.heal();
        assert_eq!(rig.bound_to().0, None);
        rig.restart();
        rig.keep();
        assert_eq!((rig.states()[0].as_str(), rig.bound_to().0.as_deref()), ("ready", Some("igbvf")));
        rig.add(&config(VF, "")).unwrap();
    }
}

#[test]
fn k26_a_drained_vf_that_another_plugin_gives_a_pod_is_refused_and_filled_it_has_its_pools_vlan() {
    let [rig, _] = rigs();
    let vlan = || rig.kernel.snapshot().vfs.values().next().unwrap()[0].vlan.unwrap().id;
    rig.order(Verb::Drain, VF);
    let refused = rig.add(&config(VF, "")).unwrap_err();
    assert_eq!(refused.code, Code::TryAgain);
    assert!(refused.msg.contains(r#"pool "radio", and it is drained"#), "{refused}");
    assert!(refused.to_string().contains("fairleadd pools fill"), "{refused}");
    assert_eq!((rig.states()[0].as_str(), vlan()), ("drained", 0));
    rig.order(Verb::Fill, VF);
    rig.add(&config(VF, "")).unwrap();
    assert_eq!((rig.states()[0].as_str(), vlan()), ("lent", 7));
}
