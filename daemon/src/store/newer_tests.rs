//! What a newer version wrote, read by this one: kept word for word whatever this one does, and told.

use fairlead_host::{Kind, MacvlanMode, NetnsId};
use serde_json::{Value, json};

use super::*;

const BOOT: &str = "6ad4ae67-5d19-4a22-b33d-6d09b3d6a2a0";
/// Three bytes in which JSON may be written and this version does not write it.
const SPACED: &str = " \t ";

fn ours(id: u64) -> Attachment {
    let kind = Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None };
    let key = Key {
        container: format!("ours{id}"),
        network: "pods".into(),
        ifname: "eth0".into(),
        plugin: "macvlan".into(),
    };
    let netns = Namespace {
        path: format!("/run/netns/{id}"),
        id: NetnsId { dev: 4, ino: id, cookie: Some(id) },
        nsid: None,
    };
    Attachment::new(
        id,
        key,
        netns,
        LinkRecord::Made { index: 7, kind, mac: None, mtu: None, parent: None },
        "{}".into(),
    )
}

/// The intent of an attachment, with other fields in place of its own or beside them.
fn changed(id: u64, container: &str, fields: &Value) -> String {
    let mut entry = serde_json::to_value(Entry::Put(Box::new(ours(id)))).unwrap();
    entry["key"]["container"] = json!(container);
    entry.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    format!("{entry}{SPACED}")
}

/// A journal of these frames.
fn journal(dir: &Path, frames: &[String]) {
    std::fs::write(dir.join("boot-id"), BOOT).unwrap();
    let (mut journal, _) = Journal::open(&dir.join(JOURNAL)).unwrap();
    frames.iter().for_each(|frame| journal.append(&[frame.as_bytes()], Purpose::Finish).unwrap());
}

fn frames(dir: &Path) -> Vec<String> {
    let bytes = std::fs::read(dir.join(JOURNAL)).unwrap();
    replay(&bytes).payloads.into_iter().map(|frame| String::from_utf8(frame).unwrap()).collect()
}

/// A daemon that is killed where it stands, and the next one.
fn reopened(store: Store, dir: &Path) -> Store {
    drop(store);
    let (store, opened) = Store::open(dir, BOOT).unwrap();
    assert!(!opened.is_damaged() && opened.lost.is_empty(), "{opened:?}");
    store
}

/// Has the store rewrite its journal, as it does when that is long.
fn compact(store: &Store) {
    let attachment = Attachment { config: "x".repeat(3 << 20).into(), ..ours(900) };
    for _ in 0..3 {
        store.begin(attachment.clone()).unwrap();
    }
    store.removed(900).unwrap();
    assert!(store.lock().journal.length() < 1 << 20, "the journal was not rewritten");
}

