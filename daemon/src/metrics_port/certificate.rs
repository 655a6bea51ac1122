//! The certificate that the port shows: that of two files, or one of our own.
//!
//! The files are looked at when somebody connects, at most once a second. So a certificate that was renewed (a mounted Secret swaps
//! its link `..data`) is shown from the next connection on, and no watch can miss it. A pair that cannot be used, as in the middle of
//! a renewal, changes nothing.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::files::text_of;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tracing::{info, warn};

use super::settings::TlsFiles;

/// The size in bytes above which a file is not read.
const LIMIT: u64 = 1 << 20;
/// So long what was read counts as what is there.
const FRESH: Duration = Duration::from_secs(1);

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    /// A file cannot be read.
    #[error("{file} cannot be read: {source}")]
    Read {
        /// The path of the file.
        file: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A file has no certificate or key.
    #[error("{file} is no PEM of a {what}: {source}")]
    Pem {
        /// The path of the file.
        file: String,
        /// What should be in it.
        what: &'static str,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// The two do not belong together, or the key is of a kind that is not known.
    #[error("certificate and key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
    /// No certificate of our own could be made.
    #[error("no certificate of our own could be made: {0}")]
    Own(#[from] rcgen::Error),
}

/// What the two files said.
#[derive(PartialEq, Eq)]
struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    fn read(files: &TlsFiles) -> Result<Pair, CertificateError> {
        Ok(Pair { certificate: read(&files.cert_file)?, key: read(&files.key_file)? })
    }

    fn config(&self, files: &TlsFiles) -> Result<Arc<ServerConfig>, CertificateError> {
        let wrong = |path: &Path, what, source| CertificateError::Pem {
            file: path.display().to_string(),
            what,
            source,
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let chain = chain.map_err(|e| wrong(&files.cert_file, "certificate", e))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        server_config(chain, key.map_err(|e| wrong(&files.key_file, "private key", e))?)
    }
}

fn read(path: &Path) -> Result<String, CertificateError> {
    // Without this flag a pipe that nobody writes to would hold up the port for ever.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
    file.and_then(|file| text_of(file, LIMIT))
        .map_err(|source| CertificateError::Read { file: path.display().to_string(), source })
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, CertificateError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// A certificate of our own, which nobody has signed: who reads knows that nobody else listens in, not whom it reads from.
pub(super) fn own() -> Result<Arc<ServerConfig>, CertificateError> {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let made = rcgen::generate_simple_self_signed(vec![host.unwrap_or_else(|| "localhost".to_owned())])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    server_config(vec![made.cert.der().clone()], key.into())
}

/// The certificate of two files, as they are now.
pub(super) struct FileCertificate {
    files: TlsFiles,
    loaded: Option<(Pair, Arc<ServerConfig>)>,
    looked: Option<Instant>,
    refused: Option<String>,
}

impl FileCertificate {
    pub(super) fn new(files: TlsFiles) -> FileCertificate {
        FileCertificate { files, loaded: None, looked: None, refused: None }
    }

    /// What to show to somebody who connects at `now`.
    ///
    /// # Errors
    /// The files were never such that they could be used; the error says what is wrong with them.
    pub(super) fn current(&mut self, now: Instant) -> Result<Arc<ServerConfig>, CertificateError> {
        let fresh = self.looked.is_some_and(|at| now.duration_since(at) < FRESH);
        if let (true, Some((_, config))) = (fresh, &self.loaded) {
            return Ok(Arc::clone(config));
        }
        self.looked = Some(now);
        match (self.look(), &self.loaded) {
            (Ok(config), _) => {
                self.refused = None;
                Ok(config)
            }
            (Err(error), Some((_, old))) => {
                let reason = error.to_string();
                if self.refused.as_ref() != Some(&reason) {
                    warn!(
                        reason,
                        "the certificate of the metrics' port is not renewed; the old one is shown"
                    );
                    self.refused = Some(reason);
                }
                Ok(Arc::clone(old))
            }
            (Err(error), None) => Err(error),
        }
    }

    fn look(&mut self) -> Result<Arc<ServerConfig>, CertificateError> {
        let pair = Pair::read(&self.files)?;
        if let Some((loaded, config)) = &self.loaded
            && *loaded == pair
        {
            return Ok(Arc::clone(config));
        }
        let config = pair.config(&self.files)?;
        info!(file = %self.files.cert_file.display(), "the certificate of the metrics' port was read");
        self.loaded = Some((pair, Arc::clone(&config)));
        Ok(config)
    }
}
