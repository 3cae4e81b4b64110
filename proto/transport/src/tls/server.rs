//! TLS of servers: flags, checks, and a configuration that is replaced as a whole when a file changes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use xxhash_rust::xxh3::Xxh3;

use super::files::{Named, Tried, certified_key};
use super::peer::{Allowed, NamedClients};
use super::{RELOAD_EVERY, TlsError, TlsVersion, crypto_provider};

/// A path; an empty one is none, as with etcd.
fn path() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    use clap::builder::{OsStringValueParser, TypedValueParser as _};
    OsStringValueParser::new().map(PathBuf::from)
}

/// TLS flags of a server, named as in etcd.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServerTlsArgs {
    /// TLS certificate of the server (PEM); reloaded when it changes.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub cert_file: Option<PathBuf>,
    /// Key of --cert-file (PEM).
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub key_file: Option<PathBuf>,
    /// CA of the client certificates; as in etcd, this alone makes them mandatory.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub trusted_ca_file: Option<PathBuf>,
    /// Require client certificates; needs --trusted-ca-file. As etcd, it takes =true and =false.
    #[arg(long, action = clap::ArgAction::Set, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    pub client_cert_auth: bool,
    /// Accepted common names of client certificates, comma-separated.
    #[arg(
        long,
        visible_alias = "allowed-cn",
        value_name = "CN",
        value_delimiter = ',',
        conflicts_with = "client_cert_allowed_hostname"
    )]
    pub client_cert_allowed_cn: Vec<String>,
    /// Accepted host names or addresses of client certificates (SAN), comma-separated.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub client_cert_allowed_hostname: Vec<String>,
    /// Minimum TLS version.
    #[arg(long, value_enum, value_name = "VERSION", default_value_t = TlsVersion::Tls12)]
    pub tls_min_version: TlsVersion,
    /// Also accept connections without TLS on the same port, while certificates are rolled out.
    #[arg(long)]
    pub allow_plaintext: bool,
}

/// The TLS settings of a server; see [`ServerTlsArgs`].
#[derive(Debug, Clone)]
pub struct ServerTlsSettings {
    /// The certificate chain, the server's own certificate first.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// The CA of client certificates, which are then mandatory.
    pub trusted_ca_file: Option<PathBuf>,
    /// Whether a client may nevertheless connect without a certificate.
    pub clients_optional: bool,
    /// The accepted common names; empty for all.
    pub allowed_cns: Vec<String>,
    /// The accepted host names; empty for all.
    pub allowed_hostnames: Vec<String>,
    /// The flags to name in errors.
    pub flags: ServerFlags,
    pub min_version: TlsVersion,
    /// Whether connections without TLS are accepted as well.
    pub allow_plaintext: bool,
    /// The reload interval.
    pub reload_every: Duration,
}

/// The flags that settings came from.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "one name for each file of the settings")]
pub struct ServerFlags {
    pub cert_file: &'static str,
    pub key_file: &'static str,
    pub trusted_ca_file: &'static str,
}

impl Default for ServerFlags {
    fn default() -> Self {
        Self { cert_file: "--cert-file", key_file: "--key-file", trusted_ca_file: "--trusted-ca-file" }
    }
}

fn said(path: &Option<PathBuf>) -> Option<&PathBuf> {
    path.as_ref().filter(|path| !path.as_os_str().is_empty())
}

impl ServerTlsArgs {
    /// The CA of client certificates.
    #[must_use]
    pub fn trusted_ca(&self) -> Option<&PathBuf> {
        said(&self.trusted_ca_file)
    }

