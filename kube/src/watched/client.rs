//! The client of the API server. What the service account's files say is read again as they change: the token once a minute, the
//! certificates of the authority when a connection is made. A kubeconfig and the certificates that it names are looked at before each
//! request, and a client is made anew once one of them has changed: whoever renews credentials restarts no daemon.

use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Uri};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::Mutex;
use tower::{BoxError, Service, ServiceBuilder};

use super::ApiServer;
use super::shared::{Counts, add_one};

/// A connection that is not there after this is given up.
const CONNECT: Duration = Duration::from_secs(10);
/// A peer that is silent is asked after this, this often, and taken for dead after [`PROBES`] of them: a watch is silent for
/// minutes, and a node that was cut off would wait for ever.
const KEEPALIVE: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
/// Connections that are kept for the next request; the watches keep theirs as long as they live. As many as the reports that are under way at once.
const IDLE: usize = 4;

/// The way to an API server: its client, by what its files say now.
pub(super) struct Connection {
    api: ApiServer,
    counts: Arc<Counts>,
    made: Mutex<Made>,
    /// It was told that the files cannot be used.
    told: AtomicBool,
}

/// A client, and the files that it was made of.
struct Made {
    client: Client,
    files: Files,
}

impl Connection {
    /// The way to an API server, which is not asked yet. What is asked by it is added to `counts`.
    ///
    /// # Errors
    /// The service account's files or the kubeconfig cannot be read or used; the text says which.
    pub(super) async fn open(api: &ApiServer, counts: &Arc<Counts>) -> Result<Connection, String> {
        let made = Mutex::new(make(api, counts).await?);
        Ok(Connection { api: api.clone(), counts: Arc::clone(counts), made, told: AtomicBool::new(false) })
    }

    /// The client for the next request: made anew if its files have changed. Where they cannot be used, as while they are written, the
    /// one before.
    pub(super) async fn current(&self) -> Client {
        let have_changed = self.made.lock().files.have_changed();
        if have_changed {
            match make(&self.api, &self.counts).await {
                Ok(made) => {
                    tracing::info!(
                        "the kubeconfig, or a certificate that it names, has changed; it is read again"
                    );
                    self.told.store(false, Ordering::Relaxed);
                    *self.made.lock() = made;
                }
                Err(reason) if !self.told.swap(true, Ordering::Relaxed) => {
                    tracing::warn!(
                        reason,
                        "what has changed cannot be used; the API server is asked with what was read before"
                    );
                }
                Err(_) => {}
            }
        }
        self.made.lock().client.clone()
    }
}

/// Files, and by what it is known that one is another by now.
#[derive(Debug, Default)]
struct Files(Vec<(PathBuf, Option<Stamp>)>);

/// Device, inode, time of the last change and length of a file.
type Stamp = (u64, u64, i64, i64, u64);

impl Files {
    fn of(paths: impl IntoIterator<Item = PathBuf>) -> Files {
        let stamped = paths.into_iter().map(|path| {
            let stamp = stamp(&path);
            (path, stamp)
        });
        Files(stamped.collect())
    }

    fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, before)| stamp(path) != *before)
    }
}

/// `None`: it cannot be looked at.
fn stamp(path: &Path) -> Option<Stamp> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.len()))
}

/// The certificates and keys that a kubeconfig names. A `tokenFile` is not among them: the client reads it once a minute.
fn named_by(kubeconfig: &Kubeconfig) -> Vec<PathBuf> {
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let authorities = clusters.filter_map(|cluster| cluster.certificate_authority.as_ref());
    let users = kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
    let of_users = users.flat_map(|user| [&user.client_certificate, &user.client_key]).flatten();
    authorities.chain(of_users).map(PathBuf::from).collect()
}

async fn make(api: &ApiServer, counts: &Arc<Counts>) -> Result<Made, String> {
    let (config, files) = match api {
        ApiServer::InCluster => {
            let unusable = |e| format!("the pod's service account cannot be used: {e}");
            (Config::incluster().map_err(unusable)?, Files::default())
        }
        ApiServer::Kubeconfig(path) => {
            let unusable = |e| format!("the kubeconfig {} cannot be used: {e}", path.display());
            // Each is looked at before it is read: what changes between the two is seen the next time.
            let Files(mut files) = Files::of([path.clone()]);
            let file = Kubeconfig::read_from(path).map_err(unusable)?;
            files.extend(Files::of(named_by(&file)).0);
            let options = KubeConfigOptions::default();
            (Config::from_custom_kubeconfig(file, &options).await.map_err(unusable)?, Files(files))
        }
    };
    let client = client(&config, counts)
        .map_err(|e| format!("no client of {} can be made: {e}", config.cluster_url))?;
    Ok(Made { client, files })
}

/// The client for an API server that is asked a few things once.
///
/// # Errors
/// As [`Connection::open`].
pub(super) async fn connect(api: &ApiServer, counts: &Arc<Counts>) -> Result<Client, String> {
    make(api, counts).await.map(|made| made.client)
}

fn client(config: &Config, counts: &Arc<Counts>) -> kube::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(PROBES));
    let counted = CountedConnector { tcp, counts: Arc::clone(counts) };
    let tls = config.rustls_https_connector_with_connector(counted)?;
    let mut http = HttpClient::builder(TokioExecutor::new());
    http.pool_max_idle_per_host(IDLE);
    let counts = Arc::clone(counts);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_request(move |request: Request<Body>| {
            add_one(match *request.method() {
                Method::PATCH => &counts.patches,
                Method::POST => &counts.creates,
                _ => &counts.reads,
            });
            request
        })
        .map_err(BoxError::from)
        .service(http.build(tls));
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// A connector that counts the connections that are made.
#[derive(Debug, Clone)]
struct CountedConnector {
    tcp: HttpConnector,
    counts: Arc<Counts>,
}

impl Service<Uri> for CountedConnector {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (connecting, counts) = (self.tcp.call(target), Arc::clone(&self.counts));
        Box::pin(async move {
            let connection = connecting.await?;
            add_one(&counts.connections);
            Ok(connection)
        })
    }
}

/// Why the API server did not do what it was asked, in one line for people.
pub(super) fn reason(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("it answers {} {}: {}", status.code, status.reason, status.message);
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    text
}

/// The HTTP status of a refusal.
pub(super) fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES_THREE: &str = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {certificate-authority: ca.pem}}]\n\
                               users: [{name: u, user: {client-certificate: c.pem, client-key: k.pem}}]\n";

    #[test]
    fn the_files_of_a_kubeconfig_are_its_certificates_and_each_is_seen_to_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        fs::write(&path, NAMES_THREE).unwrap();
        let named = named_by(&Kubeconfig::read_from(&path).unwrap());
        assert_eq!(named, ["ca.pem", "c.pem", "k.pem"].map(|name| dir.path().join(name)));
        for file in &named {
            let changes: [&dyn Fn(); 4] = [
                &|| fs::write(file, "made").unwrap(),
                &|| fs::write(file, "written over").unwrap(),
                &|| {
                    // A program that renews it makes another file in its place.
                    fs::write(dir.path().join("new"), "written over").unwrap();
                    fs::rename(dir.path().join("new"), file).unwrap();
                },
                &|| fs::remove_file(file).unwrap(),
            ];
            for change in changes {
                let before = Files::of(named.clone());
                assert!(!before.have_changed());
                change();
                assert!(before.have_changed(), "{}", file.display());
            }
        }
    }
}
