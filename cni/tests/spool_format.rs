//! Entries of the spool that an earlier release wrote are read completely, and what this release writes for the same requests
//! is the same to the byte: an update loses no DEL, and neither does the way back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use fairlead_cni::spool::{EntryName, parse, serialise};
use fairlead_cni::wire::{Command, WIRE};

const EARLIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/testdata/records/0.1.0/state/spool");

#[test]
fn entries_of_an_earlier_release_are_read_completely_and_written_again_to_the_byte() {
    let mut names: Vec<_> = fs::read_dir(EARLIER).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    let mut found = Vec::new();
    for name in &names {
        let name = name.to_str().unwrap();
        assert_eq!(EntryName::parse_whole(name).unwrap().whole(), name);
        let entry = fs::read_to_string(format!("{EARLIER}/{name}")).unwrap();
        let request = parse(entry.as_bytes()).unwrap();
        // The one thing that is new, which that release passes over: who wrote it.
        let written = String::from_utf8(serialise(&request).unwrap()).unwrap();
        let by = concat!(r#","by":""#, env!("CARGO_PKG_VERSION"), r#""}"#);
        assert!(
            written.lines().next().unwrap().ends_with(by) && written.find('\n').unwrap() < 128,
            "{written}"
        );
        assert_eq!(written.replacen(by, "}", 1), entry, "{name}");
        assert_eq!((request.wire, request.path.as_str()), (WIRE, "/opt/cni/bin"));
        assert!(request.config.contains("\"cniVersion\"") && !request.env.is_empty());
        let spooled = request.spooled.unwrap();
        assert!(spooled.at > 1_700_000_000 && spooled.boot_id.len() == 36);
        assert_eq!(spooled.cookie.is_some(), request.command == Command::Del);
        found.push((request.command, request.container_id, request.ifname));
    }
    let wanted = [
        (Command::Del, "removing", "eth0"),
        (Command::Del, "spooled", "eth0"),
        (Command::Del, "spooled", "eth1"),
        (Command::Gc, "", ""),
    ];
    assert_eq!(found, wanted.map(|(command, container, ifname)| (command, container.into(), ifname.into())));
}
