//! The client of the API server. What the service account's files say is read again as they change: the token once a minute, the
//! certificates of the authority when a connection is made.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Uri};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
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

/// The client for an API server. What is asked by it is added to `counts`.
///
/// # Errors
/// The service account's files or the kubeconfig cannot be read or used; the text says which.
pub(super) async fn connect(api: &ApiServer, counts: &Arc<Counts>) -> Result<Client, String> {
    let config = match api {
        ApiServer::InCluster => {
            Config::incluster().map_err(|e| format!("the pod's service account cannot be used: {e}"))?
        }
        ApiServer::Kubeconfig(path) => {
            let unusable = |e| format!("the kubeconfig {} cannot be used: {e}", path.display());
            let file = Kubeconfig::read_from(path).map_err(unusable)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(unusable)?
        }
    };
    client(&config, counts).map_err(|e| format!("no client of {} can be made: {e}", config.cluster_url))
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
