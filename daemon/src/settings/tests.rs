//! What a configuration may say, what it may not, and that a broken one harms nothing.

use super::*;

fn parse(text: &str) -> Result<Settings, String> {
    Settings::parse(Path::new("/etc/fairlead/config.yaml"), text).map_err(|e| e.to_string())
}

fn pool(text: &str) -> Result<Vec<PoolSettings>, String> {
    parse(&format!("pools: [{{{text}}}]\n")).map(|settings| settings.pools)
}

#[test]
fn every_key_is_read() {
    let text = "logLevel: debug\nlogFormat: json\ncallThreads: 8\nslowThreads: 16\nmaxCalls: 100\ndel: wait\n\
                dad: wait\ndelegateTimeout: 2m\ndelegateCgroup: system.slice/delegates\nreapAfter: 500ms\nfunctionWait: 20s\n\
                kubelet:\n  dir: /data/kubelet\nnodeName: node-1.example\n\
                pools: [{name: radio, selectors: {vendors: ['8086']}}]\ndevicePluginConfig: /etc/pcidp/config.json\n\
                devicePluginResourcePrefix: openshift.io\n\
                install: {cni: present, clusterNetwork: pods}\n\
                metrics: {listen: \"[::]:9808\", tls: {certFile: /t/tls.crt, keyFile: /t/tls.key}, tokenReview: true}\n";
    let expected = Settings {
        log_level: LogLevel::Debug,
        log_format: LogFormat::Json,
        call_threads: Bounded::clamped(8),
        slow_threads: Bounded::clamped(16),
        max_calls: Bounded::clamped(100),
        del: DelAnswer::Wait,
        dad: Dad::Wait,
        delegate_timeout: Span(Duration::from_secs(120)),
        delegate_cgroup: Some("system.slice/delegates".into()),
        reap_after: Span(Duration::from_millis(500)),
        function_wait: Span(Duration::from_secs(20)),
        kubelet: Kubelet { dir: "/data/kubelet".into() },
        node_name: Some("node-1.example".into()),
        pools: pool("name: radio, selectors: {vendors: ['8086']}").unwrap(),
        device_plugin_config: Some("/etc/pcidp/config.json".into()),
        device_plugin_resource_prefix: "openshift.io".to_owned().try_into().unwrap(),
        install: Some(Installation {
            cni: Presence::Present,
            cluster_network: Some("pods".into()),
            multus_daemon_config: None,
        }),
        metrics: Some(MetricsSettings {
            listen: "[::]:9808".parse().unwrap(),
            tls: Some(TlsFiles { cert_file: "/t/tls.crt".into(), key_file: "/t/tls.key".into() }),
            token_review: true,
        }),
        ..Settings::default()
    };
    assert_eq!(parse(text).unwrap(), expected);
    let again = serde_saphyr::to_string(&expected).unwrap();
    assert_eq!(parse(&again).unwrap(), expected);
}

#[test]
fn an_empty_file_and_an_absent_one_mean_the_defaults() {
    for text in ["", "# nothing\n", "{}"] {
        assert_eq!(parse(text).unwrap(), Settings::default(), "{text:?}");
    }
    assert_eq!(Settings::load(Path::new("/nowhere/config.yaml")).unwrap(), Settings::default());
}

