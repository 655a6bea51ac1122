//! Installing and uninstalling on real files, also with a kill at every step.

use std::io;

use super::*;

const GO: &[u8] = b"the plugin that was there";

fn ours(version: &str) -> Vec<u8> {
    [b"ELF fairlead ", fairlead_cni::wire::OUTCOME_HEADER.as_bytes(), version.as_bytes()].concat()
}

fn killed(at: usize) -> impl FnMut(&'static str) -> Result<(), InstallError> {
    let mut left = at;
    move |what| match left {
        0 => Err(failed(Path::new("killed"), what)(io::Error::other("here")).into()),
        _ => {
            left -= 1;
            Ok(())
        }
    }
}

#[test]
fn x18_killed_at_any_step_of_install_the_name_is_whole_and_the_next_run_completes_it() {
    let mut kills = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("macvlan");
        fs::write(&target, GO).unwrap();
        let new = ours("1");
        let ended = install_with(dir.path(), "macvlan", &new, &mut killed(kills));
        let there = fs::read(&target).unwrap();
        assert!(there == GO || there == new, "at step {kills}");
        assert!(there == GO || fs::read(dir.path().join("macvlan.fairlead-original")).unwrap() == GO);
        install_with(dir.path(), "macvlan", &new, &mut |_| Ok(())).unwrap();
        assert_eq!(fs::read(&target).unwrap(), new);
        assert_eq!(uninstall(dir.path(), "macvlan").unwrap(), InstallOutcome::Restored);
        assert_eq!(fs::read(&target).unwrap(), GO);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something is left after step {kills}");
        if ended.is_ok() {
            break;
        }
        kills += 1;
    }
    assert_eq!(kills, 6);
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn x18_what_an_install_that_was_killed_has_left_is_removed_by_uninstall_without_being_named() {
    for original in [Some(GO), None] {
        for kills in 0..7 {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("macvlan");
            if let Some(original) = original {
                fs::write(&target, original).unwrap();
            }
            let _ = install_with(dir.path(), "macvlan", &ours("1"), &mut killed(kills));
            let found = names_with_our_files(dir.path());
            for name in &found {
                let done = uninstall(dir.path(), name).unwrap();
                assert!(!matches!(done, InstallOutcome::NotOurs | InstallOutcome::Absent), "at step {kills}");
            }
            assert_eq!(names(dir.path()), original.map_or(vec![], |_| vec!["macvlan"]), "at step {kills}");
            assert_eq!(fs::read(&target).ok().as_deref(), original, "at step {kills}");
            assert!(names_with_our_files(dir.path()).is_empty());
        }
    }
}

#[test]
fn x18_what_an_upgrade_that_was_killed_has_left_is_removed_by_the_next_install() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("macvlan"), GO).unwrap();
    let put = |version, kills| install_with(dir.path(), "macvlan", &ours(version), &mut killed(kills));
    put("1", 9).unwrap();
    put("2", 1).unwrap_err();
    assert!(dir.path().join(".macvlan.fairlead-new").exists());
    assert_eq!(put("1", 9).unwrap(), InstallOutcome::Unchanged);
    assert_eq!(names(dir.path()), ["macvlan", "macvlan.fairlead-original"]);
}

#[test]
fn x18_killed_at_any_step_of_uninstall_the_name_is_whole_and_the_next_run_completes_it() {
    for kills in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("vlan");
        fs::write(&target, GO).unwrap();
        install_with(dir.path(), "vlan", &ours("1"), &mut |_| Ok(())).unwrap();
        uninstall_with(dir.path(), "vlan", &mut killed(kills)).unwrap_err();
        let there = fs::read(&target).unwrap();
        assert!(there == GO || there == ours("1"));
        uninstall(dir.path(), "vlan").unwrap();
        assert_eq!(fs::read(&target).unwrap(), GO);
    }
}

