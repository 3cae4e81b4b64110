//! TLS settings with etcd's flag names and meaning, which follow the files on disk.
//!
//! As in etcd, `--trusted-ca-file` alone requires clients to show a certificate of that CA. `--client-cert-auth`
//! means the same and so needs the CA. Certificates, keys and CAs may be replaced while the process runs: new
//! handshakes use the new files, and open connections stay. If a new file is unusable, the old ones stay in use and
//! the log names it.

mod client;
mod files;
mod peer;
mod server;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::crypto::CryptoProvider;

pub use client::{
    ClientTls, ClientTlsArgs, ClientTlsSettings, EtcdTlsArgs, MetaTlsArgs, StandbyTlsArgs, StoreTlsArgs,
};
pub use peer::ClientIdentity;
pub use server::{ServerFlags, ServerTls, ServerTlsArgs, ServerTlsSettings};

/// The reload interval; the files are only a few kilobytes.
pub(crate) const RELOAD_EVERY: Duration = Duration::from_secs(5);

/// Why TLS settings or files are unusable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Flags contradict each other, or one lacks its partner.
    #[error("{0}")]
    Flags(String),
    #[error("{flag} {path}: {source}", path = .path.display())]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The content of a file is unusable.
    #[error("{flag} {path}: {problem}", path = .path.display())]
    Content {
        /// The flag that names the file.
        flag: &'static str,
        path: PathBuf,
        /// What is wrong with the content.
        problem: String,
    },
}

impl TlsError {
    fn content(flag: &'static str, path: &Path, problem: impl ToString) -> Self {
        Self::Content { flag, path: path.to_owned(), problem: problem.to_string() }
    }
}

/// The minimum TLS version.
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

/// The process's crypto provider, aws-lc. It also becomes rustls' default, for code that does not name one.
#[must_use]
pub fn crypto_provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        // If another default is installed already, rustls keeps that one, and this function still returns aws-lc.
        let _ = provider.clone().install_default();
        Arc::new(provider)
    });
    provider.clone()
}
