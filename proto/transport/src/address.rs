//! Addresses as written in flags and configuration.
//!
//! Host names stay unresolved here: every connect resolves them again, so that a peer that moved is found.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The scheme of an address, which decides on TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// No scheme: TLS if TLS is configured.
    Unspecified,
    /// `http://` or `unix:`: never TLS.
    Plain,
    /// `https://` or `unixs:`: always TLS.
    Tls,
}

/// A host as written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Ip(IpAddr),
    Name(String),
}

/// The part of an address after the scheme.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    Tcp {
        /// An address or a name.
        host: Host,
        port: u16,
    },
    Unix(PathBuf),
}

/// An address to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    scheme: Scheme,
    target: Target,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ListenAddr {
    scheme: Scheme,
    target: Target,
}

/// An unusable address. The text says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{text:?}: {problem}", prefix(.field.as_deref()))]
pub struct AddressError {
    field: Option<String>,
    text: String,
    problem: String,
}

fn prefix(field: Option<&str>) -> String {
    field.map(|field| format!("{field}: ")).unwrap_or_default()
}

impl AddressError {
    fn new(text: &str, problem: impl Into<String>) -> Self {
        Self { field: None, text: text.to_owned(), problem: problem.into() }
    }

    /// Names the flag or configuration field of the address in the error.
    #[must_use]
    pub fn in_field(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }
}

impl Endpoint {
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        let target = Target::Tcp { host: Host::Ip(address.ip()), port: address.port() };
        Self { scheme: Scheme::Unspecified, target }
    }

    #[must_use]
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { scheme: Scheme::Plain, target: Target::Unix(path.into()) }
    }

    /// Parses `text`. An error names `field`, such as `--store`.
    ///
    /// # Errors
    /// When the text is not an address of a peer.
    pub fn parse_field(field: &str, text: &str) -> Result<Self, AddressError> {
        text.parse().map_err(|error: AddressError| error.in_field(field))
    }

    #[must_use]
    pub fn with_scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Whether this is a Unix socket, which other machines cannot reach.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        matches!(self.target, Target::Unix(_))
    }

    /// The addresses that a server advertises of those it listens on: its TCP addresses, or its Unix sockets if
    /// there are no others, because clients may be on other machines.
    #[must_use]
    pub fn advertised(listening: &[Self]) -> Vec<String> {
        let only_unix = listening.iter().all(Self::is_unix);
        let shown = listening.iter().filter(|endpoint| only_unix || !endpoint.is_unix());
        shown.map(ToString::to_string).collect()
    }

    /// The name that the peer's certificate must contain, and the host part of `:authority`.
    #[must_use]
    pub fn server_name(&self) -> String {
        match &self.target {
            Target::Tcp { host: Host::Ip(ip), .. } => ip.to_string(),
            Target::Tcp { host: Host::Name(name), .. } => name.clone(),
            Target::Unix(_) => "localhost".to_owned(),
        }
    }

    /// The `:authority` of requests to this endpoint.
    #[must_use]
    pub fn authority(&self) -> String {
        match &self.target {
            Target::Tcp { .. } => self.target.to_string(),
            Target::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl ListenAddr {
    /// A TCP address without scheme. Port 0 selects any free port.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        let target = Target::Tcp { host: Host::Ip(address.ip()), port: address.port() };
        Self { scheme: Scheme::Unspecified, target }
    }

    #[must_use]
    pub fn any_local_port() -> Self {
        Self::tcp(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    #[must_use]
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { scheme: Scheme::Plain, target: Target::Unix(path.into()) }
    }

    /// Parses `text`. An error names `field`, such as `--listen`.
    ///
    /// # Errors
    /// When the text is not an address to listen on.
    pub fn parse_field(field: &str, text: &str) -> Result<Self, AddressError> {
        text.parse().map_err(|error: AddressError| error.in_field(field))
    }

    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Whether only processes of this machine can reach the address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match &self.target {
            Target::Tcp { host: Host::Ip(ip), .. } => ip.to_canonical().is_loopback(),
            Target::Tcp { host: Host::Name(name), .. } => name.eq_ignore_ascii_case("localhost"),
            Target::Unix(_) => true,
        }
    }
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, target) = parse(text)?;
        match &target {
            Target::Tcp { port: 0, .. } => Err(AddressError::new(text, "port 0 cannot be connected to")),
            Target::Tcp { host: Host::Ip(ip), .. } if ip.is_unspecified() => Err(AddressError::new(
                text,
                format!("{ip} is an address to listen on; write the address or name of the peer"),
            )),
            Target::Tcp { .. } | Target::Unix(_) => Ok(Self { scheme, target }),
        }
    }
}

