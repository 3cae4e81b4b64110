//! TLS of clients: for connections to shards, meta and stock etcds.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use xxhash_rust::xxh3::Xxh3;

use super::files::{Named, Tried, certified_key, system_roots};
use super::{TlsError, crypto_provider};

/// TLS flags of a command-line client, named as in etcdctl.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ClientTlsArgs {
    /// Verify servers with this CA bundle (PEM); otherwise the system's.
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Identify with this TLS certificate (PEM).
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Key of --cert (PEM).
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Do not verify servers (for tests only).
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
}

/// TLS flags of a router for its stores.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct StoreTlsArgs {
    /// CA of the stores' certificates (PEM); otherwise the system's.
    #[arg(long, value_name = "FILE")]
    pub store_trusted_ca_file: Option<PathBuf>,
    /// Certificate to show to stores (PEM); reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub store_cert_file: Option<PathBuf>,
    /// Key of --store-cert-file (PEM).
    #[arg(long, value_name = "FILE")]
    pub store_key_file: Option<PathBuf>,
    /// Do not verify the stores' certificates (for tests only).
    #[arg(long)]
    pub store_insecure_skip_tls_verify: bool,
}

/// TLS flags of a router for stock etcds.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct EtcdTlsArgs {
    /// CA of the certificates of stock etcds (PEM). Where none of these three flags is given, those towards stores count.
    #[arg(long, value_name = "FILE")]
    pub etcd_trusted_ca_file: Option<PathBuf>,
    /// Certificate to show to stock etcds (PEM); reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub etcd_cert_file: Option<PathBuf>,
    /// Key of --etcd-cert-file (PEM).
    #[arg(long, value_name = "FILE")]
    pub etcd_key_file: Option<PathBuf>,
}

/// TLS flags of a router for its meta store.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct MetaTlsArgs {
    /// CA of the meta store's certificates (PEM). Where none of these three flags is given, those towards stores count.
    #[arg(long, value_name = "FILE", requires = "meta")]
    pub meta_trusted_ca_file: Option<PathBuf>,
    /// Certificate to show to the meta store (PEM); reloaded when it changes.
    #[arg(long, value_name = "FILE", requires = "meta")]
    pub meta_cert_file: Option<PathBuf>,
    /// Key of --meta-cert-file (PEM).
    #[arg(long, value_name = "FILE", requires = "meta")]
    pub meta_key_file: Option<PathBuf>,
}

/// TLS flags of a standby for its primary.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct StandbyTlsArgs {
    /// CA of the primary's certificate (PEM); otherwise the system's.
    #[arg(long, value_name = "FILE")]
    pub standby_trusted_ca_file: Option<PathBuf>,
    /// Certificate to show to the primary (PEM); reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub standby_cert_file: Option<PathBuf>,
    /// Key of --standby-cert-file (PEM).
    #[arg(long, value_name = "FILE")]
    pub standby_key_file: Option<PathBuf>,
}

/// The TLS settings of a client. By default it verifies servers with the system's roots and shows no certificate.
#[derive(Debug, Clone, Default)]
pub struct ClientTlsSettings {
    /// The CA of the servers; the system's roots by default.
    pub trusted_ca_file: Option<PathBuf>,
    /// The files of the certificate and the key to show.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether any server certificate is accepted.
    pub insecure_skip_verify: bool,
    /// The flags to name in errors.
    pub flags: ClientFlags,
}

/// The flags that settings came from.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "one name for each file of the settings")]
pub struct ClientFlags {
    pub trusted_ca_file: &'static str,
    pub cert_file: &'static str,
    pub key_file: &'static str,
}

impl Default for ClientFlags {
    fn default() -> Self {
        Self { trusted_ca_file: "--cacert", cert_file: "--cert", key_file: "--key" }
    }
}

impl ClientTlsArgs {
    /// The settings; `None` if no flag was given.
    ///
    /// # Errors
    /// When a certificate lacks its key or a key its certificate.
    pub fn settings(&self) -> Result<Option<ClientTlsSettings>, TlsError> {
        settings(
            ClientFlags::default(),
            self.cacert.clone(),
            self.cert.clone(),
            self.key.clone(),
            self.insecure_skip_tls_verify,
        )
    }

    /// Loads the files; `None` if no flag was given (`https://` endpoints then use the system's roots).
    ///
    /// # Errors
    /// When a file is unusable.
    pub fn load(&self) -> Result<Option<ClientTls>, TlsError> {
        self.settings()?.map(ClientTls::load).transpose()
    }
}

impl EtcdTlsArgs {
    /// Loads the files; `None` if no flag was given.
    ///
    /// # Errors
    /// When a file is unusable, or a certificate lacks its key or a key its certificate.
    pub fn load(&self) -> Result<Option<ClientTls>, TlsError> {
        let flags = ClientFlags {
            trusted_ca_file: "--etcd-trusted-ca-file",
            cert_file: "--etcd-cert-file",
            key_file: "--etcd-key-file",
        };
        let (ca, cert) = (self.etcd_trusted_ca_file.clone(), self.etcd_cert_file.clone());
        settings(flags, ca, cert, self.etcd_key_file.clone(), false)?.map(ClientTls::load).transpose()
    }
}

