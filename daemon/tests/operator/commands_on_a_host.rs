//! A host's root made of files, and what the real program finds there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub(super) const BIN: &str = env!("CARGO_BIN_EXE_fairleadd");

/// A host's root with a conf dir, a plugin that does nothing, and a configuration that says nothing.
pub(super) fn host() -> tempfile::TempDir {
    let host = tempfile::tempdir().unwrap();
    for dir in ["etc/cni/net.d", "opt/cni/bin", "run/cni", "run/fairlead"] {
        fs::create_dir_all(host.path().join(dir)).unwrap();
    }
    plugin(&host.path().join("opt/cni/bin/tuning"));
    fs::write(host.path().join("config.yaml"), "").unwrap();
    host
}

/// An executable that does nothing.
pub(super) fn plugin(path: &Path) {
    fs::write(path, "#!/bin/sh\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Writes a file whose directory may be missing.
pub(super) fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The exit status and the findings of a command on a host, each as its verdict and its text.
pub(super) fn findings(host: &Path, words: &[&str]) -> (Option<i32>, Vec<(String, String)>) {
    let mut command = Command::new(BIN);
    command.args(words).args(["-o", "json"]);
    for (flag, name) in [("--host-root", ""), ("--run-dir", "run/fairlead"), ("--config", "config.yaml")] {
        command.arg(flag).arg(host.join(name));
    }
    let out = command.env_remove("CNI_CONF_DIR").env_remove("CNI_PLUGIN_DIR").output().unwrap();
    let all: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
    let text = |f: &Value, key: &str| f[key].as_str().unwrap_or_default().to_owned();
    let one = |f: &Value| {
        (text(f, "verdict"), format!("{}: {} → {}", text(f, "about"), text(f, "seen"), text(f, "remedy")))
    };
    (out.status.code(), all.iter().map(one).collect())
}

/// A network of the name `net` with these keys.
pub(super) fn conf(mut more: Value) -> String {
    let keys = more.as_object_mut().unwrap();
    keys.insert("cniVersion".into(), "1.0.0".into());
    keys.insert("name".into(), "net".into());
    more.to_string()
}
