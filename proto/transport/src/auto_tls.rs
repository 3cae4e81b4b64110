//! Certificates for trying kindred out: a CA, and certificates for a server, its clients, routers and admins in one
//! directory.
//!
//! They are created once and then reused. A certificate that expires soon, or lacks a requested host, is created
//! again by the same CA, so that clients which trust the CA keep working. Not for production: the CA's key lies
//! beside the certificates.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use crate::private;
use crate::tls::{ClientTlsSettings, ServerTlsSettings};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const CA_NAME: &str = "kindred auto-tls CA";
/// The common name of the client certificate.
pub const CLIENT_NAME: &str = "kindred-client";
/// The common name of the routers' certificate, by which stores recognise them.
pub const ROUTER_NAME: &str = "kindred-router";
/// The common name of the certificate for admins of admin ports.
pub const ADMIN_NAME: &str = "kindred-admin";

/// The paths of the files that [`create`] makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoTls {
    /// The CA that clients and servers trust.
    pub ca_cert: PathBuf,
    pub server_cert: PathBuf,
    pub server_key: PathBuf,
    /// A client's certificate, with the name [`CLIENT_NAME`].
    pub client_cert: PathBuf,
    pub client_key: PathBuf,
    /// The certificate that routers show to stores, with the name [`ROUTER_NAME`].
    pub router_cert: PathBuf,
    pub router_key: PathBuf,
    /// A certificate for admin ports, with the name [`ADMIN_NAME`].
    pub admin_cert: PathBuf,
    pub admin_key: PathBuf,
}

/// Why certificates cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum AutoTlsError {
    #[error("--auto-tls: {path}: {source}", path = .path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// A certificate cannot be created, for instance because a host name is invalid.
    #[error("--auto-tls: {0}")]
    Certificate(#[from] rcgen::Error),
}

impl AutoTls {
    fn in_directory(directory: &Path) -> Self {
        Self {
            ca_cert: directory.join("ca.crt"),
            server_cert: directory.join("server.crt"),
            server_key: directory.join("server.key"),
            client_cert: directory.join("client.crt"),
            client_key: directory.join("client.key"),
            router_cert: directory.join("router.crt"),
            router_key: directory.join("router.key"),
            admin_cert: directory.join("admin.crt"),
            admin_key: directory.join("admin.key"),
        }
    }

    /// The settings of a server that accepts only clients of this CA.
    #[must_use]
    pub fn server_settings(&self) -> ServerTlsSettings {
        let trusted_ca_file = Some(self.ca_cert.clone());
        ServerTlsSettings { trusted_ca_file, ..ServerTlsSettings::new(&self.server_cert, &self.server_key) }
    }

    /// The settings of a client of that server.
    #[must_use]
    pub fn client_settings(&self) -> ClientTlsSettings {
        ClientTlsSettings {
            trusted_ca_file: Some(self.ca_cert.clone()),
            identity: Some((self.client_cert.clone(), self.client_key.clone())),
            ..ClientTlsSettings::default()
        }
    }
}

/// Creates the files under `directory` that are missing or expire soon. The server's certificate names localhost,
/// the loopback addresses, this machine and `hosts`.
///
/// # Errors
/// When a file cannot be read or written, or a host name is invalid.
pub fn create(directory: &Path, hosts: &[String]) -> Result<AutoTls, AutoTlsError> {
    private::make(directory).map_err(|source| AutoTlsError::File { path: directory.to_owned(), source })?;
    let files = AutoTls::in_directory(directory);
    let ca_key = directory.join("ca.key");

    let known = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut names: Vec<String> = known.into_iter().chain(this_host()).chain(hosts.iter().cloned()).collect();
    names.sort_unstable();
    names.dedup();

    let (ca, ca_is_new) = match read_ca(&files.ca_cert, &ca_key) {
        Some(key) => (Issuer::new(ca_params()?, key), false),
        None => {
            let key = KeyPair::generate()?;
            write_private(&ca_key, &key.serialize_pem())?;
            write_private(&files.ca_cert, &ca_params()?.self_signed(&key)?.pem())?;
            (Issuer::new(ca_params()?, key), true)
        }
    };
    let server = (&files.server_cert, &files.server_key, "kindred-server", &names[..]);
    let client = (&files.client_cert, &files.client_key, CLIENT_NAME, &[][..]);
    let router = (&files.router_cert, &files.router_key, ROUTER_NAME, &[][..]);
    let admin = (&files.admin_cert, &files.admin_key, ADMIN_NAME, &[][..]);
    for (cert, key, name, names) in [server, client, router, admin] {
        if ca_is_new || !key.exists() || !lasts(cert, 30 * DAY, names) {
            let made_key = KeyPair::generate()?;
            let made = leaf_params(name, names)?.signed_by(&made_key, &ca)?;
            // The key first: a process that follows the files has the pair complete when the certificate appears.
            write_private(key, &made_key.serialize_pem())?;
            write_private(cert, &made.pem())?;
        }
    }
    Ok(files)
}

