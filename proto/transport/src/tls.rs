//! TLS settings with etcd's flag names and meaning, and configurations that follow the files on disk.
//!
//! As in etcd: `--trusted-ca-file` alone already means that clients must show a certificate of that CA;
//! `--client-cert-auth` says the same and therefore needs the CA. Certificates, keys and CAs may be replaced while the
//! process runs: new handshakes use the new files, open connections stay. A new file that cannot be used changes
//! nothing and is logged with its name.

mod client;
mod files;
mod peer;
mod server;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::crypto::CryptoProvider;

pub use client::{ClientTls, ClientTlsArgs, ClientTlsSettings, StoreTlsArgs};
pub use peer::ClientIdentity;
pub use server::{ServerFlags, ServerTls, ServerTlsArgs, ServerTlsSettings};

/// How often the files are read again; they are a few kilobytes.
pub(crate) const RELOAD_EVERY: Duration = Duration::from_secs(5);

/// TLS settings or files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Flags that contradict each other or miss a partner.
    #[error("{0}")]
    Flags(String),
    /// A file that cannot be read.
    #[error("{flag} {path}: {source}", path = .path.display())]
    Read {
        /// The flag that named the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file whose content is of no use.
    #[error("{flag} {path}: {problem}", path = .path.display())]
    Content {
        /// The flag that named the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl TlsError {
    fn content(flag: &'static str, path: &Path, problem: impl ToString) -> Self {
        Self::Content { flag, path: path.to_owned(), problem: problem.to_string() }
    }
}

/// Lowest TLS version that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum TlsVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    #[value(name = "TLS1.2")]
    Tls12,
    /// TLS 1.3 only.
    #[value(name = "TLS1.3")]
    Tls13,
}

impl TlsVersion {
    fn versions(self) -> &'static [&'static rustls::SupportedProtocolVersion] {
        static FROM_12: [&rustls::SupportedProtocolVersion; 2] =
            [&rustls::version::TLS13, &rustls::version::TLS12];
        match self {
            Self::Tls12 => &FROM_12,
            Self::Tls13 => &FROM_12[..1],
        }
    }
}

/// The cryptography of this process, ring, also installed as rustls' default for code that does not name one.
#[must_use]
pub fn crypto_provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| {
        let provider = rustls::crypto::ring::default_provider();
        // Somebody was first: rustls then uses theirs where none is named, and ours here.
        let _ = provider.clone().install_default();
        Arc::new(provider)
    });
    provider.clone()
}
