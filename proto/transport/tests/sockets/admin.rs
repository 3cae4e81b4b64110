//! The admin server over HTTP/1.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use kindred_transport::admin::{Admin, AdminArgs, AdminGuard, Check, serve};
use kindred_transport::listener::Peer;
use kindred_transport::network::Network;
use kindred_transport::serve::Drained;
use kindred_transport::tls::{ClientTls, ClientTlsSettings};
use kindred_transport::{ConnectionInfo, Connector, Drain, Endpoint, ListenAddr, ListenOptions, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

async fn fetch(endpoint: &Endpoint, path: &str) -> String {
    let mut connection = Connector::default().connect(endpoint).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    connection.flush().await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn probes_version_metrics_and_own_routes() {
    let listener = Listener::bind(&ListenAddr::any_local_port(), ListenOptions::default()).await.unwrap();
    let endpoint = listener.local_endpoint().clone();
    let ready = Arc::new(AtomicBool::new(true));
    let asked = ready.clone();
    let admin = Admin::new()
        .ready(move || {
            let meta = if asked.load(Ordering::SeqCst) { Ok(()) } else { Err("no answer for 5 s") };
            vec![Check::new("map", Ok::<_, String>(())), Check::new("meta", meta)]
        })
        .metrics(|| "kindred_up 1\n".to_owned());
    let own = get(|ConnectInfo(info): ConnectInfo<ConnectionInfo>| async move {
        matches!(info.peer, Peer::Tcp(_)).to_string()
    });
    let routes = admin.routes().route("/own", own);
    let drain = Drain::new(Duration::from_secs(5));
    let serving = drain.clone();
    drain.spawn(async move { serve(listener, routes, &AdminGuard::default(), &serving).await });

    for (path, status, body) in [
        ("/livez", "200", "ok"),
        ("/readyz", "200", "ok"),
        ("/readyz?verbose", "200", "[+]map ok\n[+]meta ok\nreadyz check passed\n"),
        ("/readyz/meta", "200", "ok"),
        ("/livez/serializable_read", "200", "ok"),
        ("/livez/meta", "404", "404 page not found\n"),
        ("/health", "200", r#"{"health":"true","reason":""}"#),
        ("/version", "200", r#"{"etcdcluster":"3.7.0","etcdserver":"3.7.0","storage":"3.7.0"}"#),
        ("/metrics", "200", "kindred_up 1\n"),
        ("/own", "200", "true"),
        ("/none", "404", ""),
    ] {
        let answer = fetch(&endpoint, path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{path}: {answer}");
    }
    ready.store(false, Ordering::SeqCst);
    for (path, status, body) in [
        ("/readyz", "503", "[+]map ok\n[-]meta failed: no answer for 5 s\nreadyz check failed\n"),
        ("/readyz?exclude=meta", "200", "ok"),
        ("/readyz/map", "200", "ok"),
        (
            "/readyz/linearizable_read",
            "503",
            "[+]map ok\n[-]meta failed: no answer for 5 s\nreadyz check failed\n",
        ),
        ("/health", "503", r#"{"health":"false","reason":"meta: no answer for 5 s"}"#),
        ("/livez", "200", "ok"),
    ] {
        let answer = fetch(&endpoint, path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{path}: {answer}");
    }
    drain.begin();
    assert_eq!(drain.finish().await, Drained::Cleanly);
}

/// Over real sockets: TLS with certificates and tokens, and requests that a page could send.
#[tokio::test]
async fn f32_an_admin_port_asks_who_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let tls = kindred_transport::auto_tls::create(directory.path(), &[]).unwrap();
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "0123456789abcdef view\n").unwrap();
    let args = AdminArgs {
        admin_cert_file: Some(tls.server_cert.clone()),
        admin_key_file: Some(tls.server_key.clone()),
        admin_client_ca_file: Some(tls.ca_cert.clone()),
        admin_token_file: Some(tokens),
        admin_anonymous_probes: true,
        ..AdminArgs::default()
    };
    let address = ListenAddr::any_local_port();
    let guard = args.load("--admin", &address, None, &Network::System).unwrap();
    let listener = Listener::bind(&address, guard.listen_options(&Network::System)).await.unwrap();
    let endpoint = listener.local_endpoint().clone();
    let routes = Admin::new().routes().route("/change", post(|| async { "changed" }));
    let drain = Drain::new(Duration::from_secs(5));
    let serving = drain.clone();
    drain.spawn(async move { serve(listener, routes, &guard, &serving).await });

    let stranger = ClientTlsSettings { identity: None, ..tls.client_settings() };
    let asked = |settings: ClientTlsSettings, request: String| {
        let connector = Connector::with_tls(Some(ClientTls::load(settings).unwrap()));
        let endpoint = endpoint.clone();
        async move {
            let mut connection = connector.connect(&endpoint).await.unwrap();
            connection.write_all(request.as_bytes()).await.unwrap();
            connection.flush().await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            answer["HTTP/1.1 ".len()..][..3].parse::<u16>().unwrap()
        }
    };
    let get = |path: &str, extra: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: admin.example\r\nConnection: close\r\n{extra}\r\n")
    };
    let change = |extra: &str| {
        format!(
            "POST /change HTTP/1.1\r\nHost: admin.example\r\nConnection: close\r\nContent-Length: 2\r\n{extra}\r\n{{}}"
        )
    };
    let token = "Authorization: Bearer 0123456789abcdef\r\n";
    let json = "Content-Type: application/json\r\n";
    assert_eq!(asked(stranger.clone(), get("/metrics", "")).await, 401);
    assert_eq!(asked(stranger.clone(), get("/readyz?verbose", "")).await, 200);
    assert_eq!(asked(stranger.clone(), change(json)).await, 401);
    assert_eq!(asked(stranger.clone(), get("/metrics", token)).await, 200);
    assert_eq!(asked(stranger, change(&format!("{token}{json}"))).await, 403);
    let known = tls.client_settings();
    assert_eq!(asked(known.clone(), get("/metrics", "")).await, 200);
    assert_eq!(asked(known.clone(), change(json)).await, 200);
    assert_eq!(asked(known.clone(), change("Content-Type: text/plain\r\n")).await, 403);
    assert_eq!(asked(known, change(&format!("{json}Origin: http://evil.example\r\n"))).await, 403);
    drain.begin();
    drain.finish().await;
}

/// An incomplete request ends its connection, in both versions of HTTP.
#[tokio::test(start_paused = true)]
async fn f37_half_a_request_to_an_admin_port_is_closed() {
    let listener = Listener::bind(&ListenAddr::any_local_port(), ListenOptions::default()).await.unwrap();
    let address = listener.local_endpoint().authority();
    let drain = Drain::new(Duration::from_secs(5));
    let serving = drain.clone();
    let routes = Admin::new().routes();
    drain.spawn(async move { serve(listener, routes, &AdminGuard::default(), &serving).await });
    for sent in [
        &b""[..],
        b"GET /livez HTTP",
        b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ",
        b"PRI * HTTP/2.0\r\n\r\nSM",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        // An error also ends the connection.
        let read = tokio::time::timeout(Duration::from_secs(300), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "{sent:?} is waited for");
    }
}

/// The shortest request of HTTP/1.0 is a whole one, however long its answer takes.
#[tokio::test]
async fn f37_a_bare_request_of_http_1_0_is_answered() {
    let listener = Listener::bind(&ListenAddr::any_local_port(), ListenOptions::default()).await.unwrap();
    let address = listener.local_endpoint().authority();
    let drain = Drain::new(Duration::from_secs(5));
    let serving = drain.clone();
    let (asked, answers) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (called, waits) = (asked.clone(), answers.clone());
    let slow = get(|| async move {
        called.notify_one();
        waits.notified().await;
        "done"
    });
    let routes = Admin::new().routes().route("/", slow);
    drain.spawn(async move { serve(listener, routes, &AdminGuard::default(), &serving).await });
    for sent in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\n\n"] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        asked.notified().await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(600)).await;
        tokio::time::resume();
        answers.notify_one();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("done"), "{sent:?}: {answer}");
    }
}
