//! Authentication and authorisation for an admin port.
//!
//! An *admin* may change things, a *viewer* may only read. A certificate of this port's client CA or a token
//! identifies a client. If neither is configured, every client on this machine is an admin, and the port may listen
//! on the loopback interface only. A browser sends whatever a page asks it to, with the user's certificate, so
//! changes must have a form that no page can send to another site (`crate::admin::origin`).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::origin;
use crate::address::{ListenAddr, Scheme};
use crate::listener::ConnectionInfo;
use crate::network::Network;
use crate::tls::{RELOAD_EVERY, ServerFlags, ServerTls, ServerTlsSettings, TlsError};
use crate::who::equal;

/// The minimum length of a token.
const TOKEN_BYTES_MIN: usize = 16;

/// Flags of an admin port.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[command(next_help_heading = "Admin port")]
pub struct AdminArgs {
    /// TLS certificate of the admin port (PEM); reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub admin_cert_file: Option<PathBuf>,
    /// Key of --admin-cert-file (PEM).
    #[arg(long, value_name = "FILE")]
    pub admin_key_file: Option<PathBuf>,
    /// CA of the client certificates that the admin port accepts. Without --admin-token-file, clients must have
    /// one.
    #[arg(long, value_name = "FILE")]
    pub admin_client_ca_file: Option<PathBuf>,
    /// Names (common name or SAN) of client certificates that may change things, comma-separated; others of the CA
    /// may only read [default: all may change things].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub admin_client_names: Vec<String>,
    /// File of bearer tokens for the admin port, one `TOKEN ROLE` per line, with the role `view` or `admin`;
    /// reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// Answer /livez and /readyz without authentication, in one word without names, for probes that have neither
    /// certificate nor token.
    #[arg(long)]
    pub admin_anonymous_probes: bool,
}

/// A client's role at an admin port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// May only read.
    View,
    /// May read and change everything.
    Admin,
}

/// Why the settings of an admin port are unusable.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Flags contradict each other, or one lacks its partner.
    #[error("{0}")]
    Flags(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The token file is unusable.
    #[error("--admin-token-file {path}: {problem}", path = .path.display())]
    Tokens {
        /// The file of --admin-token-file.
        path: PathBuf,
        problem: String,
    },
}

/// The guard of an admin port. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct AdminGuard {
    tls: Option<ServerTls>,
    known: Arc<Known>,
    shell: Option<fn(&str) -> bool>,
}

/// The means of identifying clients.
#[derive(Debug, Default)]
struct Known {
    /// Whether a client certificate of the CA for this port, or for the clients' port, identifies a client.
    certificates: bool,
    /// The certificate names of admins; empty if all are.
    names: Vec<String>,
    tokens: Option<TokenFile>,
    anonymous_probes: bool,
}

impl Known {
    fn nobody(&self) -> bool {
        !self.certificates && self.tokens.is_none()
    }
}

impl AdminArgs {
    /// Combines the flags with the settings of `file`; flags win.
    #[must_use]
    pub fn or(self, file: Self) -> Self {
        Self {
            admin_cert_file: self.admin_cert_file.or(file.admin_cert_file),
            admin_key_file: self.admin_key_file.or(file.admin_key_file),
            admin_client_ca_file: self.admin_client_ca_file.or(file.admin_client_ca_file),
            admin_client_names: match self.admin_client_names {
                none if none.is_empty() => file.admin_client_names,
                names => names,
            },
            admin_token_file: self.admin_token_file.or(file.admin_token_file),
            admin_anonymous_probes: self.admin_anonymous_probes || file.admin_anonymous_probes,
        }
    }

    /// Loads the files and checks that no client is admitted by mistake. `clients` is the TLS of the clients' port;
    /// an admin port without TLS of its own uses it if its address begins with `https://`. `flag` names the address
    /// in errors.
    ///
    /// # Errors
    /// When a flag lacks its partner, a file is unusable, or other machines would be served without authentication.
    pub fn load(
        &self,
        flag: &str,
        address: &ListenAddr,
        clients: Option<&ServerTls>,
        network: &Network,
    ) -> Result<AdminGuard, GuardError> {
        let tls = self.tls(address, clients)?;
        let certificates = tls.as_ref().is_some_and(|tls| tls.settings().trusted_ca_file.is_some());
        let tokens = self.admin_token_file.as_deref().map(TokenFile::load).transpose()?;
        if !self.admin_client_names.is_empty() && !certificates {
            return Err(GuardError::Flags(
                "--admin-client-names needs --admin-client-ca-file, the CA of those certificates".to_owned(),
            ));
        }
        let known = Known {
            certificates,
            names: self.admin_client_names.clone(),
            tokens,
            anonymous_probes: self.admin_anonymous_probes,
        };
        let guard = AdminGuard { tls, known: Arc::new(known), shell: None };
        if network.is_open() {
            guard.check(flag, address).map_err(GuardError::Flags)?;
        }
        Ok(guard)
    }

