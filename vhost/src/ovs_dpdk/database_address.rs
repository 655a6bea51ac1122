//! Where the database of OVS is, as OVS's own programs are told it.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::error::OvsError;
use super::port_spec::LONGEST_SOCKET_PATH;

/// The port that is meant where none is named, which is OVSDB's own.
const PORT: u16 = 6640;

/// Where the database of OVS is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseAddress {
    /// A socket of the host, `unix:/run/openvswitch/db.sock`.
    Unix(PathBuf),
    /// Without TLS, `tcp:127.0.0.1:6640`: an address of the node's own alone.
    Tcp(Endpoint),
    /// By TLS, `ssl:10.0.0.1:6640`.
    Ssl(Endpoint),
}

/// The end of a TCP connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// An IP address or a name of DNS.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Default for DatabaseAddress {
    /// Where Debian's OVS, and most others, have it.
    fn default() -> DatabaseAddress {
        DatabaseAddress::Unix(PathBuf::from("/run/openvswitch/db.sock"))
    }
}

impl DatabaseAddress {
    /// Reads an address as OVS's own programs take it: `unix:/run/openvswitch/db.sock`, `ssl:10.0.0.1:6640`, `tcp:[::1]:6640`. Port 6640
    /// may be left out.
    ///
    /// # Errors
    /// [`OvsError::Address`] for all others, and for `tcp:` to another host.
    pub fn parse(text: &str) -> Result<DatabaseAddress, OvsError> {
        let refused = || OvsError::Address(text.to_owned());
        match text.split_once(':') {
            Some(("unix", path)) => {
                let path = PathBuf::from(path);
                let fits = path.is_absolute() && path.as_os_str().len() <= LONGEST_SOCKET_PATH;
                fits.then_some(DatabaseAddress::Unix(path)).ok_or_else(refused)
            }
            Some(("ssl", end)) => Endpoint::parse(end).map(DatabaseAddress::Ssl).ok_or_else(refused),
            Some(("tcp", end)) => {
                let own = |end: &Endpoint| end.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
                Endpoint::parse(end).filter(own).map(DatabaseAddress::Tcp).ok_or_else(refused)
            }
            _ => Err(refused()),
        }
    }

    /// The socket's path, where it is one of the host's files.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            DatabaseAddress::Unix(path) => Some(path),
            DatabaseAddress::Tcp(_) | DatabaseAddress::Ssl(_) => None,
        }
    }
}

impl fmt::Display for DatabaseAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatabaseAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            DatabaseAddress::Tcp(end) => write!(f, "tcp:{end}"),
            DatabaseAddress::Ssl(end) => write!(f, "ssl:{end}"),
        }
    }
}

impl Endpoint {
    fn parse(text: &str) -> Option<Endpoint> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port.strip_prefix(':').or(port.is_empty().then_some(""))?)
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        let is_host = !host.is_empty() && host.len() <= 253 && host.bytes().all(of_name);
        let port = if port.is_empty() { PORT } else { port.parse().ok().filter(|port| *port != 0)? };
        is_host.then(|| Endpoint { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_ovs_reads_it_and_written_with_its_port() {
        for (text, written) in [
            ("unix:/run/openvswitch/db.sock", "unix:/run/openvswitch/db.sock"),
            ("ssl:10.0.0.1:6641", "ssl:10.0.0.1:6641"),
            ("ssl:ovs.example.com", "ssl:ovs.example.com:6640"),
            ("ssl:[fd00::1]:7", "ssl:[fd00::1]:7"),
            ("tcp:127.0.0.1", "tcp:127.0.0.1:6640"),
            ("tcp:[::1]", "tcp:[::1]:6640"),
        ] {
            let address = DatabaseAddress::parse(text).unwrap();
            assert_eq!(address.to_string(), written);
            assert_eq!(DatabaseAddress::parse(written).unwrap(), address);
        }
    }

    #[test]
    fn what_is_no_address_and_tcp_to_another_host_is_refused_with_what_is_one() {
        let long = format!("unix:/{}", "x".repeat(107));
        for wrong in [
            "",
            "unix:db.sock",
            "ssl:",
            "ssl:a b",
            "ssl:h:0",
            "ssl:h:65536",
            "ssl:h:1:2",
            "ssl:[::1",
            "ssl:[::1]1",
            "ssl:[h]:1",
            "pssl:6640",
            "tcp:10.0.0.1:6640",
            "tcp:localhost",
            "tcp:[fd00::1]:1",
            "/run/db.sock",
            &long,
        ] {
            let told = DatabaseAddress::parse(wrong).unwrap_err().to_string();
            assert!(told.contains("ssl:HOST:PORT") && told.contains("loopback"), "{wrong}: {told}");
        }
    }
}
