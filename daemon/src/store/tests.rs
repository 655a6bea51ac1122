//! The store on a journal that was damaged, and on what a kill leaves.

use std::time::Duration;

use fairlead_host::double::FakeKernel;
use fairlead_host::record_content::ReadFile;
use fairlead_host::{
    AttachedProgram, Channels, Kind, LinkSettings, MacvlanMode, NetKernel, NetdevSettings, NetnsId,
    ProgramHook,
};
use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::mkfifo;
use proptest::prelude::*;

use super::compaction::written_anew;
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
    assert!(store.all().iter().all(|a| a.phase == Phase::Attached && a.committed.is_some()));
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
fn the_times_of_an_attachment_s_begin_and_commit_outlive_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    drop(filled(dir.path(), 1));
    let times = || {
        let (store, _) = Store::open(dir.path(), BOOT).unwrap();
        let attachment = store.get(1).unwrap();
        (attachment.begun, attachment.committed)
    };
    let (begun, committed) = times();
    assert!(begun.is_some() && begun < committed && committed < BootTime::now(), "{begun:?} {committed:?}");
    assert_eq!(times(), (begun, committed));
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
    let a_pipe = || mkfifo(&journal, Mode::S_IRWXU).unwrap();
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
fn x05_a_note_of_the_boot_that_says_nothing_costs_no_attachment() {
    type Put = fn(&Path);
    let says_nothing: [(&str, Put); 6] = [
        ("absent", |_| ()),
        ("empty", |note| std::fs::write(note, "").unwrap()),
        ("zeros", |note| std::fs::write(note, [0; 36]).unwrap()),
        ("a directory", |note| std::fs::create_dir(note).unwrap()),
        ("a pipe", |note| mkfifo(note, Mode::S_IRWXU).unwrap()),
        ("a circle", |note| std::os::unix::fs::symlink(note, note).unwrap()),
    ];
    for (what, put) in says_nothing {
        let dir = tempfile::tempdir().unwrap();
        drop(filled(dir.path(), 3));
        let note = dir.path().join("boot-id");
        std::fs::remove_file(&note).unwrap();
        put(&note);
        let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
        assert_eq!((store.all().len(), opened.of_earlier_boot.len()), (3, 0), "{what}");
        assert_eq!(std::fs::read_to_string(&note).unwrap(), BOOT, "{what}");
    }
}

#[test]
fn x05_a_note_of_the_boot_that_cannot_be_read_for_now_fails_the_start_and_one_on_a_bad_sector_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = filled(dir.path(), 3);
    let before = std::fs::read(&path).unwrap();
    let failing: [(ReadFile, &str); 3] = [
        (|_| Err(Errno::EMFILE.into()), "raise LimitNOFILE"),
        (|_| Err(Errno::ENOMEM.into()), "MemoryMax"),
        (|_| Err(Errno::EACCES.into()), "fairleadd may read it"),
    ];
    for (read, remedy) in failing {
        let told = Store::open_by(dir.path(), BOOT, read).unwrap_err();
        assert!(matches!(told, StoreError::Open { .. }), "{told:?}");
        let told = told.to_string();
        assert!(told.contains("boot-id cannot be read, and is left as it is: "), "{told}");
        assert!(told.contains(remedy), "{told}");
        assert!(std::fs::read(&path).unwrap() == before, "the journal was changed");
    }
    let (store, opened) = Store::open_by(dir.path(), BOOT, |_| Err(Errno::EIO.into())).unwrap();
    assert_eq!((store.all().len(), opened.of_earlier_boot.len()), (3, 0));
    let aside = std::fs::read_to_string(dir.path().join("boot-id.unreadable")).unwrap();
    assert_eq!(aside, BOOT, "a person can still read it");
}

#[test]
fn x24_a_journal_of_another_boot_is_whole_until_the_first_record_of_this_one() {
    const NEXT: &str = "0e8a2a64-6f6f-4d2c-9d5c-3f1b8f0a6c11";
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = filled(dir.path(), 3);
    let note = dir.path().join("boot-id");
    let before = std::fs::read(&path).unwrap();
    // Each start fails at something that it reads after the store.
    for _ in 0..2 {
        let (store, opened) = Store::open(dir.path(), NEXT).unwrap();
        assert_eq!((store.all().len(), opened.of_earlier_boot.len()), (0, 3));
        drop(store);
        assert!(std::fs::read(&path).unwrap() == before, "the next start finds nothing any more");
        assert_eq!(std::fs::read_to_string(&note).unwrap(), BOOT);
    }
    let (store, _) = Store::open(dir.path(), NEXT).unwrap();
    store.begin(attachment(7)).unwrap();
    drop(store);
    assert_eq!(std::fs::read_to_string(&note).unwrap(), NEXT);
    let (store, opened) = Store::open(dir.path(), NEXT).unwrap();
    let ids: Vec<_> = store.all().iter().map(|a| a.id).collect();
    assert_eq!((ids, opened.of_earlier_boot.len()), (vec![7], 0));
}

