//! The store on a journal that was damaged, and on what a kill leaves.

use fairlead_host::double::FakeKernel;
use fairlead_host::{
    AttachedProgram, Channels, Kind, LinkSettings, MacvlanMode, NetKernel, NetdevSettings, NetnsId,
    ProgramHook,
};
use proptest::prelude::*;

use super::*;

const BOOT: &str = "6ad4ae67-5d19-4a22-b33d-6d09b3d6a2a0";

fn attachment(id: u64) -> Attachment {
    let kind = Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None };
    let container = format!("c{id}");
    let key = Key { container, network: "pods".into(), ifname: "eth0".into(), plugin: "macvlan".into() };
    let netns = Namespace {
        path: format!("/run/netns/{id}"),
        id: NetnsId { dev: 4, ino: id, cookie: Some(id) },
        nsid: None,
    };
    let link = LinkRecord::Made { index: 7, kind, mac: None, mtu: None, parent: None };
    let config = r#"{"cniVersion":"1.1.0","name":"pods","type":"macvlan"}"#.into();
    Attachment {
        ipam: IpamRecord::HostLocal { data_dir: "/var/lib/cni/networks".into(), root: None },
        ..Attachment::new(id, key, netns, link, config)
    }
}

/// A journal of attachments that are committed, and where each one's records begin and end.
fn filled(dir: &Path, count: u64) -> (PathBuf, Vec<std::ops::Range<usize>>) {
    let (store, opened) = Store::open(dir, BOOT).unwrap();
    assert_eq!((opened.damaged, opened.set_aside), (0, None));
    let length = |store: &Store| usize::try_from(store.lock().journal.length()).unwrap();
    let ranges = (1..=count).map(|id| {
        let begin = length(&store);
        store.begin(attachment(id)).unwrap();
        let address = format!("10.0.0.{id}/24").parse().unwrap();
        store.commit(vec![Commit { id, addresses: vec![address], answer: format!("answer {id}") }]).unwrap();
        begin..length(&store)
    });
    let ranges = ranges.collect();
    (dir.join(JOURNAL), ranges)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn x05_of_a_damaged_journal_every_undamaged_attachment_survives_and_the_damage_is_kept_and_told(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (path, ranges) = filled(dir.path(), 8);
        // The last one is left whole, as a longer last record looks like a torn one.
        let end = ranges[6].end;
        let mut bytes = std::fs::read(&path).unwrap();
        let whole = bytes.clone();
        flips.iter().for_each(|(at, bit)| bytes[at.index(end)] ^= 1 << bit);
        std::fs::write(&path, &bytes).unwrap();
        let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
        let intact = |range: &std::ops::Range<usize>| bytes[range.clone()] == whole[range.clone()];
        for (id, range) in (1..).zip(&ranges) {
            if intact(range) {
                let there = store.get(id).unwrap();
                prop_assert_eq!((there.phase, there.answer.as_deref()), (Phase::Attached, Some(&*format!("answer {id}"))));
            }
        }
        // No attachment is undone: of one whose commit is damaged it is assumed.
        prop_assert!(store.all().iter().all(|a| a.phase == Phase::Attached));
        prop_assert_eq!(opened.damaged > 0, bytes != whole);
        if bytes != whole {
            prop_assert_eq!(damaged(dir.path()), vec![opened.set_aside.clone().unwrap()]);
            prop_assert_eq!(std::fs::read(opened.set_aside.unwrap()).unwrap(), bytes);
        }
        // Those whose intent alone is damaged are reported from their commit.
        prop_assert!(opened.lost.len() + store.all().len() <= 8);
        let kept = store.all();
        drop(store);
        let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
        prop_assert_eq!((opened.damaged, store.all()), (0, kept));
    }
}

#[test]
fn x05_an_attachment_whose_intent_is_damaged_is_told_by_its_commit_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ranges) = filled(dir.path(), 2);
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    store.removed(1).unwrap();
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    ranges.iter().for_each(|range| bytes[range.start + 20] ^= 1);
    std::fs::write(&path, &bytes).unwrap();
    let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
    assert!(store.all().is_empty());
    let lost = Lost { addresses: vec!["10.0.0.2/24".parse().unwrap()], answer: "answer 2".into() };
    assert_eq!(opened.lost, [lost]);
}

#[test]
fn m08_commits_of_one_add_are_on_record_together_and_a_torn_write_lacks_the_last_one_first() {
    let commit = |id| Commit { id, addresses: Vec::new(), answer: format!("answer {id}") };
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    (1..=3).for_each(|id| drop(store.begin(attachment(id)).unwrap()));
    let begun = usize::try_from(store.lock().journal.length()).unwrap();
    store.commit(vec![commit(2), commit(3), commit(1)]).unwrap();
    assert!(store.all().iter().all(|a| a.phase == Phase::Attached && store.committed_at(a.id).is_some()));
    drop(store);
    let journal = dir.path().join(JOURNAL);
    let bytes = std::fs::read(&journal).unwrap();
    for end in begun..=bytes.len() {
        std::fs::write(&journal, &bytes[..end]).unwrap();
        let (store, _) = Store::open(dir.path(), BOOT).unwrap();
        let attached = |id| store.get(id).unwrap().phase == Phase::Attached;
        // By the first one a start tells whether the pod has all of its networks.
        assert_eq!(attached(1), end == bytes.len(), "{end}");
        assert!(attached(2) || !attached(3), "{end}");
    }
}

