//! Who is served, and what a caller is bounded by: depth and time of its body, and how long its connection may be idle.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use fairlead_cni::wire::MAX_BODY;
use fairlead_proto::v1::TearDownPodRequest;
use fairlead_proto::v1::remote_cni_client::RemoteCniClient;
use hyper_util::rt::TokioIo;
use tonic::transport::{Endpoint, Uri};

use super::super::http2::IdleLimits;
use super::*;

#[test]
fn a_deeply_nested_body_is_refused_and_does_not_hang_or_kill() {
    let rig = TestServer::open();
    let deep = format!(r#"{{"wire":1,"x":{}"#, "[".repeat(200_000));
    assert_eq!(http(&rig.socket, "POST", "/addNetwork", &deep).code(), 6);
}

#[test]
fn bodies_that_never_end_keep_nobody_from_being_served_and_are_refused_in_time() {
    let rig = TestServer::open();
    let begun: Vec<Caller> = (0..40)
        .map(|_| {
            let mut stream = Caller::connect(&rig.socket).unwrap();
            let head =
                format!("POST /addNetwork HTTP/1.1\r\nHost: f\r\nContent-Length: {MAX_BODY}\r\n\r\n{{");
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    let asked = Instant::now();
    assert_eq!(call(&rig, Command::Add, "c", &json!({})).status, 200);
    assert!(asked.elapsed() < Duration::from_secs(3), "it waited {:?}", asked.elapsed());
    for mut stream in begun {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 408") && text.contains(r#""code":5"#), "{text}");
    }
}

#[test]
fn only_uid_0_is_served() {
    let rig = TestServer::open();
    let dir = rig.socket.parent().unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&rig.socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    // This very program, as another user: `the_caller_of_another_user` below.
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--exact", "server::tests::access::the_caller_of_another_user", "--ignored", "--nocapture"])
        .env("FAIRLEAD_TEST_SOCKET", &rig.socket)
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("answer: 403 4 fairleadd serves only uid 0"), "{said}{output:?}");
    assert!(said.contains("status: PermissionDenied fairleadd serves only uid 0"), "{said}{output:?}");
    assert!(rig.fake.served.lock().is_empty());
}

#[test]
#[ignore = "run by only_uid_0_is_served as another user"]
fn the_caller_of_another_user() {
    let socket = std::env::var("FAIRLEAD_TEST_SOCKET").unwrap();
    let answer =
        http(Path::new(&socket), "POST", "/delNetwork", &request(Command::Del, "c", &json!({})).to_string());
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    println!("answer: {} {} {}", answer.status, body["code"], body["msg"].as_str().unwrap());
    let refused = runtime().unwrap().block_on(async {
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
        RemoteCniClient::new(channel).tear_down_pod(TearDownPodRequest::default()).await.unwrap_err()
    });
    println!("status: {:?} {}", refused.code(), refused.message());
}

/// The beginning of a connection of HTTP/2: the preface, and settings that change nothing.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn x12_a_connection_of_grpc_without_a_call_is_told_that_it_ends_and_is_closed() {
    let rig = TestServer::open();
    let (_running, stopped) = watch::channel(());
    let mut grpc = GrpcServer::new(rig.server.clone(), stopped).unwrap();
    let soon = Duration::from_millis(20);
    grpc.limits = IdleLimits { first_call: soon, next_call: soon, questions: soon };
    let (here, mut caller) = Caller::pair().unwrap();
    caller.write_all(BEGIN).unwrap();
    runtime().unwrap().block_on(async {
        let (accepted, _) = HandedOver::fresh(here).unwrap().here().unwrap();
        grpc.connection(accepted).await;
    });
    let mut frames = Vec::new();
    caller.read_to_end(&mut frames).unwrap();
    let mut rest = &frames[..];
    let mut kinds = Vec::new();
    while let [a, b, c, kind, ..] = *rest {
        kinds.push(kind);
        rest = &rest[9 + u32::from_be_bytes([0, a, b, c]) as usize..];
    }
    const GOAWAY: u8 = 7;
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
}
