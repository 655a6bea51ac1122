//! The port against real clients on real sockets: who is answered, with which certificate, and what a hostile one can hold up.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;

use fairlead_kube::Verdict;
use futures_util::future::BoxFuture;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;

/// A test that waits longer than this fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The API server's part: knows three tokens.
#[derive(Default, Clone)]
struct Tokens {
    asked: Arc<AtomicUsize>,
}

impl Reviewer for Tokens {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Verdict, String>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let verdict = match token {
            "prometheus" => Ok(Verdict::Allowed),
            "somebody" => Ok(Verdict::Forbidden { user: "somebody".into() }),
            "unlucky" => Err("connection refused".to_owned()),
            _ => Ok(Verdict::Unknown),
        };
        Box::pin(async { verdict })
    }
}

fn settings(tls: Option<TlsFiles>, token_review: bool) -> MetricsSettings {
    MetricsSettings { listen: "127.0.0.1:0".parse().unwrap(), tls, token_review }
}

struct Rig {
    port: MetricsPort,
    asked: Arc<AtomicUsize>,
    made: Arc<AtomicUsize>,
}

impl Rig {
    fn new(settings: Option<MetricsSettings>, limits: Limits) -> Rig {
        let tokens = Tokens::default();
        let (asked, made) = (Arc::clone(&tokens.asked), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&made);
        let source = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            "fairlead_ready 1\n# EOF\n".to_owned()
        });
        let reviewer = Box::new(move || Box::new(tokens.clone()) as Box<dyn Reviewer>);
        let port = MetricsPort::start_with(settings, source, reviewer, limits).unwrap();
        Rig { port, asked, made }
    }

    fn served(settings: MetricsSettings) -> Rig {
        Rig::new(Some(settings), Limits::default())
    }

    fn address(&self) -> SocketAddr {
        let mut found = None;
        until("the port is served", || {
            if let PortState::Listening(address) = *self.port.state.lock() {
                found = Some(address);
            }
            found.is_some()
        });
        found.unwrap()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn plain(&self, head: &str) -> String {
        exchange(self.connect(), head)
    }

    /// By TLS from a server that shows this certificate; an error says what is wrong with the one that is shown.
    fn by_tls(&self, trusted: &str, head: &str) -> Result<String, String> {
        let mut roots = RootCertStore::empty();
        let certificate = rustls::pki_types::pem::PemObject::from_pem_slice(trusted.as_bytes()).unwrap();
        roots.add(certificate).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("node").unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = self.connect();
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).map_err(|error| error.to_string())?;
        }
        Ok(exchange(StreamOwned::new(tls, stream), head))
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(10));
    }
}

fn exchange(mut stream: impl Read + Write, head: &str) -> String {
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // One that is cut off ends with an error, after what was sent.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: node\r\n\r\n")
}

fn get_with(token: &str) -> String {
    format!("GET /metrics HTTP/1.1\r\nhost: node\r\nauthorization: Bearer {token}\r\n\r\n")
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("no answer")
}

/// A certificate for "node" and its key, in PEM.
fn pair() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["node".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// As kubelet mounts a Secret: files that are links through `..data`, which is swapped in one step.
fn mounted(dir: &Path, version: &str, certificate: &str, key: &str) -> TlsFiles {
    fs::create_dir(dir.join(version)).unwrap();
    fs::write(dir.join(version).join("tls.crt"), certificate).unwrap();
    fs::write(dir.join(version).join("tls.key"), key).unwrap();
    symlink(version, dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        let _ = symlink(Path::new("..data").join(name), dir.join(name));
    }
    TlsFiles { cert_file: dir.join("tls.crt"), key_file: dir.join("tls.key") }
}

#[test]
fn the_port_tells_metrics_and_nothing_else_of_the_sockets_api() {
    let rig = Rig::served(settings(None, false));
    let answer = rig.plain(&get("/metrics"));
    assert_eq!(status(&answer), "200");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
    assert!(answer.ends_with("fairlead_ready 1\n# EOF\n"), "{answer}");
    for path in
        ["/", "/v1/status", "/v1/attachments", "/healthz", "/v1/add", "/metrics/", "/metrics/../v1/status"]
    {
        assert_eq!(status(&rig.plain(&get(path))), "404", "{path}");
    }
    let posted = rig.plain("POST /metrics HTTP/1.1\r\nhost: node\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(status(&posted), "405");
}

#[test]
fn silent_and_endless_connections_hold_up_others_only_until_their_time_is_over() {
    let limits = Limits { connections: 2, head: Duration::from_millis(200), whole: Duration::from_secs(2) };
    let rig = Rig::new(Some(settings(None, false)), limits);
    let mut silent: Vec<TcpStream> = (0..20).map(|_| rig.connect()).collect();
    for (n, stream) in silent.iter_mut().enumerate() {
        // Every second one has begun a request.
        if n % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        }
    }
    assert_eq!(status(&rig.plain(&get("/metrics"))), "200");
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let mut stream = rig.connect();
    // It is refused before all of it is sent.
    let _ = stream.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains(" 200 "));
    assert_eq!(status(&rig.plain(&get("/metrics"))), "200");
}