#[test]
fn x05_a_whole_record_that_is_no_entry_of_any_version_is_damage_too() {
    let dir = tempfile::tempdir().unwrap();
    drop(filled(dir.path(), 1));
    let (mut journal, _) = Journal::open(&dir.path().join(JOURNAL)).unwrap();
    journal.append(&[b"not JSON at all"], Purpose::Finish).unwrap();
    let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
    assert!(opened.damaged > 0 && opened.set_aside.is_some());
    assert_eq!(store.all().len(), 1);
}

#[test]
fn x05_a_journal_that_can_not_be_read_at_all_is_set_aside_and_a_new_one_begun() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join(JOURNAL);
    drop(filled(dir.path(), 1));
    let a_pipe = || nix::unistd::mkfifo(&journal, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let unreadable: [&dyn Fn(); 3] = [&|| std::fs::create_dir(&journal).unwrap(), &a_pipe, &|| {
        std::os::unix::fs::symlink(&journal, &journal).unwrap()
    }];
    for (n, make) in (1..).zip(unreadable) {
        std::fs::remove_file(&journal).unwrap();
        make();
        let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
        assert!(opened.is_damaged() && opened.read_error.is_some(), "{opened:?}");
        assert_eq!(opened.set_aside.unwrap(), dir.path().join(format!("attachments.damaged-6ad4ae67-{n}")));
        assert_eq!((store.all().len(), damaged(dir.path()).len()), (0, n));
        store.begin(attachment(7)).unwrap();
        drop(store);
        let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
        assert_eq!((store.all().len(), opened.is_damaged()), (1, false));
    }
}

#[test]
fn what_an_older_release_tells_of_an_attachment_otherwise_costs_nobody_the_attachment() {
    let near = Attachment { locality: Some(fairlead_sriov::numa::Locality::Nowhere), ..attachment(1) };
    let entry = Entry::Put(Box::new(near.clone()));
    let mut written = serde_json::to_value(&entry).unwrap();
    assert_eq!(serde_json::from_value::<Entry>(written.clone()).unwrap(), entry);
    let before = written.to_string().replace(&written["near"].to_string(), "\"on the pod's NUMA node 0\"");
    written = serde_json::from_str(&before).unwrap();
    assert!(written["near"].is_string(), "{written}");
    let read: Entry = serde_json::from_str(&before).unwrap();
    assert_eq!(read, Entry::Put(Box::new(Attachment { locality: None, ..near })));
}

#[test]
fn a_configuration_of_40_attachments_is_kept_once_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let long =
        format!(r#"{{"cniVersion":"1.1.0","name":"pods","type":"macvlan","x":"{}"}}"#, "x".repeat(1 << 20));
    let copies = |store: &Store| {
        let all = store.all();
        assert!(all.len() == 40 && all.iter().all(|a| *a.config == *long));
        all.iter().map(|a| a.config.as_ptr()).collect::<BTreeSet<_>>().len()
    };
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    for id in 1..=40 {
        store.begin(Attachment { config: long.as_str().into(), ..attachment(id) }).unwrap();
        store.commit(vec![Commit { id, addresses: Vec::new(), answer: "answer".to_owned() }]).unwrap();
    }
    assert_eq!(copies(&store), 1, "40 copies of 1 MB are 40 MB");
    drop(store);
    assert_eq!(copies(&Store::open(dir.path(), BOOT).unwrap().0), 1, "after a restart");
}

/// All that a real NIC has, and no link of a test machine: what is on record must be read back whatever of it is there.
#[test]
fn a_lent_device_with_every_setting_is_read_again_after_a_restart() {
    let numbers = || Some([(3, 7), (21, 1)].into());
    let settings = NetdevSettings {
        features: Some("0f".into()),
        channels: Some(Channels { rx: Some(1), tx: Some(2), other: Some(3), combined: Some(4) }),
        rings: numbers(),
        coalescing: numbers(),
        pause: numbers(),
        receive_hash: Some("01".into()),
    };
    let link = LinkSettings {
        flags: Some(u32::MAX),
        mode: Some(1),
        group: Some(2),
        queue_length: Some(3),
        broadcast: Some("ff:ff:ff:ff:ff:ff".parse().unwrap()),
        proto_down: Some(1),
        gso_max_size: Some(4),
        gso_max_segs: Some(5),
        gro_max_size: Some(6),
        gso_ipv4_max_size: Some(7),
        ..LinkSettings::default()
    };
    let program = AttachedProgram { id: 9, hook: ProgramHook::TcxIngress, link: Some(5) };
    let state = DriverState { link: Some(link), ..DriverState::of(settings, vec![program]) };
    let kernel = FakeKernel::new();
    kernel.add_host_link("nic0");
    let netdev = kernel.host().unwrap().link_by_name("nic0").unwrap().unwrap();
    let moved = MovedNetdev { driver_state: Some(state), ..MovedNetdev::lent(&netdev, 77) };
    let lent = Attachment { link: LinkRecord::Moved(Box::new(moved)), ..attachment(1) };

    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    store.begin(lent.clone()).unwrap();
    drop(store);
    let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
    assert_eq!((opened.damaged, store.newer().len()), (0, 0));
    assert_eq!(*store.all()[0], lent);
}
