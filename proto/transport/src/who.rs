//! Who is at the other end of a store's port, and what that one may do there.
//!
//! A shard of a cluster takes writes and internal calls from routers alone: what anybody else writes would go past the map,
//! the leases and the watches of the cluster. A router is known by its certificate's name, by the cluster's secret, or by
//! both where both are set up. Where neither is, which is allowed on the loopback interface alone, a router is whoever says
//! so: that keeps an `etcdctl put` at the wrong port out, and no local user who means it.

use std::fmt;
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};

use crate::address::{ListenAddr, Scheme};
use crate::grpc;
use crate::listener::{ConnectionInfo, Peer};
use crate::private;
use crate::tls::ServerTls;

/// The header by which a router shows who it is: the cluster's secret, or [`NO_SECRET`].
pub const ROUTER_HEADER: &str = "kindred-router";
/// What a router shows that has no secret.
const NO_SECRET: HeaderValue = HeaderValue::from_static("-");
/// The shortest secret: 16 bytes of the keyboard are more than anybody tries.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 1024;

/// Compares in a time that does not tell how much is equal.
#[must_use]
pub fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut unlike = one.len() ^ other.len();
    for (a, b) in one.iter().zip(other) {
        unlike = black_box(unlike | usize::from(a ^ b));
    }
    unlike == 0
}

/// What routers and shards of a cluster know, and nobody else. Never shown.
#[derive(Clone)]
pub struct Secret(HeaderValue);

/// A file with a secret that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {path}: {problem}", path = .path.display())]
pub struct SecretError {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

impl Secret {
    /// Reads a file that holds a secret in one line.
    ///
    /// # Errors
    /// When it cannot be read, or is no secret; the flag is named.
    pub fn read(flag: &'static str, path: &Path) -> Result<Self, SecretError> {
        let wrong = |problem: String| SecretError { flag, path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::of(text.trim()).map_err(wrong)
    }

    /// Makes a file with a new secret, which only its owner may read, unless there is one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make(path: &Path) -> io::Result<()> {
        if path.exists() {
            return Ok(());
        }
        let mut random = [0; 32];
        io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut random)?;
        let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        private::write(path, format!("{text}\n").as_bytes())
    }

