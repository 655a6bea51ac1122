//! Definitions in every spelling, through the whole of ADD: what the kernel is asked for and what lies on the disk has nothing of
//! what the policy forbids.

use std::collections::BTreeMap;

use fairlead_host::double::{Call, KernelRequest, Place};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Map;

use super::*;
use crate::engine::{DefinitionCall, Sandbox};
use crate::policy::Tenant;
use crate::store::{Attachment, LinkRecord};

// The same definitions as those of the fuzz target `policy`.
#[path = "../../../../fuzz/src/spelled_definition.rs"]
mod spelled_definition;

const POLICY: &str = r#"{execute: [], rules: [{namespaces: [tenant], types: [macvlan, ipvlan, vlan, host-device, dummy],
    masters: ["good*"], vlans: ["100-199"], ranges: ["10.9.0.0/16"]}]}"#;

#[test]
fn no_spelling_of_what_a_policy_forbids_reaches_the_kernel_or_the_disk() {
    let mut rig = Rig::new();
    for name in ["good0", "good1", "evil0", "evil1", "Evil"] {
        rig.kernel.add_host_link(name);
    }
    rig.call_settings.policy = Some(Arc::new(serde_saphyr::from_str(POLICY).unwrap()));
    rig.restart();
    let tenant = Tenant::new("tenant", BTreeMap::new()).unwrap();
    let attached = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(Config { cases: 1500, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(any::<u8>(), 0..300), |bytes| {
        let text = spelled_definition::write(&bytes);
        rig.kernel.forget_calls();
        let now = Instant::now();
        let waiting =
            Waiting { arrived: now, deadline: now + Duration::from_secs(5), gone: CallerGone::default() };
        let sandbox = Sandbox {
            container: "c1",
            netns: POD,
            netns_inode: None,
            callers_netns: None,
            callers_cookie: None,
            args: "",
            path: "/nowhere",
            env: &[],
            spooled: None,
            issued: None,
        };
        let call = DefinitionCall {
            tenant: &tenant,
            text: &text,
            object: None,
            runtime: &Map::new(),
            sandbox,
            ifname: "net1",
            waiting,
        };
        let done = rig.engine().add_definition(&call);
        // Without the definition's own text, which may well say it where nobody reads it.
        let recorded = rig.engine().core.store.all().into_iter().map(|a| {
            let link = match &a.link {
                LinkRecord::Conflist { .. } => LinkRecord::None,
                link => link.clone(),
            };
            Attachment { config: "".into(), link, ..Attachment::clone(&a) }
        });
        let recorded: Vec<Attachment> = recorded.collect();
        // With `linkInContainer` the master is the pod's own link, which the policy leaves to the pod.
        let in_the_pod = |call: &Call| {
            matches!((&call.place, &call.request), (Place::Pod(_), KernelRequest::LinkByName(_)))
        };
        let calls: Vec<Call> = rig.kernel.calls().into_iter().filter(|call| !in_the_pod(call)).collect();
        let asked = format!("{calls:?} {recorded:?}");
        for forbidden in ["evil0", "evil1", "\"Evil\"", "Vlan { id: 666", "10.66.", "Passthru"] {
            prop_assert!(!asked.contains(forbidden), "{forbidden}: {text}\n{done:?}\n{asked}");
        }
        prop_assert!(!rig.dir.path().join("root/evil").exists(), "{text}");
        if done.is_ok() {
            attached.set(attached.get() + 1);
        }
        for attachment in rig.engine().core.store.all() {
            let request =
                Request { ifname: "net1".into(), ..rig.request(Command::Del, "c1", &attachment.config) };
            rig.call(request).unwrap();
        }
        rig.reap();
        prop_assert_eq!(rig.engine().core.store.all().len(), 0, "{}", text);
        Ok(())
    });
    outcome.unwrap();
    assert!(attached.get() > 50, "only {} were attached", attached.get());
}