fn ca_params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity(&mut params, 3650 * DAY);
    Ok(params)
}

fn leaf_params(name: &str, names: &[String]) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    validity(&mut params, 395 * DAY);
    Ok(params)
}

/// Starts the validity a day ago, for machines with slow clocks.
fn validity(params: &mut CertificateParams, length: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + length).into();
}

fn read_ca(cert: &Path, key: &Path) -> Option<KeyPair> {
    if !lasts(cert, 400 * DAY, &[]) {
        return None;
    }
    let key = KeyPair::from_pem(&fs::read_to_string(key).ok()?).ok()?;
    let pem = fs::read(cert).ok()?;
    let (_, pem) = parse_x509_pem(&pem).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let ours = certificate.subject().iter_common_name().any(|name| name.as_str() == Ok(CA_NAME));
    let same_key = certificate.public_key().subject_public_key.data.as_ref() == key.public_key_raw();
    (ours && same_key).then_some(key)
}

/// Whether the certificate exists, stays valid for `margin`, and names all hosts.
fn lasts(cert: &Path, margin: Duration, hosts: &[String]) -> bool {
    let Ok(text) = fs::read(cert) else { return false };
    let Ok((_, pem)) = parse_x509_pem(&text) else { return false };
    let Ok(certificate) = pem.parse_x509() else { return false };
    let until = SystemTime::now() + margin;
    let until = until.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let lasts = u64::try_from(certificate.validity().not_after.timestamp()).is_ok_and(|end| end > until);
    let named = certificate.subject_alternative_name().ok().flatten();
    let names = named.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    lasts && hosts.iter().all(|host| names.iter().any(|name| is_host(name, host)))
}

fn is_host(name: &GeneralName<'_>, host: &str) -> bool {
    match (name, host.parse::<IpAddr>()) {
        (GeneralName::IPAddress(bytes), Ok(IpAddr::V4(ip))) => *bytes == ip.octets(),
        (GeneralName::IPAddress(bytes), Ok(IpAddr::V6(ip))) => *bytes == ip.octets(),
        (GeneralName::DNSName(name), Err(_)) => *name == host,
        _ => false,
    }
}

fn this_host() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim().to_owned();
    (!name.is_empty() && name != "(none)").then_some(name)
}

/// Writes a file that only its owner may read, atomically.
fn write_private(path: &Path, text: &str) -> Result<(), AutoTlsError> {
    private::write(path, text.as_bytes())
        .map_err(|source| AutoTlsError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tls::{ClientTls, ServerTls};

    #[test]
    fn made_once_private_and_usable() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("tls");
        let files = create(&directory, &[]).unwrap();
        ServerTls::load(files.server_settings()).unwrap();
        ClientTls::load(files.client_settings()).unwrap();
        let all = [&files.ca_cert, &files.server_cert, &files.server_key, &files.client_cert];
        for file in all {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let before = all.map(|file| fs::read(file).unwrap());
        create(&directory, &[]).unwrap();
        assert_eq!(before, all.map(|file| fs::read(file).unwrap()));

        // A new host changes the server certificate, but not the CA or the client certificate.
        create(&directory, &["kindred.example".to_owned()]).unwrap();
        let after = all.map(|file| fs::read(file).unwrap());
        assert_eq!((&before[0], &before[3]), (&after[0], &after[3]));
        assert_ne!(before[1], after[1]);
        assert!(lasts(&files.server_cert, 390 * DAY, &["kindred.example".to_owned()]));

        // An incomplete directory is completed.
        fs::remove_file(directory.join("ca.key")).unwrap();
        create(&directory, &[]).unwrap();
        assert_ne!(before[0], fs::read(&files.ca_cert).unwrap());
        ServerTls::load(files.server_settings()).unwrap();
    }
}