impl MetaTlsArgs {
    /// Loads the files; `None` if no flag was given.
    ///
    /// # Errors
    /// When a file is unusable, or a certificate lacks its key or a key its certificate.
    pub fn load(&self) -> Result<Option<ClientTls>, TlsError> {
        let flags = ClientFlags {
            trusted_ca_file: "--meta-trusted-ca-file",
            cert_file: "--meta-cert-file",
            key_file: "--meta-key-file",
        };
        let (ca, cert) = (self.meta_trusted_ca_file.clone(), self.meta_cert_file.clone());
        settings(flags, ca, cert, self.meta_key_file.clone(), false)?.map(ClientTls::load).transpose()
    }
}

impl StandbyTlsArgs {
    /// Loads the files; `None` if no flag was given (`https://` endpoints then use the system's roots).
    ///
    /// # Errors
    /// When a file is unusable, or a certificate lacks its key or a key its certificate.
    pub fn load(&self) -> Result<Option<ClientTls>, TlsError> {
        let flags = ClientFlags {
            trusted_ca_file: "--standby-trusted-ca-file",
            cert_file: "--standby-cert-file",
            key_file: "--standby-key-file",
        };
        let settings = settings(
            flags,
            self.standby_trusted_ca_file.clone(),
            self.standby_cert_file.clone(),
            self.standby_key_file.clone(),
            false,
        );
        settings?.map(ClientTls::load).transpose()
    }
}

impl StoreTlsArgs {
    /// The settings; `None` if no flag was given.
    ///
    /// # Errors
    /// When a certificate lacks its key or a key its certificate.
    pub fn settings(&self) -> Result<Option<ClientTlsSettings>, TlsError> {
        let flags = ClientFlags {
            trusted_ca_file: "--store-trusted-ca-file",
            cert_file: "--store-cert-file",
            key_file: "--store-key-file",
        };
        settings(
            flags,
            self.store_trusted_ca_file.clone(),
            self.store_cert_file.clone(),
            self.store_key_file.clone(),
            self.store_insecure_skip_tls_verify,
        )
    }

    /// Loads the files; `None` if no flag was given (`https://` endpoints then use the system's roots).
    ///
    /// # Errors
    /// When a file is unusable.
    pub fn load(&self) -> Result<Option<ClientTls>, TlsError> {
        self.settings()?.map(ClientTls::load).transpose()
    }
}

fn settings(
    flags: ClientFlags,
    trusted_ca_file: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    insecure_skip_verify: bool,
) -> Result<Option<ClientTlsSettings>, TlsError> {
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => {
            return Err(TlsError::Flags(format!("{} needs {}", flags.cert_file, flags.key_file)));
        }
        (None, Some(_)) => {
            return Err(TlsError::Flags(format!("{} needs {}", flags.key_file, flags.cert_file)));
        }
    };
    if trusted_ca_file.is_none() && identity.is_none() && !insecure_skip_verify {
        return Ok(None);
    }
    Ok(Some(ClientTlsSettings { trusted_ca_file, identity, insecure_skip_verify, flags }))
}

impl ClientTlsSettings {
    fn build(&self) -> (u64, Result<ClientConfig, TlsError>) {
        let mut digest = Xxh3::new();
        let config = self.read(&mut digest);
        (digest.digest(), config)
    }

    fn read(&self, digest: &mut Xxh3) -> Result<ClientConfig, TlsError> {
        let provider = crypto_provider();
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Flags(error.to_string()))?;
        let roots = match &self.trusted_ca_file {
            None => system_roots(),
            Some(path) => {
                let named = Named { flag: self.flags.trusted_ca_file, path };
                Arc::new(named.roots(&named.read(digest)?)?)
            }
        };
        let builder = if self.insecure_skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        } else {
            builder.with_root_certificates(roots)
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let cert = Named { flag: self.flags.cert_file, path: cert };
                let key = Named { flag: self.flags.key_file, path: key };
                let pair = certified_key(cert, key, digest)?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

/// A client's TLS, which checks its files at every connect. Clones share one state.
#[derive(Debug, Clone)]
pub struct ClientTls {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: ClientTlsSettings,
    current: ArcSwap<ClientConfig>,
    tried: Mutex<Tried>,
}

impl ClientTls {
    /// Loads the files.
    ///
    /// # Errors
    /// When one is unusable; the error names it.
    pub fn load(settings: ClientTlsSettings) -> Result<Self, TlsError> {
        let (digest, config) = settings.build();
        let mut tried = Tried::default();
        tried.is_new(digest);
        let current = ArcSwap::from_pointee(config?);
        Ok(Self { inner: Arc::new(Inner { settings, current, tried: Mutex::new(tried) }) })
    }

    /// The configuration for the next connect, from the files as they are. If a file is unusable, the last good
    /// configuration stays in use. Blocks on the file system.
    #[must_use]
    pub fn fresh(&self) -> Arc<ClientConfig> {
        let inner = &self.inner;
        let mut tried = inner.tried.lock();
        let (digest, config) = inner.settings.build();
        if tried.is_new(digest) {
            match config {
                Ok(config) => inner.current.store(Arc::new(config)),
                Err(error) => {
                    tracing::error!(%error, "client TLS files changed and cannot be used; keeping the ones in use");
                }
            }
        }
        inner.current.load_full()
    }
}

/// Accepts any server certificate, for tests only, like etcdctl's flag of the same name.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
