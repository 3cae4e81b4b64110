//! Client authentication, and certificates that change while the server runs.

use std::path::Path;
use std::time::Duration;

use kindred_transport::admin::AdminArgs;
use kindred_transport::auto_tls::{self, AutoTls, CLIENT_NAME};
use kindred_transport::listener::GivenUp;
use kindred_transport::network::Network;
use kindred_transport::tls::{ClientTls, ClientTlsSettings, ServerTls, ServerTlsSettings};
use kindred_transport::{ListenAddr, ListenOptions};
use tokio::net::TcpStream;
use tonic::Code;

use crate::support::{Server, channel, eventually, who};

fn certificates(directory: &Path, name: &str) -> AutoTls {
    auto_tls::create(&directory.join(name), &[]).unwrap()
}

fn client(settings: ClientTlsSettings) -> Option<ClientTls> {
    Some(ClientTls::load(settings).unwrap())
}

async fn serve(settings: ServerTlsSettings) -> Server {
    Server::start_tls(ServerTls::load(settings).unwrap()).await
}

#[tokio::test]
async fn only_clients_of_the_ca_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, theirs) = (certificates(directory.path(), "ours"), certificates(directory.path(), "theirs"));
    let server = serve(ours.server_settings()).await;
    assert!(server.endpoint.to_string().starts_with("https://127.0.0.1:"));

    let good = client(ours.client_settings());
    assert_eq!(who(&channel(&server.endpoint, good)).await.unwrap(), CLIENT_NAME);

    let none = ClientTlsSettings { identity: None, ..ours.client_settings() };
    let wrong_ca =
        ClientTlsSettings { identity: theirs.client_settings().identity, ..ours.client_settings() };
    let wrong_server =
        ClientTlsSettings { identity: ours.client_settings().identity, ..theirs.client_settings() };
    for refused in [none, wrong_ca] {
        who(&channel(&server.endpoint, client(refused))).await.unwrap_err();
    }
    let error = who(&channel(&server.endpoint, client(wrong_server.clone()))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let careless = ClientTlsSettings { insecure_skip_verify: true, ..wrong_server };
    who(&channel(&server.endpoint, client(careless))).await.unwrap();
    // A client without TLS is refused.
    let plain = server.endpoint.clone().with_scheme(kindred_transport::address::Scheme::Plain);
    who(&channel(&plain, None)).await.unwrap_err();
}

/// Keys on the curve P-521 were refused, and those that an etcd makes for itself are such.
#[tokio::test]
async fn f103_keys_of_either_side_may_be_on_p521() {
    let directory = tempfile::tempdir().unwrap();
    let [cert, key] = ["p521.crt", "p521.key"].map(|file| directory.path().join(file));
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "of P-521");
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
    std::fs::write(&cert, params.self_signed(&pair).unwrap().pem()).unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    let settings =
        ServerTlsSettings { trusted_ca_file: Some(cert.clone()), ..ServerTlsSettings::new(&cert, &key) };
    let server = serve(settings).await;
    let shown = ClientTlsSettings {
        trusted_ca_file: Some(cert.clone()),
        identity: Some((cert, key)),
        ..ClientTlsSettings::default()
    };
    assert_eq!(who(&channel(&server.endpoint, client(shown))).await.unwrap(), "of P-521");
}

#[tokio::test]
async fn names_of_clients_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let ours = certificates(directory.path(), "ours");
    let with = |cn: &[&str], hostnames: &[&str]| ServerTlsSettings {
        allowed_cns: cn.iter().map(|&cn| cn.to_owned()).collect(),
        allowed_hostnames: hostnames.iter().map(|&name| name.to_owned()).collect(),
        ..ours.server_settings()
    };
    let named = ours.client_settings();
    // The server's certificate is valid for a client, too, and has host names.
    let hosted = ClientTlsSettings {
        identity: Some((ours.server_cert.clone(), ours.server_key.clone())),
        ..named.clone()
    };
    for (settings, identity, accepted) in [
        (with(&[CLIENT_NAME, "other"], &[]), &named, true),
        (with(&["other"], &[]), &named, false),
        (with(&[], &["localhost"]), &hosted, true),
        (with(&[], &["127.0.0.1"]), &hosted, true),
        (with(&[], &["other.example"]), &hosted, false),
        (with(&[], &["localhost"]), &named, false),
    ] {
        let server = serve(settings.clone()).await;
        let answer = who(&channel(&server.endpoint, client(identity.clone()))).await;
        assert_eq!(answer.is_ok(), accepted, "{settings:?} {answer:?}");
    }
}