#[test]
fn many_who_ask_at_once_have_the_metrics_put_together_once() {
    let rig = Rig::served(settings(None, false));
    rig.address();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| assert_eq!(status(&rig.plain(&get("/metrics"))), "200"));
        }
    });
    let most = 1 + begun.elapsed().as_millis() / FRESH.as_millis();
    assert!(rig.made.load(Ordering::Relaxed) as u128 <= most);
}

#[test]
fn r07_a_renewed_certificate_is_shown_without_a_restart_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (first, first_key) = pair();
    let files = mounted(dir.path(), "..1", &first, &first_key);
    let rig = Rig::served(settings(Some(files), false));
    assert_eq!(status(&rig.by_tls(&first, &get("/metrics")).unwrap()), "200");
    assert_ne!(status(&rig.plain(&get("/metrics"))), "200", "plain text is not answered");

    let (second, second_key) = pair();
    assert!(rig.by_tls(&second, &get("/metrics")).is_err(), "it is not shown yet");
    mounted(dir.path(), "..2", &second, &second_key);
    until("the second is shown", || rig.by_tls(&second, &get("/metrics")).is_ok());

    // A key that is not the certificate's, then no PEM, then no file.
    mounted(dir.path(), "..3", &first, &second_key);
    sleep(FRESH * 3);
    rig.by_tls(&second, &get("/metrics")).unwrap();
    mounted(dir.path(), "..4", "nothing", "nothing");
    sleep(FRESH * 3);
    rig.by_tls(&second, &get("/metrics")).unwrap();
    fs::remove_file(dir.path().join("..data")).unwrap();
    sleep(FRESH * 3);
    rig.by_tls(&second, &get("/metrics")).unwrap();
}

#[test]
fn only_who_shows_a_token_that_may_read_is_answered_and_the_cluster_is_asked_once_for_each() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = pair();
    let files = mounted(dir.path(), "..1", &certificate, &key);
    let rig = Rig::served(settings(Some(files), true));
    let answered = |head: &str| rig.by_tls(&certificate, head).unwrap();
    let none = answered(&get("/metrics"));
    assert_eq!(status(&none), "401");
    assert!(none.contains("www-authenticate: Bearer"), "{none}");
    assert_eq!(rig.asked.load(Ordering::Relaxed), 0);
    for (token, wanted) in
        [("prometheus", "200"), ("somebody", "403"), ("made-up", "401"), ("unlucky", "503")]
    {
        for _ in 0..2 {
            let answer = answered(&get_with(token));
            assert_eq!(status(&answer), wanted, "{token}");
            assert_eq!(answer.contains("fairlead_ready"), wanted == "200", "{token}");
        }
    }
    // An answer counts for a while; that there is none does not.
    assert_eq!(rig.asked.load(Ordering::Relaxed), 5);
    assert_eq!(
        status(&answered(
            "GET /metrics HTTP/1.1\r\nhost: n\r\nauthorization: Basic cHJvbWV0aGV1cw==\r\n\r\n"
        )),
        "401"
    );
}

#[test]
fn a_token_is_never_asked_for_in_plain_text() {
    let rig = Rig::served(settings(None, true));
    let answer = rig.plain(&get_with("prometheus"));
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
}

#[test]
fn made_up_tokens_are_forgotten_and_drive_out_no_good_one() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let tokens = Tokens::default();
        let asked = Arc::clone(&tokens.asked);
        let authorization = Authorization::new(Box::new(tokens));
        assert_eq!(authorization.verdict("prometheus").await, Ok(Verdict::Allowed));
        let begun = tokio::time::Instant::now();
        for n in 0..200 {
            assert_eq!(authorization.verdict(&format!("made up {n}")).await, Ok(Verdict::Unknown));
        }
        let questions = asked.load(Ordering::Relaxed);
        assert_eq!(authorization.verdict("prometheus").await, Ok(Verdict::Allowed));
        assert_eq!(asked.load(Ordering::Relaxed), questions, "the good one is still known");
        assert!(begun.elapsed() >= Duration::from_secs(19), "no more than ten a second are asked for");
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(authorization.verdict("prometheus").await, Ok(Verdict::Allowed));
        assert_eq!(
            asked.load(Ordering::Relaxed),
            questions + 1,
            "a right that is taken away ends within a minute"
        );
    });
}

#[test]
fn a_port_that_is_taken_is_told_and_a_changed_one_is_in_force_at_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let rig = Rig::served(MetricsSettings { listen, ..settings(None, false) });
    let told = || match &*rig.port.state.lock() {
        PortState::Failing(reason) => reason.clone(),
        _ => String::new(),
    };
    until("it is told", || told().contains(&format!("{listen} cannot be listened at")));
    rig.port.configure(Some(settings(None, false)));
    assert_eq!(status(&rig.plain(&get("/metrics"))), "200");
    let address = rig.address();
    rig.port.configure(None);
    until("the port is closed", || TcpStream::connect(address).is_err());
    assert_eq!(*rig.port.state.lock(), PortState::Off);
}
