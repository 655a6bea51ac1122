//! `install`, `uninstall` and what `doctor` says of where the runtimes look, the real program on real files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::commands_on_a_host::{BIN, findings, host, write};
use super::rig::Rig;
use super::{call_of, told};

/// What doctor says of the runtimes.
fn of_runtimes(host: &Path) -> Vec<(String, String)> {
    let (_, told) = findings(host, &["doctor"]);
    told.into_iter().filter(|(_, text)| text.starts_with("runtime: ")).collect()
}

#[test]
fn an_install_where_the_runtime_never_looks_is_told_with_the_file_that_says_where_it_looks() {
    let host = host();
    let bin = host.path().join("opt/cni/bin");
    let ours = [b"fairlead ".as_slice(), fairlead_cni::wire::OUTCOME_HEADER.as_bytes()].concat();
    fs::write(bin.join("fairlead"), ours).unwrap();
    assert_eq!(of_runtimes(host.path()), [], "no runtime's configuration is there");
    let containerd = host.path().join("etc/containerd/config.toml");
    let elsewhere = [
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/lib/cni\"\n",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [\"/usr/lib/cni\"]\n",
        "[plugins.cri.cni]\nbin_dir = \"/usr/lib/cni\"\n",
        "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
    ];
    let drop_in = "[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [\"/usr/lib/cni\"]\n";
    write(host.path().join("etc/containerd/conf.d/cni.toml"), drop_in);
    for text in elsewhere {
        write(containerd.clone(), text);
        let told = of_runtimes(host.path());
        assert!(told.len() == 1 && told[0].0 == "wrong", "{text}: {told:?}");
        for part in ["containerd looks for plugins in ", "usr/lib/cni (", "config.toml", "--bin-dir "] {
            assert!(told[0].1.contains(part), "{part}: {told:?}");
        }
    }
    for text in [
        "version = 3\n",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [\"/x\", \"/opt/cni/bin\"]\n",
    ] {
        write(containerd.clone(), text);
        let told = of_runtimes(host.path());
        assert!(told.len() == 1 && told[0].0 == "good", "{text}: {told:?}");
    }
    let nets = "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir = \"/etc/other\"\n";
    write(containerd.clone(), nets);
    let told = of_runtimes(host.path());
    assert!(told[0].0 == "wrong" && told[0].1.contains("CNI_CONF_DIR=/etc/other"), "{told:?}");
    write(containerd.clone(), "version = [\n");
    assert_eq!(of_runtimes(host.path())[0].0, "less");
    fs::remove_file(containerd).unwrap();
    write(host.path().join("etc/crio/crio.conf"), "[crio]\n");
    assert_eq!(of_runtimes(host.path())[0].0, "good");
    let last = host.path().join("etc/crio/crio.conf.d/20-cni.conf");
    write(last, "[crio.network]\nplugin_dirs = [\"/usr/libexec/cni/\"]\n");
    let told = of_runtimes(host.path());
    assert!(
        told[0].1.contains("CRI-O looks for plugins in ") && told[0].1.contains("20-cni.conf"),
        "{told:?}"
    );
    // In a container the runtime's files are not mounted: the root of the host's first process has them.
    let whole = host.path().join("proc/1/root");
    write(whole.join("etc/containerd/config.toml"), elsewhere[0]);
    let told = of_runtimes(host.path());
    let seen = "containerd looks for plugins in /usr/lib/cni (/etc/containerd/config.toml)";
    assert!(told[0].1.contains(seen) && told[0].1.contains("directories.plugins"), "{told:?}");
}

#[test]
fn uninstall_refuses_while_a_pod_needs_us_unless_it_is_forced() {
    let rig = Rig::new();
    let bin = rig.path("bin");
    let ours = [b"fairlead ".as_slice(), fairlead_cni::wire::OUTCOME_HEADER.as_bytes()].concat();
    fs::write(bin.join("macvlan"), ours).unwrap();
    let uninstall = |more: &[&str]| {
        let out =
            rig.operator(&["uninstall", "--bin-dir", bin.to_str().unwrap()]).args(more).output().unwrap();
        let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
        (out.status.code(), text)
    };
    let daemon = rig.start();
    let pod = rig.pod("a");
    let call = call_of(&rig, &pod, "c1", ("shop", "web-0", "u-1"), &rig.layer2());
    call.add().succeeds();
    let (status, text) = uninstall(&[]);
    assert!(status == Some(1) && text.contains("eth0 of shop/web-0") && text.contains("--force"), "{text}");
    daemon.kill();
    let (status, text) = uninstall(&[]);
    assert!(status == Some(1) && text.contains("attachments.journal may have interfaces"), "{text}");
    assert!(bin.join("macvlan").exists());
    let _daemon = rig.start();
    call.del().succeeds();
    let (status, text) = uninstall(&[]);
    assert!(status == Some(0) && text.contains("removed"), "{text}");
    call.add().succeeds();
    fs::copy(BIN, bin.join("macvlan")).unwrap();
    assert_eq!(uninstall(&["--force"]).0, Some(0));
    assert_eq!(told(&mut rig.operator(&["attachments", "-o", "json"])).matches("\"c1\"").count(), 1);
}

#[test]
fn uninstall_refuses_while_the_daemon_is_to_keep_the_executable() {
    let rig = Rig::new();
    let bin = rig.path("bin");
    fs::write(rig.path("config.yaml"), "install: {cni: present}\n").unwrap();
    let ours = [b"fairlead ".as_slice(), fairlead_cni::wire::OUTCOME_HEADER.as_bytes()].concat();
    fs::write(bin.join("macvlan"), ours).unwrap();
    let uninstall = |words: &[&str]| {
        let mut command = rig.operator(&["uninstall", "--bin-dir", bin.to_str().unwrap()]);
        let out = command.args(words).output().unwrap();
        (out.status.code(), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
    };
    let _daemon = rig.start();
    let (status, text) = uninstall(&["--as", "fairlead"]);
    assert!(status == Some(1) && text.contains("nothing was uninstalled"), "{text}");
    for part in ["config.yaml says", "`install: {cni: absent}` there first"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (status, text) = uninstall(&["--as", "fairlead", "--force"]);
    assert!(status == Some(0) && text.contains("back within seconds"), "{text}");
    // Its own name alone is what the daemon puts there.
    let (status, text) = uninstall(&["--as", "macvlan"]);
    assert!(status == Some(0) && !text.contains("cni: present"), "{text}");
}

#[test]
fn uninstall_refuses_while_our_configuration_names_the_executable_whether_a_daemon_runs_or_not() {
    let rig = Rig::new();
    let (bin, conflist) = (rig.path("bin"), rig.path("net.d/00-fairlead.conflist"));
    let program = bin.join("fairlead");
    let pods = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "macvlan" }] });
    let ours = json!({
        "cniVersion": "1.0.0", "name": "fairlead", "plugins": [{ "type": "fairlead", "clusterNetwork": "pods" }],
    });
    let install = || {
        fs::write(&program, [b"ELF ".as_slice(), fairlead_cni::wire::OUTCOME_HEADER.as_bytes()].concat())
            .unwrap();
        fs::write(&conflist, ours.to_string()).unwrap();
    };
    let uninstall = |words: &[&str]| {
        let mut command = rig.operator(&["uninstall", "--bin-dir", bin.to_str().unwrap()]);
        command.env("CNI_CONF_DIR", rig.path("net.d")).env("CNI_PLUGIN_DIR", &bin);
        let out = command.args(words).output().unwrap();
        (out.status.code(), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
    };
    let refuses = || {
        for words in [&[] as &[&str], &["--as", "fairlead,macvlan"]] {
            let (status, text) = uninstall(words);
            assert!(status == Some(1) && program.exists(), "{words:?}: {text}");
            for part in ["nothing was uninstalled", "net.d/00-fairlead.conflist", "`install: {cni: absent}`"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    };
    let removes_it_when_the_file_is_gone = || {
        fs::remove_file(&conflist).unwrap();
        let (status, text) = uninstall(&[]);
        assert!(status == Some(0) && !program.exists(), "{text}");
    };
    fs::write(rig.path("net.d/10-pods.conflist"), pods.to_string()).unwrap();
    // The daemon was removed, and nothing was attached since the boot.
    install();
    refuses();
    removes_it_when_the_file_is_gone();
    // `install` was taken out of the configuration, and the daemon knows of no pod.
    install();
    let daemon = rig.start();
    refuses();
    removes_it_when_the_file_is_gone();
    daemon.kill();
    // A file of somebody else under that name names another program.
    install();
    fs::write(&conflist, pods.to_string()).unwrap();
    let (status, text) = uninstall(&["--as", "fairlead", "--force"]);
    assert!(status == Some(0) && !text.contains("conflist"), "{text}");
    install();
    let (status, text) = uninstall(&["--as", "fairlead", "--force"]);
    assert!(status == Some(0) && text.contains("no pod of this node starts") && !program.exists(), "{text}");
}

#[test]
fn uninstall_names_each_interface_of_a_pod_once() {
    let rig = Rig::new();
    let pods = rig.macvlan("pods");
    fs::write(rig.path("net.d/10-pods.conf"), pods.to_string()).unwrap();
    let _daemon = rig.start();
    let netns = rig.pod("a");
    let node = json!({ "cniVersion": "1.0.0", "name": "node", "type": "fairlead", "clusterNetwork": "pods" });
    call_of(&rig, &netns, "c1", ("shop", "web-0", "u-1"), &node).add().succeeds();
    for names in ["fairlead", "macvlan", "fairlead,macvlan"] {
        let out = rig.operator(&["uninstall", "--as", names]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(
            text.contains("1 of the pods' interfaces") && text.contains("(eth0 of shop/web-0)"),
            "{names}: {text}"
        );
    }
}

#[test]
fn install_judges_every_name_before_it_changes_anything() {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().to_str().unwrap();
    let run = |words: &[&str]| {
        let out = Command::new(BIN).args(words).args(["--bin-dir", bin]).output().unwrap();
        (out.status.code(), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
    };
    let from = dir.path().join("ours");
    fs::write(&from, [b"ELF ".as_slice(), fairlead_cni::wire::OUTCOME_HEADER.as_bytes()].concat()).unwrap();
    let (status, text) = run(&["install", "--as", "macvlan,../x", "--from", from.to_str().unwrap()]);
    assert!(status == Some(1) && text.contains("\"../x\" is no plugin"), "{text}");
    assert!(text.contains("fairlead, ") && text.contains("userspace"), "{text}");
    assert!(!dir.path().join("macvlan").exists(), "{text}");
    let (status, text) = run(&["uninstall", "--as", "bridge", "--force"]);
    assert!(status == Some(0) && text.contains("bridge: there is no such file"), "{text}");
}

#[test]
fn whoever_is_not_root_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("fairleadd");
    fs::copy(BIN, &program).unwrap();
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).args(words);
        let out = command.output().unwrap();
        (out.status.code(), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
    };
    let install = ["install", "--as", "macvlan"];
    for words in [&["attachments"][..], &["describe", "a"], &["run"], &["gc"], &install] {
        let (status, text) = as_nobody(words);
        assert!(
            status == Some(1) && text.contains("not root, and only root may do this"),
            "{words:?}: {text}"
        );
    }
    let (_, text) = as_nobody(&["doctor"]);
    assert!(text.lines().next().unwrap().starts_with("WRONG  user"), "{text}");
}