#[test]
fn no_number_is_given_to_two_where_the_clock_stands_at_the_boot_before() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    // A node without a clock of its own begins each boot in the same second: what comes back has numbers that are next here.
    let back = store.next_id() + 3;
    store.begin(attachment(back)).unwrap();
    let next: Vec<u64> = (0..4).map(|_| store.next_id()).collect();
    assert_eq!(next, (back + 1..=back + 4).collect::<Vec<_>>());
}

#[test]
fn no_number_that_a_newer_versions_file_has_is_given_to_another() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    let there = store.next_id() + 3;
    let fields = serde_json::Map::from_iter([("needs".to_owned(), Value::from(2))]);
    store.leave_to_newer(Some(there), fields, Path::new("/var/lib/fairlead/attachments/a.json")).unwrap();
    assert_eq!(store.next_id(), there + 1);
    assert!(store.knows(there));
}

#[test]
fn a_removal_is_begun_by_who_saw_it_attached_only_while_it_is() {
    let dir = tempfile::tempdir().unwrap();
    drop(filled(dir.path(), 2));
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    let phase = |id| store.get(id).map(|attachment| attachment.phase);
    assert!(store.begin_removal_if_attached(1).unwrap());
    assert_eq!(phase(1), Some(Phase::Removing));
    assert!(store.get(1).unwrap().removing_since.is_some());
    for by_then in [Phase::Adding, Phase::Removing, Phase::Silenced] {
        store.enter(2, by_then).unwrap();
        assert!(!store.begin_removal_if_attached(2).unwrap());
        assert_eq!(phase(2), Some(by_then));
    }
    store.removed(2).unwrap();
    assert!(!store.begin_removal_if_attached(2).unwrap());
}

/// Needs root: a file system of 2 MiB.
#[test]
fn x05_on_a_full_file_system_no_add_is_begun_and_what_is_to_be_removed_goes_on_record() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let dir = tempfile::tempdir().unwrap();
    mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some("size=2m")).unwrap();
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    let filled = std::fs::write(dir.path().join("filler"), vec![0_u8; 4 << 20]);
    // As long, both: a short one of either purpose finds room where a long one does not.
    let long = "x".repeat(60_000);
    let begin = |id, phase| store.begin(Attachment { phase, config: long.as_str().into(), ..attachment(id) });
    let refused = (1..100).find_map(|id| begin(id, Phase::Adding).err());
    let removing = begin(1000, Phase::Removing);
    drop(store);
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    let known = store.get(1000);
    drop(store);
    umount2(dir.path(), MntFlags::MNT_DETACH).unwrap();
    assert!(filled.is_err());
    assert!(matches!(refused, Some(StoreError::Append { .. })), "{refused:?}");
    assert_eq!(removing.unwrap(), known.unwrap());
}

/// The time that a processor has worked for this thread.
fn worked_for() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

#[test]
fn not_each_removal_from_a_long_journal_that_is_mostly_alive_turns_all_attachments_into_json() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(256 << 10);
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    for id in 1..=64 {
        store.begin(Attachment { config: long.as_str().into(), ..attachment(id) }).unwrap();
    }
    let cost = |work: &dyn Fn()| {
        let begun = worked_for();
        work();
        worked_for() - begun
    };
    let all = cost(&|| {
        let state = store.lock();
        assert_eq!(written_anew(&state.live, &state.verbatim).unwrap().len(), 64);
    });
    let removals = cost(&|| (1..=16).for_each(|id| store.removed(id).unwrap()));
    assert!(removals < 5 * all, "16 removals took {removals:?}, all attachments {all:?}");
    let length = || store.lock().journal.length();
    assert!(length() > 16 << 20, "{}", length());
    // It is rewritten as soon as half of it is gone, though it has not grown.
    (17..=33).for_each(|id| store.removed(id).unwrap());
    assert!(length() < 9 << 20, "{}", length());
    let kept = store.all();
    drop(store);
    let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
    assert_eq!((opened.damaged, store.all().len()), (0, 31));
    assert!(store.all() == kept);
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
