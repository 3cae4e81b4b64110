//! Certificates for the TLS tests: an authority, and leaves that it signs, as PEM files in the scenario's directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate and its key on disk.
#[derive(Debug, Clone)]
pub struct Leaf {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// An authority, whose certificate is at `cert`.
#[derive(Debug)]
pub struct Authority {
    pub cert: PathBuf,
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority with this name.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn new(dir: &Path, name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let cert = dir.join(format!("{name}.pem"));
        fs::write(&cert, params.self_signed(&key)?.pem())?;
        Ok(Self { cert, dir: dir.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// Signs a certificate for `common_name`, which servers on this machine and clients can use.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn leaf(&self, common_name: &str) -> anyhow::Result<Leaf> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let signed = params.signed_by(&key, &self.issuer)?;
        let leaf = Leaf {
            cert: self.dir.join(format!("{common_name}.pem")),
            key: self.dir.join(format!("{common_name}.key")),
        };
        fs::write(&leaf.cert, signed.pem())?;
        fs::write(&leaf.key, key.serialize_pem())?;
        Ok(leaf)
    }
}