#[test]
fn r08_what_is_refused_is_refused_by_key_and_line() {
    let table = [
        ("logLevel: info\ncolour: red\n", ":2: ", "colour"),
        ("logLevel: loud\n", ":1: ", "loud"),
        (
            "dad: fast\nmetrics: {listen: '0.0.0.0:9808'}\n",
            ":2: ",
            "metrics.listen: 0.0.0.0:9808 is reached from other",
        ),
        (
            "metrics: {listen: '[::ffff:127.0.0.1]:9808'}\n",
            ":1: ",
            "only a loopback address like 127.0.0.1:9808",
        ),
        ("metrics: {listen: localhost}\n", ":1: ", "\"localhost\" is no address with a port"),
        (
            "metrics: {listen: '127.0.0.1:1', tls: {certFile: a, keyFile: /b}}\n",
            ":1: ",
            "\"a\" is no absolute path",
        ),
        ("metrics: {listen: '127.0.0.1:1', token: x}\n", ":1: ", "token"),
        ("dad: fast\ncallThreads: 0\n", ":2: ", "0 is not between 1 and 64"),
        ("callThreads: many\n", ":1: ", "many"),
        ("callThreads: -4\n", ":1: ", "-4 is not between 1 and 64"),
        ("callThreads: 1.5\n", ":1: ", "it is no whole number between 1 and 64"),
        ("del: early\n---\ndel: wait\n", ":", "several YAML documents, divided by ---"),
        ("reapAfter: soon\n", ":1: ", "\"soon\" is no time"),
        ("reapAfter: -1s\n", ":1: ", "\"-1s\" is no time"),
        ("del: early\ndel: wait\n", ":2: ", "the key \"del\" is there twice; put it right"),
        ("del: early\ndelegateTimeout: 0s\n", ":2: ", "would kill every plugin at its start"),
        ("delegateTimeout: 0.0us\n", ":1: ", "would kill every plugin at its start"),
        ("podWait: 0s\n", ":1: ", "an ADD fails unless its pod is known already: give one like 25s"),
        ("devicePluginConfig: pcidp/config.json\n", ":1: ", "\"pcidp/config.json\" is no absolute path"),
        (
            "del: early\ndevicePluginResourcePrefix: Openshift.io\n",
            ":2: ",
            "\"Openshift.io\" is no prefix of a resource's name that kubelet takes",
        ),
        ("devicePluginResourcePrefix: ''\n", ":1: ", "devicePluginResourcePrefix"),
        ("devicePluginResourcePrefix: a.b/c\n", ":1: ", "give a domain in small letters"),
        ("del: early\nnodeName: ''\n", ":2: ", "\"\" is not the name of a node: give one that"),
        ("nodeName: Bad Name\n", ":1: ", "\"Bad Name\" is not the name of a node"),
        ("nodeName: node_1\n", ":1: ", "or leave it out"),
        ("kubelet:\n  dir: kubelet\n", ":2: ", "\"kubelet\" is no absolute path"),
        ("kubelet:\n  root: /x\n", ":2: ", "root"),
        ("policy:\n  lendable: [\"ens1f*\"]\n", ":2: ", "\"ens1f*\" is no name of an interface"),
        ("install: {cni: maybe}\n", ":1: ", "maybe"),
        ("install:\n  cni: present\n  clusternetwork: x\n", ":3: ", "clusternetwork"),
        ("a: [\n", ":", ""),
    ];
    for (text, line, part) in table {
        let refused = parse(text).unwrap_err();
        assert!(refused.starts_with("/etc/fairlead/config.yaml:"), "{text:?}: {refused}");
        assert!(refused.contains(line) && refused.contains(part), "{text:?}: {refused}");
    }
}

#[test]
fn r08_the_key_that_was_meant_is_told_of_every_mistyped_one() {
    let mistyped = |key: &str| format!("{}x{}", &key[..key.len() - 1], &key[key.len() - 1..]);
    for key in Settings::keys() {
        let refused = parse(&format!("dad: fast\n{}: 1\n", mistyped(key))).unwrap_err();
        let asked = format!("(did you mean {key:?}?); put it right");
        assert!(refused.contains(":2: unknown field") && refused.contains(&asked), "{refused}");
    }
    let refused = parse("dad: fst\n").unwrap_err();
    assert!(refused.contains("(did you mean \"fast\"?)"), "{refused}");
    assert!(!parse("groups: []\n").unwrap_err().contains("did you mean"));
    // The log and `status` have it too.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, "polcy: {}\n").unwrap();
    let refused = LiveSettings::new(&path, Node::default()).refused().unwrap();
    assert!(refused.contains("did you mean \"policy\"?"), "{refused}");
}

#[test]
fn the_device_plugins_file_is_read_with_this_one_and_a_change_of_it_is_one_of_this() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("config.yaml"), dir.path().join("pcidp/config.json"));
    std::fs::write(&path, format!("devicePluginConfig: {}\n", other.display())).unwrap();
    let live = LiveSettings::new(&path, Node::default());
    assert_eq!(live.directories(), [dir.path(), other.parent().unwrap()]);
    assert!(live.current().device_plugin.clone().unwrap().unwrap_err().contains("No such file"));
    std::fs::create_dir(other.parent().unwrap()).unwrap();
    for text in ["{}", "{\"resourceList\":[]}"] {
        std::fs::write(&other, text).unwrap();
        assert!(live.reload());
        assert_eq!(live.current().device_plugin, Some(Ok(text.to_owned())));
    }
    assert!(!live.reload());
}

