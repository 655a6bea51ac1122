//! etcd and kube-apiserver on loopback, in a directory of their own; both end with the test.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const LONG: Duration = Duration::from_secs(120);
/// What Fairlead may do, and nothing else.
const ROLE: [(&str, &str, &[&str]); 5] = [
    ("", "pods", &["list", "watch"]),
    ("", "pods/status", &["patch"]),
    ("", "namespaces", &["list", "watch"]),
    ("", "events", &["create"]),
    ("k8s.cni.cncf.io", "network-attachment-definitions", &["list", "watch"]),
];
const RBAC: &str = "rbac.authorization.k8s.io";
const ROLE_LEGACY: (&str, &str, &[&str]) = ("alpha.network.k8s.io", "networks", &["list", "watch"]);

/// A program that ends when this is dropped.
#[derive(Debug)]
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct RealApiServer {
    runtime: Runtime,
    programs: PathBuf,
    dir: TempDir,
    ports: [u16; 3],
    clients: RefCell<BTreeMap<String, Client>>,
    api: Option<Program>,
    _etcd: Program,
}

impl RealApiServer {
    /// Starts both, waits until they are ready, and gives Fairlead its rights.
    pub(crate) fn start() -> RealApiServer {
        let programs = PathBuf::from(env::var_os("FAIRLEAD_CLUSTER_PROGRAMS").expect(
            "FAIRLEAD_CLUSTER_PROGRAMS names no directory with etcd and kube-apiserver; `make e2e` builds them and sets it",
        ));
        let dir = tempfile::tempdir().unwrap();
        // Held together, so that they differ; free again when the programs begin.
        let held = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = held.each_ref().map(|socket| socket.local_addr().unwrap().port());
        drop(held);
        let [client, peer, _] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        let etcd = program(
            &programs.join("etcd"),
            dir.path(),
            &[
                "--data-dir=etcd",
                "--unsafe-no-fsync",
                &format!("--listen-client-urls={client}"),
                &format!("--advertise-client-urls={client}"),
                &format!("--listen-peer-urls={peer}"),
                &format!("--initial-advertise-peer-urls={peer}"),
                &format!("--initial-cluster=default={peer}"),
            ],
        );
        let key = Command::new("openssl")
            .args(["genrsa", "-out", "sa.key", "2048"])
            .current_dir(dir.path())
            .output();
        assert!(key.unwrap().status.success(), "openssl makes the key for service accounts");
        fs::write(
            dir.path().join("tokens.csv"),
            "admin,admin,admin,\"system:masters\"\nfairlead,fairlead,fairlead,\n",
        )
        .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut server = RealApiServer {
            runtime,
            programs,
            dir,
            ports,
            clients: RefCell::default(),
            api: None,
            _etcd: etcd,
        };
        server.again();
        server.give_rights();
        server
    }