#[test]
fn x18_a_second_install_and_an_upgrade_keep_the_original() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("ipvlan"), GO).unwrap();
    let put = |version| install_with(dir.path(), "ipvlan", &ours(version), &mut |_| Ok(())).unwrap();
    assert_eq!(
        [put("1"), put("1"), put("2")],
        [InstallOutcome::Installed, InstallOutcome::Unchanged, InstallOutcome::Installed]
    );
    assert_eq!(fs::read(dir.path().join("ipvlan.fairlead-original")).unwrap(), GO);
    assert_eq!(installed(dir.path()), ["ipvlan"]);
}

#[test]
fn x18_without_an_original_nothing_is_left_and_a_foreign_file_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    install_with(dir.path(), "fairlead", &ours("1"), &mut |_| Ok(())).unwrap();
    assert_eq!(uninstall(dir.path(), "fairlead").unwrap(), InstallOutcome::Removed);
    assert_eq!(uninstall(dir.path(), "fairlead").unwrap(), InstallOutcome::Absent);
    fs::write(dir.path().join("bridge"), GO).unwrap();
    assert_eq!(uninstall(dir.path(), "bridge").unwrap(), InstallOutcome::NotOurs);
    assert_eq!(fs::read(dir.path().join("bridge")).unwrap(), GO);
}

#[test]
fn x18_an_original_that_a_package_has_overtaken_is_told_and_left() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("macvlan");
    fs::write(&target, GO).unwrap();
    install_with(dir.path(), "macvlan", &ours("1"), &mut |_| Ok(())).unwrap();
    fs::write(dir.path().join("newer"), "of the package").unwrap();
    fs::rename(dir.path().join("newer"), &target).unwrap();
    assert_eq!(names_with_our_files(dir.path()), ["macvlan"]);
    let done = uninstall(dir.path(), "macvlan").unwrap();
    assert_eq!(done, InstallOutcome::Overwritten);
    assert!(done.message().contains(ORIGINAL), "{}", done.message());
    assert_eq!(fs::read(&target).unwrap(), b"of the package");
    assert_eq!(names(dir.path()), ["macvlan", "macvlan.fairlead-original"]);
}

#[test]
fn a_directory_that_is_not_there_is_refused_and_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("fairlead");
    fs::write(&from, ours("1")).unwrap();
    let mistyped = dir.path().join("bni");
    let refused = install(&mistyped, "macvlan", &from).unwrap_err().to_string();
    assert!(refused.ends_with(&format!("mkdir -p {}", mistyped.display())), "{refused}");
    assert_eq!(names(dir.path()), ["fairlead"]);
}

/// Needs root: a file system of 64 KiB.
#[test]
fn x18_an_install_that_a_full_disk_ends_leaves_nothing_half_written() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("fairlead");
    fs::write(&from, [ours("1"), vec![0; 1 << 20]].concat()).unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    mount(Some("tmpfs"), &small, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
    fs::write(small.join("macvlan"), GO).unwrap();
    let ended = install(&small, "macvlan", &from);
    let left = names(&small);
    umount2(&small, MntFlags::MNT_DETACH).unwrap();
    assert!(matches!(ended, Err(InstallError::File(FileError { what: "written", .. }))), "{ended:?}");
    assert_eq!(left, ["macvlan"]);
}

#[test]
fn x18_a_running_executable_is_replaced_without_being_busy() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("macvlan");
    fs::copy("/bin/sleep", &target).unwrap();
    let mut running = std::process::Command::new(&target).arg("60").spawn().unwrap();
    let done = install_with(dir.path(), "macvlan", &ours("1"), &mut |_| Ok(()));
    let alive = running.try_wait().unwrap().is_none();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!((done.unwrap(), alive), (InstallOutcome::Installed, true));
}

#[test]
fn names_with_a_slash_and_files_that_are_not_ours_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a/b", "", "..", ".hidden", "x.fairlead-original"] {
        assert!(matches!(uninstall(dir.path(), name), Err(InstallError::Name { .. })), "{name:?}");
    }
    fs::write(dir.path().join("other"), GO).unwrap();
    let refused = install(dir.path(), "macvlan", &dir.path().join("other"));
    assert!(matches!(refused, Err(InstallError::NotOurs { .. })));
}
