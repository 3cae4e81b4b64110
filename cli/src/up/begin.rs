//! The processes that have data: each is started, restarted when it ends, and stopped in order. A process that
//! starts slowly or fails to start delays no other.

use std::{
    net::{SocketAddr, TcpListener},
    ops::Range,
    time::{Duration, Instant},
};

use kindred_transport::random::bits as random;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info};

use super::{
    child::{Backoff, Ready, Running, Spec},
    keep::{keep, listen_of},
};

/// After this time a starting store is no longer waited for, and the others are served without it.
const PATIENCE: Duration = Duration::from_secs(30);
/// The delay before a failed first start is retried, so that its message can be read.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The progress of a process's first start.
#[derive(Debug, Clone, Default)]
pub struct First {
    /// The address where it listens or will listen.
    listen: Option<SocketAddr>,
    state: State,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum State {
    #[default]
    Starting,
    Ready,
    Failed(String),
}

/// A process that is being started and is then kept running.
#[derive(Debug)]
pub struct Begun {
    first: watch::Receiver<First>,
    /// Ends when the process has been stopped.
    pub kept: JoinHandle<()>,
}

/// Starts a process on a port that it chooses.
pub fn begin(
    spec_of: impl Fn(SocketAddr) -> Spec + Send + Sync + 'static,
    stop: CancellationToken,
    among: &TaskTracker,
) -> Begun {
    let (told, first) = watch::channel(First::default());
    Begun { first, kept: among.spawn(begun(spec_of, told, stop)) }
}

async fn begun(
    spec_of: impl Fn(SocketAddr) -> Spec + Send + Sync + 'static,
    told: watch::Sender<First>,
    stop: CancellationToken,
) {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let spec = spec_of(any);
    let tell = |listen: SocketAddr, state: State| {
        told.send_replace(First { listen: Some(listen), state });
    };
    let early = |line: &Ready| {
        if let Ok(listen) = listen_of(line) {
            tell(listen, State::Starting);
        }
    };
    let started = stop.run_until_cancelled(spec.start_telling(early)).await;
    let failed = match started {
        // It has not served yet, so a clean stop would keep nothing.
        None => return,
        Some(Err(failed)) => failed.to_string(),
        Some(Ok((running, ready))) => match listen_of(&ready) {
            Ok(listen) => {
                tell(listen, State::Ready);
                return keep(spec_of(listen), running, stop).await;
            }
            Err(error) => format!("{}: {error:#}", spec.name),
        },
    };
    // Fix the address now, so that routers know where the store will be.
    let known = told.borrow().listen;
    let Some(listen) = known.or_else(|| free_port().ok()?.local_addr().ok()) else {
        error!("{failed}; no port is free for another try");
        told.send_modify(|first| first.state = State::Failed(failed));
        return;
    };
    tell(listen, State::Failed(failed));
    if let Some(running) = until_started(&spec_of(listen), &stop).await {
        tell(listen, State::Ready);
        keep(spec_of(listen), running, stop).await;
    }
}

/// Retries until the process runs; `None` if it is stopped meanwhile.
async fn until_started(spec: &Spec, stop: &CancellationToken) -> Option<Running> {
    let mut backoff = Backoff::new(Instant::now());
    loop {
        let wait = AGAIN_AFTER + backoff.after_end(Instant::now());
        stop.run_until_cancelled(tokio::time::sleep(wait)).await?;
        match stop.run_until_cancelled(spec.start()).await? {
            Ok((running, _)) => {
                info!("{} runs now, pid {}", spec.name, running.pid().unwrap_or(0));
                return Some(running);
            }
            Err(failed) => error!("{failed}; it is tried again"),
        }
    }
}

/// The ports of stores that are to listen later. They lie below those that the system gives to outgoing connections, which
/// begin at 32768: a connection could have such a port first, and the store would be away.
const PORTS: Range<u16> = 20_000..30_000;
const TRIES: usize = 100;

/// Takes an unused port, for a listener that will come. Whoever wants several keeps them until all are taken.
pub fn free_port() -> std::io::Result<TcpListener> {
    let candidate = |_| PORTS.clone().nth(usize::try_from(random() % PORTS.len() as u64).ok()?);
    let bound = |port| TcpListener::bind(("127.0.0.1", port)).ok();
    (0..TRIES).filter_map(candidate).find_map(bound).map_or_else(|| TcpListener::bind(("127.0.0.1", 0)), Ok)
}

impl Begun {
    /// The process's address, once it serves, has failed, or has exceeded the patience; and the error if it failed.
    /// `None` if it was stopped.
    pub async fn settled(&mut self) -> Option<(SocketAddr, Option<String>)> {
        let patience = tokio::time::sleep(PATIENCE);
        tokio::pin!(patience);
        let mut waits = true;
        loop {
            let First { listen, state } = self.first.borrow_and_update().clone();
            match (state, listen) {
                (State::Failed(failed), listen) => return Some((listen?, Some(failed))),
                (State::Ready, Some(listen)) => return Some((listen, None)),
                (_, Some(listen)) if !waits => return Some((listen, None)),
                _ => {}
            }
            tokio::select! {
                () = &mut patience, if waits => waits = false,
                changed = self.first.changed() => changed.ok()?,
            }
        }
    }

