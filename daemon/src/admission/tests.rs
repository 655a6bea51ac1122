//! Admission with a fake engine that logs what it was asked and waits where the configuration says so.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;

use fairlead_cni::wire::WIRE;
use fairlead_cni::{CniVersion, Code};

use super::*;
use crate::call::fake_service::FakeService;
use crate::call::{Lane, Reply};

/// Serves `wait:<ms>` by waiting, `slow:…` on the slow lane, `panic` by panicking; keeps what it was asked, in order.
#[derive(Default)]
struct Fake {
    log: Mutex<Vec<String>>,
    inside: Mutex<HashSet<String>>,
    overlaps: AtomicUsize,
    prepared: AtomicUsize,
    delivered: Mutex<Vec<(String, bool)>>,
    /// The calls whose delivery the engine was told at once.
    confirmed: Mutex<Vec<String>>,
    /// What `hangs` and `slow:hangs` wait for.
    hangs: Mutex<()>,
}

impl FakeService for Fake {
    fn answer(&self, request: &Request) -> Reply {
        self.log.lock().push(format!("{} {}", request.command.name(), request.args));
        if !request.container_id.is_empty() && !self.inside.lock().insert(request.container_id.clone()) {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        assert_ne!(request.config, "panic", "as asked");
        if request.config.ends_with("hangs") {
            drop(self.hangs.lock());
        } else if let Some((_, ms)) = request.config.split_once(':') {
            sleep(Duration::from_millis(ms.parse().unwrap()));
        }
        self.inside.lock().remove(&request.container_id);
        Reply { version: CniVersion::LATEST, outcome: Ok(String::new()) }
    }

    fn lane_of(&self, request: &Request) -> Lane {
        if request.config.starts_with("slow:") { Lane::Slow } else { Lane::Fast }
    }

    fn note_prepared(&self, _: &Request) {
        self.prepared.fetch_add(1, Ordering::Relaxed);
    }

    fn note_delivered(&self, request: &Request) {
        self.confirmed.lock().push(request.args.clone());
    }

    fn note_answered(&self, request: &Request, delivered: bool) {
        self.delivered.lock().push((request.args.clone(), delivered));
    }
}

fn admission(fast: usize) -> (Admission, Arc<Fake>) {
    let (admission, fake) = shut(fast);
    admission.open(fake.clone()).unwrap();
    (admission, fake)
}

fn shut(fast: usize) -> (Admission, Arc<Fake>) {
    let calls = Calls::new(&crate::metrics::Exposition::default(), &["macvlan"]);
    let limits = Limits { fast, slow: 8, queued: 1000 };
    (Admission::new(limits, calls, Arc::default()), Arc::default())
}

fn request(command: Command, container: &str, label: &str, config: &str) -> Request {
    Request {
        wire: WIRE,
        command,
        container_id: container.into(),
        netns: String::new(),
        netns_inode: None,
        own_netns: None,
        own_netns_cookie: None,
        ifname: "eth0".into(),
        args: label.into(),
        path: String::new(),
        env: Vec::new(),
        config: config.into(),
        deadline_ms: 10_000,
        issued_ns: None,
        spooled: None,
    }
}

fn send(
    admission: &Admission,
    command: Command,
    container: &str,
    label: &str,
    config: &str,
) -> SubmittedCall {
    hand_in(admission, request(command, container, label, config))
}

fn hand_in(admission: &Admission, request: Request) -> SubmittedCall {
    admission.submit(admission.prepare(request), Instant::now())
}

fn log(fake: &Fake) -> Vec<String> {
    fake.log.lock().clone()
}

fn until(what: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < limit, "it never came");
        sleep(Duration::from_millis(2));
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn slow_calls_that_come_at_once_have_a_thread_each_though_one_was_idle() {
    for _ in 0..50 {
        let (admission, fake) = admission(1);
        let slow = |name: &str, config: &str| send(&admission, Command::Add, name, name, config);
        // Its thread, the only one, is idle afterwards, and is woken for both of the next.
        assert!(matches!(slow("first", "slow:0").wait(), Outcome::Reply(..)));
        sleep(Duration::from_millis(2));
        let held = fake.hangs.lock();
        let (hangs, next) = (slow("hangs", "slow:hangs"), slow("next", "slow:0"));
        assert!(matches!(next.wait(), Outcome::Reply(..)), "it waits for the one that hangs");
        drop(held);
        assert!(matches!(hangs.wait(), Outcome::Reply(..)));
    }
}

#[test]
fn adds_that_wait_leave_slow_threads_to_dels() {
    let (admission, fake) = admission(1);
    let held = fake.hangs.lock();
    let slow = |command, name: &str, config| send(&admission, command, name, name, config);
    let adds: Vec<SubmittedCall> =
        (0..20).map(|n| slow(Command::Add, &format!("c{n}"), "slow:hangs")).collect();
    until(|| log(&fake).len() == 7);
    let del = slow(Command::Del, "gone", "slow:0");
    assert!(matches!(del.wait(), Outcome::Reply(..)), "it waits behind ADDs that wait");
    assert_eq!(log(&fake).len(), 8, "an eighth of the threads is left to DELs");
    // The DEL of one that is in line yet comes before its ADD is given up.
    let mut adds = adds;
    let del = slow(Command::Del, "c19", "slow:0");
    drop(adds.pop());
    assert!(matches!(del.wait(), Outcome::Reply(..)), "it waits behind an ADD that nobody wants any more");
    assert_eq!(log(&fake).len(), 9, "which was not begun");
    drop(held);
    assert!(adds.into_iter().all(|add| matches!(add.wait(), Outcome::Reply(..))));
}

#[test]
fn adds_of_one_namespace_that_wait_leave_slow_threads_to_those_of_others() {
    let (admission, fake) = admission(1);
    let held = fake.hangs.lock();
    let add = |namespace: &str, n: usize, config| {
        let pod = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=p{n}");
        send(&admission, Command::Add, &format!("{namespace}{n}"), &pod, config)
    };
    let mut all: Vec<SubmittedCall> = (0..20).map(|n| add("a", n, "slow:hangs")).collect();
    until(|| log(&fake).len() == 6);
    assert!(
        matches!(add("b", 0, "slow:0").wait(), Outcome::Reply(..)),
        "it waits behind another namespace's"
    );
    assert_eq!(log(&fake).len(), 7, "a quarter of the threads is left to others");
    // One that nobody wants any more is given up, and the DEL behind it is begun.
    let del = send(&admission, Command::Del, "a19", "a19", "slow:0");
    drop(all.pop());
    assert!(matches!(del.wait(), Outcome::Reply(..)), "it waits behind an ADD that nobody wants any more");
    drop(held);
    assert!(all.into_iter().all(|add| matches!(add.wait(), Outcome::Reply(..))));
}

#[test]
fn calls_are_begun_in_the_order_of_their_arrival() {
    let (admission, fake) = admission(1);
    let all: Vec<SubmittedCall> =
        (0..20).map(|n| send(&admission, Command::Add, &format!("c{n}"), &n.to_string(), "wait:1")).collect();
    all.into_iter().for_each(|s| assert!(matches!(s.wait(), Outcome::Reply(..))));
    assert_eq!(log(&fake), (0..20).map(|n| format!("ADD {n}")).collect::<Vec<_>>());
}

#[test]
fn calls_of_one_container_never_overlap_and_keep_their_order_across_lanes() {
    let (admission, fake) = admission(4);
    let mut all = Vec::new();
    for n in 0..60 {
        let config = if n % 7 == 0 { "slow:3" } else { "wait:1" };
        let command = if n % 3 == 0 { Command::Del } else { Command::Add };
        all.push(send(&admission, command, &format!("c{}", n % 3), &format!("{n:02}"), config));
    }
    all.into_iter().for_each(|s| drop(s.wait()));
    assert_eq!(fake.overlaps.load(Ordering::Relaxed), 0);
    for container in 0..3 {
        let of: Vec<u32> = log(&fake)
            .iter()
            .map(|line| line.split(' ').nth(1).unwrap().parse().unwrap())
            .filter(|n| *n % 3 == container)
            .collect();
        assert!(of.is_sorted(), "{of:?}");
        assert_eq!(of.len(), 20);
    }
}

#[test]
fn one_containers_queue_holds_up_no_other() {
    let (admission, fake) = admission(2);
    let held = fake.hangs.lock();
    let first = send(&admission, Command::Add, "a", "a1", "hangs");
    until(|| !log(&fake).is_empty());
    let behind: Vec<SubmittedCall> =
        (2..9).map(|n| send(&admission, Command::Add, "a", &format!("a{n}"), "")).collect();
    assert!(matches!(send(&admission, Command::Add, "b", "b1", "").wait(), Outcome::Reply(..)));
    assert_eq!(log(&fake), ["ADD a1", "ADD b1"]);
    drop(held);
    drop(first.wait());
    behind.into_iter().for_each(|s| drop(s.wait()));
}

#[test]
fn a_queued_add_whose_caller_is_gone_is_never_begun_and_a_del_goes_on() {
    let (admission, fake) = admission(1);
    let held = fake.hangs.lock();
    let busy = send(&admission, Command::Add, "x", "busy", "hangs");
    until(|| !log(&fake).is_empty());
    // Of the same container: no further thread begins them before it is over, however long that takes.
    drop(send(&admission, Command::Add, "x", "gone", ""));
    drop(send(&admission, Command::Check, "x", "gone", ""));
    drop(send(&admission, Command::Del, "x", "durable", ""));
    drop(send(&admission, Command::Gc, "", "durable", ""));
    drop(held);
    drop(busy.wait());
    drop(send(&admission, Command::Add, "x", "last", "").wait());
    until(|| log(&fake).len() == 4);
    let of_container: Vec<String> = log(&fake).into_iter().filter(|line| line != "GC durable").collect();
    assert_eq!(of_container, ["ADD busy", "DEL durable", "ADD last"]);
}

#[test]
fn a_call_at_work_learns_that_its_caller_is_gone() {
    let (admission, fake) = admission(1);
    let call = send(&admission, Command::Add, "a", "a", "wait:50");
    let gone = call.gone.clone();
    until(|| !log(&fake).is_empty());
    drop(call);
    assert!(gone.get());
    until(|| fake.delivered.lock().len() == 1);
    assert_eq!(*fake.delivered.lock(), [("a".to_owned(), false)]);
}

#[test]
fn an_adds_receipt_tells_the_engine_whether_its_answer_was_delivered() {
    let (admission, fake) = admission(1);
    match send(&admission, Command::Add, "a", "written", "").wait() {
        Outcome::Reply(_, receipt) => {
            receipt.give_back(true);
            assert_eq!(*fake.confirmed.lock(), ["written"], "at once");
        }
        other => panic!("{other:?}"),
    }
    drop(send(&admission, Command::Add, "b", "lost", "").wait());
    until(|| fake.delivered.lock().len() == 2);
    assert_eq!(*fake.confirmed.lock(), ["written"], "what was lost is no delivery");
    let told = fake.delivered.lock().clone();
    assert_eq!(told, [("written".to_owned(), true), ("lost".to_owned(), false)]);
}

#[test]
fn a_deadline_that_passes_in_the_queue_is_told_and_the_call_is_never_begun() {
    let (admission, fake) = admission(1);
    let held = fake.hangs.lock();
    let busy = send(&admission, Command::Add, "x", "busy", "hangs");
    until(|| !log(&fake).is_empty());
    let late = Request { deadline_ms: 20, ..request(Command::Add, "x", "late", "") };
    let late = hand_in(&admission, late);
    assert!(matches!(runtime().block_on(late.outcome()), Outcome::TooLate));
    drop(held);
    drop(busy.wait());
    drop(send(&admission, Command::Add, "b", "next", "").wait());
    assert_eq!(log(&fake), ["ADD busy", "ADD next"]);
}

#[test]
fn r06_before_it_is_open_calls_are_held_in_order_and_then_begun() {
    let (admission, fake) = shut(1);
    let held = [(Command::Del, "1"), (Command::Add, "2"), (Command::Check, "3")]
        .map(|(command, label)| send(&admission, command, "c", label, ""));
    let late = Request { deadline_ms: 20, ..request(Command::Add, "d", "late", "") };
    let late = hand_in(&admission, late);
    assert!(matches!(runtime().block_on(late.outcome()), Outcome::TooLate));
    assert!(log(&fake).is_empty());
    admission.open(fake.clone()).unwrap();
    held.into_iter().for_each(|s| assert!(matches!(s.wait(), Outcome::Reply(..))));
    assert_eq!(log(&fake), ["DEL 1", "ADD 2", "CHECK 3"]);
    assert_eq!(fake.prepared.load(Ordering::Relaxed), 4, "those that were held, too, and each once");
}

#[test]
fn x02_an_add_waits_for_the_spooled_del_of_its_attachment_and_holds_up_nobody() {
    let (admission, fake) = admission(1);
    admission.hold(("a".into(), "eth0".into()));
    let held = send(&admission, Command::Add, "a", "held", "");
    assert!(matches!(send(&admission, Command::Del, "a", "retried", "").wait(), Outcome::Reply(..)));
    assert!(matches!(send(&admission, Command::Add, "b", "other", "").wait(), Outcome::Reply(..)));
    assert_eq!(log(&fake), ["DEL retried", "ADD other"]);
    admission.release(&("a".into(), "eth0".into()));
    assert!(matches!(held.wait(), Outcome::Reply(..)));
    assert_eq!(log(&fake).last().unwrap(), "ADD held");
}

#[test]
fn k18_after_the_stop_nothing_is_begun_what_is_at_work_ends_and_a_del_without_a_caller_goes_on() {
    let (admission, fake) = admission(1);
    let held = fake.hangs.lock();
    let busy = send(&admission, Command::Add, "x", "busy", "hangs");
    until(|| !log(&fake).is_empty());
    let queued = send(&admission, Command::Del, "x", "queued", "");
    drop(send(&admission, Command::Del, "x", "orphaned", ""));
    admission.stop();
    assert!(matches!(queued.wait(), Outcome::NotBegun));
    assert!(matches!(send(&admission, Command::Add, "c", "new", "").wait(), Outcome::NotBegun));
    assert!(!admission.drained(Duration::from_millis(10)));
    drop(held);
    drop(busy.wait());
    assert!(admission.drained(Duration::from_secs(60)));
    assert_eq!(log(&fake), ["ADD busy", "DEL orphaned"]);
}

#[test]
fn k04_a_panic_in_the_engine_is_answered_and_the_thread_goes_on() {
    let (admission, _fake) = admission(1);
    match send(&admission, Command::Add, "a", "a", "panic").wait() {
        Outcome::Reply(reply, _) => {
            let error = reply.outcome.unwrap_err();
            assert_eq!(error.code, Code::Internal);
            assert!(error.msg.contains("as asked"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(send(&admission, Command::Add, "b", "b", "").wait(), Outcome::Reply(..)));
}

#[test]
fn x04_status_is_answered_while_every_other_thread_is_busy() {
    let (admission, _fake) = admission(1);
    let mut busy = send(&admission, Command::Add, "x", "busy", "wait:3000");
    assert!(matches!(send(&admission, Command::Status, "", "s", "").wait(), Outcome::Reply(..)));
    assert!(busy.answer.try_recv().is_err(), "the other call was still at work");
}

/// Calls of `outcome`, all at once.
fn outcomes(all: Vec<SubmittedCall>) -> Vec<Outcome> {
    runtime().block_on(futures_util::future::join_all(all.into_iter().map(SubmittedCall::outcome)))
}

fn threads(admission: &Admission) -> usize {
    admission.0.lock().workers.threads
}

#[test]
fn stuck_calls_of_the_fast_lane_hold_up_nobody_and_their_threads_end_with_them() {
    let (admission, fake) = admission(2);
    let stuck: Vec<SubmittedCall> =
        (0..6).map(|n| send(&admission, Command::Add, &format!("s{n}"), "stuck", "wait:3000")).collect();
    let behind = send(&admission, Command::Add, "b", "behind", "");
    let answered = std::thread::scope(|s| {
        let stuck = s.spawn(|| outcomes(stuck));
        assert!(matches!(runtime().block_on(behind.outcome()), Outcome::Reply(..)));
        assert!(!stuck.is_finished(), "the others are over");
        assert!(threads(&admission) > 2);
        stuck.join().unwrap()
    });
    assert!(answered.iter().all(|outcome| matches!(outcome, Outcome::Reply(..))));
    assert_eq!(log(&fake).len(), 7);
    until(|| threads(&admission) == 2);
}

#[test]
fn further_threads_of_the_fast_lane_are_bounded() {
    let calls = Calls::new(&crate::metrics::Exposition::default(), &["macvlan"]);
    let admission = Admission::new(Limits { fast: 1, slow: 2, queued: 100 }, calls, Arc::default());
    admission.open(Arc::<Fake>::default()).unwrap();
    let stuck: Vec<SubmittedCall> =
        (0..9).map(|n| send(&admission, Command::Add, &format!("s{n}"), "stuck", "wait:200")).collect();
    assert_eq!(most_threads(&admission, stuck), 3);
    until(|| threads(&admission) == 1);
}

/// The most threads of the fast lane that there were until these calls were answered.
fn most_threads(admission: &Admission, all: Vec<SubmittedCall>) -> usize {
    std::thread::scope(|s| {
        let all = s.spawn(|| outcomes(all));
        let mut most = 0;
        while !all.is_finished() {
            most = most.max(threads(admission));
            sleep(Duration::from_millis(1));
        }
        most
    })
}

#[test]
fn a_burst_of_short_calls_makes_no_further_thread() {
    let (admission, _fake) = admission(4);
    let short = |n| send(&admission, Command::Add, &format!("c{n}"), "short", "wait:2");
    // Once more where this machine is so loaded that a call of 2 ms takes 50.
    until(|| most_threads(&admission, (0..500).map(short).collect()) == 4);
}

#[test]
fn x12_more_calls_than_may_wait_are_told_to_try_again() {
    let calls = Calls::new(&crate::metrics::Exposition::default(), &["macvlan"]);
    let admission = Admission::new(Limits { fast: 1, slow: 1, queued: 2 }, calls, Arc::default());
    let _waiting =
        [send(&admission, Command::Add, "a", "1", ""), send(&admission, Command::Add, "b", "2", "")];
    assert!(matches!(send(&admission, Command::Add, "c", "3", "").wait(), Outcome::Full));
}

#[test]
fn a_call_is_carried_out_where_it_was_accepted_only_if_nothing_has_to_come_before_it() {
    let (admission, fake) = admission(1);
    let here = |container: &str, config: &str| {
        let call = admission.prepare(request(Command::Add, container, "here", config));
        admission.serve_here(call, Instant::now(), CallerGone::default())
    };
    let (_, _, done) = here("a", "").unwrap();
    here("a", "").expect_err("another of its container is at work until it was concluded");
    let (_, _, beside) = here("b", "").unwrap();
    for done in [done, beside] {
        admission.conclude(&done);
        admission.counted(&done);
    }
    here("b", "slow:0").expect_err("it would keep the thread for long");

    admission.hold(pod_interface_of(&request(Command::Add, "held", "", "")));
    here("held", "").expect_err("a spooled DEL comes before it");
    let (_, _, done) = here("b", "").unwrap();
    let behind = send(&admission, Command::Del, "b", "behind", "");
    admission.conclude(&done);
    admission.counted(&done);
    assert!(matches!(behind.wait(), Outcome::Reply(..)));
    assert_eq!(*fake.log.lock(), ["ADD here", "ADD here", "ADD here", "DEL behind"]);

    admission.stop();
    here("c", "").expect_err("nothing is begun any more");
    assert!(admission.drained(Duration::from_secs(5)));
}

#[test]
fn an_acceptor_carries_out_a_short_line_in_its_order_and_leaves_a_long_one_to_its_threads() {
    let (admission, fake) = admission(1);
    let held = fake.hangs.lock();
    let hangs = send(&admission, Command::Add, "hangs", "hangs", "hangs");
    until(|| fake.log.lock().len() == 1);
    assert!(!admission.has_short_line(), "nobody waits");
    let several: Vec<SubmittedCall> = [("a", "1"), ("b", "2"), ("a", "3")]
        .map(|(container, label)| send(&admission, Command::Add, container, label, ""))
        .into();
    // The second call of a container is in line when the first has ended.
    while admission.has_short_line() {
        admission.serve_first_in_line();
    }
    several.into_iter().for_each(|call| assert!(matches!(call.wait(), Outcome::Reply(..))));
    assert_eq!(log(&fake), ["ADD hangs", "ADD 1", "ADD 2", "ADD 3"]);
    admission.serve_first_in_line();
    assert_eq!(log(&fake).len(), 4, "the line is empty");

    let many: Vec<SubmittedCall> =
        (0..=SHORT_LINE).map(|n| send(&admission, Command::Add, &n.to_string(), "many", "")).collect();
    assert!(!admission.has_short_line());
    admission.serve_first_in_line();
    assert!(admission.has_short_line());
    drop(held);
    many.into_iter().chain([hangs]).for_each(|call| assert!(matches!(call.wait(), Outcome::Reply(..))));
    assert_eq!(fake.overlaps.load(Ordering::Relaxed), 0);
    admission.stop();
    assert!(admission.drained(Duration::from_secs(5)), "each call is counted once as begun and as ended");
}

#[test]
fn a_request_is_prepared_once_also_where_it_is_not_carried_out_where_it_was_accepted() {
    let (admission, fake) = admission(1);
    let call = admission.prepare(request(Command::Add, "a", "a", "slow:0"));
    let call = admission.serve_here(call, Instant::now(), CallerGone::default()).unwrap_err();
    match admission.submit(call, Instant::now()).wait() {
        Outcome::Reply(_, receipt) => receipt.give_back(true),
        other => panic!("{other:?}"),
    }
    until(|| fake.delivered.lock().len() == 1);
    assert_eq!(fake.prepared.load(Ordering::Relaxed), 1);
}