#[tokio::test]
async fn rotated_files_are_used_without_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (certificates(directory.path(), "old"), certificates(directory.path(), "new"));
    let settings = ServerTlsSettings { reload_every: Duration::from_millis(20), ..old.server_settings() };
    let server = serve(settings).await;
    let open = channel(&server.endpoint, client(old.client_settings()));
    who(&open).await.unwrap();
    // The client's own files are replaced as well; it was loaded with the old ones.
    let rotated = client(old.client_settings());
    let fresh = client(new.client_settings());
    assert_eq!(who(&channel(&server.endpoint, fresh.clone())).await.unwrap_err().code(), Code::Unavailable);
    let replaced = [
        (&new.ca_cert, &old.ca_cert),
        (&new.server_key, &old.server_key),
        (&new.server_cert, &old.server_cert),
    ];
    let kept = client({
        // A copy of the old identity, which must be refused.
        let copy = directory.path().join("copy");
        std::fs::create_dir(&copy).unwrap();
        let copied = |from: &Path| {
            let to = copy.join(from.file_name().unwrap());
            std::fs::copy(from, &to).unwrap();
            to
        };
        ClientTlsSettings {
            trusted_ca_file: Some(new.ca_cert.clone()),
            identity: Some((copied(&old.client_cert), copied(&old.client_key))),
            ..ClientTlsSettings::default()
        }
    });
    for (from, to) in replaced {
        std::fs::copy(from, to).unwrap();
    }
    eventually("new clients are served", || async {
        who(&channel(&server.endpoint, fresh.clone())).await.is_ok()
    })
    .await;
    who(&channel(&server.endpoint, kept)).await.unwrap_err();
    who(&open).await.unwrap();
    std::fs::copy(&new.client_cert, &old.client_cert).unwrap();
    std::fs::copy(&new.client_key, &old.client_key).unwrap();
    who(&channel(&server.endpoint, rotated)).await.unwrap();

    // Unusable files change nothing.
    std::fs::write(&old.server_cert, "no certificate").unwrap();
    std::fs::write(&old.client_key, "no key").unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    who(&channel(&server.endpoint, fresh)).await.unwrap();
}

#[tokio::test]
async fn plain_and_tls_on_one_port() {
    let directory = tempfile::tempdir().unwrap();
    let ours = certificates(directory.path(), "ours");
    let server = serve(ServerTlsSettings { allow_plaintext: true, ..ours.server_settings() }).await;
    let plain = server.endpoint.clone().with_scheme(kindred_transport::address::Scheme::Plain);
    assert_eq!(who(&channel(&server.endpoint, client(ours.client_settings()))).await.unwrap(), CLIENT_NAME);
    assert_eq!(who(&channel(&plain, None)).await.unwrap(), "plain");
}

#[tokio::test]
async fn a_stuck_handshake_delays_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let ours = certificates(directory.path(), "ours");
    let tls = ServerTls::load(ours.server_settings()).unwrap();
    let server = Server::start_tls(tls.clone()).await;
    let address = server.endpoint.authority();
    let mut stuck = Vec::new();
    for _ in 0..20 {
        stuck.push(TcpStream::connect(&address).await.unwrap());
    }
    let quick = channel(&server.endpoint, client(ours.client_settings()));
    who(&quick).await.unwrap();

    // If every place is taken, the time limit frees places.
    let options = ListenOptions {
        handshakes_max: 2,
        handshake_timeout: Duration::from_secs(1),
        ..ListenOptions::with_tls(Some(tls))
    };
    let server = Server::start(&ListenAddr::any_local_port(), options).await;
    for _ in 0..4 {
        stuck.push(TcpStream::connect(server.endpoint.authority()).await.unwrap());
    }
    let late = channel(&server.endpoint, client(ours.client_settings()));
    eventually("there is room", || async { who(&late).await.is_ok() }).await;
}

#[test]
fn flags_are_checked_together() {
    use clap::Parser;
    use kindred_transport::tls::ServerTlsArgs;
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        tls: ServerTlsArgs,
    }
    let settings = |flags: &[&str]| {
        Cli::parse_from(std::iter::once(&"test").chain(flags))
            .tls
            .settings()
            .map_err(|error| error.to_string())
    };
    assert!(settings(&[]).unwrap().is_none());
    let pair = ["--cert-file", "c", "--key-file", "k"];
    let all = [&pair[..], &["--trusted-ca-file", "ca", "--allowed-cn", "a,b", "--tls-min-version", "TLS1.3"]];
    assert_eq!(settings(&all.concat()).unwrap().unwrap().allowed_cns, ["a", "b"]);
    for (flags, says) in [
        (vec!["--cert-file", "c"], "needs --key-file"),
        (vec!["--key-file", "k"], "needs --cert-file"),
        (vec!["--client-cert-auth"], "only with --cert-file"),
        ([&pair[..], &["--client-cert-auth"]].concat(), "needs --trusted-ca-file"),
        ([&pair[..], &["--allowed-cn", "a"]].concat(), "need --trusted-ca-file"),
    ] {
        let error = settings(&flags).unwrap_err();
        assert!(error.contains(says), "{flags:?}: {error}");
    }
    let missing = ServerTlsSettings::new("/nowhere/c.pem", "/nowhere/k.pem");
    let error = ServerTls::load(missing).unwrap_err().to_string();
    assert!(error.starts_with("--cert-file /nowhere/c.pem: "), "{error}");
}