impl FromStr for ListenAddr {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, target) = parse(text)?;
        Ok(Self { scheme, target })
    }
}

fn parse(text: &str) -> Result<(Scheme, Target), AddressError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(AddressError::new(text, "is empty; write host:port, for instance 127.0.0.1:2379"));
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok((Scheme::Plain, unix(text, path)?));
    }
    if let Some(path) = text.strip_prefix("unixs:") {
        return Ok((Scheme::Tls, unix(text, path)?));
    }
    let (scheme, rest) = match text.split_once("://") {
        None => (Scheme::Unspecified, text),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Scheme::Plain, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Scheme::Tls, rest),
        Some((scheme, _)) => {
            let problem = format!("unknown scheme {scheme:?}; use http, https, unix or unixs");
            return Err(AddressError::new(text, problem));
        }
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#', '@']) {
        return Err(AddressError::new(text, "only host and port may stand here, no path, query or user"));
    }
    Ok((scheme, tcp(text, rest)?))
}

fn unix(text: &str, path: &str) -> Result<Target, AddressError> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() {
        return Err(AddressError::new(text, "names no socket file; write unix:///run/kindred.sock"));
    }
    // `sun_path` has 108 bytes including the final zero, and the system's own error does not say so.
    // `partition-config` applies the same limit to addresses in a cluster's state.
    if path.len() > 107 {
        let problem = format!("the path has {} bytes and a Unix socket's at most 107", path.len());
        return Err(AddressError::new(text, problem));
    }
    Ok(Target::Unix(Path::new(path).to_owned()))
}

fn tcp(text: &str, rest: &str) -> Result<Target, AddressError> {
    if rest.parse::<Ipv6Addr>().is_ok() {
        return Err(AddressError::new(text, format!("write an IPv6 address in brackets: [{rest}]:2379")));
    }
    let (host, port) = if let Some(inner) = rest.strip_prefix('[') {
        let Some((ip, port)) = inner.split_once(']') else {
            return Err(AddressError::new(text, "the bracket of the IPv6 address is not closed"));
        };
        let ip = ip.parse::<Ipv6Addr>();
        let ip = ip.map_err(|_| AddressError::new(text, "no IPv6 address stands in the brackets"))?;
        (Host::Ip(ip.into()), port.strip_prefix(':'))
    } else {
        let (host, port) = rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
        (parse_host(text, host)?, port)
    };
    let Some(port) = port.filter(|port| !port.is_empty()) else {
        return Err(AddressError::new(text, "has no port; append one, for instance :2379"));
    };
    let number = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse::<u16>().ok()).flatten();
    let problem = || AddressError::new(text, format!("{port:?} is not a port; use a number from 1 to 65535"));
    Ok(Target::Tcp { host, port: number.ok_or_else(problem)? })
}

fn parse_host(text: &str, host: &str) -> Result<Host, AddressError> {
    if host.is_empty() || host == "*" {
        let problem = "names no host; write 127.0.0.1 or, to listen on all interfaces, 0.0.0.0 or [::]";
        return Err(AddressError::new(text, problem));
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(Host::Ip(ip));
    }
    let name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !host.bytes().all(name_byte) || host.len() > 253 {
        return Err(AddressError::new(text, format!("{host:?} is not a host name")));
    }
    if host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(AddressError::new(text, format!("{host:?} is not an IPv4 address")));
    }
    Ok(Host::Name(host.to_owned()))
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

