//! etcd and kube-apiserver on the private node, and the few requests that the suite itself makes.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::networks::{ANNOTATION, NAMESPACE, SECOND};
use crate::daemon::{Daemon, DaemonError};

/// The API server's address; the node is private, so every port is free.
const SERVER: &str = "https://127.0.0.1:6443";
/// The node's name in the cluster.
pub(crate) const NODE: &str = "bench-node";
/// Who is told from whom in the audit log; each is an administrator.
const USERS: [&str; 4] = ["suite", "ours", "multus-thick", "multus-thin"];
/// The time that the API server may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// So many requests of the suite's are under way at once.
const AT_ONCE: usize = 8;
/// The version under which definitions are served.
const DEFINITIONS: &str = "/apis/k8s.cni.cncf.io/v1/namespaces";

/// Why the cluster does not do what it is asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// A program is not there.
    #[error("there is no {0}: `tests/cluster/build.sh` builds it, or name its directory with `--kubernetes`")]
    Missing(PathBuf),
    /// A file could not be written or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The key of service accounts could not be made.
    #[error("`openssl genrsa` failed: {0}; `apt-get install -y openssl`")]
    Key(String),
    /// etcd or the API server could not be started.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The suite's own client could not be made.
    #[error("the suite's client of the API server: {0}")]
    Client(String),
    /// The API server has not become ready.
    #[error("the API server is not ready: {0}; the end of its log:\n{1}")]
    NotReady(String, String),
    /// The API server has refused a request.
    #[error("{method} {path}: {source}")]
    Request {
        /// The request's method.
        method: Method,
        /// Its path.
        path: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
}

/// A running cluster; stopped when dropped.
pub(crate) struct Cluster {
    runtime: Runtime,
    client: Client,
    apiserver: Daemon,
    etcd: Daemon,
    dir: PathBuf,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Starts etcd and kube-apiserver from the directory `programs`, with all that they write below `place`.
    pub(crate) fn start(programs: &Path, place: &Path) -> Result<Cluster, ClusterError> {
        let dir = place.join("cluster");
        make_files(&dir)?;
        let program = |name: &str| {
            let path = std::path::absolute(programs.join(name)).unwrap_or_else(|_| programs.join(name));
            if path.exists() { Ok(path) } else { Err(ClusterError::Missing(path)) }
        };
        let (at, log) = (dir.display(), |name: &str| dir.join(format!("{name}.log")));
        let etcd = format!("{} --data-dir {at}/etcd --unsafe-no-fsync", program("etcd")?.display());
        let apiserver = format!(
            "{} --etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 --advertise-address=10.250.0.2 \
             --endpoint-reconciler-type=none --secure-port=6443 --cert-dir={at}/pki --token-auth-file={at}/tokens.csv \
             --service-account-issuer=https://bench --service-account-key-file={at}/accounts.key \
             --service-account-signing-key-file={at}/accounts.key --service-cluster-ip-range=10.96.0.0/24 \
             --disable-admission-plugins=ServiceAccount --authorization-mode=AlwaysAllow \
             --audit-policy-file={at}/audit.yaml --audit-log-path={at}/audit --audit-log-mode=blocking",
            program("kube-apiserver")?.display()
        );
        let etcd = Daemon::companion(&etcd, &log("etcd"))?;
        let apiserver = Daemon::companion(&apiserver, &log("apiserver"))?;
        let (runtime, client) = connected(&dir, &apiserver)?;
        let cluster = Cluster { runtime, client, apiserver, etcd, dir };
        cluster.has_kinds()?;
        Ok(cluster)
    }

