//! An API server for tests, on a real socket: lists in pages, watches, PATCHes of a pod's status, Events; whole objects, or their
//! metadata for whoever asks for no more. It can be stopped and started on the same port, refuse, answer slowly, forget its past (410),
//! take another token than before, lack a kind, and forbid one.
//!
//! A test changes its objects and reads what it was asked. Whatever goes wrong in here panics.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http::{Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub(super) const PODS: &str = "/api/v1/pods";
pub(super) const DEFINITIONS: &str = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";
pub(super) const NETWORKS: &str = "/apis/alpha.network.k8s.io/v1/networks";
pub(super) const NAMESPACES: &str = "/api/v1/namespaces";

type Answer = Response<BoxBody<Bytes, Infallible>>;
type Name = (String, String);

/// What the API server has, does and was asked.
#[derive(Debug, Default)]
pub(super) struct State {
    objects: BTreeMap<&'static str, BTreeMap<Name, Value>>,
    log: Vec<(u64, &'static str, &'static str, Value)>,
    version: u64,
    /// Versions before this one are forgotten.
    compacted: u64,
    /// Kinds that it does not have.
    pub(super) absent: BTreeSet<&'static str>,
    /// Kinds that nobody may list or watch.
    pub(super) forbidden: BTreeSet<&'static str>,
    /// Refuses everything with this.
    pub(super) refuses: Option<u16>,
    /// The only token that it takes; `None`: any.
    pub(super) takes: Option<&'static str>,
    /// Answers everything after this.
    pub(super) thinks: Duration,
    /// Method and URL of every request.
    pub(super) requests: Vec<String>,
    /// Name, content type and body of every PATCH.
    pub(super) patches: Vec<(String, String, Value)>,
    /// Every Event.
    pub(super) events: Vec<Value>,
    /// Every review that was asked for, in order.
    pub(super) reviews: Vec<Value>,
    /// Whose each token is.
    pub(super) tokens: BTreeMap<&'static str, &'static str>,
    /// Who may GET which path.
    pub(super) readers: BTreeSet<(&'static str, &'static str)>,
    /// Watches that began.
    pub(super) watches: usize,
    /// Watches end at once.
    pub(super) ends_watches: bool,
}

/// The server; dropping it stops it.
#[derive(Debug)]
pub(super) struct FakeApiServer {
    runtime: Runtime,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    serving: Option<JoinHandle<()>>,
    port: u16,
}

impl FakeApiServer {
    pub(super) fn start() -> FakeApiServer {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut server = FakeApiServer {
            runtime,
            state: Arc::default(),
            changed: watch::Sender::new(0),
            serving: None,
            port: 0,
        };
        server.state.lock().version = 1;
        server.up();
        server
    }

    /// Listens again, on the port that it had.
    pub(super) fn up(&mut self) {
        let address = ("127.0.0.1", self.port);
        let listener = self.runtime.block_on(TcpListener::bind(address)).unwrap();
        self.port = listener.local_addr().unwrap().port();
        let (state, changed) = (Arc::clone(&self.state), self.changed.clone());
        self.serving = Some(self.runtime.spawn(accept(listener, state, changed)));
    }

