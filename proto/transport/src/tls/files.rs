//! Reads certificates, keys and CAs, and detects that they changed.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use xxhash_rust::xxh3::Xxh3;

use super::{TlsError, crypto_provider};

/// A file with the flag that names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    pub flag: &'static str,
    pub path: &'a Path,
}

impl Named<'_> {
    /// Reads the file and adds it to `digest`, which covers all files of a configuration.
    pub fn read(self, digest: &mut Xxh3) -> Result<Vec<u8>, TlsError> {
        let read = std::fs::read(self.path);
        let content =
            read.map_err(|source| TlsError::Read { flag: self.flag, path: self.path.to_owned(), source })?;
        digest.update(&content.len().to_le_bytes());
        digest.update(&content);
        Ok(content)
    }

    pub fn certificates(self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates =
            parsed.map_err(|error| TlsError::content(self.flag, self.path, format!("not PEM: {error}")))?;
        if certificates.is_empty() {
            return Err(TlsError::content(self.flag, self.path, "holds no PEM certificate"));
        }
        Ok(certificates)
    }

    pub fn roots(self, pem: &[u8]) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(pem)? {
            roots.add(certificate).map_err(|error| TlsError::content(self.flag, self.path, error))?;
        }
        Ok(roots)
    }
}

/// A certificate chain with its key, after a check that they match.
pub(super) fn certified_key(
    certificate: Named<'_>,
    key: Named<'_>,
    digest: &mut Xxh3,
) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificate.certificates(&certificate.read(digest)?)?;
    let parsed = PrivateKeyDer::from_pem_slice(&key.read(digest)?);
    let private = parsed
        .map_err(|error| TlsError::content(key.flag, key.path, format!("no PEM private key: {error}")))?;
    match CertifiedKey::from_der(chain, private, &crypto_provider()) {
        Ok(pair) => Ok(Arc::new(pair)),
        Err(rustls::Error::InconsistentKeys(_)) => {
            let problem = format!("is not the key of {} {}", certificate.flag, certificate.path.display());
            Err(TlsError::content(key.flag, key.path, problem))
        }
        Err(error @ rustls::Error::InvalidCertificate(_)) => {
            Err(TlsError::content(certificate.flag, certificate.path, error))
        }
        Err(error) => Err(TlsError::content(key.flag, key.path, error)),
    }
}

/// The system's trusted roots, read once: `SSL_CERT_FILE`, or the distribution's bundle.
pub(super) fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    ROOTS.get_or_init(|| Arc::new(read_system_roots())).clone()
}

fn read_system_roots() -> RootCertStore {
    const BUNDLES: [&str; 5] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    let chosen = std::env::var("SSL_CERT_FILE").ok();
    let found = chosen.iter().map(String::as_str).chain(BUNDLES).find_map(|path| std::fs::read(path).ok());
    let mut roots = RootCertStore::empty();
    // A bundle may contain roots that rustls cannot read; the others are used.
    roots.add_parsable_certificates(
        CertificateDer::pem_slice_iter(&found.unwrap_or_default()).filter_map(Result::ok),
    );
    roots
}

/// Remembers the content that was last tried, and tells whether new content differs.
#[derive(Debug, Default)]
pub(super) struct Tried(Option<u64>);

impl Tried {
    pub fn is_new(&mut self, digest: u64) -> bool {
        self.0.replace(digest) != Some(digest)
    }
}