    /// Starts the API server, after [`RealApiServer::stop`] too.
    pub(crate) fn again(&mut self) {
        let [etcd, _, port] = self.ports;
        self.api = Some(program(
            &self.programs.join("kube-apiserver"),
            self.dir.path(),
            &[
                &format!("--etcd-servers=http://127.0.0.1:{etcd}"),
                &format!("--secure-port={port}"),
                "--bind-address=127.0.0.1",
                "--cert-dir=certificates",
                "--token-auth-file=tokens.csv",
                "--service-account-issuer=https://kubernetes.default",
                "--service-account-key-file=sa.key",
                "--service-account-signing-key-file=sa.key",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/24",
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            ],
        ));
        let begun = Instant::now();
        let ready = || {
            self.dir.path().join("certificates/apiserver.crt").exists()
                && self.ask("admin", "GET", "/readyz", None).is_ok()
                && self.ask("admin", "GET", "/api/v1/namespaces/default", None).is_ok()
        };
        while !ready() {
            let log = self.dir.path().join("kube-apiserver.log");
            assert!(begun.elapsed() < LONG, "{}", fs::read_to_string(log).unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Kills the API server.
    pub(crate) fn stop(&mut self) {
        self.api = None;
    }

    pub(crate) fn kubeconfig_of_fairlead(&self) -> PathBuf {
        self.kubeconfig("fairlead")
    }

    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        let path = self.dir.path().join(format!("{user}.kubeconfig"));
        let authority = self.dir.path().join("certificates/apiserver.crt");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
             clusters: [{{name: c, cluster: {{server: \"https://127.0.0.1:{}\", certificate-authority: {}}}}}]\n\
             users: [{{name: u, user: {{token: {user}}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n",
            self.ports[2],
            authority.display()
        );
        fs::write(&path, text).unwrap();
        path
    }

    fn ask(&self, user: &str, method: &str, path: &str, body: Option<&Value>) -> kube::Result<String> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        self.runtime.block_on(async {
            let client = self.client(user).await?;
            let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
            let request = Request::builder().method(method).uri(path).header("content-type", kind);
            client.request_text(request.body(body).unwrap()).await
        })
    }

    async fn client(&self, user: &str) -> kube::Result<Client> {
        if let Some(client) = self.clients.borrow().get(user) {
            return Ok(client.clone());
        }
        let file = Kubeconfig::read_from(self.kubeconfig(user)).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config)?;
        self.clients.borrow_mut().insert(user.to_owned(), client.clone());
        Ok(client)
    }

    fn code(answer: kube::Result<String>) -> u16 {
        match answer {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(other) => panic!("{other}"),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.ask("admin", "GET", path, None).unwrap()).unwrap()
    }

    pub(crate) fn create(&self, path: &str, object: &Value) -> Value {
        serde_json::from_str(&self.ask("admin", "POST", path, Some(object)).unwrap()).unwrap()
    }

    /// Creates an object of a kind that the API server may not serve yet.
    pub(crate) fn create_when_ready(&self, path: &str, object: &Value) {
        let begun = Instant::now();
        while let Err(error) = self.ask("admin", "POST", path, Some(object)) {
            assert!(begun.elapsed() < LONG, "{error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn delete(&self, path: &str) {
        self.ask("admin", "DELETE", path, None).unwrap();
    }

    /// How a PATCH of the annotation that names another uid is answered.
    pub(crate) fn refusal_of_a_status_patch(&self, path: &str, uid: &str) -> u16 {
        let body = json!({ "metadata": { "uid": uid, "annotations": { "k8s.v1.cni.cncf.io/network-status": "[]" } } });
        RealApiServer::code(self.ask("fairlead", "PATCH", &format!("{path}/status"), Some(&body)))
    }

    /// How something that Fairlead's rights may not cover is answered.
    pub(crate) fn as_fairlead(&self, method: &str, path: &str) -> u16 {
        RealApiServer::code(self.ask("fairlead", method, path, Some(&json!({}))))
    }

    /// Applies a CustomResourceDefinition with a schema that takes any `spec`, and waits until it is served.
    pub(crate) fn apply_kind(&self, plural: &str, group: &str, kind: &str) {
        let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": {
            "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } } });
        let words = kind.to_lowercase();
        self.create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                // The API server takes a kind of a group of *.k8s.io with this word only.
                "metadata": { "name": format!("{plural}.{group}"),
                    "annotations": { "api-approved.kubernetes.io": "unapproved, legacy" } },
                "spec": {
                    "group": group, "scope": "Namespaced",
                    "names": { "plural": plural, "singular": words, "kind": kind },
                    "versions": [{ "name": "v1", "served": true, "storage": true, "schema": schema }]
                }
            }),
        );
        let begun = Instant::now();
        while self.ask("admin", "GET", &format!("/apis/{group}/v1/{plural}"), None).is_err() {
            assert!(begun.elapsed() < LONG, "the kind {kind} is not served");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Fairlead may ask whose a token is, and what that account may do, as `deploy/overlays/metrics` lets it.
    pub(crate) fn lets_fairlead_review_tokens(&self) {
        let rule = |group: &str, resource: &str| json!({ "apiGroups": [group], "resources": [resource], "verbs": ["create"] });
        let rules = json!([
            rule("authentication.k8s.io", "tokenreviews"),
            rule("authorization.k8s.io", "subjectaccessreviews")
        ]);
        self.give(
            "fairlead-reviews",
            &rules,
            &json!({ "apiGroup": RBAC, "kind": "User", "name": "fairlead" }),
        );
    }

    /// A service account may GET a path that is no resource.
    pub(crate) fn lets_read(&self, account: &str, path: &str) {
        let rules = json!([{ "nonResourceURLs": [path], "verbs": ["get"] }]);
        let whom = json!({ "kind": "ServiceAccount", "name": account, "namespace": "default" });
        self.give(&format!("{account}-reads"), &rules, &whom);
    }

    /// A token of a service account, which is made.
    pub(crate) fn token_of(&self, account: &str) -> String {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let object = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account } });
        self.create_when_ready(accounts, &object);
        let asked = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let made = self.create(&format!("{accounts}/{account}/token"), &asked);
        made["status"]["token"].as_str().unwrap().to_owned()
    }

    fn give_rights(&self) {
        let rule = |(group, resource, verbs): (&str, &str, &[&str])| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
        let rules: Vec<_> = ROLE.into_iter().chain([ROLE_LEGACY]).map(rule).collect();
        self.give(
            "fairlead",
            &rules.into(),
            &json!({ "apiGroup": RBAC, "kind": "User", "name": "fairlead" }),
        );
    }

    /// A role of these rules, and whom it is given.
    fn give(&self, name: &str, rules: &Value, whom: &Value) {
        let (base, version) = (format!("/apis/{RBAC}/v1"), format!("{RBAC}/v1"));
        let named = json!({ "name": name });
        let role = json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": named, "rules": rules });
        self.create(&format!("{base}/clusterroles"), &role);
        self.create(
            &format!("{base}/clusterrolebindings"),
            &json!({
                "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": named,
                "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": name }, "subjects": [whom]
            }),
        );
    }
}

fn program(path: &Path, dir: &Path, arguments: &[&str]) -> Program {
    let name = path.file_name().unwrap().to_str().unwrap();
    let log = File::options().create(true).append(true).open(dir.join(format!("{name}.log"))).unwrap();
    let child = Command::new(path)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|e| panic!("{} (FAIRLEAD_CLUSTER_PROGRAMS) cannot be started: {e}", path.display()));
    Program(child)
}