    /// Its own processes, which belong to no subject.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        vec![self.etcd.pid, self.apiserver.pid]
    }

    /// The kubeconfig of a user.
    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        kubeconfig_path(&self.dir, user)
    }

    /// The certificates by which the API server is known.
    pub(crate) fn authority(&self) -> PathBuf {
        self.dir.join("pki/apiserver.crt")
    }

    /// A definition of this name and text.
    pub(crate) fn has_definition(&self, name: &str, text: &str) -> Result<(), ClusterError> {
        self.each(vec![definition(name, text)]).map(drop)
    }

    /// So many definitions beside the measured one.
    pub(crate) fn has_definitions(&self, count: usize, text: &str) -> Result<(), ClusterError> {
        self.each((0..count).map(|at| definition(&format!("further-{at}"), text)).collect()).map(drop)
    }

    /// Makes pods of these names that ask for the second network. Returns their uids.
    pub(crate) fn make_pods(&self, names: &[String]) -> Result<Vec<String>, ClusterError> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let requests = names.iter().map(|name| (Method::POST, path.clone(), Some(pod(name)))).collect();
        let made = self.each(requests)?;
        Ok(made.iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// Deletes pods, at once.
    pub(crate) fn delete_pods(&self, names: &[String]) -> Result<(), ClusterError> {
        let path = |name| format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0");
        self.each(names.iter().map(|name| (Method::DELETE, path(name), None)).collect()).map(drop)
    }

    /// The number of requests that a user's audit log has so far. Without watches, which are as many for any number of pods, and without
    /// the look whether the API has a kind by now that it had not: that goes by the clock.
    pub(crate) fn requests_of(&self, user: &str) -> Result<usize, ClusterError> {
        let path = self.dir.join("audit");
        let log = fs::read_to_string(&path).map_err(|source| ClusterError::File { path, source })?;
        let of_user = format!(r#""username":"{user}""#);
        Ok(log.lines().filter(|line| line.contains(&of_user) && is_of_a_pod(line)).count())
    }

    /// Makes requests, a few at a time; the answers come in the requests' order.
    fn each(&self, requests: Vec<(Method, String, Option<Value>)>) -> Result<Vec<Value>, ClusterError> {
        self.runtime.block_on(async {
            let (mut under_way, mut answers) = (JoinSet::new(), vec![Value::Null; requests.len()]);
            let mut waiting = requests.into_iter().enumerate();
            loop {
                while under_way.len() < AT_ONCE
                    && let Some((at, request)) = waiting.next()
                {
                    let one = one(self.client.clone(), request);
                    under_way.spawn(async move { (at, one.await) });
                }
                match under_way.join_next().await {
                    Some(Ok((at, answer))) => answers[at] = answer?,
                    Some(Err(lost)) => return Err(ClusterError::Client(lost.to_string())),
                    None => return Ok(answers),
                }
            }
        })
    }

    fn has_kinds(&self) -> Result<(), ClusterError> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        let kind = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "network-attachment-definitions.k8s.cni.cncf.io" },
            "spec": {
                "group": "k8s.cni.cncf.io", "scope": "Namespaced",
                "names": { "plural": "network-attachment-definitions", "singular": "network-attachment-definition",
                           "kind": "NetworkAttachmentDefinition" },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": { "type": "object", "properties": {
                        "config": { "type": "string" } } } } } } }],
            },
        });
        self.each(vec![(Method::POST, "/api/v1/namespaces".into(), Some(namespace))])?;
        let kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.each(vec![(Method::POST, kinds.into(), Some(kind))])?;
        let list =
            || vec![(Method::GET, format!("{DEFINITIONS}/{NAMESPACE}/network-attachment-definitions"), None)];
        let started = Instant::now();
        loop {
            match self.each(list()) {
                Err(_) if started.elapsed() < READY_WITHIN => thread::sleep(Duration::from_millis(50)),
                served => return served.map(drop),
            }
        }
    }
}