    /// That of this text.
    ///
    /// # Errors
    /// When it is too short, or of other bytes than a header may have.
    pub fn of(text: &str) -> Result<Self, String> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&text.len()) {
            return Err(format!(
                "a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} letters in one line, as `openssl rand -hex 32` \
                 prints them; this one has {}",
                text.len()
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a secret is one line of ASCII letters, digits and signs, without spaces".to_owned());
        }
        let mut value = HeaderValue::from_str(text).map_err(|error| error.to_string())?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Whether it is this one.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        equal(self.0.as_bytes(), shown)
    }

    /// What a router shows, with a secret or without.
    #[must_use]
    pub fn shown(secret: Option<&Self>) -> HeaderValue {
        secret.map_or(NO_SECRET, |secret| secret.0.clone())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What somebody may do at a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Nothing.
    Stranger,
    /// Read by etcd's API.
    Reader,
    /// Everything.
    Router,
}

/// By what a store knows the routers of its cluster. Clones are cheap.
#[derive(Debug, Clone, Default)]
pub struct Routers {
    secret: Option<Secret>,
    names: Arc<[String]>,
}

impl Routers {
    /// Those that show this secret, over connections whose certificate has one of these names; each where it is given.
    #[must_use]
    pub fn new(secret: Option<Secret>, names: Vec<String>) -> Self {
        Self { secret, names: names.into() }
    }

    /// Whether a router has to prove that it is one.
    #[must_use]
    pub fn are_known(&self) -> bool {
        self.secret.is_some() || !self.names.is_empty()
    }

    /// Whether they show a secret.
    #[must_use]
    pub fn have_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// What the sender of a request may do.
    #[must_use]
    pub fn standing(&self, from: &ConnectionInfo, headers: &HeaderMap) -> Standing {
        if self.is_router(from, headers) {
            return Standing::Router;
        }
        // A port without TLS that others reach tells them nothing.
        let local = !from.tls && from.peer.is_this_machine();
        if local || from.client.is_some() { Standing::Reader } else { Standing::Stranger }
    }

    fn is_router(&self, from: &ConnectionInfo, headers: &HeaderMap) -> bool {
        let shown = grpc::header(headers, ROUTER_HEADER);
        if !self.are_known() {
            return shown.is_some();
        }
        let secret =
            self.secret.as_ref().is_none_or(|secret| shown.is_some_and(|shown| secret.is(shown.as_bytes())));
        // The file of a Unix socket lets nobody in but this user, and no certificate is shown there.
        let named = self.names.is_empty()
            || from.peer == Peer::Unix
            || from.client.as_ref().is_some_and(|client| client.has_any(&self.names));
        secret && named
    }
}

/// Whether a client at an address must show a certificate.
fn demands_certificates(address: &ListenAddr, tls: Option<&ServerTls>) -> bool {
    address.scheme() != Scheme::Plain
        && tls.is_some_and(|tls| {
            let settings = tls.settings();
            settings.trusted_ca_file.is_some() && !settings.clients_optional
        })
}

/// Refuses to listen for clients where other machines connect and nobody is asked who it is.
///
/// # Errors
/// What to do; `flag` names the address.
pub fn check_clients(flag: &str, address: &ListenAddr, tls: Option<&ServerTls>) -> Result<(), String> {
    if address.is_local() || demands_certificates(address, tls) {
        return Ok(());
    }
    Err(format!(
        "{flag} {address}: other machines reach this address, and whoever does could read and write all: give --cert-file,          --key-file and --trusted-ca-file, so that clients show certificates, or listen on 127.0.0.1; if a firewall or a          private network keeps everybody else away, say --insecure-listen"
    ))
}

/// Refuses to listen as a shard of a cluster where other machines connect and routers are not known.
///
/// # Errors
/// What to do; `flag` names the address.
pub fn check_cluster(
    flag: &str,
    address: &ListenAddr,
    tls: Option<&ServerTls>,
    routers: &Routers,
) -> Result<(), String> {
    if address.is_local() {
        return Ok(());
    }
    if !routers.are_known() {
        return Err(format!(
            "{flag} {address}: other machines reach this address, and a shard of a cluster takes writes from routers only:              say by what it knows them, with --router-names (names of their client certificates) or --cluster-secret-file, or              listen on 127.0.0.1"
        ));
    }
    if !demands_certificates(address, tls) && tls.is_none_or(|_| address.scheme() == Scheme::Plain) {
        tracing::warn!(%address, "the cluster's secret crosses the network unencrypted: give --cert-file and --key-file");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::ClientIdentity;

    fn from(address: &str, tls: bool, name: Option<&str>) -> ConnectionInfo {
        let client = name.map(|name| {
            Arc::new(ClientIdentity { common_name: name.to_owned(), names: vec!["san.example".to_owned()] })
        });
        ConnectionInfo { peer: Peer::Tcp(address.parse().unwrap()), tls, client }
    }

    fn headers(shown: Option<&str>) -> HeaderMap {
        shown
            .map(|shown| (http::HeaderName::from_static(ROUTER_HEADER), shown.parse().unwrap()))
            .into_iter()
            .collect()
    }

    const SECRET: &str = "0123456789abcdef";
    const HERE: &str = "127.0.0.1:1";
    const FAR: &str = "10.1.2.3:1";

    #[test]
    fn f33_who_is_a_router() {
        use Standing::*;
        let open = Routers::default();
        let secret = Routers::new(Some(Secret::of(SECRET).unwrap()), vec![]);
        let named = Routers::new(None, vec!["kindred-router".to_owned(), "san.example".to_owned()]);
        let both = Routers::new(Some(Secret::of(SECRET).unwrap()), vec!["kindred-router".to_owned()]);
        for (routers, address, tls, name, shown, expected) in [
            (&open, HERE, false, None, None, Reader),
            (&open, HERE, false, None, Some("-"), Router),
            (&open, HERE, false, None, Some(SECRET), Router),
            (&secret, HERE, false, None, None, Reader),
            (&secret, HERE, false, None, Some("-"), Reader),
            (&secret, HERE, false, None, Some("0123456789abcdeF"), Reader),
            (&secret, HERE, false, None, Some("0123456789abcdef0"), Reader),
            (&secret, HERE, false, None, Some(SECRET), Router),
            (&secret, FAR, false, None, Some(SECRET), Router),
            (&secret, FAR, false, None, Some("-"), Stranger),
            // Encrypted, and nobody knows who it is.
            (&secret, HERE, true, None, None, Stranger),
            (&secret, FAR, true, Some("apiserver"), None, Reader),
            (&named, HERE, true, None, Some("-"), Stranger),
            (&named, FAR, true, Some("kindred-router"), None, Router),
            (&both, FAR, true, Some("kindred-router"), None, Reader),
            (&both, FAR, true, Some("kindred-router"), Some(SECRET), Router),
            (&both, FAR, true, Some("kindred-client"), Some(SECRET), Reader),
        ] {
            let standing = routers.standing(&from(address, tls, name), &headers(shown));
            assert_eq!(standing, expected, "{routers:?} {address} {tls} {name:?} {shown:?}");
        }
        let other_name = Routers::new(None, vec!["san.example".to_owned()]);
        assert_eq!(other_name.standing(&from(FAR, true, Some("x")), &headers(None)), Router);
        let unix = ConnectionInfo { peer: Peer::Unix, tls: false, client: None };
        assert_eq!(named.standing(&unix, &headers(None)), Router);
        assert_eq!(secret.standing(&unix, &headers(None)), Reader);
        assert_eq!(both.standing(&unix, &headers(Some(SECRET))), Router);
    }

    #[test]
    fn f33_nobody_far_away_is_let_in_by_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let made = crate::auto_tls::create(dir.path(), &[]).unwrap();
        let mutual = ServerTls::load(made.server_settings()).unwrap();
        let settings = crate::tls::ServerTlsSettings::new(&made.server_cert, &made.server_key);
        let encrypted = ServerTls::load(settings).unwrap();
        let secret = Routers::new(Some(Secret::of(SECRET).unwrap()), vec![]);
        let named = Routers::new(None, vec!["kindred-router".to_owned()]);
        let address = |text: &str| text.parse::<ListenAddr>().unwrap();
        for local in ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:///run/k"] {
            check_clients("--listen", &address(local), None).unwrap();
            check_cluster("--listen", &address(local), None, &Routers::default()).unwrap();
        }
        for far in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "store.example:1"] {
            let far = address(far);
            assert!(check_clients("--listen", &far, None).unwrap_err().contains("--insecure-listen"));
            check_clients("--listen", &far, Some(&encrypted)).unwrap_err();
            check_clients("--listen", &far, Some(&mutual)).unwrap();
            for tls in [None, Some(&encrypted), Some(&mutual)] {
                let refused = check_cluster("--listen", &far, tls, &Routers::default()).unwrap_err();
                assert!(
                    refused.contains("--router-names") && refused.contains("--cluster-secret-file"),
                    "{refused}"
                );
                check_cluster("--listen", &far, tls, &secret).unwrap();
            }
            check_cluster("--listen", &far, Some(&mutual), &named).unwrap();
        }
        check_clients("--listen", &address("http://10.0.0.1:1"), Some(&mutual)).unwrap_err();
    }

    #[test]
    fn f33_a_secret_is_one_long_line_and_is_not_shown() {
        let secret = Secret::of(SECRET).unwrap();
        assert!(!format!("{secret:?} {:?}", Secret::shown(Some(&secret))).contains(SECRET));
        for wrong in ["", "short", "with a space in it!", "umlaute-äöü-äöü-äöü"] {
            assert!(Secret::of(wrong).is_err(), "{wrong}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{SECRET}\n")).unwrap();
        assert!(Secret::read("--cluster-secret-file", file.path()).unwrap().is(SECRET.as_bytes()));
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("secret");
        Secret::make(&made).unwrap();
        let text = std::fs::read_to_string(&made).unwrap();
        assert!(Secret::read("--cluster-secret-file", &made).unwrap().is(text.trim().as_bytes()));
        Secret::make(&made).unwrap();
        assert_eq!(std::fs::read_to_string(&made).unwrap(), text, "it is kept");
        let missing = Secret::read("--cluster-secret-file", Path::new("/nowhere")).unwrap_err().to_string();
        assert!(missing.starts_with("--cluster-secret-file /nowhere: "), "{missing}");
    }
}