#[test]
fn r08_a_file_that_is_refused_at_the_start_is_told_from_one_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    let absent = LiveSettings::new(&path, Node::default());
    assert!(!absent.current().unread && absent.loaded().is_ok());
    std::fs::write(&path, "del: maybe\n").unwrap();
    let live = LiveSettings::new(&path, Node::default());
    assert!(live.current().unread);
    let told = live.loaded().unwrap_err();
    for part in ["refused since the start", "config.yaml:1: ", "maybe", "put it right"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // Emptied, it may be about to be put right.
    std::fs::write(&path, "").unwrap();
    assert!(!live.reload() && live.current().unread && live.loaded().is_err());
    std::fs::write(&path, "{}\n").unwrap();
    assert!(live.reload() && !live.current().unread && live.loaded().is_ok());
    // What is refused later leaves in force what was read.
    std::fs::write(&path, "del: maybe\n").unwrap();
    assert!(!live.reload() && live.refused().is_some() && live.loaded().is_ok());
}

#[test]
fn what_counts_from_the_next_start_is_told_of_a_change_until_it_is_as_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, "callThreads: 8\n").unwrap();
    let live = LiveSettings::new(&path, Node::default());
    let start = live.current();
    let awaits = |text: &str| {
        std::fs::write(&path, text).unwrap();
        assert!(live.reload(), "{text}");
        live.current().awaiting_a_restart(&start)
    };
    assert_eq!(awaits("callThreads: 8\ndel: wait\n"), [""; 0]);
    assert_eq!(awaits("kubelet: {dir: /x}\nlogFormat: json\n"), ["logFormat", "callThreads", "kubelet"]);
    assert_eq!(awaits("callThreads: 8\n"), [""; 0]);
}

#[test]
fn r08_a_huge_file_is_refused_unread_and_a_long_line_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    // Of 64 GiB without a block: who reads it whole ends here.
    File::create(&path).unwrap().set_len(64 << 30).unwrap();
    let refused = Settings::load(&path).unwrap_err().to_string();
    assert!(refused.contains("config.yaml") && refused.contains("more than 1048576 bytes"), "{refused}");
    nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = Settings::load(&dir.path().join("pipe")).unwrap_err().to_string();
    assert!(refused.contains("no regular file"), "{refused}");
    let long = "ö".repeat(400_000);
    for text in [format!("{long}: 1\n"), format!("logLevel: {long}\n"), format!("{long}: 1\n{long}: 2\n")] {
        let refused = parse(&text).unwrap_err();
        assert!(refused.chars().count() < 600 && refused.contains("öö"), "{refused}");
    }
}

#[test]
fn r08_a_broken_file_harms_nothing_and_is_told_until_it_is_put_right() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, "del: wait\n").unwrap();
    let live = LiveSettings::new(&path, Node::default());
    assert_eq!(live.current().del, DelAnswer::Wait);
    std::fs::write(&path, "del: maybe\n").unwrap();
    assert!(!live.reload());
    assert!(!live.reload());
    assert_eq!(live.current().del, DelAnswer::Wait);
    assert!(live.refused().unwrap().contains("maybe"));
    assert_eq!(live.node.settings_refused.get(), 1, "the metric");
    std::fs::write(&path, "del: early\n").unwrap();
    assert!(live.reload());
    assert_eq!((live.current().del, live.refused()), (DelAnswer::Early, None));
    assert_eq!(live.node.settings_refused.get(), 0, "the metric");
}

#[test]
fn r08_a_file_that_is_emptied_or_moved_away_and_written_again_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write("del: wait\n");
    let live = LiveSettings::new(&path, Node::default());
    for nothing in [Some(""), Some("# nothing yet\n"), None] {
        match nothing {
            Some(text) => write(text),
            None => std::fs::remove_file(&path).unwrap(),
        }
        assert!(!live.reload() && !live.reload(), "{nothing:?}");
        assert_eq!((live.current().del, live.refused()), (DelAnswer::Wait, None), "{nothing:?}");
        assert!(live.reload_in().unwrap() > Duration::ZERO);
        write("del: wait\n");
        assert!(!live.reload() && live.reload_in().is_none(), "{nothing:?}");
    }
    write("");
    assert!(!live.reload());
    write("del: maybe\n");
    assert!(!live.reload() && live.refused().is_some() && live.reload_in().is_none());
    write("{}\n");
    assert!(live.reload(), "who writes this wants the defaults");
}

#[test]
fn r08_a_file_that_stays_away_means_the_defaults_after_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, "del: wait\n").unwrap();
    let live = LiveSettings::new(&path, Node::default());
    let live = LiveSettings { nothing_counts_after: Duration::from_millis(200), ..live };
    std::fs::remove_file(&path).unwrap();
    assert!(!live.reload());
    std::thread::sleep(live.reload_in().unwrap());
    assert!(live.reload());
    assert_eq!(*live.current(), Settings::default());
    assert!(live.reload_in().is_none());
    std::fs::write(&path, "").unwrap();
    assert!(!live.reload() && live.reload_in().is_none(), "the defaults are in force");
}