/// Whether a request of the audit log may be one that a pod has caused.
fn is_of_a_pod(line: &str) -> bool {
    let is_watch = line.contains(r#""verb":"watch""#);
    let lacks_kind = line.contains(r#""verb":"list""#) && line.contains(r#""code":404"#);
    !is_watch && !lacks_kind
}

async fn one(
    client: Client,
    (method, path, body): (Method, String, Option<Value>),
) -> Result<Value, ClusterError> {
    let refused = |source| {
        let (method, path) = (method.clone(), path.clone());
        ClusterError::Request { method, path, source: Box::new(source) }
    };
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(&method).uri(&path).header("content-type", "application/json");
    let request = request.body(body).map_err(|e| refused(kube::Error::HttpError(e)))?;
    client.request(request).await.map_err(refused)
}

/// The client, once the API server is ready.
fn connected(dir: &Path, apiserver: &Daemon) -> Result<(Runtime, Client), ClusterError> {
    let told = |e: &dyn fmt::Display| ClusterError::Client(e.to_string());
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| told(&e))?;
    let started = Instant::now();
    loop {
        let ready = runtime.block_on(async {
            // Its certificate is made by itself, when it starts.
            let file = Kubeconfig::read_from(kubeconfig_path(dir, "suite")).map_err(|e| told(&e))?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            let client = Client::try_from(config.map_err(|e| told(&e))?).map_err(|e| told(&e))?;
            let request = Request::get("/readyz").body(Vec::new()).map_err(|e| told(&e))?;
            client.request_text(request).await.map_err(|e| told(&e))?;
            Ok::<_, ClusterError>(client)
        });
        match ready {
            Ok(client) => return Ok((runtime, client)),
            Err(why) if started.elapsed() > READY_WITHIN => {
                return Err(ClusterError::NotReady(why.to_string(), apiserver.last_words()));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn make_files(dir: &Path) -> Result<(), ClusterError> {
    let file = |path: PathBuf| move |source| ClusterError::File { path, source };
    fs::create_dir_all(dir).map_err(file(dir.to_owned()))?;
    let key = dir.join("accounts.key");
    let made = Command::new("openssl").arg("genrsa").arg("-out").arg(&key).arg("2048").output();
    let made = made.map_err(|e| ClusterError::Key(e.to_string()))?;
    if !made.status.success() {
        return Err(ClusterError::Key(String::from_utf8_lossy(&made.stderr).trim().to_owned()));
    }
    let audit = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{ "level": "Metadata", "users": &USERS[1..] }, { "level": "None" }],
    });
    let tokens: String =
        USERS.iter().map(|user| format!("{user},{user},{user},\"system:masters\"\n")).collect();
    let mut files = vec![(dir.join("audit.yaml"), audit.to_string()), (dir.join("tokens.csv"), tokens)];
    files.extend(USERS.iter().map(|user| (kubeconfig_path(dir, user), kubeconfig(dir, user))));
    for (path, text) in files {
        fs::write(&path, text).map_err(file(path))?;
    }
    Ok(())
}

fn kubeconfig_path(dir: &Path, user: &str) -> PathBuf {
    dir.join(format!("{user}.kubeconfig"))
}

/// JSON is YAML.
fn kubeconfig(dir: &Path, user: &str) -> String {
    let authority = dir.join("pki/apiserver.crt");
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{ "name": "bench", "cluster": { "server": SERVER, "certificate-authority": authority } }],
        "users": [{ "name": "bench", "user": { "token": user } }],
        "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "bench" } }],
    })
    .to_string()
}

fn definition(name: &str, text: &str) -> (Method, String, Option<Value>) {
    let object = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "namespace": NAMESPACE }, "spec": { "config": text },
    });
    (Method::POST, format!("{DEFINITIONS}/{NAMESPACE}/network-attachment-definitions"), Some(object))
}

/// An ordinary pod, as the scheduler has left it.
fn pod(name: &str) -> Value {
    let variables: Vec<_> = (0..20)
        .map(|at| json!({ "name": format!("SETTING_{at}"), "value": "a value of some length" }))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": { "app": "bench" }, "annotations": { ANNOTATION: SECOND },
        },
        "spec": {
            "nodeName": NODE, "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": "localhost/work:1", "env": variables }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_by_the_clock_is_no_request_of_a_pod() {
        let line = |verb: &str, code: u16| {
            format!(r#"{{"verb":"{verb}","responseStatus":{{"metadata":{{}},"code":{code}}}}}"#)
        };
        assert!(
            is_of_a_pod(&line("patch", 200))
                && is_of_a_pod(&line("patch", 404))
                && is_of_a_pod(&line("list", 200))
        );
        assert!(!is_of_a_pod(&line("watch", 200)) && !is_of_a_pod(&line("list", 404)));
    }
}
