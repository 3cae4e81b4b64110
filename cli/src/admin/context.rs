//! Which admin port is meant: flag, named context, environment, current context, default, in this order.

use std::path::PathBuf;

use kindred_partition_config::parse;
use kindred_transport::tls::ClientTlsArgs;
use serde::Deserialize;

use super::{Failure, args::Connect};

/// Where a router listens unless something else is said.
const DEFAULT: &str = "http://127.0.0.1:2381";

/// The context file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Contexts {
    /// The one that is meant when none is named.
    #[serde(default)]
    current_context: Option<String>,
    #[serde(default)]
    contexts: Vec<Context>,
}

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Context {
    name: String,
    admin: String,
    #[serde(default)]
    cacert: Option<PathBuf>,
    #[serde(default)]
    cert: Option<PathBuf>,
    #[serde(default)]
    key: Option<PathBuf>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

/// Where to connect, and how.
#[derive(Debug, Clone)]
pub struct Address {
    /// URLs, comma-separated.
    pub urls: String,
    /// TLS.
    pub tls: ClientTlsArgs,
}

/// What the arguments, the environment and the context file say.
///
/// # Errors
/// When the file cannot be read, or has no such context.
pub fn address(connect: &Connect) -> Result<Address, Failure> {
    let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let file = match named("KINDRED_CONFIG") {
        Some(path) => Some((PathBuf::from(path), true)),
        None => named("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| named("HOME").map(|home| PathBuf::from(home).join(".config")))
            .map(|dir| (dir.join("kindred/config.yaml"), connect.context.is_some())),
    };
    choose(connect, named("KINDRED_ADMIN"), || {
        let Some((path, needed)) = &file else { return Ok(Contexts::default()) };
        let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("{}: {error}", path.display()));
        match std::fs::read_to_string(path) {
            Ok(text) => parse::parse_object(&text).map_err(|error| wrong(&error)),
            Err(error) if !needed && error.kind() == std::io::ErrorKind::NotFound => Ok(Contexts::default()),
            Err(error) => Err(wrong(&error)),
        }
    })
}

fn choose(
    connect: &Connect,
    env: Option<String>,
    file: impl FnOnce() -> Result<Contexts, Failure>,
) -> Result<Address, Failure> {
    let flag = connect.admin.clone();
    let plain = |urls: String| Ok(Address { urls, tls: connect.tls.clone() });
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
    fn an_unknown_context_is_named_with_those_that_there_are() {
        let unknown = Connect { context: Some("c".to_owned()), ..Connect::default() };
        let failure = urls(&unknown, None).unwrap_err();
        assert_eq!(failure.code(), 2);
        assert!(failure.to_string().contains("\"c\"; it has a, b"), "{failure}");
    }
}
