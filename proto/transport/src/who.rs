//! Tells the routers among the clients of a store's port (R27).
//!
//! A shard of a cluster serves routers only. A write of anybody else would bypass the cluster's map, leases and
//! watches, and a read its users and roles: a shard has Secrets, and a meta store the key that signs tokens. A router is
//! identified by its certificate's name, by the cluster's secret, or by both if both are configured. If neither is,
//! which is allowed on Unix sockets only, any client that claims to be a router is one: nobody but the same user can
//! open such a socket, and the claim stops an accidental `etcdctl put` at the wrong one.

use std::fmt;
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use kindred_wire::protocol::ROUTER;

use crate::address::{ListenAddr, Scheme, Target};
use crate::grpc;
use crate::listener::{ConnectionInfo, Peer};
use crate::private;
use crate::tls::ServerTls;

/// The header value of a router without a secret.
const NO_SECRET: HeaderValue = HeaderValue::from_static("-");
/// The minimum length of a secret: 16 typed characters are more than can be guessed.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 1024;

/// Compares in constant time for equal lengths, so that the timing does not reveal a common prefix.
#[must_use]
pub fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut unlike = one.len() ^ other.len();
    for (a, b) in one.iter().zip(other) {
        unlike = black_box(unlike | usize::from(a ^ b));
    }
    unlike == 0
}

/// A secret that only the routers and shards of a cluster know. Never printed.
#[derive(Clone)]
pub struct Secret(HeaderValue);

/// Why a secret's file is unusable.
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
    /// When the file cannot be read or holds no valid secret. The error names the flag.
    pub fn read(flag: &'static str, path: &Path) -> Result<Self, SecretError> {
        let wrong = |problem: String| SecretError { flag, path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::of(text.trim()).map_err(wrong)
    }

    /// Creates a file with a new secret that only its owner may read, unless the file exists.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn make(path: &Path) -> io::Result<()> {
        if path.exists() {
            return Ok(());
        }
        let mut random = [0; 32];
        io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut random)?;
        let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        private::write(path, format!("{text}\n").as_bytes())
    }

    /// Makes a secret of a text.
    ///
    /// # Errors
    /// When the text is too short or too long, or has characters that are not allowed.
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

    /// Whether `shown` is this secret.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        equal(self.0.as_bytes(), shown)
    }

    /// The header value that a router shows, with or without a secret.
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

/// How a store identifies the routers of its cluster. Clones are cheap.
#[derive(Debug, Clone, Default)]
pub struct Routers {
    secret: Option<Secret>,
    names: Arc<[String]>,
}

impl Routers {
    /// Routers must show this secret, and a certificate with one of these names, as far as each is configured.
    #[must_use]
    pub fn new(secret: Option<Secret>, names: Vec<String>) -> Self {
        Self { secret, names: names.into() }
    }

    /// Whether routers must authenticate.
    #[must_use]
    pub fn are_known(&self) -> bool {
        self.secret.is_some() || !self.names.is_empty()
    }

    /// Whether routers must show a secret.
    #[must_use]
    pub fn have_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Whether a request shows the secret, if one is needed.
    #[must_use]
    pub fn secret_is_in(&self, headers: &HeaderMap) -> bool {
        let shown = grpc::header(headers, ROUTER);
        self.secret.as_ref().is_none_or(|secret| shown.is_some_and(|shown| secret.is(shown.as_bytes())))
    }

    /// Whether the sender of a request is a router.
    #[must_use]
    pub fn include(&self, from: &ConnectionInfo, headers: &HeaderMap) -> bool {
        if !self.are_known() {
            return grpc::header(headers, ROUTER).is_some();
        }
        // Only this user can open the Unix socket's file, and clients show no certificates there.
        let named = self.names.is_empty()
            || from.peer == Peer::Unix
            || from.client.as_ref().is_some_and(|client| client.has_any(&self.names));
        self.secret_is_in(headers) && named
    }
}

/// Whether clients at an address must show a certificate.
fn demands_certificates(address: &ListenAddr, tls: Option<&ServerTls>) -> bool {
    address.scheme() != Scheme::Plain
        && tls.is_some_and(|tls| {
            let settings = tls.settings();
            settings.trusted_ca_file.is_some() && !settings.clients_optional
        })
}

