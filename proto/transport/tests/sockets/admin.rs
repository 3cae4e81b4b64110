//! The admin server in HTTP/1.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::routing::get;
use kindred_transport::admin::{Admin, Check, serve};
use kindred_transport::listener::Peer;
use kindred_transport::serve::Drained;
use kindred_transport::{ConnectionInfo, Connector, Drain, Endpoint, ListenAddr, ListenOptions, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn fetch(endpoint: &Endpoint, path: &str) -> String {
    let mut connection = Connector::default().connect(endpoint).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n");
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
    drain.spawn(async move { serve(listener, routes, &serving).await.unwrap() });

    for (path, status, body) in [
        ("/livez", "200", "ok"),
        ("/readyz", "200", "ok"),
        ("/readyz?verbose", "200", "[+]map ok\n[+]meta ok\nreadyz check passed\n"),
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
