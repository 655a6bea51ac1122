//! With shell scripts for plugins that misbehave, and with the reference plugins.

use std::cell::RefCell;
use std::io;
use std::time::Instant;

use fairlead_cni::{Code, avoid_containerd_phrases};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt;

use super::error::SHOWN;
use super::*;
use crate::logging::text_lines;

/// A directory of plugins.
struct Plugins(TempDir);

impl Plugins {
    fn new() -> Plugins {
        Plugins(tempfile::tempdir().unwrap())
    }

    fn script(&self, plugin: &str, body: &str) {
        script::write(&self.0.path().join(plugin), body);
    }

    fn path(&self) -> String {
        format!("/nowhere:{}:/usr/lib/cni", self.0.path().display())
    }

    fn run(&self, command: Command, plugin: &str) -> Result<DelegateOutcome, DelegateError> {
        self.run_within(command, plugin, Duration::from_secs(10), &|| false)
    }

    fn run_within(
        &self,
        command: Command,
        plugin: &str,
        time_limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<DelegateOutcome, DelegateError> {
        let (path, env) = (
            self.path(),
            [("TRACEPARENT".to_owned(), "00-1".to_owned()), ("CNI_IFNAME".into(), "caller0".into())],
        );
        let parameters = Parameters { args: "A=b", env: &env, ..script::parameters(&path) };
        let call = DelegateCall {
            command,
            plugin,
            config: "{\"a\":1}",
            parameters,
            time_limit,
            patience: Duration::MAX,
            cancelled,
            is_ours: |_| false,
        };
        delegates().run(&call)
    }

    fn cni_error(&self, command: Command, plugin: &str) -> CniError {
        self.run(command, plugin).unwrap_err().to_cni_error(command)
    }
}

fn delegates() -> Delegates {
    Delegates::new("/".into(), None, "/nowhere".into())
}

#[test]
fn a_plugin_gets_the_callers_environment_and_the_parameters_of_this_call() {
    let plugins = Plugins::new();
    plugins.script("p", r#"printf '{"e":"%s %s %s %s %s %s %s","c":%s}' $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS $TRACEPARENT ${CNI_PATH%%:*} "$(cat)""#);
    let DelegateOutcome::Output(text) = plugins.run(Command::Add, "p").unwrap() else {
        panic!("it is not ours")
    };
    assert_eq!(text, r#"{"e":"ADD c1 /n eth0 A=b 00-1 /nowhere","c":{"a":1}}"#);
}

#[test]
fn x13_an_error_tells_plugin_command_status_its_own_words_and_its_standard_error() {
    let plugins = Plugins::new();
    plugins.script("p", r#"echo "the cable is cut" >&2; echo '{"cniVersion":"1.0.0","code":107,"msg":"no carrier","details":"on ens1"}'; exit 3"#);
    let error = plugins.cni_error(Command::Add, "p");
    assert_eq!(error.code, Code::Other(107));
    assert_eq!(
        error.msg,
        "plugin \"p\", ADD, failed with exit status 3: no carrier: on ens1; its standard error: the cable is cut"
    );
}

#[test]
fn x13_a_plugin_that_hangs_is_killed_with_its_children_at_its_limit() {
    let plugins = Plugins::new();
    let mark = plugins.0.path().join("survived");
    plugins.script("p", &format!("echo waiting >&2; (sleep 1; touch {}) & sleep 60", mark.display()));
    let begun = Instant::now();
    let error = plugins.run_within(Command::Add, "p", Duration::from_millis(300), &|| false).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(30));
    let told = error.to_cni_error(Command::Add);
    assert_eq!(told.code, Code::TryAgain);
    assert_eq!(
        told.msg,
        "plugin \"p\", ADD: killed after its time limit of 300ms; its standard error: waiting"
    );
    std::thread::sleep(Duration::from_millis(1200));
    assert!(!mark.exists(), "its child lives on");
}

#[test]
fn x13_a_cancelled_call_kills_its_plugin() {
    let plugins = Plugins::new();
    plugins.script("p", "sleep 60");
    let asked = RefCell::new(0);
    let cancelled = || {
        *asked.borrow_mut() += 1;
        *asked.borrow() > 3
    };
    let error = plugins.run_within(Command::Add, "p", Duration::from_secs(60), &cancelled).unwrap_err();
    assert!(
        error.to_string().starts_with("plugin \"p\", ADD: killed because the call was cancelled"),
        "{error}"
    );
}

#[test]
fn x13_a_plugin_that_crashes_is_told_with_its_signal() {
    let plugins = Plugins::new();
    plugins.script("p", "echo oops >&2; kill -SEGV $$");
    let error = plugins.cni_error(Command::Add, "p");
    assert_eq!(error.msg, "plugin \"p\", ADD: killed by signal 11; its standard error: oops");
    assert_eq!(error.code, Code::PluginFailed);
    assert!(error.details.contains("crashed, or was killed"), "{error}");
}

#[test]
fn x13_a_program_that_the_kernel_does_not_execute_is_the_plugins_fault_and_the_remedy_names_why() {
    let plugins = Plugins::new();
    // By another process, as `script::write` does it.
    let put = |plugin: &str, text: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", r#"printf '%s\n' "$1" > "$0" && chmod 755 "$0""#]);
        assert!(shell.arg(plugins.0.path().join(plugin)).arg(text).status().unwrap().success());
    };
    put("foreign", "no program");
    put("script", "#!/nowhere/interpreter");
    for (plugin, remedy) in [("foreign", "a program for this machine"), ("script", "the interpreter")] {
        let error = plugins.cni_error(Command::Add, plugin);
        assert_eq!(error.code, Code::PluginFailed, "{error}");
        assert!(error.details.contains(remedy), "{error}");
    }
}

#[test]
fn an_answer_that_is_no_json_object_is_told() {
    let plugins = Plugins::new();
    for body in ["echo hello", "echo '[1]'", "true", "printf '\\377'"] {
        plugins.script("p", body);
        let error = plugins.cni_error(Command::Add, "p");
        assert_eq!(error.code, Code::PluginFailed, "{body}");
        assert!(error.msg.starts_with("plugin \"p\", ADD: its answer is no CNI result"), "{}", error.msg);
    }
    plugins.script("p", "echo hello");
    assert!(plugins.run(Command::Del, "p").is_ok(), "nobody reads what a DEL prints");
}

#[test]
fn an_error_that_is_no_json_is_quoted_and_never_whole() {
    let plugins = Plugins::new();
    plugins.script(
        "p",
        "head -c 100000 /dev/zero | tr '\\0' x; head -c 100000 /dev/zero | tr '\\0' y >&2; exit 1",
    );
    let error = plugins.cni_error(Command::Add, "p");
    assert_eq!(error.code, Code::PluginFailed);
    assert!(error.msg.len() < 3 * SHOWN, "{}", error.msg.len());
    assert!(error.msg.contains("xxx\"…; its standard error: …yyy"), "{}", error.msg);
}

#[test]
fn output_without_end_is_refused() {
    let plugins = Plugins::new();
    plugins.script("p", "exec cat /dev/zero");
    let error = plugins.cni_error(Command::Add, "p");
    assert!(error.msg.contains("wrote more than"), "{}", error.msg);
    assert_eq!(error.code, Code::PluginFailed);
    assert!(error.details.contains("nothing else"), "{error}");
}

#[test]
fn the_result_of_a_plugin_is_bounded_where_a_tenants_definition_names_it() {
    let plugins = Plugins::new();
    plugins.script("p", r#"printf '{"dns":{"domain":"'; head -c 131072 /dev/zero | tr '\0' x; printf '"}}'"#);
    let (path, empty_dirs) = (plugins.path(), plugins.0.path().join("empty"));
    let run = |command, of_tenant| {
        let parameters = Parameters { of_tenant, ..script::parameters(&path) };
        let call = DelegateCall {
            command,
            plugin: "p",
            config: "{}",
            parameters,
            time_limit: Duration::from_secs(10),
            patience: Duration::MAX,
            cancelled: &|| false,
            is_ours: |_| false,
        };
        Delegates::new("/".into(), None, empty_dirs.clone()).run(&call)
    };
    let refused = run(Command::Add, true).unwrap_err();
    assert!(!refused.never_ran(), "it has to be undone");
    let told = refused.to_cni_error(Command::Add);
    assert_eq!(told.code, Code::PluginFailed, "{told}");
    assert!(told.msg.contains("its result has 131093 bytes, more than the 131072"), "{told}");
    assert!(told.details.contains("fewer addresses and routes"), "{told}");
    run(Command::Add, false).unwrap();
    run(Command::Del, true).unwrap();
}

#[test]
fn a_plugin_that_is_nowhere_is_told_with_its_path() {
    let plugins = Plugins::new();
    fs::create_dir(plugins.0.path().join("dir")).unwrap();
    for plugin in ["absent", "dir"] {
        let error = plugins.cni_error(Command::Add, plugin);
        assert_eq!(error.code, Code::InvalidConfig);
        assert!(
            error.msg.contains(&format!("{plugin:?} is in no directory of CNI_PATH (\"/nowhere:")),
            "{}",
            error.msg
        );
    }
}

#[test]
fn a_plugin_that_is_not_executable_is_told_by_its_path_before_anything_is_done() {
    let plugins = Plugins::new();
    fs::write(plugins.0.path().join("text"), "no program").unwrap();
    let error = plugins.cni_error(Command::Add, "text");
    assert_eq!(error.code, Code::InvalidConfig);
    assert!(error.msg.ends_with("/text is not executable") && error.details.contains("chmod"), "{error}");
}

#[test]
fn k17_plugins_are_looked_for_below_the_hosts_root_and_named_as_the_host_names_them() {
    let host = tempfile::tempdir().unwrap();
    fs::create_dir_all(host.path().join("opt/cni/bin")).unwrap();
    fs::create_dir_all(host.path().join("usr/lib/cni")).unwrap();
    let plugin = host.path().join("usr/lib/cni/p");
    fs::write(&plugin, "of the host").unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("/usr/lib/cni/p", host.path().join("opt/cni/bin/p")).unwrap();
    let (program, file) =
        Delegates::new(host.path().into(), None, "/nowhere".into()).find("p", "bin:/opt/cni/bin").unwrap();
    assert_eq!(program, Path::new("/opt/cni/bin/p"));
    assert_eq!(io::read_to_string(file).unwrap(), "of the host");
}

#[test]
fn a_type_that_is_a_path_is_refused() {
    let plugins = Plugins::new();
    for plugin in ["../p", "/bin/true", "a/b", "", ".", ".."] {
        assert_eq!(plugins.cni_error(Command::Add, plugin).code, Code::InvalidConfig, "{plugin:?}");
    }
}

#[test]
fn our_own_executable_is_not_started() {
    let plugins = Plugins::new();
    let mark = plugins.0.path().join("started");
    plugins.script("macvlan", &format!("touch {}", mark.display()));
    let path = plugins.path();
    let parameters = Parameters { container_id: "c", netns: "", ..script::parameters(&path) };
    let is_ours = |file: &File| io::read_to_string(file).unwrap().contains("/started");
    let call = DelegateCall {
        command: Command::Add,
        plugin: "macvlan",
        config: "{}",
        parameters,
        time_limit: Duration::from_secs(5),
        patience: Duration::MAX,
        cancelled: &|| false,
        is_ours,
    };
    assert_eq!(delegates().run(&call).unwrap(), DelegateOutcome::Ours);
    assert!(matches!(delegates().ipam(&call, CniVersion::V1_0_0), Err(DelegateError::OursAsIpam { .. })));
    assert!(!mark.exists());
}

#[test]
fn no_del_error_contains_the_words_that_containerd_takes_for_success() {
    let plugins = Plugins::new();
    plugins.script("p", "echo 'open /x: No such file or directory' >&2; echo '{\"code\":1,\"msg\":\"link Not Found\"}'; exit 1");
    let del = plugins.cni_error(Command::Del, "p");
    assert_eq!(
        del.msg,
        "plugin \"p\", DEL, failed with exit status 1: link absent; its standard error: open /x: missing"
    );
    let add = plugins.cni_error(Command::Add, "p");
    assert!(
        add.msg.contains("Not Found") && add.msg.contains("No such file"),
        "an ADD says what was said: {}",
        add.msg
    );
    for plugin in ["absent", "a/b"] {
        let told = plugins.cni_error(Command::Del, plugin).to_string().to_lowercase();
        assert!(!told.contains("not found") && !told.contains("no such file or directory"), "{told}");
    }
    assert_eq!(avoid_containerd_phrases("not not found found"), "not absent found");
}

#[test]
fn whatever_a_plugin_says_it_begins_no_line_of_the_log() {
    let plugins = Plugins::new();
    let forged = "2026-01-01T00:00:00.000000Z ERROR the node is lost";
    let says = format!(r#"{{"code":107,"msg":"no\n{forged}","details":"a\r{forged}"}}"#);
    plugins.script("p", &format!("printf 'gone\\n{forged}\\n' >&2; printf %s '{says}'; exit 1"));
    let error = plugins.cni_error(Command::Add, "p");
    assert_eq!(error.msg.lines().count(), 3, "the caller is told what was said: {error}");
    let file = plugins.0.path().join("log");
    let lines = text_lines::<Registry, _>(File::create(&file).unwrap());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
        let _pod = tracing::error_span!("pod", pod = %error.msg).entered();
        tracing::warn!(%error, "an ADD is undone");
        tracing::info!("an ADD was refused: {error}");
    });
    let log = fs::read_to_string(file).unwrap();
    let levels: Vec<_> = log.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(levels, ["WARN", "INFO"], "{log}");
    assert!(log.contains(r"no\n2026-01-01") && !log.contains('\r'), "{log}");
}

#[test]
fn the_reference_host_local_allocates_and_releases_as_a_delegate() {
    let data = tempfile::tempdir().unwrap();
    let config = format!(
        r#"{{"cniVersion":"1.0.0","name":"n","type":"x","ipam":{{"type":"host-local","dataDir":"{}","subnet":"10.9.0.0/24"}}}}"#,
        data.path().display()
    );
    let parameters = Parameters { container_id: "c", ..script::parameters("/usr/lib/cni") };
    let call = |command| DelegateCall {
        command,
        plugin: "host-local",
        config: &config,
        parameters,
        time_limit: Duration::from_secs(10),
        patience: Duration::MAX,
        cancelled: &|| false,
        is_ours: |_| false,
    };
    let run = |command| delegates().ipam(&call(command), CniVersion::V1_0_0);
    let result = run(Command::Add).unwrap().unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.9.0.2/24");
    assert!(run(Command::Check).unwrap().is_none());
    assert!(run(Command::Status).unwrap().is_none(), "below 1.1.0 nothing is executed");
    run(Command::Del).unwrap();
    let error = run(Command::Check).unwrap_err().to_cni_error(Command::Check);
    assert!(error.msg.contains("Failed to find address added by container c"), "{}", error.msg);
}