    fn tls(
        &self,
        address: &ListenAddr,
        clients: Option<&ServerTls>,
    ) -> Result<Option<ServerTls>, GuardError> {
        let flags = |text: &str| Err(GuardError::Flags(text.to_owned()));
        match (&self.admin_cert_file, &self.admin_key_file) {
            (Some(cert), Some(key)) if address.scheme() != Scheme::Plain => {
                let settings = ServerTlsSettings {
                    trusted_ca_file: self.admin_client_ca_file.clone(),
                    clients_optional: self.admin_token_file.is_some() || self.admin_anonymous_probes,
                    flags: ServerFlags {
                        cert_file: "--admin-cert-file",
                        key_file: "--admin-key-file",
                        trusted_ca_file: "--admin-client-ca-file",
                    },
                    ..ServerTlsSettings::new(cert, key)
                };
                Ok(Some(ServerTls::load(settings)?))
            }
            (Some(_), Some(_)) => flags(
                "the admin port's address says http://, and there is --admin-cert-file: write https://, or leave one out",
            ),
            (Some(_), None) => flags("--admin-cert-file needs --admin-key-file, the key of that certificate"),
            (None, Some(_)) => flags("--admin-key-file needs --admin-cert-file, the certificate of that key"),
            (None, None) if self.admin_client_ca_file.is_some() => flags(
                "--admin-client-ca-file: client certificates can be demanded only with --admin-cert-file and --admin-key-file",
            ),
            (None, None) => Ok(clients.filter(|_| address.scheme() == Scheme::Tls).cloned()),
        }
    }
}

impl AdminGuard {
    #[must_use]
    pub fn tls(&self) -> Option<ServerTls> {
        self.tls.clone()
    }

    /// The options for listening on the port.
    #[must_use]
    pub fn listen_options(&self, network: &Network) -> crate::ListenOptions {
        crate::ListenOptions::with_tls(self.tls()).on(network)
    }

    fn check(&self, flag: &str, address: &ListenAddr) -> Result<(), String> {
        if address.is_local() {
            return Ok(());
        }
        if self.known.nobody() {
            return Err(format!(
                "{flag} {address}: whoever reaches this port can change what the process does, and others than this machine \
                 do: give --admin-cert-file, --admin-key-file and --admin-client-ca-file (or --admin-token-file), or listen \
                 on 127.0.0.1"
            ));
        }
        if self.tls.is_none() {
            return Err(format!(
                "{flag} {address}: tokens would cross the network unencrypted: give --admin-cert-file and \
                 --admin-key-file, or listen on 127.0.0.1"
            ));
        }
        Ok(())
    }

    /// Lets everybody read these paths. Nothing may be there that is not in every copy of the program: a browser has no
    /// token yet when it asks for the page that asks for the token.
    #[must_use]
    pub fn with_shell(mut self, shell: fn(&str) -> bool) -> Self {
        self.shell = Some(shell);
        self
    }

    /// Starts to follow the token file in the current tokio runtime.
    pub(super) fn follow(&self) {
        if self.known.tokens.is_some() {
            tokio::spawn(follow(Arc::downgrade(&self.known)));
        }
    }

    /// The role of a request's sender; `None` if the sender is unknown.
    fn role(&self, from: &ConnectionInfo, headers: &HeaderMap) -> Option<Role> {
        let known = &self.known;
        if known.nobody() {
            return Some(Role::Admin);
        }
        let by_certificate = from.client.as_ref().filter(|_| known.certificates).map(|client| {
            if known.names.is_empty() || client.has_any(&known.names) { Role::Admin } else { Role::View }
        });
        let token = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let by_token = token
            .and_then(|token| known.tokens.as_ref().and_then(|tokens| tokens.current.load().role(token)));
        by_certificate.max(by_token)
    }