/// Everything that a later version may write which this one does not know.
fn of_a_later_version() -> Vec<String> {
    let later = json!({"by": "9.0.0", "needs": 2});
    let with = |fields: Value| {
        let mut all = later.clone();
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    let netns = json!({"path": "/run/netns/7", "id": {"handle": "of another kind"}});
    vec![
        changed(11, "a-link", &with(json!({"link": {"link": "crafted", "function": "0000:21:10.0"}}))),
        changed(12, "an-ipam", &with(json!({"ipam": {"ipam": "blocks", "block": "10.9.0.0/26"}}))),
        changed(13, "a-phase", &json!({"phase": "migrating"})),
        changed(14, "a-namespace", &with(json!({ "netns": netns }))),
        changed(15, "all-words-known", &later),
        format!(r#"{{"e":"moved","id":15,"to":"elsewhere"}}{SPACED}"#),
        format!(r#"{{"e":"put","id":16,"by":"9.0.0","needs":3,"subject":["keyless","eth7"]}}{SPACED}"#),
        format!(r#"{{"e":"epoch","by":"9.0.0","needs":2}}{SPACED}"#),
    ]
}

#[test]
fn what_a_newer_version_wrote_survives_kills_and_rewrites_word_for_word() {
    let dir = tempfile::tempdir().unwrap();
    let later = of_a_later_version();
    journal(dir.path(), &later);
    let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
    assert!(!opened.is_damaged() && opened.set_aside.is_none(), "{opened:?}");
    assert_eq!((store.all().len(), store.newer().len()), (0, 7));
    store.begin(ours(store.next_id())).unwrap();
    let store = reopened(store, dir.path());
    compact(&store);
    let store = reopened(store, dir.path());
    assert_eq!((store.all().len(), store.newer().len()), (1, 7));
    let kept: Vec<_> = frames(dir.path()).into_iter().filter(|frame| frame.ends_with(SPACED)).collect();
    assert_eq!(kept, later, "to the byte, and in the order in which they were written");
}

#[test]
fn an_attachment_with_fields_that_this_version_does_not_know_is_worked_with_and_loses_none_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let put = changed(21, "c", &json!({"by": "9.0.0", "needs": 1, "qos": {"class": 4}}));
    let put = put.replace(r#""index":7"#, r#""index":7,"shape":"round""#);
    let commit = r#"{"e":"commit","id":21,"addresses":[],"answer":"{}","seal":77,"by":"9.0.0","needs":1}"#;
    journal(dir.path(), &[put.clone(), commit.to_owned()]);
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    assert_eq!(store.get(21).unwrap().phase, Phase::Attached);
    compact(&store);
    store.enter(21, Phase::Removing).unwrap();
    compact(&store);
    let store = reopened(store, dir.path());
    assert_eq!(store.get(21).unwrap().phase, Phase::Removing);
    assert_eq!(frames(dir.path())[..2], [put, commit.to_owned()]);
    store.removed(21).unwrap();
    let store = reopened(store, dir.path());
    assert!(store.all().is_empty() && store.newer().is_empty());
}

#[test]
fn x14_the_pod_of_a_newer_versions_record_is_known_as_far_as_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let later =
        json!({"by": "9.0.0", "needs": 2, "pod": {"namespace": "shop", "name": "web-0", "uid": "u-1"}});
    let other = json!({"by": "9.0.0", "needs": 2, "pod": "shop/web-1"});
    journal(dir.path(), &[changed(11, "told", &later), changed(12, "otherwise", &other)]);
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    let pods: Vec<_> =
        store.newer().iter().map(|newer| newer.pod.as_ref().map(ToString::to_string)).collect();
    assert_eq!(pods, [Some("shop/web-0".to_owned()), None]);
}

#[test]
fn whose_a_newer_versions_record_may_be_is_known_as_far_as_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path(), &of_a_later_version());
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    let key = |container: &str| Key { container: container.into(), ..ours(1).key };
    for container in ["a-link", "an-ipam", "a-phase", "a-namespace", "all-words-known", "keyless"] {
        assert!(store.newer_about(&key(container), false).is_some(), "{container}");
        assert!(store.newer_of(container, None).is_some(), "{container}");
    }
    for other in ["a-lin", "another", "key"] {
        assert!(store.newer_about(&key(other), true).is_none(), "{other}");
    }
    assert!(store.newer_of("a-link", Some("eth1")).is_none());
    let other_type = Key { plugin: "sriov".into(), ..key("a-link") };
    assert!(
        store.newer_about(&other_type, true).is_some() && store.newer_about(&other_type, false).is_none()
    );
    let (named, other) = ("0000:21:10.0".parse().unwrap(), "0000:21:10.1".parse().unwrap());
    assert_eq!(store.vf_holder_in_words(named).unwrap(), "eth0 of container a-link");
    assert!(store.has_vf(named) && !store.has_vf(other) && store.vf_holder_in_words(other).is_none());
    let told: Vec<_> = store.newer().iter().map(|newer| newer.version.to_string()).collect();
    assert!(told[0].starts_with("written by a newer version, 9.0.0 (record format 2;"), "{told:?}");
    // No number of its own may meet one that the newer version has given out.
    assert!(store.next_id() > 16);
}

#[test]
fn a_newer_versions_record_ends_with_its_removal_and_with_a_whole_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = of_a_later_version();
    all.push(r#"{"e":"removed","id":11}"#.to_owned());
    all.push(changed(12, "an-ipam", &json!({"phase": "attached"})));
    journal(dir.path(), &all);
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    assert_eq!(store.get(12).unwrap().phase, Phase::Attached);
    let left: Vec<_> = store.newer().iter().filter_map(|newer| newer.id).collect();
    assert_eq!(left, [13, 14, 15, 16]);
}

#[test]
fn after_a_reboot_a_newer_versions_records_are_kept_aside_and_are_nobodys() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path(), &of_a_later_version());
    let before = std::fs::read(dir.path().join(JOURNAL)).unwrap();
    let (store, opened) = Store::open(dir.path(), "another-boot").unwrap();
    assert!(store.newer().is_empty() && store.all().is_empty());
    assert_eq!(of_newer_version(dir.path()), [opened.newer_aside.unwrap()]);
    assert!(std::fs::read(&of_newer_version(dir.path())[0]).unwrap() == before);
}

