use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};

use serde_json::json;

use super::*;

const LONG: Duration = Duration::from_secs(30);

/// The server's end of a session, by hand.
struct Server {
    stream: UnixStream,
    framer: Framer,
}

impl Server {
    fn receive(&mut self) -> Value {
        let mut buffer = [0; 100];
        loop {
            if let Some(message) = self.framer.next_message().unwrap() {
                return message;
            }
            let length = self.stream.read(&mut buffer).unwrap();
            assert!(length > 0, "the client has hung up");
            self.framer.push(&buffer[..length]);
        }
    }

    fn send(&mut self, message: &Value) {
        self.stream.write_all(message.to_string().as_bytes()).unwrap();
    }

    fn reply(&mut self, request: &Value, result: &Value) {
        self.send(&json!({ "id": request["id"], "result": result, "error": null }));
    }
}

fn session() -> (Session, Server, Receiver<Heard>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(LONG)).unwrap();
    let (sender, heard) = channel();
    let session = Session::start(ours, move |news| drop(sender.send(news))).unwrap();
    (session, Server { stream: theirs, framer: Framer::new(1000) }, heard)
}

#[test]
fn replies_find_their_calls_in_any_order() {
    let (session, mut server, _heard) = session();
    thread::scope(|scope| {
        let calls: Vec<_> =
            ["a", "b"].map(|method| scope.spawn(|| session.call(method, &json!([]), LONG).unwrap())).into();
        let requests = [server.receive(), server.receive()];
        server.send(&json!({ "id": 99, "result": "for nobody", "error": null }));
        for request in requests.iter().rev() {
            server.reply(request, &request["method"]);
        }
        let results: Vec<Value> = calls.into_iter().map(|call| call.join().unwrap()).collect();
        assert_eq!(results, ["a", "b"]);
    });
}

#[test]
fn echo_is_answered_and_other_requests_are_refused() {
    let (_session, mut server, _heard) = session();
    server.send(&json!({ "id": "echo", "method": "echo", "params": [1, "x"] }));
    assert_eq!(server.receive(), json!({ "id": "echo", "result": [1, "x"], "error": null }));
    server.send(&json!({ "id": 4, "method": "steal", "params": [] }));
    assert_eq!(server.receive(), json!({ "id": 4, "result": null, "error": "unknown method" }));
}

#[test]
fn notifications_are_heard_in_their_order_and_the_end_is_the_last() {
    let (_session, mut server, heard) = session();
    for number in 0..3 {
        server.send(&json!({ "id": null, "method": "update2", "params": [number] }));
    }
    drop(server);
    let all: Vec<String> = heard
        .iter()
        .map(|news| match news {
            Heard::Notification { method, params } => format!("{method} {params}"),
            Heard::Ended { why } => why,
        })
        .collect();
    assert_eq!(all, ["update2 [0]", "update2 [1]", "update2 [2]", "it was closed"]);
}

#[test]
fn an_error_a_missing_answer_and_an_end_are_told_apart() {
    let (session, mut server, _heard) = session();
    let error = thread::scope(|scope| {
        let call = scope.spawn(|| session.call("transact", &json!([]), LONG));
        let request = server.receive();
        server.send(&json!({ "id": request["id"], "result": null, "error": "not allowed" }));
        call.join().unwrap().unwrap_err()
    });
    assert_eq!(error.to_string(), "the database server refuses transact: \"not allowed\"");
    let error = session.call("transact", &json!([]), Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.to_string(), "the database server has not answered transact within 20 ms");
    let late = server.receive();
    server.reply(&late, &json!(1));
    let error = thread::scope(|scope| {
        let call = scope.spawn(|| session.call("transact", &json!([]), LONG));
        server.receive();
        drop(server);
        call.join().unwrap().unwrap_err()
    });
    assert_eq!(error.to_string(), "the connection to the database server has ended: it was closed");
    assert!(matches!(session.call("echo", &json!([]), LONG), Err(CallError::Ended { .. })));
}

#[test]
fn a_server_that_speaks_nonsense_is_left() {
    for (nonsense, why) in [
        (
            &b"HTTP/1.1 400 Bad Request"[..],
            "a message begins with the byte 0x48 and not with an opening brace",
        ),
        (b"{\"hello\":1}", "an object with neither a method nor an id is no JSON-RPC message"),
    ] {
        let (_session, mut server, heard) = session();
        server.stream.write_all(nonsense).unwrap();
        assert!(matches!(heard.recv_timeout(LONG).unwrap(), Heard::Ended { why: told } if told == why));
        assert_eq!(server.stream.read(&mut [0; 1]).unwrap(), 0);
    }
}