    /// The settings, or `None` if no flag asks for TLS.
    ///
    /// # Errors
    /// When a flag lacks its partner.
    pub fn settings(&self) -> Result<Option<ServerTlsSettings>, TlsError> {
        let trusted_ca_file = self.trusted_ca().cloned();
        let flags = |text: &str| Err(TlsError::Flags(text.to_owned()));
        let names = !self.client_cert_allowed_cn.is_empty() || !self.client_cert_allowed_hostname.is_empty();
        let (cert_file, key_file) = match (said(&self.cert_file).cloned(), said(&self.key_file).cloned()) {
            (Some(cert_file), Some(key_file)) => (cert_file, key_file),
            (Some(_), None) => return flags("--cert-file needs --key-file, the key of that certificate"),
            (None, Some(_)) => return flags("--key-file needs --cert-file, the certificate of that key"),
            (None, None) if trusted_ca_file.is_some() || self.client_cert_auth || names => {
                return flags("client certificates can be demanded only with --cert-file and --key-file");
            }
            (None, None) if self.allow_plaintext => {
                return flags("--allow-plaintext says nothing without --cert-file and --key-file");
            }
            (None, None) => return Ok(None),
        };
        if trusted_ca_file.is_none() && self.client_cert_auth {
            return flags("--client-cert-auth needs --trusted-ca-file, the CA of the client certificates");
        }
        if trusted_ca_file.is_none() && names {
            return flags("allowed names of client certificates need --trusted-ca-file, their CA");
        }
        if !self.client_cert_allowed_cn.is_empty() && !self.client_cert_allowed_hostname.is_empty() {
            return flags("give either --client-cert-allowed-cn or --client-cert-allowed-hostname");
        }
        Ok(Some(ServerTlsSettings {
            trusted_ca_file,
            allowed_cns: self.client_cert_allowed_cn.clone(),
            allowed_hostnames: self.client_cert_allowed_hostname.clone(),
            min_version: self.tls_min_version,
            allow_plaintext: self.allow_plaintext,
            ..ServerTlsSettings::new(cert_file, key_file)
        }))
    }

    /// Loads the files; `None` if no flag asks for TLS.
    ///
    /// # Errors
    /// When a flag lacks its partner or a file is unusable.
    pub fn load(&self) -> Result<Option<ServerTls>, TlsError> {
        self.settings()?.map(ServerTls::load).transpose()
    }
}

impl ServerTlsSettings {
    #[must_use]
    pub fn new(cert_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        Self {
            cert_file: cert_file.into(),
            key_file: key_file.into(),
            trusted_ca_file: None,
            clients_optional: false,
            allowed_cns: Vec::new(),
            allowed_hostnames: Vec::new(),
            flags: ServerFlags::default(),
            min_version: TlsVersion::default(),
            allow_plaintext: false,
            reload_every: RELOAD_EVERY,
        }
    }

    /// Reads the files and builds the configuration; also returns the digest of the files.
    fn build(&self) -> (u64, Result<ServerConfig, TlsError>) {
        let mut digest = Xxh3::new();
        let config = self.read(&mut digest);
        (digest.digest(), config)
    }

    fn read(&self, digest: &mut Xxh3) -> Result<ServerConfig, TlsError> {
        let certificate = Named { flag: self.flags.cert_file, path: &self.cert_file };
        let key = Named { flag: self.flags.key_file, path: &self.key_file };
        let pair = certified_key(certificate, key, digest)?;
        let clients = match &self.trusted_ca_file {
            None => Arc::new(NoClientAuth),
            Some(path) => {
                let named = Named { flag: self.flags.trusted_ca_file, path };
                let roots = named.roots(&named.read(digest)?)?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), crypto_provider());
                let verifier =
                    if self.clients_optional { verifier.allow_unauthenticated() } else { verifier };
                let chain = verifier.build().map_err(|error| TlsError::content(named.flag, path, error))?;
                Arc::new(NamedClients { chain, allowed: self.allowed()? })
                    as Arc<dyn rustls::server::danger::ClientCertVerifier>
            }
        };
        let builder = ServerConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(self.min_version.versions())
            .map_err(|error| TlsError::Flags(error.to_string()))?;
        let mut config = builder
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    fn allowed(&self) -> Result<Allowed, TlsError> {
        let hostnames = self.allowed_hostnames.iter().map(|name| {
            let problem =
                |_| TlsError::Flags(format!("--client-cert-allowed-hostname: {name:?} is not a host name"));
            ServerName::try_from(name.clone()).map_err(problem)
        });
        Ok(Allowed {
            common_names: self.allowed_cns.clone(),
            hostnames: hostnames.collect::<Result<_, _>>()?,
        })
    }
}