#[test]
fn the_policy_is_read_whole_and_written_again() {
    let text = "policy:\n  dataDirRoots: [/var/lib/cni/networks, /data]\n  execute: [tuning, whereabouts]\n  executedPaths: [/tmp/whereabouts.log]\n  namespaceIsolation: true\n  \
                globalNamespaces: [default, shared]\n  lendable: [ens2f0]\n  rules:\n    - namespaces: [\"radio-*\", {labels: {tier: ran}}]\n      \
                types: [sriov, macvlan]\n      masters: [\"ens1f*\"]\n      pools: [radio]\n      vlans: [\"100-199\", 7]\n      ranges: [\"10.9.0.0/16\"]\n      \
                ipamTypes: [host-local]\n      privileged: [trust, spoofchkOff, rates, passthru, deviceAccess]\n    - namespaces: [\"*\"]\n";
    let read = parse(text).unwrap();
    assert_eq!((read.policy.rules.len(), read.policy.namespace_isolation), (2, true));
    assert_eq!(read.policy.rules[0].privileged.len(), 5);
    let again = serde_saphyr::to_string(&read).unwrap();
    assert_eq!(parse(&again).unwrap(), read, "{again}");
    assert_eq!(parse("policy: {}\n").unwrap().policy, Settings::default().policy);
}

#[test]
fn a_wrong_policy_is_refused_by_key_and_line() {
    let rule = |key: &str| format!("policy:\n  rules:\n    - namespaces: [a]\n      {key}\n");
    let table = [
        ("policy:\n  roots: [/x]\n".to_owned(), ":2: ", "roots"),
        ("policy:\n  dataDirRoots: [data]\n".to_owned(), ":2: ", "\"data\" is no absolute path"),
        ("policy:\n  dataDirRoots: [/]\n".to_owned(), ":2: ", "\"/\" is the whole host"),
        ("policy:\n  globalNamespaces: [Default/x]\n".to_owned(), ":2: ", "\"Default/x\" is no namespace"),
        (
            "policy:\n  rules: [{namespaces: [a], ranges: ['10.0.0.1']}]\n".to_owned(),
            ":2: ",
            "give its prefix too, such as \"10.0.0.1/24\"",
        ),
        ("policy:\n  dataDirRoots: [/data/../etc]\n".to_owned(), ":2: ", "without \"..\""),
        ("policy:\n  executedPaths: [x.log]\n".to_owned(), ":2: ", "\"x.log\" is no absolute path"),
        ("policy:\n  executedPaths: [/]\n".to_owned(), ":2: ", "name the file or directory"),
        ("policy:\n  execute: [/bin/sh]\n".to_owned(), ":2: ", "holds a '/'"),
        ("policy:\n  rules: []\n".to_owned(), ":2: ", "\"rules\" is empty"),
        ("policy:\n  execute:\n".to_owned(), ":2: ", "is written []"),
        (rule("masters:"), ":4: ", "is written []"),
        (rule("ranges:"), ":4: ", "is written []"),
        (rule("types: ~"), ":4: ", "is written []"),
        ("policy:\n  rules:\n    - types: [macvlan]\n".to_owned(), ":3: ", "namespaces"),
        ("policy:\n  rules:\n    - namespaces: []\n".to_owned(), ":3: ", "never decides"),
        ("policy:\n  rules:\n    - namespaces: [{label: {a: b}}]\n".to_owned(), ":3: ", "label"),
        ("policy:\n  rules:\n    - namespaces: [{labels: {}}]\n".to_owned(), ":3: ", "without a label"),
        (rule("vlans: [\"199-100\"]"), ":4: ", "\"199-100\" is no number from 0 to 4094"),
        (rule("vlans: [4095]"), ":4: ", "\"4095\" is no number from 0 to 4094"),
        (rule("hostPorts: [0]"), ":4: ", "\"0\" is no number from 1 to 65535"),
        (rule("hostPorts:"), ":4: ", "is written []"),
        (rule("ranges: [10.9]"), ":4: ", ""),
        (rule("privileged: [root]"), ":4: ", "root"),
        (rule("vlan: [5]"), ":4: ", "vlan"),
    ];
    for (text, line, part) in table {
        let refused = parse(&text).unwrap_err();
        assert!(refused.contains(line) && refused.contains(part), "{text:?}: {refused}");
    }
}
