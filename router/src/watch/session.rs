//! The task of one client stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_router_core::watch_session::{End, Event, Said, Session};
use kindred_transport::grpc;
use kindred_wire::rope::Rope;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use super::around::{Around, WatchPath};
use super::upstream::{Inbound, What};
use crate::auth::Credentials;
use crate::traffic::clients::OpenConnection;

/// Capacity of the channel through which all upstream streams of a session deliver their messages.
const INBOUND_MAX: usize = 16;

/// Serves a stream until it ends.
pub async fn serve<S>(
    path: Arc<WatchPath>,
    credentials: Credentials,
    client: Arc<OpenConnection>,
    mut requests: S,
    to: mpsc::Sender<Result<Rope, Status>>,
) where
    S: Stream<Item = Result<Bytes, Status>> + Unpin,
{
    path.metrics.streams.increment(1.0);
    let (inbound, mut upstream) = mpsc::channel(INBOUND_MAX);
    let ids = path.ids;
    let mut session =
        Session::new(Around::new(path.clone(), credentials, client, inbound), ids, path.sessions, now());
    let ended = run(&path, &mut session, &mut requests, &mut upstream, &to).await;
    path.metrics.streams.decrement(1.0);
    path.metrics.watchers.decrement(session.watches() as f64);
    if let Some(status) = ended {
        // The client has to make room for the status; if it does not read, its connection ends anyway.
        let _ = to.send_timeout(Err(status), Duration::from_secs(1)).await;
    }
}

/// Runs until the stream ends; returns the status to send, `None` if the client is gone.
async fn run<S>(
    path: &WatchPath,
    session: &mut Session<Around>,
    requests: &mut S,
    upstream: &mut mpsc::Receiver<Inbound>,
    to: &mpsc::Sender<Result<Rope, Status>>,
) -> Option<Status>
where
    S: Stream<Item = Result<Bytes, Status>> + Unpin,
{
    let (stopping, bells) = (path.drain.stopping(), session.outside.bells.clone());
    let (mut generations, mut compactions) = (path.routing.generations(), path.compactor.compactions());
    let mut half_closed = false;
    // Of the store that refuses the session's stream, if one does.
    let mut refusal = None;
    loop {
        if let Some(end) = session.turn(now()) {
            return Some(status(path, end, refusal));
        }
        let timer = session.timer();
        tokio::select! {
            () = stopping.cancelled() => return Some(grpc::status(kindred_wire::error::EtcdError::Stopped)),
            () = to.closed() => return None,
            permit = to.reserve(), if session.has_message() => {
                let permit = permit.ok()?;
                if let Some(message) = session.next_message() {
                    permit.send(Ok(message));
                }
            }
            request = requests.next(), if !half_closed && session.takes_requests() => match request {
                Some(Ok(request)) => session.step(now(), Event::Request(&request)),
                Some(Err(_)) => return None,
                None => half_closed = true,
            },
            Some(Inbound { store, number, what }) = upstream.recv(), if session.takes_upstream() => {
                let said = match what {
                    What::Message(message) => Said::Message(message),
                    What::Broken(None) => Said::Broken,
                    What::Broken(Some(status)) => {
                        refusal = Some(status);
                        Said::Refused
                    }
                };
                session.step(now(), Event::Upstream { store, number, said });
            }
            Some(asked) = session.outside.asking.join_next(), if !session.outside.asking.is_empty() => {
                // The calls do not panic, and what was given up does not count.
                if let Ok((ask, answer)) = asked {
                    session.step(now(), Event::Asked(ask, answer));
                }
            }
            Some(created) = session.outside.creating.join_next(), if !session.outside.creating.is_empty() => {
                // The calls do not panic, and nothing aborts them while the session lives.
                if let Ok((uid, present)) = created {
                    session.step(now(), Event::Present { uid, present });
                }
            }
            () = bells.rung() => session.step(now(), Event::Rung),
            // The senders live as long as the router.
            Ok(()) = generations.changed() => session.step(now(), Event::NewMap),
            Ok(()) = compactions.changed() => session.step(now(), Event::Compacted),
            () = tokio::task::yield_now(), if session.has_work() => {}
            () = sleep_until(timer) => session.step(now(), Event::Timer),
        }
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn status(path: &WatchPath, end: End, refusal: Option<Status>) -> Status {
    match end {
        End::Malformed(error) => grpc::refusal(&error),
        End::Etcd(error) => grpc::status(error),
        End::Refused(store) => {
            refusal.unwrap_or_else(|| path.stores.get(store).unavailable("it refuses watches"))
        }
        End::BadMessage(store, error) => {
            let store = path.stores.get(store);
            tracing::error!(
                store = store.name(),
                error,
                "the store sent a watch response that does not parse"
            );
            store.unavailable(&error)
        }
    }
}

async fn sleep_until(at: Option<std::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