/// Refuses to listen for clients where other machines can connect and no authentication is required.
///
/// # Errors
/// Says what to do; `flag` names the address.
pub fn check_clients(flag: &str, address: &ListenAddr, tls: Option<&ServerTls>) -> Result<(), String> {
    if address.is_local() || demands_certificates(address, tls) {
        return Ok(());
    }
    Err(format!(
        "{flag} {address}: other machines reach this address, and whoever does could read and write all: give --cert-file,          --key-file and --trusted-ca-file, so that clients show certificates, or listen on 127.0.0.1; if a firewall or a          private network keeps everybody else away, say --insecure-listen"
    ))
}

/// Refuses to listen as a shard of a cluster where others than this user can connect and routers do not authenticate.
///
/// # Errors
/// Says what to do; `flag` names the address.
pub fn check_cluster(
    flag: &str,
    address: &ListenAddr,
    tls: Option<&ServerTls>,
    routers: &Routers,
) -> Result<(), String> {
    if matches!(address.target(), Target::Unix(_)) {
        return Ok(());
    }
    if !routers.are_known() {
        return Err(format!(
            "{flag} {address}: others reach this address, if only users of this machine, and a shard of a cluster serves \
             routers only: say by what it knows them, with --cluster-secret-file (the same file as the routers') or \
             --router-names (names of their client certificates), or listen on a Unix socket (unix:///PATH)"
        ));
    }
    if address.is_local() {
        return Ok(());
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
            .map(|shown| (http::HeaderName::from_static(ROUTER), shown.parse().unwrap()))
            .into_iter()
            .collect()
    }

    const SECRET: &str = "0123456789abcdef";
    const HERE: &str = "127.0.0.1:1";
    const FAR: &str = "10.1.2.3:1";

    #[test]
    fn f33_who_is_a_router() {
        let open = Routers::default();
        let secret = Routers::new(Some(Secret::of(SECRET).unwrap()), vec![]);
        let named = Routers::new(None, vec!["kindred-router".to_owned(), "san.example".to_owned()]);
        let router = Routers::new(None, vec!["kindred-router".to_owned()]);
        let both = Routers::new(Some(Secret::of(SECRET).unwrap()), vec!["kindred-router".to_owned()]);
        for (routers, address, tls, name, shown, expected) in [
            (&open, HERE, false, None, None, false),
            (&open, HERE, false, None, Some("-"), true),
            (&open, HERE, false, None, Some(SECRET), true),
            (&secret, HERE, false, None, None, false),
            (&secret, HERE, false, None, Some("-"), false),
            (&secret, HERE, false, None, Some("0123456789abcdeF"), false),
            (&secret, HERE, false, None, Some("0123456789abcdef0"), false),
            (&secret, HERE, false, None, Some(SECRET), true),
            (&secret, FAR, false, None, Some(SECRET), true),
            (&secret, FAR, true, Some("apiserver"), None, false),
            (&named, HERE, true, None, Some("-"), false),
            (&named, FAR, true, Some("kindred-router"), None, true),
            (&router, FAR, true, Some("prometheus"), Some("-"), false),
            (&both, FAR, true, Some("kindred-router"), None, false),
            (&both, FAR, true, Some("kindred-router"), Some(SECRET), true),
            (&both, FAR, true, Some("kindred-client"), Some(SECRET), false),
        ] {
            let is_one = routers.include(&from(address, tls, name), &headers(shown));
            assert_eq!(is_one, expected, "{routers:?} {address} {tls} {name:?} {shown:?}");
        }
        let other_name = Routers::new(None, vec!["san.example".to_owned()]);
        assert!(other_name.include(&from(FAR, true, Some("x")), &headers(None)));
        let unix = ConnectionInfo { peer: Peer::Unix, tls: false, client: None };
        assert!(named.include(&unix, &headers(None)));
        assert!(!secret.include(&unix, &headers(None)));
        assert!(both.include(&unix, &headers(Some(SECRET))));
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
            check_cluster("--listen", &address(local), None, &secret).unwrap();
        }
        check_cluster("--listen", &address("unix:///run/k"), None, &Routers::default()).unwrap();
        for local in ["127.0.0.1:1", "[::1]:1", "localhost:1"] {
            let refused = check_cluster("--listen", &address(local), None, &Routers::default()).unwrap_err();
            assert!(refused.contains("--cluster-secret-file"), "{refused}");
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
