//! Calls that are carried out where they were accepted, or wait: in which order, past whom, and what becomes of them at the end.

use super::*;

/// Longer than any test: what is held goes on when the test opens the gate.
const HELD: u64 = 30_000;

fn send(rig: &TestServer, command: Command, container: &str) -> Caller {
    let body = request(command, container, &json!({})).to_string();
    let mut stream = Caller::connect(&rig.socket).unwrap();
    let head =
        format!("POST {} HTTP/1.1\r\nHost: f\r\nContent-Length: {}\r\n\r\n", command.path(), body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

#[test]
fn a_caller_that_hangs_up_in_the_queue_is_not_served_and_its_del_is() {
    let rig = TestServer::open();
    let (socket, held) = (&rig.socket, json!({ "held": HELD }));
    std::thread::scope(|scope| {
        // One is at work where it was accepted, one on the only thread for calls.
        let first = executables_call(Command::Add, "first", &held);
        let first = scope.spawn(move || ask(socket, &[&first]));
        rig.has_begun("first");
        let second = scope.spawn(|| call(&rig, Command::Add, "second", &held));
        rig.has_begun("second");
        // Handed in before they hang up, so that it is the queue that drops one.
        let gone = send(&rig, Command::Add, "gone");
        rig.has_queued(1);
        let removed = send(&rig, Command::Del, "removed");
        rig.has_queued(2);
        drop((gone, removed));
        // The server has one thread: when it has answered what came after it, it has seen who hung up.
        for _ in 0..3 {
            assert_eq!(http(&rig.socket, "GET", "/healthz", "").status, 200);
        }
        rig.fake.gate.open();
        assert_eq!((first.join().unwrap().status, second.join().unwrap().status), (200, 200));
    });
    assert_eq!(call(&rig, Command::Add, "last", &json!({})).status, 200);
    rig.until("the DEL is carried out", |rig| rig.fake.served.lock().len() >= 4);
    let mut served = rig.fake.served.lock().clone();
    // They went on together.
    served.sort_unstable();
    assert_eq!(served, ["first", "last", "removed", "second"]);
}

#[test]
fn a_call_that_takes_long_where_it_was_accepted_holds_up_nobody() {
    let rig = TestServer::open();
    let socket = &rig.socket;
    std::thread::scope(|scope| {
        let call_of_long = executables_call(Command::Add, "long", &json!({ "held": HELD }));
        let long = scope.spawn(move || ask(socket, &[&call_of_long]));
        rig.has_begun("long");
        assert_eq!(http(&rig.socket, "GET", "/healthz", "").status, 200);
        assert_eq!(call(&rig, Command::Add, "other", &json!({})).status, 200);
        assert_eq!(*rig.fake.served.lock(), ["other"]);
        // Of the same container: behind it.
        let behind = scope.spawn(|| call(&rig, Command::Del, "long", &json!({})));
        rig.has_queued(1);
        assert_eq!(*rig.fake.begun.lock(), ["long", "other"]);
        rig.fake.gate.open();
        assert_eq!(behind.join().unwrap().status, 200);
        assert_eq!(*rig.fake.served.lock(), ["other", "long", "long"]);
        assert_eq!(long.join().unwrap().status, 200);
    });
}

#[test]
fn a_question_does_not_wait_for_all_calls_before_it_where_they_take_long() {
    let rig = TestServer::open();
    // Each takes this long until the question is answered, and all of them came before it.
    let call = |n| executables_call(Command::Add, &format!("c{n}"), &json!({ "held": 150 }));
    let callers: Vec<Caller> = (0..60)
        .map(|n| {
            let mut stream = Caller::connect(&rig.socket).unwrap();
            stream.write_all(&call(n)).unwrap();
            stream
        })
        .collect();
    assert_eq!(http(&rig.socket, "GET", "/healthz", "").status, 200);
    let served = rig.fake.served.lock().len();
    rig.fake.gate.open();
    assert!(served < 60, "it was answered after all of them");
    assert!(callers.into_iter().all(|stream| answer_of(stream).status == 200));
}

#[test]
fn a_call_in_pieces_a_large_one_a_slow_one_and_a_fault_are_answered_by_the_router() {
    let rig = TestServer::open();
    let add = executables_call(Command::Add, "pieces", &json!({}));
    for cut in [1, 30, add.len() - 1] {
        assert_eq!(ask(&rig.socket, &[&add[..cut], &add[cut..]]).status, 200, "cut at {cut}");
    }
    let large = executables_call(Command::Add, "large", &json!({ "x": "x".repeat(100_000) }));
    assert_eq!(ask(&rig.socket, &[&large]).status, 200);
    let before = rig.fake.prepared.load(Ordering::Relaxed);
    assert_eq!(ask(&rig.socket, &[&executables_call(Command::Add, "slow", &json!({}))]).status, 200);
    assert_eq!(rig.fake.prepared.load(Ordering::Relaxed), before + 1, "prepared once");
    let fault = ask(&rig.socket, &[&executables_call(Command::Add, "fault", &json!({}))]);
    assert_eq!((fault.status, fault.code()), (500, 999));
    assert_eq!(ask(&rig.socket, &[&add]).status, 200, "the acceptor goes on");
}

#[test]
fn what_is_in_the_backlog_at_the_end_is_answered_still() {
    let mut rig = TestServer::open();
    rig.server.admission.stop();
    // All have connected, and asked, before the end begins.
    let asked: Vec<Caller> = (0..20).map(|_| send(&rig, Command::Add, "c")).collect();
    let callers: Vec<_> =
        asked.into_iter().map(|stream| std::thread::spawn(move || answer_of(stream).code())).collect();
    rig.closing.notify_one();
    rig.thread.take().unwrap().join().unwrap();
    assert!(callers.into_iter().all(|caller| caller.join().unwrap() == 11));
    assert!(Caller::connect(&rig.socket).is_err(), "nobody gets in any more");
}

#[test]
fn the_acceptors_end_with_the_server_and_see_to_what_they_answered() {
    let mut rig = TestServer::open();
    for n in 0..3 {
        assert_eq!(call(&rig, Command::Add, &format!("c{n}"), &json!({})).status, 200);
    }
    let begun = Instant::now();
    rig.closing.notify_one();
    rig.thread.take().unwrap().join().unwrap();
    // Else it waits for them for as long as this.
    assert!(begun.elapsed() < LAST_ANSWERS / 2, "{:?}", begun.elapsed());
    assert_eq!(rig.delivered(3), [true; 3]);
}
