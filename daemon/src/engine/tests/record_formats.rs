//! Records of attachments with executed plugins, as an earlier release wrote them: they are read completely, and written again
//! to the byte, so that an update keeps what those plugins hold, and so does the way back.

use std::fs;
use std::path::Path;

use fairlead_host::record_version::{FORMAT, RecordVersion};

use super::super::core::{DelegateRecords, RecordedAttachment, unreadable_records};
use crate::store::{LinkRecord, Phase};

const EARLIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/testdata/records/0.1.0");

#[test]
fn records_of_an_earlier_release_are_read_completely_and_written_again_to_the_byte() {
    let state = tempfile::tempdir().unwrap();
    let (earlier, today) = (Path::new(EARLIER).join("state/attachments"), state.path().join("attachments"));
    fs::create_dir(&today).unwrap();
    let names: Vec<_> = fs::read_dir(&earlier).unwrap().map(|file| file.unwrap().file_name()).collect();
    for name in &names {
        fs::copy(earlier.join(name), today.join(name)).unwrap();
    }
    let boot_id = fs::read_to_string(Path::new(EARLIER).join("run/boot-id")).unwrap();
    let (records, found) = DelegateRecords::open(state.path(), &boot_id).unwrap();
    assert_eq!(unreadable_records(state.path()).unwrap(), [] as [std::path::PathBuf; 0]);
    assert!(found.newer.is_empty());
    let keys: Vec<_> = found
        .attachments
        .iter()
        .map(|of| &of.attachment)
        .map(|a| [&a.key.container, &a.key.network, &a.key.ifname, &a.key.plugin].map(String::as_str))
        .collect();
    let wanted = [
        ["leased", "leased", "eth0", "macvlan"],
        ["listed", "cluster", "eth0", "fairlead"],
        ["spooled", "leased", "eth1", "macvlan"],
    ];
    assert_eq!(keys, wanted);
    assert_eq!(names.len(), wanted.len());
    for RecordedAttachment { of_this_boot, attachment, .. } in &found.attachments {
        assert!(*of_this_boot && attachment.has_delegates() && attachment.phase == Phase::Attached);
        assert!(!attachment.caller.env.is_empty() && attachment.caller.path == "/opt/cni/bin");
        assert_eq!(
            matches!(attachment.link, LinkRecord::Conflist { .. }),
            attachment.key.container == "listed"
        );
        fs::remove_file(today.join(format!("{:016x}.json", attachment.id))).unwrap();
        records.keep(attachment).unwrap();
    }
    // The one thing that is new: by which version a record is written, and for which readers. That release passes it over.
    let new = serde_json::to_string(&RecordVersion::written_now(FORMAT)).unwrap();
    let new = format!(",{}", new.trim_start_matches('{'));
    for name in &names {
        let text = |dir: &Path| fs::read_to_string(dir.join(name)).unwrap();
        let today = text(&today);
        assert!(today.ends_with(&new), "{name:?}: {today}");
        assert_eq!(today.replace(&new, "}"), text(&earlier), "{name:?}");
    }
}
