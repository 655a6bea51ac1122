//! Records of attachments with executed plugins, as an earlier release wrote them: they are read completely, and written again
//! to the byte, so that an update keeps what those plugins hold, and so does the way back.

use std::fs;
use std::path::Path;

use super::super::records::{Records, unreadable};
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
    let (records, found) = Records::open(state.path(), &boot_id).unwrap();
    assert_eq!(unreadable(state.path()).unwrap(), [] as [std::path::PathBuf; 0]);
    let keys: Vec<_> = found
        .iter()
        .map(|(_, a)| [&a.key.container, &a.key.network, &a.key.ifname, &a.key.plugin].map(String::as_str))
        .collect();
    let wanted = [
        ["leased", "leased", "eth0", "macvlan"],
        ["listed", "cluster", "eth0", "fairlead"],
        ["spooled", "leased", "eth1", "macvlan"],
    ];
    assert_eq!(keys, wanted);
    assert_eq!(names.len(), wanted.len());
    for (same_boot, attachment) in &found {
        assert!(*same_boot && attachment.has_delegates() && attachment.phase == Phase::Attached);
        assert!(!attachment.caller.env.is_empty() && attachment.caller.path == "/opt/cni/bin");
        assert_eq!(matches!(attachment.link, LinkRecord::List { .. }), attachment.key.container == "listed");
        fs::remove_file(today.join(format!("{:016x}.json", attachment.id))).unwrap();
        records.keep(attachment).unwrap();
    }
    for name in &names {
        let text = |dir: &Path| fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(text(&today), text(&earlier), "{name:?}");
    }
}