    /// Closes every connection and the port.
    pub(super) fn down(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = self.runtime.block_on(serving);
        }
    }

    /// What it has, does and was asked.
    pub(super) fn with<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        what(&mut self.state.lock())
    }

    /// Makes or changes an object, and tells the watches.
    pub(super) fn apply(&self, kind: &'static str, object: Value) {
        self.log(kind, object, true);
    }

    /// Deletes an object; the watches are told even if there was none.
    pub(super) fn delete(&self, kind: &'static str, object: Value) {
        self.log(kind, object, false);
    }

    fn log(&self, kind: &'static str, mut object: Value, present: bool) {
        let version = self.with(|state| {
            state.version += 1;
            object["metadata"]["resourceVersion"] = json!(state.version.to_string());
            let all = state.objects.entry(kind).or_default();
            let name = name_of(&object);
            let word = match (present, all.remove(&name)) {
                (false, _) => "DELETED",
                (true, None) => "ADDED",
                (true, Some(_)) => "MODIFIED",
            };
            if present {
                all.insert(name, object.clone());
            }
            state.log.push((state.version, kind, word, object));
            state.version
        });
        self.changed.send_replace(version);
    }

    /// Makes an object without an event, as while nobody watched.
    pub(super) fn apply_silently(&self, kind: &'static str, object: Value) {
        self.with(|state| {
            state.version += 1;
            state.objects.entry(kind).or_default().insert(name_of(&object), object);
        });
    }

    /// Deletes an object without an event, as while nobody watched.
    pub(super) fn delete_silently(&self, kind: &'static str, namespace: &str, name: &str) {
        self.with(|state| {
            state.version += 1;
            state.objects.entry(kind).or_default().remove(&(namespace.to_owned(), name.to_owned()));
        });
    }

    /// Forgets all events until now: whoever watches from before is answered 410.
    pub(super) fn compact(&self) {
        let version = self.with(|state| {
            state.version += 1;
            state.compacted = state.version;
            state.version
        });
        self.changed.send_replace(version);
    }

    /// A kubeconfig that leads here.
    pub(super) fn kubeconfig(&self, dir: &Path) -> PathBuf {
        self.kubeconfig_with(dir, "t")
    }

    /// The same with this token.
    pub(super) fn kubeconfig_with(&self, dir: &Path, token: &str) -> PathBuf {
        let path = dir.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"http://127.0.0.1:{}\"}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{token: {token}}}}}]\n\
             current-context: x\n",
            self.port
        );
        fs::write(&path, text).unwrap();
        path
    }
}

fn name_of(object: &Value) -> Name {
    let word = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (word("namespace"), word("name"))
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>, changed: watch::Sender<u64>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (state, changed) = (Arc::clone(&state), changed.clone());
        let service = service_fn(move |request| {
            let (state, changed) = (Arc::clone(&state), changed.subscribe());
            async move { Ok::<_, Infallible>(answer(request, state, changed).await) }
        });
        connections.spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<Mutex<State>>,
    changed: watch::Receiver<u64>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let url = parts.uri.to_string();
    let header = |name: &str| parts.headers.get(name).map_or("", |value| value.to_str().unwrap());
    let (thinks, refuses) = {
        let mut state = state.lock();
        state.requests.push(format!("{} {url}", parts.method));
        let is_taken = state.takes.is_none_or(|token| header("authorization") == format!("Bearer {token}"));
        (state.thinks, state.refuses.or((!is_taken).then_some(401)))
    };
    tokio::time::sleep(thinks).await;
    if let Some(code) = refuses {
        return failure(code, "refused");
    }
    let body = body.collect().await.unwrap().to_bytes();
    let path = parts.uri.path().to_owned();
    let asked = Asked {
        query: parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.replace("%3D", "=")))
            .collect(),
        only_metadata: header("accept").contains("as=PartialObjectMetadata"),
    };
    match parts.method {
        Method::PATCH => {
            let kind = header("content-type").to_owned();
            patch(&mut state.lock(), &path, kind, &serde_json::from_slice(&body).unwrap())
        }
        Method::POST => {
            let object: Value = serde_json::from_slice(&body).unwrap();
            create(&mut state.lock(), &path, object)
        }
        _ => {
            let kind = [PODS, DEFINITIONS, NETWORKS, NAMESPACES].into_iter().find(|kind| *kind == path);
            let Some(kind) = kind.filter(|kind| !state.lock().absent.contains(kind)) else {
                return failure(404, "the server could not find the requested resource");
            };
            if state.lock().forbidden.contains(kind) {
                return failure(403, "it is forbidden");
            }
            match asked.query.contains_key("watch") {
                true => follow(state, changed, kind, asked),
                false => list(&state.lock(), kind, &asked),
            }
        }
    }
}

/// What a list or a watch is asked for.
struct Asked {
    query: BTreeMap<String, String>,
    only_metadata: bool,
}

impl Asked {
    fn selects(&self, object: &Value) -> bool {
        self.query
            .get("fieldSelector")
            .is_none_or(|fields| object["spec"]["nodeName"].as_str() == fields.strip_prefix("spec.nodeName="))
    }

    /// What is told of an object.
    fn told(&self, object: &Value) -> Value {
        match self.only_metadata {
            true => json!({ "kind": "PartialObjectMetadata", "metadata": object["metadata"] }),
            false => object.clone(),
        }
    }
}

