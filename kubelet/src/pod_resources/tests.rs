//! PodResources against a fake kubelet on a real socket.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use tempfile::TempDir;

use super::super::fake_kubelet::{FakeKubelet, Get, LONG, device, exhausted, on_node, pod};
use super::*;

const RADIO: &str = "intel.com/radio";

fn du() -> PodName {
    PodName { namespace: "ran".into(), name: "du-0".into() }
}

fn soon() -> Instant {
    Instant::now() + LONG
}

fn kubelet() -> (TempDir, FakeKubelet, PodResources) {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::running(root.path());
    kubelet.answers.lock().unwrap().pods = vec![
        pod("ran", "cu-0", &[("app", &[(RADIO, "0000:3b:02.3", 0)])]),
        pod(
            "ran",
            "du-0",
            &[("app", &[(RADIO, "0000:3b:02.1", 1), (RADIO, "0000:3b:02.0", 1)]), ("log", &[])],
        ),
        pod("other", "du-0", &[("app", &[(RADIO, "0000:3b:02.4", 0)])]),
    ];
    let resources = PodResources::new(kubelet.directory());
    (root, kubelet, resources)
}

fn ids(allocated: &ResourcesOfPod) -> Vec<&str> {
    allocated.containers.iter().flat_map(|c| &c.devices).flat_map(|g| &g.ids).map(String::as_str).collect()
}

#[test]
fn k27_what_a_pod_has_comes_with_containers_nodes_processors_and_memory() {
    let (_root, kubelet, resources) = kubelet();
    {
        let mut answers = kubelet.answers.lock().unwrap();
        let app = &mut answers.pods[1].containers[0];
        app.cpu_ids = vec![20, 21, -1];
        let block = wire::ContainerMemory { topology: Some(on_node(1)) };
        app.memory = vec![block.clone(), block];
    }
    let allocated = resources.pod(&du(), soon()).unwrap();
    assert_eq!(ids(&allocated), ["0000:3b:02.1", "0000:3b:02.0"]);
    let [app, log] = allocated.containers.as_slice() else { panic!("{allocated:?}") };
    assert_eq!((app.name.as_str(), log.name.as_str()), ("app", "log"));
    assert_eq!((app.devices[0].nodes.as_slice(), app.devices[0].resource.as_str()), ([1].as_slice(), RADIO));
    assert_eq!((app.cpus.as_slice(), app.memory_nodes.as_slice()), ([20, 21].as_slice(), [1].as_slice()));
    assert_eq!(kubelet.answers.lock().unwrap().lists, 0, "one pod is asked for, not all");
}

#[test]
fn k27_a_kubelet_that_only_lists_all_pods_is_asked_for_one_pod_only_once() {
    for get in [Get::Unimplemented, Get::Disabled] {
        let (_root, kubelet, resources) = kubelet();
        kubelet.answers.lock().unwrap().get = get;
        for _ in 0..3 {
            let allocated = resources.pod(&du(), soon()).unwrap();
            assert_eq!(ids(&allocated), ["0000:3b:02.1", "0000:3b:02.0"], "{get:?}");
        }
        let answers = kubelet.answers.lock().unwrap();
        assert_eq!((answers.gets, answers.lists), (1, 3), "{get:?}");
    }
}

#[test]
fn x10_a_kubelet_that_is_asked_too_much_is_asked_again_for_a_list_and_not_believed_to_have_nothing() {
    let (_root, kubelet, resources) = kubelet();
    kubelet.answers.lock().unwrap().refusals = vec![exhausted(); 3].into();
    assert_eq!(resources.pod(&du(), soon()).unwrap().containers.len(), 2);
    let answers = kubelet.answers.lock().unwrap();
    assert_eq!((answers.gets, answers.lists), (1, 3));
}

#[test]
fn x10_no_answer_in_time_is_an_error_that_says_why() {
    let (_root, kubelet, resources) = kubelet();
    kubelet.answers.lock().unwrap().refusals = vec![exhausted(); 1000].into();
    let begun = Instant::now();
    let error = resources.pod(&du(), begun + Duration::from_secs(2)).unwrap_err();
    assert!(matches!(error, PodResourcesError::Refused { code: Code::ResourceExhausted, .. }), "{error}");
    assert!(begun.elapsed() < LONG);
    assert!(error.to_string().contains("rejected by rate limit"), "{error}");
}

#[test]
fn x10_a_kubelet_that_hangs_is_given_up_at_the_deadline() {
    let (_root, kubelet, resources) = kubelet();
    kubelet.answers.lock().unwrap().get = Get::Disabled;
    kubelet.answers.lock().unwrap().thinks = LONG * 2;
    let begun = Instant::now();
    let error = resources.pod(&du(), begun + Duration::from_secs(2)).unwrap_err();
    assert!(matches!(error, PodResourcesError::Late { .. }), "{error}");
    assert!(begun.elapsed() < LONG);
}

