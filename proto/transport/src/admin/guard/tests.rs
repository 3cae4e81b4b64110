//! Roles at an admin port.

use super::*;
use crate::listener::Peer;
use crate::tls::ClientIdentity;

const VIEWER: &str = "0123456789abcdef-view";
const ADMIN: &str = "0123456789abcdef-admin";

fn from(name: Option<&str>) -> ConnectionInfo {
    let client =
        name.map(|name| Arc::new(ClientIdentity { common_name: name.to_owned(), names: Vec::new() }));
    ConnectionInfo { peer: Peer::Tcp("127.0.0.1:1".parse().unwrap()), tls: true, client }
}

fn headers(token: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
    if let Some(token) = token {
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    }
    headers
}

fn guard(certificates: bool, names: &[&str], anonymous_probes: bool) -> AdminGuard {
    let tokens = Tokens::parse(&format!("# all\n\n{VIEWER} view\n{ADMIN} admin\n")).unwrap();
    let tokens = TokenFile { path: PathBuf::new(), current: ArcSwap::from_pointee(tokens) };
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let known = Known { certificates, names, tokens: Some(tokens), anonymous_probes };
    AdminGuard { tls: None, known: Arc::new(known), shell: None }
}

fn code(guard: &AdminGuard, name: Option<&str>, token: Option<&str>, method: Method, path: &str) -> u16 {
    match guard.admits(&from(name), &method, path, &headers(token)) {
        Ok(_) => 200,
        Err(refused) => refused.answer().status().as_u16(),
    }
}

#[test]
fn f32_tokens_and_certificates_have_roles() {
    let guard = guard(true, &["ops"], false);
    for (name, token, read, write) in [
        (None, None, 401, 401),
        (None, Some("0123456789abcdef-none"), 401, 401),
        (None, Some(VIEWER), 200, 403),
        (None, Some(ADMIN), 200, 200),
        (Some("ops"), None, 200, 200),
        (Some("apiserver"), None, 200, 403),
        (Some("apiserver"), Some(ADMIN), 200, 200),
        (Some("ops"), Some(VIEWER), 200, 200),
    ] {
        for path in ["/livez", "/metrics", "/api/v1/stores", "/version"] {
            assert_eq!(code(&guard, name, token, Method::GET, path), read, "{name:?} {token:?} {path}");
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
            let answered = code(&guard, name, token, method.clone(), "/api/v1/move");
            assert_eq!(answered, write, "{name:?} {token:?} {method}");
        }
    }
}

#[test]
fn f32_a_certificate_counts_only_where_its_ca_is_the_admins() {
    let guard = guard(false, &[], true);
    assert_eq!(code(&guard, Some("anybody"), None, Method::GET, "/metrics"), 401);
    // A probe is answered in one word.
    let probe = guard.admits(&from(None), &Method::GET, "/readyz", &headers(None));
    assert!(matches!(probe, Err(Refused::OneWord)));
    assert_eq!(code(&guard, None, None, Method::POST, "/readyz"), 401);
}

#[test]
fn f32_a_stranger_reads_the_shell_and_nothing_beside_it() {
    let guard = guard(true, &["ops"], false).with_shell(|path| matches!(path, "/" | "/page/main.mjs"));
    for path in ["/", "/page/main.mjs"] {
        for token in [None, Some("0123456789abcdef-none")] {
            assert_eq!(code(&guard, None, token, Method::GET, path), 200, "{path}");
            assert_eq!(code(&guard, None, token, Method::HEAD, path), 200, "{path}");
            assert_eq!(code(&guard, None, token, Method::POST, path), 401, "{path}");
        }
        let admitted = guard.admits(&from(None), &Method::GET, path, &headers(None));
        assert!(matches!(admitted, Ok(None)), "a stranger has no role");
    }
    for path in
        ["//", "/page", "/page/", "/page/main.mjs/", "/page/../api/v1/stores", "/api/v1/live", "/metrics"]
    {
        assert_eq!(code(&guard, None, None, Method::GET, path), 401, "{path}");
    }
    let admitted = guard.admits(&from(None), &Method::GET, "/api/v1/live", &headers(Some(VIEWER)));
    assert!(matches!(admitted, Ok(Some(Role::View))));
}

