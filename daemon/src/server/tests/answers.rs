//! What is answered to whom, and what the engine learns of the way of an answer.

use std::fs::File;
use std::thread::scope;
use std::time::SystemTime;

use fairlead_cni::wire::{MAX_BODY, NOT_BEGUN, OUTCOME_HEADER};

use super::*;

#[test]
fn k01_each_call_is_answered_with_a_result_or_an_error_in_its_own_version() {
    let rig = TestServer::open();
    for command in [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status] {
        let good = call(&rig, command, "c", &json!({}));
        assert_eq!((good.status, good.body.as_str()), (200, r#"{"cniVersion":"1.1.0"}"#));
        let bad = call(&rig, command, "c", &json!({ "fail": "no such mode" }));
        assert_eq!((bad.status, bad.code()), (400, 7));
        assert!(bad.body.contains(r#""cniVersion":"0.4.0""#), "{bad:?}");
    }
}

#[test]
fn every_rejection_of_the_servers_own_is_a_cni_error_object() {
    let rig = TestServer::open();
    let add = request(Command::Add, "c", &json!({}));
    let with = |key: &str, value: Value| {
        let mut changed = add.clone();
        changed[key] = value;
        changed.to_string()
    };
    let large = format!("POST /addNetwork HTTP/1.1\r\nHost: f\r\nContent-Length: {}\r\n\r\n", MAX_BODY + 1);
    let chunked = "POST /addNetwork HTTP/1.1\r\nHost: f\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    let post = |path: &str, body: &str| http(&rig.socket, "POST", path, body);
    let endless = format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(200_000));
    let later = r#"{"wire":2,"shape":"another"}"#;
    let table = [
        ("too large", raw(&rig.socket, large.as_bytes()), 413, 7),
        ("no HTTP", raw(&rig.socket, b"hello\r\n\r\n"), 400, 6),
        ("HTTP of another version", raw(&rig.socket, b"GET / HTTP/9.9\r\n\r\n"), 400, 6),
        ("a head without an end", raw(&rig.socket, endless.as_bytes()), 431, 6),
        ("broken chunks", raw(&rig.socket, chunked.as_bytes()), 400, 6),
        ("wrong method", http(&rig.socket, "GET", "/addNetwork", ""), 405, 4),
        ("wrong method for a table", post("/v1/attachments", ""), 405, 4),
        ("no such path", post("/nothing", ""), 404, 4),
        ("a table that is no text", http(&rig.socket, "GET", "/v1/%ff", ""), 400, 4),
        ("orphans neither true nor false", post("/v1/gc?orphans=maybe", ""), 400, 4),
        ("no such table", http(&rig.socket, "GET", "/v1/nothing", ""), 404, 4),
        ("no JSON", post("/addNetwork", "{"), 400, 6),
        (
            "no UTF-8",
            raw(&rig.socket, b"POST /addNetwork HTTP/1.1\r\nHost: f\r\nContent-Length: 3\r\n\r\n\"\xff\""),
            400,
            6,
        ),
        ("empty", post("/addNetwork", ""), 400, 6),
        ("later wire", post("/addNetwork", &with("wire", json!(WIRE + 1))), 400, 1),
        ("later wire of another shape", post("/addNetwork", later), 400, 1),
        ("wire 0", post("/addNetwork", &with("wire", json!(0))), 400, 1),
        ("path of another command", post("/delNetwork", &add.to_string()), 400, 4),
        ("panic in a handler", http(&rig.socket, "GET", "/v1/pools", ""), 500, 999),
    ];
    for (name, answer, status, code) in table {
        assert_eq!((answer.status, answer.code()), (status, code), "{name}: {answer:?}");
    }
    assert_eq!(call(&rig, Command::Add, "c", &json!({})).status, 200);
}

#[test]
fn the_executable_s_own_calls_get_the_answers_that_http_gets() {
    let rig = TestServer::open();
    for (command, config) in [
        (Command::Add, json!({})),
        (Command::Add, json!({ "fail": "as asked" })),
        (Command::Del, json!({})),
        (Command::Check, json!({ "fail": "as asked" })),
        (Command::Gc, json!({})),
        (Command::Status, json!({})),
    ] {
        let (own, http) = (executables_call(command, "c", &config), call(&rig, command, "c", &config));
        let own = ask(&rig.socket, &[&own]);
        assert_eq!((own.status, &own.body), (http.status, &http.body), "{command:?}");
        let lines = |answer: &Answer| {
            let mut lines: Vec<String> = answer.head.lines().map(str::to_ascii_lowercase).collect();
            lines.retain(|line| !line.is_empty());
            lines.sort();
            lines
        };
        assert_eq!(lines(&own), lines(&http), "{command:?}");
    }
}

#[test]
fn the_engine_learns_whether_an_adds_answer_was_written_to_its_caller() {
    let rig = TestServer::open();
    assert_eq!(call(&rig, Command::Add, "a", &json!({})).status, 200);
    assert_eq!(rig.delivered(1), [true]);
}

#[test]
fn an_answer_that_was_written_and_not_read_counts_as_not_arrived() {
    let rig = TestServer::open();
    let body = request(Command::Add, "c", &json!({})).to_string();
    let mut stream = Caller::connect(&rig.socket).unwrap();
    let head = format!("POST /addNetwork HTTP/1.1\r\nHost: f\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    drop(stream);
    assert_eq!(rig.delivered(1), [false]);
}

#[test]
fn whether_the_executable_has_its_answer_is_learnt_by_its_word_only() {
    let rig = TestServer::open();
    let add = executables_call(Command::Add, "c", &json!({}));
    assert_eq!(ask(&rig.socket, &[&add]).status, 200);
    assert_eq!(rig.delivered(1), [true]);
    let mut stream = Caller::connect(&rig.socket).unwrap();
    stream.write_all(&add).unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    drop(stream);
    assert_eq!(rig.delivered(2), [true, false], "it hung up");
    // This one reads nothing and says nothing. Others are served meanwhile.
    let mut silent = Caller::connect(&rig.socket).unwrap();
    silent.write_all(&add).unwrap();
    assert_eq!(ask(&rig.socket, &[&executables_call(Command::Add, "d", &json!({}))]).status, 200);
    assert_eq!(rig.delivered(4), [true, false, true, false], "it is given up");
}

#[test]
fn k18_a_stopping_daemon_says_that_it_did_not_begin() {
    let rig = TestServer::open();
    rig.server.admission.stop();
    let refused = call(&rig, Command::Add, "a", &json!({ "cniVersion": "0.3.1" }));
    assert_eq!((refused.status, refused.code()), (503, 11));
    assert!(refused.head.contains(&format!("{OUTCOME_HEADER}: {NOT_BEGUN}")), "{refused:?}");
    assert!(refused.body.contains(r#""cniVersion":"0.3.1""#));
}

#[test]
fn r06_before_it_is_ready_status_is_50_tables_are_50_and_an_add_gets_11_at_its_deadline() {
    let rig = TestServer::shut();
    assert_eq!(call(&rig, Command::Status, "", &json!({})).code(), 50);
    assert_eq!(http(&rig.socket, "GET", "/v1/attachments", "").code(), 50);
    let mut add = request(Command::Add, "a", &json!({}));
    add["deadline_ms"] = json!(50);
    let late = http(&rig.socket, "POST", "/addNetwork", &add.to_string());
    assert_eq!(late.code(), 11);
    assert!(late.body.contains("engine (not yet done)"), "{late:?}");
    let ready = http(&rig.socket, "GET", "/readyz", "");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("not yet done"));
}

#[test]
fn x04_status_of_a_daemon_that_starts_is_success_for_ten_seconds_after_an_announced_stop() {
    let rig = TestServer::shut();
    let asked = || call(&rig, Command::Status, "", &json!({ "cniVersion": "1.1.0" }));
    let marker = File::create(rig.socket.with_file_name(STOPPING)).unwrap();
    let answer = asked();
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"cniVersion":"1.1.0"}"#));
    marker.set_modified(SystemTime::now() - Duration::from_secs(10)).unwrap();
    assert_eq!(asked().code(), 50, "it holds up the node's pods by now");
}

#[test]
fn x04_status_is_success_while_the_daemon_opens_and_takes_the_announcement_back() {
    let rig = TestServer::shut();
    let mut server = rig.server.clone();
    let (admission, service) = (server.admission.clone(), rig.fake.clone());
    // Both come after it was seen that the daemon is not open yet.
    server.stop_was_announced = Arc::new(move || {
        admission.open(service.clone()).unwrap();
        false
    });
    let body = Body::from(request(Command::Status, "", &json!({})).to_string());
    let asked = axum::http::Request::post(Command::Status.path()).body(body).unwrap();
    let answer = runtime().unwrap().block_on(router(server).oneshot(asked)).unwrap();
    assert_eq!(answer.status().as_u16(), 200);
}

#[test]
fn questions_that_hang_in_the_engine_leave_threads_for_the_probes() {
    let rig = TestServer::open();
    let with_engine = || rig.fake.begun.lock().len();
    scope(|s| {
        let ask = || http(&rig.socket, "GET", "/v1/orphans", "");
        let asked: Vec<_> = (0..2 * LOOK_UP_THREADS).map(|_| s.spawn(ask)).collect();
        rig.until("every turn is taken", |_| with_engine() >= operator_routes::QUESTIONS);
        let probed = ["/livez", "/healthz", "/readyz"].map(|path| http(&rig.socket, "GET", path, "").status);
        assert_eq!((probed, with_engine()), ([200; 3], operator_routes::QUESTIONS));
        rig.fake.gate.open();
        for answer in asked {
            assert_eq!(answer.join().unwrap().status, 200);
        }
    });
}

#[test]
fn k19_k21_health_metrics_tables_and_the_order_to_collect_are_answered() {
    let rig = TestServer::open();
    assert_eq!(call(&rig, Command::Add, "a", &json!({ "type": "macvlan" })).status, 200);
    let get = |path: &str| http(&rig.socket, "GET", path, "");
    assert_eq!(["/healthz", "/livez", "/readyz"].map(|path| get(path).status), [200; 3]);
    assert!(get("/metrics").body.contains("# EOF"));
    assert_eq!(get("/v1/attachments").body, r#"[{"container":"c1"}]"#);
    let status: Value = serde_json::from_str(&get("/v1/status").body).unwrap();
    assert_eq!((&status["ready"], &status["healthy"]), (&json!(true), &json!(true)));
    assert_eq!(http(&rig.socket, "POST", "/v1/gc?orphans=true&listed=7", "").body, r#"{"listed":7}"#);
    assert_eq!(http(&rig.socket, "POST", "/v1/gc", "").body, r#"{"listed":null}"#);
    let unseen = http(&rig.socket, "POST", "/v1/gc?orphans=true", "");
    assert!(unseen.status == 409 && unseen.body.contains("only after they were listed"), "{unseen:?}");
    let named = "/v1/forget?container=c1&ifname=eth0";
    assert_eq!(http(&rig.socket, "GET", named, "").body, r#"{"carriedOut":false,"network":null}"#);
    let named = format!("{named}&network=net");
    assert_eq!(http(&rig.socket, "POST", &named, "").body, r#"{"carriedOut":true,"network":"net"}"#);
    assert_eq!(http(&rig.socket, "POST", "/v1/forget?container=c1", "").status, 400);
}

#[test]
fn k19_what_no_restart_ends_makes_a_daemon_unhealthy_and_leaves_it_alive() {
    let rig = TestServer::open();
    let get = |path: &str| http(&rig.socket, "GET", path, "");
    let status = || {
        let status: Value = serde_json::from_str(&get("/v1/status").body).unwrap();
        ["healthy", "alive"].map(|key| status[key].as_bool().unwrap())
    };
    assert_eq!(status(), [true, true]);
    rig.server.health.probe("store", Box::new(|| Err("full".into())));
    assert_eq!((get("/healthz").status, get("/livez").status, status()), (503, 200, [false, true]));
    assert!(!get("/livez").body.contains("full"), "{:?}", get("/livez"));
    rig.server.health.probe_of_life("netlink", Box::new(|| Err("no answer".into())));
    assert_eq!((get("/healthz").status, get("/livez").status, status()), (503, 503, [false, false]));
    assert!(get("/livez").body.contains("no answer"), "{:?}", get("/livez"));
}
