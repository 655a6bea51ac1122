//! The connection to a database that is reached by TLS, with a certificate of our own, as OVS's programs have it.
//!
//! A session takes a Unix socket; behind the other end of a pair of these stands the one thread that speaks TLS. The files are read for
//! each connection: what was renewed counts from the next one on.
//!
//! As for OVS's own programs, the server is one that the CA has signed, whatever its name: `ovs-pki` writes no address into a certificate.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use fairlead_host::files::text_of;
use rustix::event::{PollFd, PollFlags, poll};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::{Deserialize, Serialize};

use super::database_address::Endpoint;

/// The size in bytes above which a file is not read.
const LIMIT: u64 = 1 << 20;
/// So much is taken from either side at once.
const PIECE: usize = 64 << 10;

/// The files by which a database is spoken to over TLS, each PEM, as this process sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// The certificates of those who sign the database's.
    pub ca: PathBuf,
    /// Our own certificate, and those between it and the one that the database trusts.
    pub certificate: PathBuf,
    /// The key of our certificate.
    pub private_key: PathBuf,
}

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file has not what it should.
    #[error("{} is no PEM of a {what}: {reason}", .file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// What should be in it.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificate and key do not belong together, or TLS does not know their kind.
    #[error("certificate and key cannot be used: {0}")]
    Pair(#[source] rustls::Error),
    /// TCP has no connection.
    #[error("it cannot be connected to: {0}")]
    Connect(#[source] io::Error),
    /// The two did not come to terms, as where the CA has not signed the server's certificate.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// The kernel has no socket or thread.
    #[error(transparent)]
    Kernel(io::Error),
}

/// A connection by TLS.
#[derive(Debug)]
pub(crate) struct TlsConnection {
    /// What is written and read here is encrypted on the wire.
    pub(crate) stream: UnixStream,
    /// What ended it, once it has ended by an error of TLS: a server that refuses our certificate says so only after the handshake.
    pub(crate) ended: Arc<OnceLock<String>>,
}

/// Connects; each step waits no longer than `limit`.
pub(crate) fn connect(end: &Endpoint, files: &TlsFiles, limit: Duration) -> Result<TlsConnection, TlsError> {
    let config = Arc::new(config(files)?);
    let name = ServerName::try_from(end.host.clone())
        .map_err(|error| TlsError::Connect(io::Error::new(ErrorKind::InvalidInput, error)))?;
    let mut tcp = connect_tcp(end, limit).map_err(TlsError::Connect)?;
    let mut tls = ClientConnection::new(config, name).map_err(TlsError::Pair)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).map_err(TlsError::Handshake)?;
    }
    tcp.set_nonblocking(true).map_err(TlsError::Kernel)?;
    let (stream, behind) = UnixStream::pair().map_err(TlsError::Kernel)?;
    behind.set_nonblocking(true).map_err(TlsError::Kernel)?;
    let ended = Arc::new(OnceLock::new());
    let tell = Arc::clone(&ended);
    let pump = Pump { tls, tcp, behind, to_session: Vec::new(), to_server: Vec::new(), is_closing: false };
    let work = move || {
        if let Err(error) = pump.run() {
            drop(tell.set(error.to_string())); // nobody else sets it
        }
    };
    thread::Builder::new().name("ovsdb-tls".to_owned()).spawn(work).map_err(TlsError::Kernel)?;
    Ok(TlsConnection { stream, ended })
}

