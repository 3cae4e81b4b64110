//! Identifies clients by their certificates, and decides which of them may connect.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The identity in a verified client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The common name, which etcd uses as the user; empty if there is none.
    pub common_name: String,
    /// The subject alternative names: host names, addresses and URIs.
    pub names: Vec<String>,
}

impl ClientIdentity {
    /// Reads the first certificate of a verified chain.
    #[must_use]
    pub fn of_chain(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(chain.first()?).ok()?;
        let others = parsed.subject_alternative_name().ok().flatten();
        let others = others.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
        let names = others.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes),
            _ => None,
        });
        Some(Self { common_name: name_of(&parsed), names: names.collect() })
    }

    /// Whether the certificate has any of these names.
    #[must_use]
    pub fn has_any(&self, names: &[String]) -> bool {
        let common = Some(&self.common_name).filter(|name| !name.is_empty());
        common.into_iter().chain(&self.names).any(|own| names.contains(own))
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|four| std::net::IpAddr::from(four).to_string()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|sixteen| std::net::IpAddr::from(sixteen).to_string()),
        _ => None,
    }
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(name_of(&parsed))
}

fn name_of(parsed: &X509Certificate<'_>) -> String {
    // Go uses the last common name if a subject has several.
    let name = parsed.subject().iter_common_name().last().and_then(|name| name.as_str().ok());
    name.unwrap_or_default().to_owned()
}

/// The clients of the CA that may connect; empty lists admit all.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowed {
    pub common_names: Vec<String>,
    pub hostnames: Vec<ServerName<'static>>,
}

impl Allowed {
    fn permits(&self, certificate: &CertificateDer<'_>) -> bool {
        if !self.common_names.is_empty() {
            return common_name(certificate).is_some_and(|name| self.common_names.contains(&name));
        }
        if self.hostnames.is_empty() {
            return true;
        }
        ParsedCertificate::try_from(certificate).is_ok_and(|parsed| {
            self.hostnames.iter().any(|hostname| verify_server_name(&parsed, hostname).is_ok())
        })
    }
}

/// Verifies the chain, then the name.
#[derive(Debug)]
pub(super) struct NamedClients {
    pub chain: Arc<dyn ClientCertVerifier>,
    pub allowed: Allowed,
}

impl ClientCertVerifier for NamedClients {
    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(certificate, intermediates, now)?;
        if self.allowed.permits(certificate) {
            return Ok(verified);
        }
        let name = common_name(certificate).unwrap_or_default();
        tracing::warn!(common_name = name, "client certificate is of the CA, but its name is not allowed");
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