/// A server's TLS, which follows its files. Clones share one state.
#[derive(Debug, Clone)]
pub struct ServerTls {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: ServerTlsSettings,
    /// Replaced as a whole, with the sessions that clients could resume, so that a client whose CA was removed must
    /// show a certificate again.
    current: ArcSwap<ServerConfig>,
    tried: Mutex<Tried>,
    followed: AtomicBool,
}

impl ServerTls {
    /// Loads the files.
    ///
    /// # Errors
    /// When one is unusable; the error names it.
    pub fn load(settings: ServerTlsSettings) -> Result<Self, TlsError> {
        let (digest, config) = settings.build();
        let mut tried = Tried::default();
        tried.is_new(digest);
        let current = ArcSwap::from_pointee(config?);
        let followed = AtomicBool::new(false);
        Ok(Self { inner: Arc::new(Inner { settings, current, tried: Mutex::new(tried), followed }) })
    }

    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        self.inner.current.load_full()
    }

    #[must_use]
    pub fn settings(&self) -> &ServerTlsSettings {
        &self.inner.settings
    }

    /// Reads the files again; returns whether new handshakes use new content. Blocks on the file system.
    pub fn reload(&self) -> bool {
        self.inner.reload()
    }

    /// Starts to follow the files in the current tokio runtime, once. Ends when the last clone is dropped.
    pub fn follow(&self) {
        if !self.inner.followed.swap(true, Ordering::Relaxed) {
            let every = self.inner.settings.reload_every;
            tokio::spawn(follow(Arc::downgrade(&self.inner), every));
        }
    }
}

impl Inner {
    fn reload(&self) -> bool {
        let mut tried = self.tried.lock();
        let (digest, config) = self.settings.build();
        if !tried.is_new(digest) {
            return false;
        }
        match config {
            Ok(config) => {
                self.current.store(Arc::new(config));
                tracing::info!(certificate = %self.settings.cert_file.display(), "TLS files changed and were loaded");
                true
            }
            Err(error) => {
                tracing::error!(%error, "TLS files changed and cannot be used; keeping the ones in use");
                false
            }
        }
    }
}

async fn follow(inner: Weak<Inner>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(inner) = inner.upgrade() else { return };
        // A file system that hangs must not block a thread of the runtime.
        if tokio::task::spawn_blocking(move || inner.reload()).await.is_err() {
            tracing::error!("reading the TLS files panicked; they are not followed any more");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        tls: ServerTlsArgs,
        #[arg(long)]
        next: bool,
    }

    /// Units and manifests that were written for etcd say `--client-cert-auth=true`.
    #[test]
    fn client_cert_auth_takes_a_value_as_etcds_does() {
        let of = |words: &[&str]| Flags::try_parse_from([&["test"], words].concat());
        for (words, wanted) in [
            (&["--client-cert-auth"][..], true),
            (&["--client-cert-auth=true"], true),
            (&["--client-cert-auth=false"], false),
            (&[], false),
        ] {
            assert_eq!(of(words).map(|flags| flags.tls.client_cert_auth).ok(), Some(wanted), "{words:?}");
        }
        assert!(
            of(&["--client-cert-auth", "--next"]).is_ok_and(|flags| flags.tls.client_cert_auth && flags.next)
        );
        assert!(of(&["--client-cert-auth=perhaps"]).is_err() && of(&["--client-cert-auth", "true"]).is_err());
    }

    /// Row 104 of the findings: manifests with a variable that is empty.
    #[test]
    fn f104_an_empty_path_is_none() {
        let of = |words: &[&str]| {
            let flags = Flags::try_parse_from([&["test"], words].concat()).unwrap();
            flags.tls.settings().map(|settings| settings.map(|settings| settings.trusted_ca_file))
        };
        assert!(matches!(of(&["--cert-file=", "--key-file=", "--trusted-ca-file="]), Ok(None)));
        assert!(matches!(of(&["--cert-file=c", "--key-file=k", "--trusted-ca-file="]), Ok(Some(None))));
        assert!(of(&["--cert-file=c", "--key-file="]).is_err());
        assert!(of(&["--cert-file=c", "--key-file=k", "--trusted-ca-file=", "--client-cert-auth"]).is_err());
    }
}