#[test]
fn a_damaged_journal_keeps_a_newer_versions_records_too() {
    let dir = tempfile::tempdir().unwrap();
    let later = of_a_later_version();
    journal(dir.path(), &later);
    let path = dir.path().join(JOURNAL);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 0xff;
    std::fs::write(&path, bytes).unwrap();
    let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
    assert!(opened.is_damaged());
    drop(store);
    assert_eq!(frames(dir.path()), later[1..]);
}

#[test]
fn every_frame_says_which_version_wrote_it_and_what_a_reader_must_know_and_0_1_0_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    store.begin(ours(1)).unwrap();
    store.commit(vec![Commit { id: 1, addresses: Vec::new(), answer: "{}".into() }]).unwrap();
    store.answered(1).unwrap();
    store.enter(1, Phase::Removing).unwrap();
    store.removed(1).unwrap();
    let written = frames(dir.path());
    assert_eq!(written.len(), 5);
    for frame in written {
        let value: Value = serde_json::from_str(&frame).unwrap();
        assert_eq!(
            (&value["by"], &value["needs"]),
            (&json!(env!("CARGO_PKG_VERSION")), &json!(1)),
            "{frame}"
        );
        // That release reads an entry, and passes over what else is in a frame.
        serde_json::from_str::<Entry>(&frame).unwrap();
    }
}

#[test]
fn what_waits_for_its_carrier_keeps_what_only_a_newer_version_reads_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let netns = json!({"path": "/run/netns/1", "id": ours(1).netns.id, "nsid": null, "deep": "kept"});
    let put = changed(1, "c", &json!({"phase": "attached", "device_info": "/x", "extra": 7, "netns": netns}));
    let commit = format!(
        r#"{{"e":"commit","id":1,"addresses":["10.1.0.2/24"],"answer":"{{}}","quality":"gold"}}{SPACED}"#
    );
    journal(dir.path(), &[put, commit]);
    let (mut store, _) = Store::open(dir.path(), BOOT).unwrap();
    for _ in 0..2 {
        let known = store.get(1).unwrap();
        store.released(&known, None).unwrap();
        compact(&store);
        store = reopened(store, dir.path());
        let bare = store.get(1).unwrap();
        assert_eq!((bare.phase, bare.addresses.len(), &bare.device_info), (Phase::Silenced, 0, &None));
        assert_eq!((&bare.answer.as_deref(), &bare.key.container), (&Some("{}"), &"c".to_owned()));
    }
    let written = frames(dir.path()).join("");
    for kept in [r#""extra":7"#, r#""deep":"kept""#, r#""quality":"gold""#] {
        assert!(written.contains(kept), "{kept} is lost: {written}");
    }
    assert!(!written.contains("device_info"), "{written}");
}

#[test]
fn what_has_no_link_any_more_keeps_what_only_a_newer_version_reads_of_it_and_gets_no_link_again() {
    let dir = tempfile::tempdir().unwrap();
    let put = changed(1, "c", &json!({"device_info": "/x", "extra": 7}));
    journal(dir.path(), &[put]);
    let (mut store, _) = Store::open(dir.path(), BOOT).unwrap();
    for _ in 0..2 {
        let known = store.get(1).unwrap();
        let bare = Attachment { link: LinkRecord::None, device_info: None, ..Attachment::clone(&known) };
        store.unlinked(bare.clone()).unwrap();
        compact(&store);
        store = reopened(store, dir.path());
        assert_eq!(*store.get(1).unwrap(), bare);
    }
    let written = frames(dir.path()).join("");
    assert!(written.contains(r#""extra":7"#) && !written.contains("device_info"), "{written}");
}

#[test]
fn what_names_neither_number_nor_container_is_told_with_a_remedy_that_can_be_followed() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path(), &[r#"{"e":"global","needs":7}"#.to_owned(), changed(11, "c", &json!({"needs": 7}))]);
    let (store, _) = Store::open(dir.path(), BOOT).unwrap();
    let told: Vec<_> = store.newer().iter().map(|newer| (newer.label(), newer.remedy())).collect();
    let of = |container: &str| told.iter().find(|(label, _)| label.contains(container)).unwrap().1;
    assert!(of("container c").contains("fairleadd forget"), "{told:?}");
    assert!(
        !of("unknown container").contains("forget") && of("unknown container").contains("reboot"),
        "{told:?}"
    );
}
