//! Refuses requests that a web page could make a browser send to an admin port.
//!
//! A page may POST to any address with its user's certificate, if the request looks like one of a form. For any
//! other request the browser first asks the server, which never agrees. So a POST needs a content type that no form
//! has, or kindred's own header. A POST without a content type must not come from a page, which browsers indicate
//! in headers. If every client on this machine is an admin, a page must also not get in under a name that its owner
//! resolves to 127.0.0.1. Then the port accepts only addresses and names without a dot in `Host`.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method, header};

use super::guard::is_read;
use crate::listener::{ConnectionInfo, Peer};

/// A header that marks a request as an intended change, whatever its content type.
pub const REQUEST_HEADER: &str = "x-kindred-request";

/// Checks a request. `open` means that the port authenticates no clients.
///
/// # Errors
/// When a page may have sent the request; says what to send instead.
pub(super) fn check(
    from: &ConnectionInfo,
    open: bool,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), String> {
    // Pages cannot reach a Unix socket.
    if from.peer == Peer::Unix {
        return Ok(());
    }
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST.as_str());
    if open && host.is_some_and(|host| !is_literal(host)) {
        return Err(format!(
            "{:?} may be anybody's name for this machine: ask by its address or as localhost, or let the admin port ask who its \
             clients are (--admin-client-ca-file, --admin-token-file)",
            host.unwrap_or_default()
        ));
    }
    if is_read(method) {
        return Ok(());
    }
    if let Some(origin) = text(header::ORIGIN.as_str())
        && !same_site(origin, host.unwrap_or_default())
    {
        return Err(format!("a page of {origin:?} may not change anything here"));
    }
    if text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Err("a page of another site may not change anything here".to_owned());
    }
    let by_a_page =
        || ["origin", "referer", "sec-fetch-site", "sec-fetch-mode"].iter().any(|name| text(name).is_some());
    let simple = text(header::CONTENT_TYPE.as_str()).map_or_else(by_a_page, |kind| !is_ours(kind));
    if method == Method::POST && simple && text(REQUEST_HEADER).is_none() {
        return Err(format!(
            "any web page could have sent this: send `content-type: application/json` (or yaml), or `{REQUEST_HEADER}: 1`"
        ));
    }
    Ok(())
}

/// Checks a request of HTTP to a clients' port. Tools send there what a form can send too (`curl -d`), so only what browsers
/// alone say is looked at: a page of another site names itself in each POST. Without certificates, a page must not get in
/// under a name that its owner resolves to this machine.
///
/// # Errors
/// When a page may have sent the request.
pub(super) fn check_client(
    from: &ConnectionInfo,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), String> {
    if from.peer == Peer::Unix {
        return Ok(());
    }
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST.as_str());
    let is_here = from.client.is_none() && from.peer.is_this_machine();
    if let Some(host) = host.filter(|host| is_here && !is_literal(host)) {
        return Err(format!(
            "{host:?} may be anybody's name for this machine: ask by its address or as localhost, or show a certificate"
        ));
    }
    let another = text(header::ORIGIN.as_str()).filter(|origin| !same_site(origin, host.unwrap_or_default()));
    let crosses = text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    if !is_read(method) && (another.is_some() || crosses) {
        return Err("a page of another site may not change anything here".to_owned());
    }
    Ok(())
}

/// Whether this is a content type of the API, which no form can have.
fn is_ours(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (family, of) = kind.split_once('/').unwrap_or_default();
    matches!(family, "application" | "text")
        && ["json", "yaml", "x-yaml"].iter().any(|known| {
            of.strip_suffix(known)
                .is_some_and(|before| before.is_empty() || before.ends_with(['+', '-', '.']))
        })
}

/// Whether a page's origin is this port.
fn same_site(origin: &str, host: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
}

