//! The configuration file: YAML or JSON, with the flags' names.

use std::path::PathBuf;

use kindred_transport::{
    admin::AdminArgs,
    tls::{ServerTlsArgs, TlsVersion},
};
use serde::Deserialize;

use super::Options;

/// TLS flags in a configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct FileTls {
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    trusted_ca_file: Option<PathBuf>,
    client_cert_auth: bool,
    client_cert_allowed_cn: Vec<String>,
    client_cert_allowed_hostname: Vec<String>,
    tls_min_version: Option<String>,
    allow_plaintext: bool,
}

const TLS_FIELDS: [&str; 8] = [
    "cert-file",
    "key-file",
    "trusted-ca-file",
    "client-cert-auth",
    "client-cert-allowed-cn",
    "client-cert-allowed-hostname",
    "tls-min-version",
    "allow-plaintext",
];

/// Reads the file; as JSON is YAML, one parser reads both.
pub(super) fn read_file(
    path: PathBuf,
    tls: &mut ServerTlsArgs,
    admin: &mut AdminArgs,
) -> Result<Options, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let all: serde_json::Map<String, serde_json::Value> =
        serde_saphyr::from_str(&text).map_err(|error| format!("{shown}: {error}"))?;
    let (of_tls, rest): (serde_json::Map<_, _>, serde_json::Map<_, _>) =
        all.into_iter().partition(|(name, _)| TLS_FIELDS.contains(&name.as_str()));
    let file: FileTls = serde_json::from_value(of_tls.into()).map_err(|error| format!("{shown}: {error}"))?;
    merge_tls(tls, file)?;
    let (of_admin, rest): (serde_json::Map<_, _>, serde_json::Map<_, _>) =
        rest.into_iter().partition(|(name, _)| name.starts_with("admin-") && name != "admin-listen");
    let file: AdminArgs =
        serde_json::from_value(of_admin.into()).map_err(|error| format!("{shown}: {error}"))?;
    *admin = std::mem::take(admin).or(file);
    serde_json::from_value(rest.into()).map_err(|error| format!("{shown}: {error}"))
}

fn merge_tls(tls: &mut ServerTlsArgs, file: FileTls) -> Result<(), String> {
    tls.cert_file = tls.cert_file.take().or(file.cert_file);
    tls.key_file = tls.key_file.take().or(file.key_file);
    tls.trusted_ca_file = tls.trusted_ca_file.take().or(file.trusted_ca_file);
    tls.client_cert_auth |= file.client_cert_auth;
    tls.allow_plaintext |= file.allow_plaintext;
    if tls.client_cert_allowed_cn.is_empty() {
        tls.client_cert_allowed_cn = file.client_cert_allowed_cn;
    }
    if tls.client_cert_allowed_hostname.is_empty() {
        tls.client_cert_allowed_hostname = file.client_cert_allowed_hostname;
    }
    if let Some(version) = file.tls_min_version {
        let parsed: Result<TlsVersion, String> = clap::ValueEnum::from_str(&version, true);
        tls.tls_min_version =
            parsed.map_err(|_| format!("tls-min-version: {version:?} is not a TLS version"))?;
    }
    Ok(())
}
