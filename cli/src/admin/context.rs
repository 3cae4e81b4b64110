//! Chooses the admin port: flag, named context, environment, current context, default, in this order.

use std::path::PathBuf;

use kindred_partition_config::parse;
use kindred_transport::tls::ClientTlsArgs;
use serde::Deserialize;

use super::{args::Connect, failure::Failure};

/// A router's default admin port.
const DEFAULT: &str = "http://127.0.0.1:2381";

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Contexts {
    /// The context to use if none is named.
    #[serde(default)]
    current_context: Option<String>,
    /// The clusters that can be named.
    #[serde(default)]
    contexts: Vec<Context>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Context {
    /// By which `--context` and `currentContext` name it.
    name: String,
    /// Admin ports of its routers, comma-separated.
    admin: String,
    /// CA bundle (PEM) by which its routers are verified; otherwise the system's.
    #[serde(default)]
    cacert: Option<PathBuf>,
    /// Certificate to show (PEM).
    #[serde(default)]
    cert: Option<PathBuf>,
    /// Key of `cert` (PEM).
    #[serde(default)]
    key: Option<PathBuf>,
    /// Do not verify its routers (for tests only).
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    /// File with a token for the admin port.
    #[serde(default)]
    token_file: Option<PathBuf>,
}

/// An admin port, and how to authenticate there.
#[derive(Debug, Clone)]
pub struct Address {
    /// Comma-separated URLs.
    pub urls: String,
    pub tls: ClientTlsArgs,
    /// The file with the bearer token.
    pub token_file: Option<PathBuf>,
}

/// Combines the arguments, the environment and the context file.
///
/// # Errors
/// When the file cannot be read, or lacks the named context.
pub fn address(connect: &Connect) -> Result<Address, Failure> {
    let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let file = match named("KINDRED_CONFIG") {
        Some(path) => Some((PathBuf::from(path), true)),
        None => named("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| named("HOME").map(|home| PathBuf::from(home).join(".config")))
            .map(|dir| (dir.join("kindred/config.yaml"), connect.context.is_some())),
    };
    let chosen = choose(connect, named("KINDRED_ADMIN"), || {
        let Some((path, needed)) = &file else { return Ok(Contexts::default()) };
        let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("{}: {error}", path.display()));
        match std::fs::read_to_string(path) {
            Ok(text) => parse::parse_object(&text).map_err(|error| wrong(&error)),
            Err(error) if !needed && error.kind() == std::io::ErrorKind::NotFound => Ok(Contexts::default()),
            Err(error) => Err(wrong(&error)),
        }
    });
    chosen.map(|address| address.with_environment(&named))
}

impl Address {
    /// Fills in from the environment what neither flags nor the context set. A certificate and its key must have
    /// the same source.
    fn with_environment(mut self, named: &impl Fn(&str) -> Option<String>) -> Self {
        let file = |name: &str| named(name).map(PathBuf::from);
        self.tls.cacert = self.tls.cacert.or_else(|| file("KINDRED_CACERT"));
        if self.tls.cert.is_none() && self.tls.key.is_none() {
            self.tls.cert = file("KINDRED_CERT");
            self.tls.key = file("KINDRED_KEY");
        }
        self.token_file = self.token_file.or_else(|| file("KINDRED_TOKEN_FILE"));
        self
    }

    /// The bearer token, if one is configured.
    ///
    /// # Errors
    /// When its file cannot be read or has no token.
    pub fn token(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let wrong = |problem: &dyn std::fmt::Display| {
            Failure::Usage(format!("--token-file {}: {problem}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let token = lines.flat_map(str::split_whitespace).next();
        token.map(|token| Some(token.to_owned())).ok_or_else(|| wrong(&"there is no token in it"))
    }
}

fn choose(
    connect: &Connect,
    env: Option<String>,
    file: impl FnOnce() -> Result<Contexts, Failure>,
) -> Result<Address, Failure> {
    let flag = connect.admin.clone();
    let plain =
        |urls: String| Ok(Address { urls, tls: connect.tls.clone(), token_file: connect.token_file.clone() });
    if let Some(urls) = flag {
        return plain(urls);
    }
    if connect.context.is_none()
        && let Some(urls) = env
    {
        return plain(urls);
    }
    let contexts = file()?;
    let Some(name) = connect.context.as_ref().or(contexts.current_context.as_ref()) else {
        return plain(DEFAULT.to_owned());
    };
    let Some(context) = contexts.contexts.iter().find(|context| context.name == *name) else {
        let known: Vec<_> = contexts.contexts.iter().map(|context| context.name.as_str()).collect();
        return Err(Failure::Usage(format!(
            "the context file has no context {name:?}; it has {}",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        )));
    };
    let tls = &connect.tls;
    Ok(Address {
        urls: context.admin.clone(),
        tls: ClientTlsArgs {
            cacert: tls.cacert.clone().or_else(|| context.cacert.clone()),
            cert: tls.cert.clone().or_else(|| context.cert.clone()),
            key: tls.key.clone().or_else(|| context.key.clone()),
            insecure_skip_tls_verify: tls.insecure_skip_tls_verify || context.insecure_skip_tls_verify,
        },
        token_file: connect.token_file.clone().or_else(|| context.token_file.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Result<Contexts, Failure> {
        let text = "currentContext: b\ncontexts:\n- {name: a, admin: 'http://a:1'}\n\
                    - {name: b, admin: 'https://b:1', cacert: /ca.pem}\n";
        Ok(parse::parse_object(text).unwrap())
    }

    fn urls(connect: &Connect, env: Option<&str>) -> Result<String, Failure> {
        choose(connect, env.map(str::to_owned), file).map(|address| address.urls)
    }

    #[test]
    fn the_nearest_wins() {
        let flag = Connect { admin: Some("http://f:1".to_owned()), ..Connect::default() };
        let named = Connect { context: Some("a".to_owned()), ..Connect::default() };
        let nothing = Connect::default();
        assert_eq!(urls(&flag, Some("http://e:1")).unwrap(), "http://f:1");
        assert_eq!(urls(&named, Some("http://e:1")).unwrap(), "http://a:1");
        assert_eq!(urls(&nothing, Some("http://e:1")).unwrap(), "http://e:1");
        assert_eq!(urls(&nothing, None).unwrap(), "https://b:1");
        assert_eq!(choose(&nothing, None, file).unwrap().tls.cacert, Some("/ca.pem".into()));
        let empty = choose(&nothing, None, || Ok(Contexts::default())).unwrap();
        assert_eq!(empty.urls, DEFAULT);
    }

    #[test]
    fn f32_what_a_client_shows_comes_from_flag_context_or_environment() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("env"), "# ours\n0123456789abcdef admin\n").unwrap();
        std::fs::write(path("none"), "# no token\n").unwrap();
        let env = |name: &str| {
            let known = match name {
                "KINDRED_CACERT" => "/env/ca",
                "KINDRED_CERT" => "/env/cert",
                "KINDRED_KEY" => "/env/key",
                "KINDRED_TOKEN_FILE" => return Some(path("env").display().to_string()),
                _ => return None,
            };
            Some(known.to_owned())
        };
        let address = |connect: &Connect| choose(connect, None, file).unwrap().with_environment(&env);
        let plain = address(&Connect::default());
        // The CA comes from the context.
        assert_eq!(
            (plain.tls.cacert.clone(), plain.tls.cert.clone()),
            (Some("/ca.pem".into()), Some("/env/cert".into()))
        );
        assert_eq!(plain.token().unwrap().as_deref(), Some("0123456789abcdef"));
        let tls = ClientTlsArgs { cert: Some("/flag/cert".into()), ..ClientTlsArgs::default() };
        let flags = address(&Connect { tls, token_file: Some(path("none")), ..Connect::default() });
        assert_eq!((flags.tls.cert.clone(), flags.tls.key.clone()), (Some("/flag/cert".into()), None));
        assert!(flags.token().unwrap_err().to_string().contains("--token-file"));
    }

    #[test]
    fn an_unknown_context_is_named_with_those_that_there_are() {
        let unknown = Connect { context: Some("c".to_owned()), ..Connect::default() };
        let failure = urls(&unknown, None).unwrap_err();
        assert_eq!(failure.code(), 2);
        assert!(failure.to_string().contains("\"c\"; it has a, b"), "{failure}");
    }
}