    /// Checks whether the sender may make this request. Returns the sender's role; `None` for a stranger who reads what
    /// everybody may read.
    fn admits(
        &self,
        from: &ConnectionInfo,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<Role>, Refused> {
        origin::check(from, self.known.nobody(), method, headers).map_err(Refused::Forbidden)?;
        let needed = if is_read(method) { Role::View } else { Role::Admin };
        match self.role(from, headers) {
            Some(role) if role >= needed => Ok(Some(role)),
            Some(_) => {
                Err(Refused::Forbidden(format!("the role view may not {method} {path}; it needs admin")))
            }
            None if is_read(method) && self.shell.is_some_and(|shell| shell(path)) => Ok(None),
            None if self.known.anonymous_probes
                && is_read(method)
                && matches!(path, "/livez" | "/readyz") =>
            {
                Err(Refused::OneWord)
            }
            None => Err(Refused::Unknown),
        }
    }
}

/// Whether the method changes nothing.
pub(super) fn is_read(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// The bearer token of an Authorization header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Why a request is refused.
enum Refused {
    /// The sender is unknown.
    Unknown,
    /// The sender may not make this request.
    Forbidden(String),
    /// An anonymous probe, which is answered in one word.
    OneWord,
}

impl Refused {
    fn answer(&self) -> Response {
        let (code, reason, message) = match self {
            Self::Forbidden(message) => (StatusCode::FORBIDDEN, "Forbidden", message.as_str()),
            Self::Unknown | Self::OneWord => (
                StatusCode::UNAUTHORIZED,
                "Unauthorized",
                "this admin port asks who you are: show a client certificate (--cert, --key) or a token (--token-file)",
            ),
        };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": reason, "message": message, "code": code.as_u16(),
        });
        let mut answer = (code, axum::Json(status)).into_response();
        if code == StatusCode::UNAUTHORIZED {
            let scheme = header::HeaderValue::from_static("Bearer realm=\"kindred\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        answer
    }
}

/// HTTP/2 has what is asked for in the address of a request. The checks look for it where HTTP/1 has it.
pub(super) fn name_host<B>(request: &mut axum::http::Request<B>) {
    let authority = request.uri().authority().filter(|_| !request.headers().contains_key(header::HOST));
    let host = authority.and_then(|authority| header::HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
}

/// The middleware through which every request of an admin port passes. Handlers can extract `Extension<Role>`.
pub(super) async fn guarded(State(guard): State<AdminGuard>, mut request: Request, next: Next) -> Response {
    name_host(&mut request);
    let from = request.extensions().get::<axum::extract::ConnectInfo<ConnectionInfo>>();
    let Some(axum::extract::ConnectInfo(from)) = from else {
        return Refused::Unknown.answer();
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match guard.admits(from, &method, &path, request.headers()) {
        Ok(role) => {
            if let Some(role) = role {
                request.extensions_mut().insert(role);
            }
            next.run(request).await
        }
        Err(Refused::OneWord) => {
            let code = next.run(request).await.status();
            (code, if code.is_success() { "ok" } else { "failed" }).into_response()
        }
        Err(refused) => {
            tracing::debug!(peer = %from.peer, %method, path, "an admin request was refused");
            refused.answer()
        }
    }
}

/// The token file with its current content.
#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    current: ArcSwap<Tokens>,
}

#[derive(Default, PartialEq, Eq)]
struct Tokens(Vec<(String, Role)>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

impl Tokens {
    /// The role of a token. Compares every token, so that the timing reveals nothing.
    fn role(&self, shown: &[u8]) -> Option<Role> {
        let of = |(token, role): &(String, Role)| equal(token.as_bytes(), shown).then_some(*role);
        self.0.iter().filter_map(of).max()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut seen = HashSet::new();
        for (line, text) in text.lines().enumerate() {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let at = format!("line {}", line + 1);
            let words: Vec<_> = text.split_whitespace().collect();
            let [token, role] = words[..] else {
                return Err(format!("{at}: write a token and its role, as `TOKEN view` or `TOKEN admin`"));
            };
            let role = match role {
                "view" => Role::View,
                "admin" => Role::Admin,
                other => return Err(format!("{at}: {other:?} is no role; write view or admin")),
            };
            if token.len() < TOKEN_BYTES_MIN {
                return Err(format!(
                    "{at}: a token has {TOKEN_BYTES_MIN} letters or more, as `openssl rand -hex 32` prints them"
                ));
            }
            if !seen.insert(token) {
                return Err(format!("{at}: this token is there twice"));
            }
            tokens.push((token.to_owned(), role));
        }
        if tokens.is_empty() {
            return Err(
                "there is no token in it; write lines of a token and its role, view or admin".to_owned()
            );
        }
        Ok(Self(tokens))
    }
}

impl TokenFile {
    fn load(path: &Path) -> Result<Self, GuardError> {
        let tokens =
            Self::read(path).map_err(|problem| GuardError::Tokens { path: path.to_owned(), problem })?;
        Ok(Self { path: path.to_owned(), current: ArcSwap::from_pointee(tokens) })
    }

    fn read(path: &Path) -> Result<Tokens, String> {
        Tokens::parse(&std::fs::read_to_string(path).map_err(|error| error.to_string())?)
    }

    /// Reads the file again; keeps the tokens in use if that fails. Blocks on the file system.
    fn reload(&self) {
        match Self::read(&self.path) {
            Ok(tokens) if tokens == **self.current.load() => {}
            Ok(tokens) => {
                self.current.store(Arc::new(tokens));
                tracing::info!(file = %self.path.display(), "the admin tokens changed and were loaded");
            }
            Err(problem) => {
                tracing::error!(file = %self.path.display(), problem, "the admin tokens cannot be read; keeping those in use");
            }
        }
    }
}

async fn follow(known: Weak<Known>) {
    loop {
        tokio::time::sleep(RELOAD_EVERY).await;
        let Some(known) = known.upgrade() else { return };
        let read = move || known.tokens.as_ref().map(TokenFile::reload);
        if tokio::task::spawn_blocking(read).await.is_err() {
            tracing::error!("reading the admin tokens panicked; they are not followed any more");
            return;
        }
    }
}

#[cfg(test)]
mod tests;
