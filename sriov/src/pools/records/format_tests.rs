//! Records and marks of an earlier release (`testdata/records`) are read completely, and written again to the byte: an update
//! keeps what is known of each VF, and so does the way back.

use std::fs;
use std::path::Path;

use super::{DIRECTORY, Mark, OriginalState, Record, RecordedHold, Records};

const EARLIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/testdata/records/0.1.0");

#[test]
fn records_of_an_earlier_release_are_read_completely_and_written_again_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (earlier, today) = (Path::new(EARLIER).join("state").join(DIRECTORY), dir.path().join(DIRECTORY));
    fs::create_dir(&today).unwrap();
    let mut names: Vec<_> = fs::read_dir(&earlier).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    for name in &names {
        fs::copy(earlier.join(name), today.join(name)).unwrap();
    }
    let records = Records::open(dir.path(), &dir.path().join("run")).unwrap();
    let all = records.all();
    assert_eq!(all.len(), names.len(), "each is read, and none is set aside");
    let count = |what: &dyn Fn(&Record) -> bool| all.iter().filter(|record| what(record)).count();
    assert_eq!(count(&|record| record.pool == "radio"), 16);
    assert_eq!(count(&|record| record.held == Some(RecordedHold::Drained)), 4);
    assert_eq!(count(&|record| matches!(record.held, Some(RecordedHold::Quarantined(_)))), 3);
    let original =
        |what: &dyn Fn(&OriginalState) -> bool| count(&|record| record.original.as_ref().is_some_and(what));
    assert_eq!(original(&|_| true), 17);
    assert_eq!(original(&|of| of.interface.is_none()), 2);
    assert_eq!(original(&|of| of.fixed), 5);
    assert_eq!(original(&|of| of.bound_by_others), 10);
    assert_eq!(original(&|of| of.at_work), 5);
    assert_eq!(original(&|of| of.gone), 1);
    for record in all {
        let name = format!("{}.json", record.address);
        fs::remove_file(today.join(&name)).unwrap();
        records.settle(record.address).unwrap();
        let text = |dir: &Path| fs::read_to_string(dir.join(&name)).unwrap();
        assert_eq!(text(&today), text(&earlier), "{name}");
    }
}

#[test]
fn marks_of_an_earlier_release_are_read_and_written_again_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let earlier = Records::open(&dir.path().join("state"), &Path::new(EARLIER).join("run")).unwrap();
    let today = Records::open(&dir.path().join("state"), &dir.path().join("run")).unwrap();
    let marks = [
        ("0000:21:10.0", Mark::Clean),
        ("0000:21:10.2", Mark::Given),
        ("0000:21:10.4", Mark::Awaited),
        ("0000:21:10.6", Mark::Verified),
        ("0000:41:10.0", Mark::Soiled), // it has no file
    ];
    for (address, mark) in marks {
        let address = address.parse().unwrap();
        assert_eq!(earlier.mark_of(address), mark);
        today.mark(address, mark).unwrap();
        let text = |of: &Records| fs::read(of.marks.join(address.to_string())).ok();
        assert_eq!(text(&today), text(&earlier), "{address}");
    }
}

#[test]
fn a_newer_versions_record_is_left_alone_word_for_word_and_its_vf_is_given_to_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(DIRECTORY).join("0000:21:10.0.json");
    fs::create_dir(dir.path().join(DIRECTORY)).unwrap();
    let address = "0000:21:10.0".parse().unwrap();
    for newer in [
        r#"{"address":"0000:21:10.0","pool":"radio","mac":"02:00:00:00:00:01","by":"9.0.0","needs":2}"#,
        r#"{"address":"0000:21:10.0","pool":"radio","mac":{"kind":"eui64"},"by":"9.0.0","needs":2}"#,
        r#"{"address":"0000:21:10.0","pool":"radio","mac":"02:00:00:00:00:01","held":"leased"}"#,
    ] {
        fs::write(&file, newer).unwrap();
        let records = Records::open(dir.path(), &dir.path().join("run")).unwrap();
        assert_eq!(records.all(), [], "what it was before is not known");
        records.begin(address, "radio", || fairlead_host::Mac::local(7));
        let held = records.get(address).unwrap().held;
        assert!(
            matches!(&held, Some(RecordedHold::Quarantined(why)) if why.contains("newer version")),
            "{held:?}"
        );
        let told = records.change(address, |record| record.held = None).unwrap_err().to_string();
        assert!(told.contains("newer version"), "{told}");
        records.forget(address);
        records.settle(address).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), newer);
    }
}

#[test]
fn a_field_that_this_version_may_pass_over_stays_in_a_record_that_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(DIRECTORY).join("0000:21:10.0.json");
    fs::create_dir(dir.path().join(DIRECTORY)).unwrap();
    let newer = r#"{"address":"0000:21:10.0","pool":"radio","mac":"02:00:00:00:00:01","by":"9.0.0","needs":1,"shelf":{"n":4}}"#;
    fs::write(&file, newer).unwrap();
    let records = Records::open(dir.path(), &dir.path().join("run")).unwrap();
    let address = "0000:21:10.0".parse().unwrap();
    records.change(address, |record| record.held = Some(RecordedHold::Drained)).unwrap();
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains(r#""shelf":{"n":4}"#) && written.contains(r#""held":"drained""#), "{written}");
    assert!(written.contains(concat!(r#""by":""#, env!("CARGO_PKG_VERSION"), r#"","needs":1"#)), "{written}");
    assert!(Records::open(dir.path(), &dir.path().join("run")).unwrap().get(address).is_some());
}