#[test]
fn x10_a_kubelet_that_is_just_starting_is_waited_for() {
    let (_root, mut kubelet, resources) = kubelet();
    kubelet.stop();
    let error = resources.pod(&du(), Instant::now()).unwrap_err();
    assert!(matches!(error, PodResourcesError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("/var/lib/kubelet/pod-resources/kubelet.sock"), "{error}");
    let asked = thread::spawn(move || resources.pod(&du(), soon()));
    sleep(Duration::from_millis(100));
    kubelet.start();
    assert_eq!(asked.join().unwrap().unwrap().containers.len(), 2);
}

#[test]
fn x10_many_who_ask_at_once_are_served_by_few_lists_and_each_gets_its_own_pod() {
    let (_root, kubelet, resources) = kubelet();
    {
        let mut answers = kubelet.answers.lock().unwrap();
        (answers.get, answers.thinks) = (Get::Disabled, Duration::from_millis(100));
        let one = |n| pod("many", &format!("p{n}"), &[("app", &[(RADIO, &format!("0000:3b:02.{n}"), 0)])]);
        answers.pods.extend((0..8).map(one));
    }
    resources.lists_only.store(true, Ordering::Relaxed);
    let resources = &resources;
    thread::scope(|scope| {
        for n in 0..32 {
            scope.spawn(move || {
                let name = PodName { namespace: "many".into(), name: format!("p{}", n % 8) };
                let allocated = resources.pod(&name, soon()).unwrap();
                assert_eq!(ids(&allocated), [format!("0000:3b:02.{}", n % 8)]);
            });
        }
    });
    let lists = kubelet.answers.lock().unwrap().lists;
    assert!(lists < 16, "{lists} lists for 32 who asked");
    assert!(resources.lists.lock().last.is_none(), "nothing is held when nobody waits");
}

#[test]
fn x10_a_list_that_began_before_the_question_does_not_answer_it() {
    let (_root, kubelet, resources) = kubelet();
    kubelet.answers.lock().unwrap().thinks = Duration::from_millis(300);
    resources.lists_only.store(true, Ordering::Relaxed);
    let resources = &resources;
    thread::scope(|scope| {
        scope.spawn(move || resources.pod(&du(), soon()).unwrap());
        while kubelet.answers.lock().unwrap().lists == 0 {
            thread::yield_now();
        }
        let late = pod("ran", "late", &[("app", &[(RADIO, "0000:3b:02.7", 0)])]);
        kubelet.answers.lock().unwrap().pods.push(late);
        let name = PodName { namespace: "ran".into(), name: "late".into() };
        let until = Instant::now() + LONG;
        let allocated =
            resources.shared_list(until).map(|pods| find_pod(pods.as_ref().as_ref().unwrap(), &name));
        assert_eq!(ids(&allocated.unwrap().unwrap()), ["0000:3b:02.7"]);
    });
    assert_eq!(kubelet.answers.lock().unwrap().lists, 2);
}

#[test]
fn x10_a_list_that_ends_by_a_panic_keeps_nobody_from_the_next() {
    let (_root, kubelet, resources) = kubelet();
    resources.lists_only.store(true, Ordering::Relaxed);
    // The call makes a runtime of its own, which panics where one runs already.
    let outer = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let panics = || outer.block_on(async { resources.shared_list(soon()).is_ok() });
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    assert_eq!(ids(&resources.pod(&du(), soon()).unwrap()), ["0000:3b:02.1", "0000:3b:02.0"]);
    assert_eq!(kubelet.answers.lock().unwrap().lists, 1);
    let lists = resources.lists.lock();
    assert!(lists.waiting == 0 && lists.last.is_none(), "nothing is held when nobody waits");
}

#[test]
fn x10_a_finished_pod_of_the_same_name_is_not_taken_for_the_living_one() {
    let finished = pod("ran", "du-0", &[("app", &[]), ("log", &[])]);
    let living = pod("ran", "du-0", &[("app", &[(RADIO, "0000:3b:02.1", 1)]), ("log", &[])]);
    for pods in [[finished.clone(), living.clone()], [living.clone(), finished]] {
        assert_eq!(ids(&find_pod(&pods, &du()).unwrap()), ["0000:3b:02.1"]);
    }
    let older = pod("ran", "du-0", &[("app", &[(RADIO, "0000:3b:02.6", 1)])]);
    let error = find_pod(&[older, living], &du()).unwrap_err();
    assert!(matches!(error, PodResourcesError::Ambiguous(_)), "{error}");
    let unknown = find_pod(&[], &du()).unwrap_err();
    assert_eq!(unknown.to_string(), "kubelet knows no pod ran/du-0");
}

#[test]
fn what_every_plugin_of_the_node_announces_is_listed() {
    let (_root, kubelet, resources) = kubelet();
    kubelet.answers.lock().unwrap().allocatable =
        vec![device(RADIO, "0000:3b:02.0", 1), device("other.org/vf", "0000:3b:02.0", 1)];
    kubelet.answers.lock().unwrap().refusals = vec![exhausted()].into();
    let all = resources.allocatable(soon()).unwrap();
    let of = |resource: &str| ResourceDevices {
        resource: resource.into(),
        ids: vec!["0000:3b:02.0".into()],
        nodes: vec![1],
    };
    assert_eq!(all, [of(RADIO), of("other.org/vf")]);
}

#[test]
fn what_pods_have_is_listed_while_no_device_plugin_announces_it() {
    let (_root, kubelet, resources) = kubelet();
    kubelet.answers.lock().unwrap().refusals = vec![exhausted()].into();
    let given = resources.allocated(soon()).unwrap();
    let ids: Vec<&str> = given.iter().flat_map(|devices| &devices.ids).map(String::as_str).collect();
    assert_eq!(ids, ["0000:3b:02.3", "0000:3b:02.1", "0000:3b:02.0", "0000:3b:02.4"]);
    assert!(resources.allocatable(soon()).unwrap().is_empty());
}
