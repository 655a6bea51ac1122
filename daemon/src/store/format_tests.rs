//! Journals of earlier releases (`testdata/records`) are read completely, and what this release writes for the same records
//! is the same to the byte. So an update keeps what is attached, and so does the way back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::frame::{encode, put};
use super::journal::{Journal, Purpose, replay};
use super::{Attachment, Entry, JOURNAL, Phase, Store};

const RECORDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/testdata/records/0.1.0");
const BOOT: &str = "6ad4ae67-5d19-4a22-b33d-6d09b3d6a2a0";

/// The journals, each with the path of the listing of what it leads to.
fn journals() -> Vec<(PathBuf, Vec<u8>)> {
    let names = ["daemon", "daemon-removing", "daemon-silenced", "engine", "every-value"];
    let files = names.map(|name| Path::new(RECORDS).join("journals").join(name));
    files
        .map(|path| (path.with_extension("live"), std::fs::read(path.with_extension("journal")).unwrap()))
        .into()
}

/// How an attachment is listed in a `.live` file.
fn listed(attachment: &Attachment) -> String {
    let phase = match attachment.phase {
        Phase::Adding => "adding",
        Phase::Attached => "attached",
        Phase::Removing => "removing",
        Phase::Silenced => "silenced",
    };
    let json = serde_json::to_value(attachment).unwrap();
    let tag = |pointer: &str| json.pointer(pointer).and_then(|v| v.as_str()).unwrap_or("-").to_owned();
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let addresses: Vec<_> = attachment.addresses.iter().map(ToString::to_string).collect();
    [
        attachment.id.to_string(),
        attachment.key.container.clone(),
        attachment.key.network.clone(),
        attachment.key.ifname.clone(),
        attachment.key.plugin.clone(),
        phase.to_owned(),
        tag("/link/link"),
        tag("/link/kind/kind"),
        attachment.vf().map_or("-".to_owned(), |vf| vf.address.to_string()),
        tag("/ipam/ipam"),
        attachment.netns.path.clone(),
        or_none(attachment.netns.id.cookie.map(|cookie| cookie.to_string()).unwrap_or_default()),
        or_none(addresses.join(",")),
        if attachment.answered { "answered" } else { "unanswered" }.to_owned(),
        tag("/near/locality"),
        attachment.caller.env.len().to_string(),
        attachment.passed_over.len().to_string(),
    ]
    .join(" ")
}

#[test]
fn every_record_of_an_earlier_release_is_read_and_written_again_to_the_byte() {
    for (path, bytes) in journals() {
        let replayed = replay(&bytes);
        assert_eq!((replayed.damaged, replayed.length), (0, bytes.len()), "{}", path.display());
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(&dir.path().join(JOURNAL)).unwrap();
        for payload in &replayed.payloads {
            let entry: Entry = serde_json::from_slice(payload).unwrap();
            let written = serde_json::to_vec(&entry).unwrap();
            if let Entry::Put(attachment) = &entry {
                assert_eq!(put(attachment).unwrap(), encode(&entry).unwrap(), "{}", path.display());
            }
            assert_eq!(
                String::from_utf8_lossy(&written),
                String::from_utf8_lossy(payload),
                "{}",
                path.display()
            );
            journal.append(&[&written], Purpose::Begin).unwrap();
        }
        assert!(
            std::fs::read(dir.path().join(JOURNAL)).unwrap() == bytes,
            "the frames of {}",
            path.display()
        );
    }
}

#[test]
fn a_journal_of_an_earlier_release_leads_to_the_attachments_that_it_led_to_then() {
    for (path, bytes) in journals() {
        let wanted = std::fs::read_to_string(&path).unwrap();
        let wanted: Vec<_> = wanted.lines().collect();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(JOURNAL), &bytes).unwrap();
        std::fs::write(dir.path().join("boot-id"), BOOT).unwrap();
        let (store, opened) = Store::open(dir.path(), BOOT).unwrap();
        assert!(!opened.is_damaged() && opened.lost.is_empty() && opened.of_earlier_boot.is_empty());
        let live: Vec<_> = store.all().iter().map(|attachment| listed(attachment)).collect();
        assert_eq!(live, wanted, "{}", path.display());
        drop(store);
        // A reboot hands the same ones out, for what outlives it.
        let (_, opened) = Store::open(dir.path(), "another boot").unwrap();
        let of_earlier_boot: Vec<_> = opened.of_earlier_boot.iter().map(listed).collect();
        assert_eq!(of_earlier_boot, wanted, "{}", path.display());
    }
}

#[test]
fn the_journals_hold_every_entry_phase_link_and_ipam() {
    let mut found = BTreeSet::new();
    let mut add = |name: &str, value: Option<&serde_json::Value>| {
        found.extend(value.and_then(|v| v.as_str()).map(|value| format!("{name} {value}")));
    };
    for (_, bytes) in journals() {
        for payload in replay(&bytes).payloads {
            let entry: serde_json::Value = serde_json::from_slice(&payload).unwrap();
            add("entry", entry.get("e"));
            add("phase", entry.get("phase"));
            add("link", entry.pointer("/link/link"));
            add("kind", entry.pointer("/link/kind/kind"));
            add("ipam", entry.pointer("/ipam/ipam"));
            add("near", entry.pointer("/near/locality"));
        }
    }
    let wanted = [
        ("entry", "answered commit phase put removed"),
        ("phase", "adding attached removing silenced"),
        ("link", "given list loopback made moved none"),
        ("kind", "dummy ipvlan macvlan other vlan"),
        ("ipam", "delegate hostlocal none static"),
        ("near", "any local nowhere pod_unknown remote"),
    ];
    let wanted =
        wanted.iter().flat_map(|(name, values)| values.split(' ').map(move |v| format!("{name} {v}")));
    assert_eq!(found, wanted.collect());
}