/// Whether a Host header contains an address, or a name without a dot such as `localhost`, which no attacker can
/// register.
fn is_literal(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(six) => six.split_once(']').map_or(six, |(six, _)| six),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.parse::<IpAddr>().is_ok() || !name.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(open: bool, method: Method, headers: &[(&'static str, &str)]) -> Result<(), String> {
        let from =
            ConnectionInfo { peer: Peer::Tcp("127.0.0.1:9".parse().unwrap()), tls: false, client: None };
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (axum::http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        check(&from, open, &method, &headers)
    }

    #[test]
    fn f32_what_a_page_can_send_is_refused() {
        let host = ("host", "127.0.0.1:2381");
        let json = ("content-type", "application/json");
        for refused in [
            vec![host, ("content-type", "text/plain")],
            vec![host, ("content-type", "application/x-www-form-urlencoded")],
            vec![host, ("content-type", "multipart/form-data; boundary=json")],
            vec![host, ("content-type", "text/plain; application/json")],
            vec![host, ("content-type", "text/notjson")],
            vec![host, ("content-type", "")],
            vec![host, ("sec-fetch-mode", "no-cors")],
            vec![host, ("origin", "http://127.0.0.1:2381")],
            vec![host, json, ("origin", "http://evil.example")],
            vec![host, json, ("origin", "null")],
            vec![host, ("x-kindred-request", "1"), ("origin", "http://127.0.0.1:2382")],
            vec![host, json, ("sec-fetch-site", "cross-site")],
            vec![("host", "evil.example:2381"), json],
        ] {
            assert!(checked(true, Method::POST, &refused).is_err(), "{refused:?}");
        }
        for taken in [
            vec![host],
            vec![host, json],
            vec![host, ("content-type", "application/json; charset=utf-8")],
            vec![host, ("content-type", "application/yaml")],
            vec![host, ("content-type", "application/merge-patch+json")],
            vec![host, ("x-kindred-request", "1")],
            vec![host, json, ("origin", "http://127.0.0.1:2381"), ("sec-fetch-site", "same-origin")],
            vec![("host", "localhost:2381"), json],
            vec![("host", "kindred"), json],
            vec![("host", "[::1]:2381"), json],
        ] {
            checked(true, Method::POST, &taken).unwrap();
        }
    }

    #[test]
    fn f32_a_name_is_none_where_nobody_is_asked() {
        let named = [("host", "evil.example:2381")];
        assert!(checked(true, Method::GET, &named).is_err());
        checked(false, Method::GET, &named).unwrap();
        // A browser asks before it sends these, and the port never agrees.
        checked(true, Method::DELETE, &[("host", "127.0.0.1")]).unwrap();
        assert!(
            checked(true, Method::DELETE, &[("host", "127.0.0.1"), ("origin", "http://evil.example")])
                .is_err()
        );
    }

    #[test]
    fn tools_may_ask_a_clients_port_what_pages_may_not() {
        let here = "127.0.0.1:9".parse().unwrap();
        let of = |peer, headers: &[(&'static str, &str)], method: Method| {
            let from = ConnectionInfo { peer: Peer::Tcp(peer), tls: false, client: None };
            let headers: HeaderMap = headers
                .iter()
                .map(|(name, value)| (axum::http::HeaderName::from_static(name), value.parse().unwrap()))
                .collect();
            check_client(&from, &method, &headers)
        };
        let (host, form) =
            (("host", "127.0.0.1:2379"), ("content-type", "application/x-www-form-urlencoded"));
        of(here, &[host, form], Method::POST).unwrap();
        of(here, &[], Method::POST).unwrap();
        of("10.0.0.9:9".parse().unwrap(), &[("host", "etcd.example:2379"), form], Method::POST).unwrap();
        of(here, &[host, ("origin", "http://evil.example")], Method::GET).unwrap();
        for refused in [
            [host, ("origin", "http://evil.example")],
            [host, ("origin", "null")],
            [host, ("sec-fetch-site", "cross-site")],
            [("host", "evil.example:2379"), form],
        ] {
            assert!(of(here, &refused, Method::POST).is_err(), "{refused:?}");
        }
        assert!(of(here, &[("host", "evil.example")], Method::GET).is_err());
    }
}