#[test]
fn f32_a_page_of_this_port_may_ask_by_http_2() {
    let host = |uri: &str, host: Option<&str>| {
        let mut request = axum::http::Request::post(uri);
        if let Some(host) = host {
            request = request.header(header::HOST, host);
        }
        let mut request = request.body(()).unwrap();
        name_host(&mut request);
        request.headers().clone()
    };
    assert_eq!(host("https://a.example:1/api/v1/move", None)[header::HOST], "a.example:1");
    assert_eq!(host("https://a.example:1/x", Some("b"))[header::HOST], "b");
    assert!(host("/x", None).is_empty());
    let guard = guard(true, &[], false);
    for (origin, is_let_in) in [("https://a.example:1", true), ("https://evil.example", false)] {
        let mut headers = host("https://a.example:1/api/v1/move", None);
        headers.insert(header::ORIGIN, origin.parse().unwrap());
        headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        let admitted = guard.admits(&from(Some("ops")), &Method::POST, "/api/v1/move", &headers);
        assert_eq!(admitted.is_ok(), is_let_in, "{origin}");
    }
}

#[test]
fn f32_nobody_far_away_is_let_in_by_mistake() {
    let load = |args: &AdminArgs, address: &str| {
        args.load("--admin", &address.parse().unwrap(), None, &Network::System)
            .map_err(|error| error.to_string())
    };
    let open = AdminArgs::default();
    for address in ["127.0.0.1:0", "[::1]:0", "localhost:0", "unix:///run/k"] {
        load(&open, address).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{ADMIN} admin\n")).unwrap();
    let tokens = AdminArgs { admin_token_file: Some(file.path().to_owned()), ..AdminArgs::default() };
    load(&tokens, "127.0.0.1:0").unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "kindred.example:0"] {
        let refused = load(&open, address).unwrap_err();
        assert!(refused.contains(address) && refused.contains("--admin-client-ca-file"), "{refused}");
        let refused = load(&tokens, address).unwrap_err();
        assert!(refused.contains("unencrypted"), "{refused}");
    }
    let dir = tempfile::tempdir().unwrap();
    let tls = crate::auto_tls::create(dir.path(), &[]).unwrap();
    let only_tls = AdminArgs {
        admin_cert_file: Some(tls.server_cert.clone()),
        admin_key_file: Some(tls.server_key.clone()),
        ..AdminArgs::default()
    };
    assert!(load(&only_tls, "0.0.0.0:0").unwrap_err().contains("--admin-token-file"));
    load(&AdminArgs { admin_token_file: tokens.admin_token_file.clone(), ..only_tls.clone() }, "0.0.0.0:0")
        .unwrap();
    load(&AdminArgs { admin_client_ca_file: Some(tls.ca_cert), ..only_tls.clone() }, "0.0.0.0:0").unwrap();
    assert!(load(&only_tls, "http://127.0.0.1:0").unwrap_err().contains("https://"));
}

#[test]
fn f32_a_file_of_tokens_is_checked() {
    for (text, says) in [
        ("", "no token"),
        ("0123456789abcdef", "line 1"),
        ("\n0123456789abcdef root", "line 2"),
        ("short admin", "16 letters"),
        ("0123456789abcdef admin\n0123456789abcdef view", "twice"),
    ] {
        assert!(Tokens::parse(text).unwrap_err().contains(says), "{text}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{ADMIN} admin\n")).unwrap();
    let tokens = TokenFile::load(file.path()).unwrap();
    std::fs::write(file.path(), format!("{VIEWER} view\n")).unwrap();
    tokens.reload();
    assert_eq!(tokens.current.load().role(ADMIN.as_bytes()), None);
    assert_eq!(tokens.current.load().role(VIEWER.as_bytes()), Some(Role::View));
    std::fs::write(file.path(), "").unwrap();
    tokens.reload();
    assert_eq!(tokens.current.load().role(VIEWER.as_bytes()), Some(Role::View), "those in use are kept");
    assert!(!format!("{tokens:?}").contains(VIEWER));
}
