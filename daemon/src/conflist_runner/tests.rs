//! With scripts that write down how they were called, and with the reference plugins in namespaces of their own.

use std::path::Path;

use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::delegate::script;

/// Plugins `a`, `b`, `c` that log their calls; a file `<plugin>.<COMMAND>` makes that call fail.
struct Lab(tempfile::TempDir);

const SCRIPT: &str = r#"cd "$(dirname "$0")"
config=$(cat)
prev=$(printf %s "$config" | grep -o '"prevResult":{[^}]*}' | grep -o '10\.0\.0\.[0-9]*')
me=$(basename "$0")
echo "$CNI_COMMAND $me ${prev:--}" >> log
if [ -e "$me.$CNI_COMMAND" ]; then echo '{"code":123,"msg":"'$me' was told to fail"}'; exit 1; fi
case $me in a) n=1;; b) n=2;; *) n=3;; esac
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.'$n'/24"}]}'
true
"#;

impl Lab {
    fn new() -> Lab {
        let lab = Lab(tempfile::tempdir().unwrap());
        for plugin in ["a", "b", "c"] {
            script::write(&lab.0.path().join(plugin), SCRIPT);
        }
        lab
    }

    fn fails(&self, call: &str) {
        std::fs::write(self.0.path().join(call), "").unwrap();
    }

    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.path().join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// No plugin is built in.
struct NoneBuiltIn;

impl BuiltIn for NoneBuiltIn {
    fn serves(&self, _plugin: &str) -> bool {
        false
    }

    fn call(&self, _command: Command, plugin: &str, _config: &str) -> Result<String, CniError> {
        Err(CniError::new(Code::InvalidConfig, format!("{plugin} is not built in")))
    }
}

fn list(version: &str, more: &str) -> ConfList {
    let text = format!(
        r#"{{"cniVersion":"{version}","name":"n"{more},"plugins":[{{"type":"a"}},{{"type":"b","capabilities":{{"mac":true}}}},{{"type":"c"}}]}}"#
    );
    ConfList::parse(&text).unwrap()
}

fn with<T>(dir: &Path, list: &ConfList, built_in: &dyn BuiltIn, work: impl FnOnce(&Chain<'_>) -> T) -> T {
    let path = dir.display().to_string();
    let runtime = Map::from_iter([("mac".to_owned(), json!("02:00:00:00:00:01"))]);
    let chain = Chain {
        list,
        delegates: &Delegates::new("/".into(), None, "/nowhere".into()),
        built_in,
        parameters: script::parameters(&path),
        runtime: &runtime,
        deadline: Instant::now() + Duration::from_secs(30),
        plugin_limit: Duration::from_secs(10),
        cancelled: &|| false,
        is_ours: |_| false,
    };
    work(&chain)
}

#[test]
fn an_add_goes_in_order_and_each_plugin_gets_the_result_of_the_one_before() {
    let lab = Lab::new();
    let result = with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, |chain| chain.add()).unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.0.0.3/24");
    assert_eq!(lab.log(), ["ADD a -", "ADD b 10.0.0.1", "ADD c 10.0.0.2"]);
}

#[test]
fn after_a_failed_add_everything_that_was_begun_gets_its_del_backwards() {
    let lab = Lab::new();
    lab.fails("b.ADD");
    lab.fails("a.DEL");
    let error = with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, |chain| chain.add()).unwrap_err().error;
    assert_eq!(error.code, Code::Other(123));
    assert_eq!(error.msg, "network \"n\": plugin \"b\", ADD, failed with exit status 1: b was told to fail");
    assert!(
        error.details.contains("and it could not be undone: network \"n\": plugin \"a\", DEL"),
        "{}",
        error.details
    );
    assert_eq!(lab.log(), ["ADD a -", "ADD b 10.0.0.1", "DEL b 10.0.0.1", "DEL a 10.0.0.1"]);
}

#[test]
fn a_plugin_that_cannot_be_started_gets_no_del_and_nothing_is_left_of_those_before_it() {
    // A script whose interpreter is missing, one that says none and is no program, and a program of another machine.
    let other_machine = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 9], &[2, 0, 0xff, 0xfe], &[0; 44]].concat();
    for content in [b"#!/no/such/interpreter\n".as_slice(), b"no program", &other_machine] {
        for (broken, log) in [("a", vec![]), ("b", vec!["ADD a -", "DEL a 10.0.0.1"])] {
            let lab = Lab::new();
            std::fs::write(lab.0.path().join(broken), content).unwrap();
            let add = |chain: &Chain<'_>| chain.must_be_installed().map(|()| chain.add());
            let failure = with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, add).unwrap().unwrap_err();
            assert!(failure.nothing_is_left, "{:?}", failure.error);
            assert!(failure.error.msg.contains(&format!("plugin {broken:?}, ADD")), "{:?}", failure.error);
            assert_eq!(lab.log(), log);
        }
    }
}

#[test]
fn a_del_goes_backwards_past_errors_and_answers_with_all_of_them() {
    let lab = Lab::new();
    let result = with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, |chain| chain.add()).unwrap();
    lab.fails("a.DEL");
    lab.fails("c.DEL");
    let del = |chain: &Chain<'_>| chain.del(Some(&result));
    let error = with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, del).unwrap_err();
    assert!(
        error.msg.contains("c was told to fail; network") && error.msg.ends_with("a was told to fail"),
        "{}",
        error.msg
    );
    assert_eq!(lab.log()[3..], ["DEL c 10.0.0.3", "DEL b 10.0.0.3", "DEL a 10.0.0.3"]);
    with(lab.0.path(), &list("0.3.1", ""), &NoneBuiltIn, del).unwrap_err();
    assert_eq!(lab.log()[6..], ["DEL c -", "DEL b -", "DEL a -"], "0.3.1 has no prevResult in a DEL");
}

