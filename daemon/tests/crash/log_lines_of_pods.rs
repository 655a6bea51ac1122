//! What is logged in the middle of a call names the pod.

use std::fs::create_dir_all;

use super::rig::{Reply, Rig};

#[test]
fn a_line_that_is_logged_in_the_middle_of_a_call_names_the_pod_that_it_is_for_and_the_next_call_s_pod_after_it()
 {
    let rig = Rig::new();
    let _daemon = rig.start();
    let config = rig.macvlan("net");
    // Nothing can be written there: each ADD is undone, which is worth a line before its answer.
    create_dir_all(rig.path("data/net/last_reserved_ip.0")).unwrap();
    for pod in ["first", "second"] {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_UID=uid-{pod}");
        let added = rig.call(pod, &rig.pod(pod), &config).with_args(args).add();
        assert!(matches!(added, Reply::Refused(_)), "{added:?}");
    }
    let log = rig.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("ADD is undone")).collect();
    let [first, second] = lines[..] else { panic!("{log}") };
    for (line, pod) in [(first, "first"), (second, "second")] {
        let span = format!("pod{{pod=\"shop/{pod}\" pod_uid=\"uid-{pod}\"}}: ");
        assert!(line.contains(&span), "{line}");
        assert_eq!(line.matches("pod{").count(), 1, "{line}");
    }
}