fn list(state: &State, kind: &'static str, asked: &Asked) -> Answer {
    let limit: usize = asked.query.get("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
    let from: usize = asked.query.get("continue").map_or(0, |from| from.parse().unwrap());
    let all: Vec<&Value> = state
        .objects
        .get(kind)
        .into_iter()
        .flat_map(BTreeMap::values)
        .filter(|object| asked.selects(object))
        .collect();
    let page: Vec<Value> = all.iter().skip(from).take(limit).map(|object| asked.told(object)).collect();
    let mut metadata = json!({ "resourceVersion": state.version.to_string() });
    if from + page.len() < all.len() {
        metadata["continue"] = json!((from + page.len()).to_string());
    }
    whole(200, &json!({ "kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page }))
}

fn follow(
    state: Arc<Mutex<State>>,
    changed: watch::Receiver<u64>,
    kind: &'static str,
    asked: Asked,
) -> Answer {
    let from: u64 = asked.query["resourceVersion"].parse().unwrap();
    let asked = Arc::new(asked);
    let ends = {
        let mut state = state.lock();
        state.watches += 1;
        state.ends_watches
    };
    let lines = stream::unfold((from, changed, ends), move |(from, mut changed, ended)| {
        let (state, asked) = (Arc::clone(&state), Arc::clone(&asked));
        async move {
            if ended {
                return None;
            }
            loop {
                changed.borrow_and_update();
                let (lines, version, ended) = lines(&state.lock(), kind, &asked, from);
                if !lines.is_empty() {
                    return Some((
                        Ok::<_, Infallible>(Frame::data(Bytes::from(lines))),
                        (version, changed, ended),
                    ));
                }
                changed.changed().await.ok()?;
            }
        }
    });
    Response::builder()
        .header("content-type", "application/json")
        .body(BodyExt::boxed(StreamBody::new(lines)))
        .unwrap()
}

fn lines(state: &State, kind: &'static str, asked: &Asked, from: u64) -> (String, u64, bool) {
    if from < state.compacted {
        let status = json!({ "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old" });
        return (format!("{}\n", json!({ "type": "ERROR", "object": status })), from, true);
    }
    let mut text = String::new();
    for (version, of, word, object) in &state.log {
        if *version > from && *of == kind && asked.selects(object) {
            // As the real one writes it: the type before the object.
            text.push_str(&format!("{{\"type\":\"{word}\",\"object\":{}}}\n", asked.told(object)));
        }
    }
    (text, state.version, false)
}

fn patch(state: &mut State, path: &str, content_type: String, body: &Value) -> Answer {
    let words: Vec<&str> = path.split('/').collect();
    let ["", "api", "v1", "namespaces", namespace, "pods", name, "status"] = words.as_slice() else {
        return failure(404, "no such path");
    };
    state.patches.push((format!("{namespace}/{name}"), content_type, body.clone()));
    let key = ((*namespace).to_owned(), (*name).to_owned());
    match state.objects.entry(PODS).or_default().get_mut(&key) {
        None => failure(404, "pods not found"),
        Some(pod) if pod["metadata"]["uid"] != body["metadata"]["uid"] => {
            failure(409, "Precondition failed: UID")
        }
        Some(pod) => {
            for (key, value) in body["metadata"]["annotations"].as_object().unwrap() {
                pod["metadata"]["annotations"][key] = value.clone();
            }
            whole(200, pod)
        }
    }
}

fn create(state: &mut State, path: &str, mut object: Value) -> Answer {
    match path {
        "/apis/authentication.k8s.io/v1/tokenreviews" => {
            let user = state.tokens.get(object["spec"]["token"].as_str().unwrap());
            object["status"] = match user {
                Some(user) => json!({ "authenticated": true, "user": { "username": user, "groups": ["g"] } }),
                None => json!({ "error": "invalid bearer token" }),
            };
            state.reviews.push(object.clone());
        }
        "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            let spec = &object["spec"];
            let word = |value: &Value| value.as_str().unwrap().to_owned();
            let asked = (word(&spec["user"]), word(&spec["nonResourceAttributes"]["path"]));
            let allowed = state.readers.iter().any(|(user, path)| (*user, *path) == (&*asked.0, &*asked.1));
            object["status"] = json!({ "allowed": allowed });
            state.reviews.push(object.clone());
        }
        _ => state.events.push(object.clone()),
    }
    whole(201, &object)
}

fn whole(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).boxed();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

fn failure(code: u16, message: &str) -> Answer {
    whole(
        code,
        &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "R", "message": message }),
    )
}