#[test]
fn check_goes_to_the_first_error_unless_the_list_disables_it() {
    let lab = Lab::new();
    lab.fails("b.CHECK");
    let prev = CniResult::parse_text(
        r#"{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.9/24"}]}"#,
        CniVersion::V1_1_0,
    )
    .unwrap();
    let check = |chain: &Chain<'_>| chain.check(&prev);
    with(lab.0.path(), &list("1.1.0", r#","disableCheck":true"#), &NoneBuiltIn, check).unwrap();
    assert!(lab.log().is_empty());
    with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, check).unwrap_err();
    assert_eq!(lab.log(), ["CHECK a 10.0.0.9", "CHECK b 10.0.0.9"]);
    with(lab.0.path(), &list("0.3.1", ""), &NoneBuiltIn, check).unwrap();
    assert_eq!(lab.log().len(), 2, "0.3.1 has no CHECK");
}

#[test]
fn gc_reaches_every_plugin_past_errors_and_status_stops_at_the_first() {
    let lab = Lab::new();
    lab.fails("b.GC");
    lab.fails("b.STATUS");
    let gc =
        |chain: &Chain<'_>| chain.gc(&[AttachmentRef { container_id: "c1".into(), ifname: "eth0".into() }]);
    with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, gc).unwrap_err();
    with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, |chain| chain.status()).unwrap_err();
    assert_eq!(lab.log(), ["GC a -", "GC b -", "GC c -", "STATUS a -", "STATUS b -"]);
    with(lab.0.path(), &list("1.0.0", ""), &NoneBuiltIn, gc).unwrap();
    with(lab.0.path(), &list("1.1.0", r#","disableGC":true"#), &NoneBuiltIn, gc).unwrap();
    with(lab.0.path(), &list("1.0.0", ""), &NoneBuiltIn, |chain| chain.status()).unwrap();
    assert_eq!(lab.log().len(), 5);
}

#[test]
fn a_built_in_plugin_is_called_in_process_with_the_capabilities_that_it_declares() {
    struct B(Mutex<Vec<String>>);
    impl BuiltIn for B {
        fn serves(&self, plugin: &str) -> bool {
            plugin == "b"
        }

        fn call(&self, command: Command, plugin: &str, config: &str) -> Result<String, CniError> {
            let config: Value = serde_json::from_str(config).unwrap();
            self.0.lock().push(format!("{} {plugin} {}", command.name(), config["runtimeConfig"]["mac"]));
            Ok(r#"{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.7/24"}]}"#.to_owned())
        }
    }
    let lab = Lab::new();
    let b = B(Mutex::default());
    with(lab.0.path(), &list("1.1.0", ""), &b, |chain| chain.add()).unwrap();
    assert_eq!(*b.0.lock(), ["ADD b \"02:00:00:00:00:01\""]);
    assert_eq!(lab.log(), ["ADD a -", "ADD c 10.0.0.7"]);
}

#[test]
fn an_add_after_its_deadline_starts_nothing_that_lasts() {
    let lab = Lab::new();
    let error = with(lab.0.path(), &list("1.1.0", ""), &NoneBuiltIn, |chain| {
        let late = Chain { deadline: Instant::now(), list: chain.list, delegates: chain.delegates, ..*chain };
        late.add().unwrap_err().error
    });
    assert_eq!(error.code, Code::TryAgain, "{error}");
}

#[test]
fn a_chain_of_reference_plugins_makes_and_removes_a_pods_interface() {
    // Threads have network namespaces of their own: the bridge is made in one that ends with this thread.
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let mut pod = std::process::Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap();
        let netns = format!("/proc/{}/ns/net", pod.id());
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        while std::fs::read_link(&netns).is_ok_and(|it| it == own) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let data = tempfile::tempdir().unwrap();
        let list = ConfList::parse(&format!(
            r#"{{"cniVersion":"1.0.0","name":"n","plugins":[
                {{"type":"bridge","bridge":"flbr0","ipam":{{"type":"host-local","dataDir":"{}","subnet":"10.9.0.0/24"}}}},
                {{"type":"tuning","mtu":1400}}]}}"#,
            data.path().display()
        ))
        .unwrap();
        let outcome = with(Path::new("/usr/lib/cni"), &list, &NoneBuiltIn, |chain| {
            let chain = Chain { parameters: Parameters { netns: &netns, ..chain.parameters }, ..*chain };
            let result = chain.add().map_err(|failure| failure.error)?;
            chain.check(&result)?;
            chain.del(Some(&result))?;
            chain.del(Some(&result)).map(|()| result)
        });
        pod.kill().unwrap();
        pod.wait().unwrap();
        let result = outcome.unwrap();
        assert_eq!(result.ips[0].address.to_string(), "10.9.0.2/24");
        assert_eq!(result.interfaces.len(), 3);
        assert!(!data.path().join("n/10.9.0.2").exists());
    })
    .join()
    .unwrap();
}
