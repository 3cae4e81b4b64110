//! Checks the addresses of the routers before anything is created or started.

use std::io;
use std::time::Duration;

use kindred_transport::{
    ListenAddr,
    listener::{ListenError, Reserved},
    network::Network,
    who,
};

use tokio::time::Instant;

use super::{args::UpArgs, layout};

/// Refuses addresses where unknown clients would be served, before a router does.
pub fn check(args: &UpArgs) -> anyhow::Result<()> {
    let tls = args.tls.load()?;
    for address in args.listen.split(',').filter(|_| !args.insecure_listen) {
        let address = ListenAddr::parse_field("--listen", address.trim())?;
        who::check_clients("--listen", &address, tls.as_ref()).map_err(anyhow::Error::msg)?;
    }
    for address in args.admin.split(',') {
        let address = ListenAddr::parse_field("--admin", address.trim())?;
        args.admin_port.load("--admin", &address, tls.as_ref(), &Network::System)?;
    }
    Ok(())
}

/// How long addresses may be in use: the routers of a `kindred up` that was killed end soon after it, and a supervisor
/// may start the next one before that.
const ENDING: Duration = Duration::from_secs(3);
/// The interval at which an address in use is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// Refuses addresses that another process uses, or that two of the routers would share.
pub async fn check_free(args: &UpArgs) -> anyhow::Result<()> {
    let mut held = Vec::new();
    let until = Instant::now() + ENDING;
    for router in 0..args.routers {
        let probes = args.listen_metrics_urls.iter().map(|list| ("--listen-metrics-urls", list));
        for (flag, list) in [("--listen", &args.listen), ("--admin", &args.admin)].into_iter().chain(probes) {
            for address in layout::nth_address(flag, list, router)?.split(',') {
                let address = ListenAddr::parse_field(flag, address.trim())?;
                match reserved(&address, until).await {
                    Ok(reserved) => held.push(reserved),
                    // The folder of a Unix socket may not have been created yet.
                    Err(ListenError::Bind { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                    Err(taken) => return Err(anyhow::Error::new(taken).context(flag)),
                }
            }
        }
    }
    Ok(())
}

async fn reserved(address: &ListenAddr, until: Instant) -> Result<Reserved, ListenError> {
    loop {
        match Reserved::of(address).await {
            Err(ListenError::Bind { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && Instant::now() < until =>
            {
                tokio::time::sleep(AGAIN).await;
            }
            tried => return tried,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> UpArgs {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            up: UpArgs,
        }
        <Cli as clap::Parser>::parse_from([&["up"], words].concat()).up
    }

    #[tokio::test(start_paused = true)]
    async fn f43_an_address_that_another_has_is_refused_before_anything_is_made() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap().to_string();
        for (flag, free) in [("--listen", "--admin"), ("--admin", "--listen")] {
            let refused = check_free(&args(&[flag, &taken, free, "127.0.0.1:0"])).await.unwrap_err();
            let refused = format!("{refused:#}");
            assert!(refused.starts_with(&format!("{flag}: cannot listen on {taken}")), "{refused}");
            assert!(refused.contains("another process listens there"), "{refused}");
        }
        drop(other);
        let up = args(&["--listen", &taken, "--admin", "127.0.0.1:0"]);
        check_free(&up).await.unwrap();
        check_free(&up).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_becomes_free_soon_is_waited_for() {
        let former = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = former.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            tokio::time::sleep(ENDING / 2).await;
            drop(former);
        });
        check_free(&args(&["--listen", &listen, "--admin", "127.0.0.1:0"])).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn f43_a_unix_socket_is_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listen = format!("unix:{}", socket.display());
        let up = args(&["--listen", &listen, "--admin", "127.0.0.1:0"]);
        check_free(&up).await.unwrap();
        assert!(!socket.exists());
        let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(
            format!("{:#}", check_free(&up).await.unwrap_err()).starts_with("--listen: cannot listen on")
        );
        assert!(socket.exists());
        let later = format!("unix:{}", folder.path().join("made/later/s").display());
        check_free(&args(&["--listen", &later, "--admin", "127.0.0.1:0"])).await.unwrap();
    }
}