    /// The process's address, if it is ready.
    #[must_use]
    pub fn is_ready_at(&self) -> Option<SocketAddr> {
        let first = self.first.borrow();
        first.listen.filter(|_| first.state == State::Ready)
    }

    /// The process's address once it serves, however long that takes.
    ///
    /// # Errors
    /// Why it does not serve.
    pub async fn ready(&mut self) -> anyhow::Result<SocketAddr> {
        let settled = |first: &First| first.state != State::Starting;
        let First { listen, state } = self.first.wait_for(settled).await?.clone();
        match (state, listen) {
            (State::Ready, Some(listen)) => Ok(listen),
            (State::Failed(failed), _) => Err(anyhow::anyhow!(failed)),
            _ => Err(anyhow::anyhow!("it was told to stop")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn script(text: String) -> Spec {
        let ready_prefix = "kindred-shard ready";
        Spec {
            name: "shard x".to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), text],
            ready_prefix,
        }
    }

    #[tokio::test]
    async fn f46_a_process_that_fails_has_an_address_all_the_same() {
        let stop = CancellationToken::new();
        let mut begun = begin(|_| script("exit 3".to_owned()), stop.clone(), &TaskTracker::new());
        let (listen, failed) = begun.settled().await.unwrap();
        assert!(listen.port() > 0 && failed.unwrap().contains("exit status: 3"));
        assert!(begun.ready().await.unwrap_err().to_string().contains("exit status: 3"));
        stop.cancel();
        begun.kept.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn f46_one_that_takes_long_is_not_waited_for() {
        let stop = CancellationToken::new();
        let starting = "echo kindred-shard starting listen=127.0.0.1:7 records=1; read line";
        let mut begun = begin(move |_| script(starting.to_owned()), stop.clone(), &TaskTracker::new());
        // The paused clock advances when there is nothing left to do.
        let settled = begun.settled().await.unwrap();
        assert_eq!(settled, (([127, 0, 0, 1], 7).into(), None));
        stop.cancel();
        begun.kept.await.unwrap();
    }

    /// A store in the router's process was away for good when a client's connection had its port before it listened.
    #[test]
    fn ports_for_later_are_apart_and_none_of_those_of_connections() {
        let taken: Vec<_> = (0..20).map(|_| free_port().unwrap()).collect();
        let ports: BTreeSet<_> = taken.iter().map(|port| port.local_addr().unwrap().port()).collect();
        assert_eq!(ports.len(), taken.len());
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
    }

    #[tokio::test]
    async fn one_that_starts_is_kept_where_it_listens() {
        let stop = CancellationToken::new();
        let ready = |listen: SocketAddr| {
            let port = if listen.port() == 0 { 9 } else { listen.port() };
            script(format!("echo kindred-shard ready listen=127.0.0.1:{port}; read line"))
        };
        let mut begun = begin(ready, stop.clone(), &TaskTracker::new());
        assert_eq!(begun.ready().await.unwrap(), ([127, 0, 0, 1], 9).into());
        assert_eq!(begun.settled().await.unwrap().1, None);
        stop.cancel();
        begun.kept.await.unwrap();
    }
}