/// Connects by TCP; a name may have several addresses.
pub(crate) fn connect_tcp(end: &Endpoint, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (end.host.as_str(), end.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(tcp) => {
                tcp.set_nodelay(true)?;
                tcp.set_read_timeout(Some(limit))?;
                tcp.set_write_timeout(Some(limit))?;
                return Ok(tcp);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca)? {
        roots.add(certificate).map_err(|error| TlsError::Pem {
            file: files.ca.clone(),
            what: "CA's certificate",
            reason: error.to_string(),
        })?;
    }
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.private_key)?).map_err(|error| TlsError::Pem {
        file: files.private_key.clone(),
        what: "private key",
        reason: error.to_string(),
    })?;
    let provider = ring::default_provider();
    let verifier = SignedByCa { roots, algorithms: provider.signature_verification_algorithms };
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Pair)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)
        .map_err(TlsError::Pair)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |reason| TlsError::Pem { file: file.to_owned(), what: "certificate", reason };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    match all {
        Ok(all) if all.is_empty() => Err(wrong("there is none in it".to_owned())),
        all => all.map_err(|error| wrong(error.to_string())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    // Without this flag a pipe that nobody writes to would hold up the driver for ever.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    file.and_then(|file| text_of(file, LIMIT))
        .map(String::into_bytes)
        .map_err(|source| TlsError::Read { file: path.to_owned(), source })
}

/// Trusts whom the CA has signed.
#[derive(Debug)]
struct SignedByCa {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for SignedByCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let known = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, known)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Carries what the session writes to the server, and back. It holds one piece each way at most: whoever does not read makes the other wait.
struct Pump {
    tls: ClientConnection,
    tcp: TcpStream,
    /// The other end of the session's stream.
    behind: UnixStream,
    to_session: Vec<u8>,
    to_server: Vec<u8>,
    /// One side has ended: what is on its way is still brought, and nothing more is taken.
    is_closing: bool,
}

impl Pump {
    /// Works until either side has ended; both are closed then.
    fn run(mut self) -> io::Result<()> {
        loop {
            self.turn()?;
            if self.is_closing && self.to_session.is_empty() && !self.tls.wants_write() {
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Does what can be done without waiting.
    fn turn(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.tcp) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if !self.to_session.is_empty() {
            let written = would_block_is_none(self.behind.write(&self.to_session))?;
            self.to_session.drain(..written.unwrap_or(0));
        }
        if !self.is_closing {
            self.take_from_session()?;
            self.take_from_server()?;
        }
        Ok(())
    }

    fn take_from_session(&mut self) -> io::Result<()> {
        if self.tls.wants_write() {
            return Ok(());
        }
        self.to_server.resize(PIECE, 0);
        match would_block_is_none(self.behind.read(&mut self.to_server))? {
            Some(0) => {
                self.tls.send_close_notify();
                self.is_closing = true;
            }
            Some(length) => self.tls.writer().write_all(&self.to_server[..length])?,
            None => {}
        }
        Ok(())
    }

    fn take_from_server(&mut self) -> io::Result<()> {
        if !self.to_session.is_empty() {
            return Ok(());
        }
        let read = would_block_is_none(self.tls.read_tls(&mut self.tcp))?;
        let state =
            self.tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        let waiting = state.plaintext_bytes_to_read();
        if waiting > 0 {
            self.to_session.resize(waiting, 0);
            self.tls.reader().read_exact(&mut self.to_session)?;
        }
        self.is_closing |= read == Some(0) || state.peer_has_closed();
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let (mut of_server, mut of_session) = (PollFlags::empty(), PollFlags::empty());
        of_server.set(PollFlags::OUT, self.tls.wants_write());
        of_server.set(PollFlags::IN, self.to_session.is_empty() && !self.is_closing);
        of_session.set(PollFlags::OUT, !self.to_session.is_empty());
        of_session.set(PollFlags::IN, !self.tls.wants_write() && !self.is_closing);
        // One that is waited for in no way would still tell that it was closed, again and again.
        let mut watched: Vec<PollFd<'_>> = [(self.tcp.as_fd(), of_server), (self.behind.as_fd(), of_session)]
            .into_iter()
            .filter(|(_, wanted)| !wanted.is_empty())
            .map(|(socket, wanted)| PollFd::from_borrowed_fd(socket, wanted))
            .collect();
        match poll(&mut watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn would_block_is_none(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        done => done.map(Some),
    }
}
