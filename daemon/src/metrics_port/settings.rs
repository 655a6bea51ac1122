//! What the configuration says of the port, and the one rule about it: metrics leave the node only encrypted.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Metrics on a TCP port. Absent: there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "Unchecked")]
pub struct MetricsSettings {
    /// The address and port to listen at.
    pub listen: SocketAddr,
    /// The certificate to show. Absent beside `tokenReview`: one of our own, made at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFiles>,
    /// True: only who shows a token of the cluster whose account may GET `/metrics` is answered.
    #[serde(default)]
    pub token_review: bool,
}

/// The files of a certificate, in PEM; they are read again when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate, and those that lead to its authority.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

/// The settings as they are written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Unchecked {
    listen: String,
    tls: Option<TlsFiles>,
    #[serde(default)]
    token_review: bool,
}

/// Why settings of the port are refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    /// The address is none.
    #[error("metrics.listen: {0:?} is no address with a port, like 127.0.0.1:9808 or [::]:9808")]
    NoAddress(String),
    /// Other machines could read, and whoever is between.
    #[error(
        "metrics.listen: {0} is reached from other machines, which needs `tls` or `tokenReview: true`; without them only a loopback address like 127.0.0.1:{port} is taken", port = .0.port()
    )]
    Unprotected(SocketAddr),
    /// A file of the certificate has no absolute path.
    #[error("metrics.tls: {0:?} is no absolute path")]
    RelativePath(PathBuf),
}

impl TryFrom<Unchecked> for MetricsSettings {
    type Error = Refused;

    fn try_from(Unchecked { listen, tls, token_review }: Unchecked) -> Result<MetricsSettings, Refused> {
        let listen: SocketAddr = listen.parse().map_err(|_| Refused::NoAddress(listen))?;
        if !listen.ip().is_loopback() && tls.is_none() && !token_review {
            return Err(Refused::Unprotected(listen));
        }
        let files = tls.iter().flat_map(|tls| [&tls.cert_file, &tls.key_file]);
        if let Some(relative) = files.into_iter().find(|file| !file.is_absolute()) {
            return Err(Refused::RelativePath(relative.clone()));
        }
        Ok(MetricsSettings { listen, tls, token_review })
    }
}