fn display(scheme: Scheme, target: &Target, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let prefix = match (scheme, target) {
        (Scheme::Unspecified, Target::Tcp { .. }) => "",
        (Scheme::Plain, Target::Tcp { .. }) => "http://",
        (Scheme::Tls, Target::Tcp { .. }) => "https://",
        (Scheme::Unspecified | Scheme::Plain, Target::Unix(_)) => "unix://",
        (Scheme::Tls, Target::Unix(_)) => "unixs://",
    };
    write!(f, "{prefix}{target}")
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(self.scheme, &self.target, f)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(self.scheme, &self.target, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted() {
        for (text, shown, authority) in [
            ("127.0.0.1:2379", "127.0.0.1:2379", "127.0.0.1:2379"),
            ("[::1]:2379", "[::1]:2379", "[::1]:2379"),
            ("http://shard-0:2379/", "http://shard-0:2379", "shard-0:2379"),
            ("https://[fd00::2]:1", "https://[fd00::2]:1", "[fd00::2]:1"),
            ("HTTPS://a.b.example:443", "https://a.b.example:443", "a.b.example:443"),
            ("unix:///run/k.sock", "unix:///run/k.sock", "localhost"),
            ("unix:/run/k.sock", "unix:///run/k.sock", "localhost"),
            ("unix://run/k.sock", "unix://run/k.sock", "localhost"),
            ("unix:run/k.sock", "unix://run/k.sock", "localhost"),
            ("unixs:///run/k.sock", "unixs:///run/k.sock", "localhost"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), shown);
            assert_eq!(endpoint.authority(), authority);
            assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
        }
        assert_eq!("0.0.0.0:0".parse::<ListenAddr>().unwrap().to_string(), "0.0.0.0:0");
        let listen: ListenAddr = "unix:///run/k.sock".parse().unwrap();
        assert_eq!((listen.to_string(), listen.scheme()), ("unix:///run/k.sock".to_owned(), Scheme::Plain));
    }

    #[test]
    fn a_path_fits_into_a_socket_address() {
        let path = |bytes: usize| format!("/{}", "p".repeat(bytes - 1));
        assert!(format!("unix://{}", path(107)).parse::<Endpoint>().is_ok());
        let error =
            ListenAddr::parse_field("--listen", &format!("unix://{}", path(108))).unwrap_err().to_string();
        assert!(
            error.starts_with("--listen: ") && error.contains("108 bytes") && error.contains("at most 107")
        );
    }

    #[test]
    fn other_machines_are_told_of_what_they_can_reach() {
        let unix = Endpoint::unix("/run/k");
        let tcp = Endpoint::tcp(([127, 0, 0, 1], 1).into()).with_scheme(Scheme::Tls);
        assert_eq!(Endpoint::advertised(&[unix.clone(), tcp]), ["https://127.0.0.1:1"]);
        assert_eq!(Endpoint::advertised(&[unix]), ["unix:///run/k"]);
    }

    #[test]
    fn refused_with_what_to_do() {
        for (text, says) in [
            ("", "write host:port"),
            ("localhost", "append one"),
            ("localhost:", "append one"),
            ("[::1]", "append one"),
            ("::1", "brackets"),
            ("[::1:2379", "not closed"),
            (":2379", "names no host"),
            ("*:2379", "names no host"),
            ("1.2.3:2379", "not an IPv4"),
            ("host:99999", "not a port"),
            ("host:+1", "not a port"),
            ("ftp://host:1", "use http"),
            ("http://host:1/path", "no path"),
            ("user@host:1", "no path, query or user"),
            ("ho st:1", "not a host name"),
            ("unix:", "names no socket"),
            ("unix://", "names no socket"),
            ("0.0.0.0:2379", "address to listen on"),
            ("host:0", "port 0"),
        ] {
            let error = Endpoint::parse_field("--store", text).unwrap_err().to_string();
            assert!(error.contains(says) && error.starts_with("--store: "), "{text}: {error}");
        }
    }
}