#[tokio::test]
async fn an_admin_port_has_the_clients_tls_when_its_address_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let tls = ServerTls::load(certificates(directory.path(), "ours").server_settings()).unwrap();
    for (address, scheme) in
        [("127.0.0.1:0", "http://"), ("http://127.0.0.1:0", "http://"), ("https://127.0.0.1:0", "https://")]
    {
        let address: ListenAddr = address.parse().unwrap();
        let guard = AdminArgs::default().load("--admin", &address, Some(&tls), &Network::System).unwrap();
        let options = guard.listen_options(&Network::System);
        let listener = kindred_transport::Listener::bind(&address, options).await.unwrap();
        assert!(listener.local_endpoint().to_string().starts_with(scheme), "{address}");
    }
    let address: ListenAddr = "https://127.0.0.1:0".parse().unwrap();
    let guard = AdminArgs::default().load("--admin", &address, None, &Network::System).unwrap();
    let refused = kindred_transport::Listener::bind(&address, guard.listen_options(&Network::System)).await;
    assert!(refused.unwrap_err().to_string().contains("--cert-file"));
}

/// Whether the peer closes within a time that only a kept connection exceeds.
async fn is_closed(stream: &mut TcpStream) -> bool {
    use tokio::io::AsyncReadExt as _;
    let mut byte = [0; 64];
    loop {
        match tokio::time::timeout(Duration::from_secs(20), stream.read(&mut byte)).await {
            Ok(Ok(0) | Err(_)) => return true,
            Ok(Ok(_)) => {}
            Err(_) => return false,
        }
    }
}

/// More silent sockets than places, with more of them all the time: clients are still served, even from the same
/// address.
#[tokio::test]
async fn f35_silent_handshakes_lock_nobody_out() {
    let directory = tempfile::tempdir().unwrap();
    let ours = certificates(directory.path(), "ours");
    let options = ListenOptions {
        handshakes_max: 16,
        // Far longer than this test takes.
        handshake_timeout: Duration::from_secs(600),
        ..ListenOptions::with_tls(Some(ServerTls::load(ours.server_settings()).unwrap()))
    };
    let server = Server::start(&ListenAddr::any_local_port(), options).await;
    let mut silent = Vec::new();
    for round in 0..4 {
        for _ in 0..20 {
            silent.push(TcpStream::connect(server.endpoint.authority()).await.unwrap());
        }
        let client = channel(&server.endpoint, client(ours.client_settings()));
        who(&client).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    assert!(is_closed(&mut silent[0]).await, "it had its place for longest");
    assert!(GivenUp::Displaced.count() >= 64);
}

/// A silent connection, or one with an incomplete HTTP/2 preface, is closed; one with a complete preface stays.
#[tokio::test]
async fn f37_half_a_beginning_is_not_waited_for() {
    use tokio::io::AsyncWriteExt as _;
    let options = ListenOptions { handshake_timeout: Duration::from_millis(300), ..ListenOptions::default() };
    let server = Server::start(&ListenAddr::any_local_port(), options).await;
    let open = channel(&server.endpoint, None);
    who(&open).await.unwrap();
    for sent in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM"] {
        let mut stream = TcpStream::connect(server.endpoint.authority()).await.unwrap();
        stream.write_all(sent).await.unwrap();
        assert!(is_closed(&mut stream).await, "{sent:?}");
    }
    assert!(GivenUp::Late.count() >= 3);
    who(&open).await.unwrap();
}

/// A quiet watch survives, while an idle connection whose client does not answer is closed after more than a
/// minute.
#[tokio::test(start_paused = true)]
async fn f37_what_carries_nothing_and_does_not_answer_is_closed() {
    use kindred_proto::raw::watch::watch_client::WatchClient;
    use tokio::io::AsyncWriteExt as _;
    let server = Server::start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    // Neither client sends keepalive pings.
    let plain =
        || tonic::transport::Channel::from_shared(server.endpoint.to_string()).unwrap().connect_lazy();
    let (watching, idle) = (plain(), plain());
    let (send, receive) = tokio::sync::mpsc::channel(4);
    let requests = tokio_stream::wrappers::ReceiverStream::new(receive);
    send.send(bytes::Bytes::from_static(b"a")).await.unwrap();
    let mut events = WatchClient::new(watching).watch(requests).await.unwrap().into_inner();
    for _ in 0..5 {
        events.message().await.unwrap().unwrap();
    }
    who(&idle).await.unwrap();
    let mut silent = TcpStream::connect(server.endpoint.authority()).await.unwrap();
    // The preface and an empty settings frame.
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let began = tokio::time::Instant::now();
    while !is_closed(&mut silent).await {
        assert!(began.elapsed() < Duration::from_secs(600), "it is kept");
    }
    assert!(began.elapsed() > Duration::from_secs(60), "{:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(1200)).await;
    send.send(bytes::Bytes::from_static(b"b")).await.unwrap();
    assert_eq!(events.message().await.unwrap().unwrap(), "b");
    who(&idle).await.unwrap();
}
