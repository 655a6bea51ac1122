//! Removals that cannot succeed: they are tried again, told, and given up by order of the operator.

use fairlead_cni::Code;
use fairlead_host::NetnsId;
use nix::errno::Errno;
use serde_json::{Value, json};

use super::*;
use crate::call::{NamedAttachment, OrphansListed};
use crate::store::{Attachment, Key, LinkRecord, Namespace, Phase};

impl Rig {
    fn forget(&self, carry_out: bool) -> Result<Value, CniError> {
        let named = NamedAttachment { container: "c1".to_owned(), ifname: "net1".to_owned(), network: None };
        self.engine().forget(&named, carry_out)
    }

    fn table(&self, name: &str) -> Value {
        self.engine().table(name).unwrap()
    }

    /// An attachment whose removal the kernel has refused.
    fn with_failing_removal(config: &str) -> Rig {
        let rig = Rig::new();
        rig.add(config).unwrap();
        rig.kernel.fail_from(0, Errno::EBUSY);
        rig.del(config).unwrap_err();
        rig.kernel.heal();
        rig
    }
}

#[test]
fn a_removal_that_fails_is_told_with_count_age_and_reason() {
    let rig = Rig::with_failing_removal(&macvlan());
    rig.kernel.fail_from(0, Errno::EBUSY);
    rig.reap();
    rig.kernel.heal();
    let rows = rig.table("removals");
    let row = &rows[0];
    assert_eq!(
        (&row["container"], &row["ifname"], &row["failures"]),
        (&json!("c1"), &json!("net1"), &json!(2))
    );
    assert!(row["reason"].as_str().unwrap().contains("net1"), "{row}");
    assert!(row["since"].as_u64().unwrap() > 1_700_000_000 && row["for"] == "0s", "{row}");
    rig.reap();
    assert_eq!(
        (rig.table("removals"), rig.state().records),
        (json!([]), 0),
        "one that succeeds is told no more"
    );
}

#[test]
fn what_is_given_up_leaves_its_addresses_taken_while_its_link_may_answer_for_them() {
    let rig = Rig::with_failing_removal(&macvlan());
    let before = rig.state();
    let plan = rig.forget(false).unwrap();
    let left = plan[0]["left"].to_string();
    assert!(left.contains("macvlan interface with index") && left.contains("stay taken"), "{left}");
    assert_eq!(rig.state(), before, "saying it changes nothing");
    rig.forget(true).unwrap();
    let after = rig.state();
    assert_eq!((after.records, &after.allocations, &after.kernel), (0, &before.allocations, &before.kernel));
    assert_eq!(rig.forget(true).unwrap_err().code, Code::UnknownContainer);
    // What nobody claims any more is an orphan, and is listed as one.
    let orphans = rig.table("orphans");
    assert_eq!(orphans.as_array().unwrap().len(), 2);
    assert!(orphans[0]["for"].as_str().unwrap().ends_with('s'), "{orphans}");
    // Those that came after the operator's look at the list are spared.
    rig.engine().collect(Some(OrphansListed { at: 1_700_000_000 })).unwrap();
    assert_eq!(rig.allocations().len(), 2);
    rig.engine().collect(Some(OrphansListed { at: u64::MAX })).unwrap();
    assert_eq!(rig.allocations(), [] as [String; 0]);
}

#[test]
fn what_is_given_up_frees_its_addresses_when_its_link_is_provably_gone() {
    let rig = Rig::with_failing_removal(&macvlan());
    rig.kernel.kill_namespace(POD);
    assert_eq!(rig.forget(false).unwrap()[0]["left"], json!([]));
    rig.forget(true).unwrap();
    assert_eq!((rig.state().records, rig.allocations()), (0, Vec::new()));
}

#[test]
fn a_vf_that_is_given_up_with_its_pod_says_so() {
    let config =
        configurations().into_iter().find(|(name, _)| *name == "sriov with every setting").unwrap().1;
    let rig = Rig::with_failing_removal(&config);
    let left = rig.forget(false).unwrap()[0]["left"].to_string();
    assert!(left.contains(&format!("VF {VF} with the pod's settings")), "{left}");
    rig.forget(true).unwrap();
    assert_eq!(rig.state().records, 0);
}

#[test]
fn what_lives_is_not_given_up() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    for carry_out in [false, true] {
        let refused = rig.forget(carry_out).unwrap_err();
        assert!(refused.msg.contains("is attached") && refused.details.contains("DEL"), "{refused}");
    }
    assert_eq!(rig.state().records, 1);
}

#[test]
fn an_add_whose_undo_the_store_refused_is_undone_by_the_queue_and_not_by_the_next_start() {
    let rig = Rig::new();
    let core = &rig.engine().core;
    let key = Key {
        container: "c1".into(),
        network: "net".into(),
        ifname: "net1".into(),
        plugin: "macvlan".into(),
    };
    let id = NetnsId { dev: 4, ino: 77, cookie: Some(77) };
    let netns = Namespace { path: "/run/netns/gone".into(), id, nsid: None };
    let adding = Attachment::new(core.store.next_id(), key, netns, LinkRecord::None, macvlan().into());
    core.store.begin(adding.clone()).unwrap();
    // As when the store takes no record: nothing but the failure says that this ADD is at an end.
    core.removals.again(adding.id, &CniError::new(Code::TryAgain, "the store is full"));
    {
        let _its_call = core.containers.try_take("c1").unwrap();
        rig.reap();
        assert_eq!(rig.state().records, 1, "as long as its call is at work it is that one's to undo");
    }
    rig.reap();
    assert_eq!(rig.state().records, 0);
}

#[test]
fn orphans_are_not_freed_while_a_record_is_unread_that_may_know_them() {
    let rig = Rig::new();
    let orphans = || rig.engine().collect(Some(OrphansListed { at: u64::MAX }));
    orphans().unwrap();
    for file in [
        "run/attachments.damaged-6ad4ae67",
        "state/attachments/0f.unreadable",
        "state/spool/unreadable/7-1.json",
        "state/pools/0000:21:10.0.unreadable",
    ] {
        let path = rig.dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "?").unwrap();
        let refused = orphans().unwrap_err();
        assert!(refused.msg.contains(file) && refused.details.contains("remove the file"), "{refused}");
        rig.engine().collect(None).unwrap();
        std::fs::remove_file(path).unwrap();
    }
    orphans().unwrap();
}

#[test]
fn an_attempt_that_hangs_for_good_is_told_and_keeps_neither_forget_nor_the_next_del_from_succeeding() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    let core = &rig.engine().core;
    let known = core.store.all().remove(0);
    // As if its DEL had been begun long ago, and hung since with the container's lock and its turn.
    core.store.removed(known.id).unwrap();
    let removing = Attachment { phase: Phase::Removing, ..Attachment::clone(&known) };
    core.store.begin(Attachment { removing_since: Some(1_700_000_000), ..removing }).unwrap();
    let (hangs, turn) = (core.containers.try_take("c1").unwrap(), core.removals.turn(known.id).unwrap());
    let row = &rig.table("removals")[0];
    assert!(row["reason"].as_str().unwrap().contains("does not end"), "{row}");
    rig.kernel.kill_namespace(POD);
    rig.forget(true).unwrap();
    assert_eq!((rig.state().records, rig.allocations()), (0, Vec::new()));
    rig.del(&macvlan()).unwrap();
    drop((hangs, turn));
    assert!(core.containers.try_take("c1").is_some());
}
