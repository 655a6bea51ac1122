//! What the program tells of itself.

use std::process::Command;

use super::commands_on_a_host::BIN;
use super::rig::Rig;
use super::told;

#[test]
fn the_revision_is_told_by_the_program_and_by_the_daemon_that_runs() {
    let text = told(Command::new(BIN).arg("version"));
    let revision =
        text.trim().strip_prefix("fairleadd 0.1.0 (revision ").and_then(|rest| rest.strip_suffix(')'));
    let revision = revision.unwrap_or_else(|| panic!("{text}"));
    let is_hash = revision.len() == 12 && revision.chars().all(|c| c.is_ascii_hexdigit());
    assert!(is_hash || revision == "unknown" || std::env::var_os("FAIRLEAD_REVISION").is_some(), "{text}");
    let git = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    if let Ok(git) = git.as_ref().map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        && !git.is_empty()
        && std::env::var_os("FAIRLEAD_REVISION").is_none()
    {
        assert_eq!(revision, git);
    }
    assert_eq!(told(Command::new(BIN).arg("--version")), text);
    let rig = Rig::new();
    let _daemon = rig.start();
    let status = told(&mut rig.operator(&["status"]));
    assert!(status.starts_with(&format!("fairleadd 0.1.0 (revision {revision}, pid ")), "{status}");
}

#[test]
fn every_command_has_completions_and_a_page_of_the_manual() {
    let dir = tempfile::tempdir().unwrap();
    told(Command::new(BIN).arg("man-pages").arg(dir.path().join("man")));
    let whole = std::fs::read_to_string(dir.path().join("man/fairleadd.1")).unwrap();
    for command in ["run", "attachments", "describe", "validate", "doctor", "pools", "policy", "version"] {
        assert!(dir.path().join(format!("man/fairleadd-{command}.1")).exists(), "{command}");
        assert!(whole.contains(command), "{command}");
        for shell in ["bash", "zsh", "fish"] {
            assert!(
                told(Command::new(BIN).args(["completions", shell])).contains(command),
                "{shell} {command}"
            );
        }
    }
}
