//! The traffic of each client: of the common name in its certificate, or else of its address.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Extensions;
use kindred_transport::ConnectionInfo;
use kindred_transport::listener::Peer;
use parking_lot::Mutex;
use tonic::Code;

use super::kinds::OTHER;

/// The clients that are counted apart.
pub const CLIENTS_MAX: usize = 256;
/// The longest name of a client that is shown; a certificate may have any.
const NAME_MAX: usize = 128;
/// What the router asks of itself for a client, such as for the JSON gateway.
const INTERNAL: &str = "<internal>";

/// The traffic of one client.
#[derive(Debug)]
pub struct ClientTraffic {
    pub name: Arc<str>,
    connections: AtomicU64,
    calls: AtomicU64,
    failed: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    micros: AtomicU64,
}

/// The numbers of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    pub connections: u64,
    pub calls: u64,
    /// Calls that did not end with OK.
    pub failed: u64,
    pub received: u64,
    pub sent: u64,
    /// The time of all calls together, in microseconds.
    pub micros: u64,
}

impl Shown {
    /// The numbers of two clients together.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            connections: self.connections + other.connections,
            calls: self.calls + other.calls,
            failed: self.failed + other.failed,
            received: self.received + other.received,
            sent: self.sent + other.sent,
            micros: self.micros + other.micros,
        }
    }
}

impl ClientTraffic {
    fn new(name: &str) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self {
            name: name.into(),
            connections: zero(),
            calls: zero(),
            failed: zero(),
            received: zero(),
            sent: zero(),
            micros: zero(),
        })
    }

    /// Counts a call that ended; `bytes` were received and sent.
    pub fn ended(&self, code: Code, took: Duration, (received, sent): (u64, u64)) {
        let add = |to: &AtomicU64, number: u64| to.fetch_add(number, Ordering::Relaxed);
        add(&self.calls, 1);
        add(&self.failed, u64::from(code != Code::Ok));
        add(&self.received, received);
        add(&self.sent, sent);
        add(&self.micros, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    #[must_use]
    pub fn shown(&self) -> Shown {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Shown {
            connections: of(&self.connections),
            calls: of(&self.calls),
            failed: of(&self.failed),
            received: of(&self.received),
            sent: of(&self.sent),
            micros: of(&self.micros),
        }
    }
}

/// A connection of a client. One that counts as open does so until this is dropped.
#[derive(Debug)]
pub struct OpenConnection {
    pub client: Arc<ClientTraffic>,
    /// The client's end, which tells its connections apart; `None` for a Unix socket and for the router itself.
    pub peer: Option<SocketAddr>,
    counts: bool,
}

impl OpenConnection {
    fn of(client: Arc<ClientTraffic>, peer: Option<SocketAddr>) -> Arc<Self> {
        client.connections.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { client, peer, counts: true })
    }

    /// For calls alone, whose connection is counted elsewhere or does not exist.
    fn uncounted(client: Arc<ClientTraffic>, peer: Option<SocketAddr>) -> Arc<Self> {
        Arc::new(Self { client, peer, counts: false })
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if self.counts {
            self.client.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// All clients that were connected.
#[derive(Debug)]
pub struct Clients {
    clients: Mutex<HashMap<Arc<str>, Arc<ClientTraffic>>>,
    other: Arc<ClientTraffic>,
    internal: Arc<OpenConnection>,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            clients: Mutex::default(),
            other: ClientTraffic::new(OTHER),
            internal: OpenConnection::uncounted(ClientTraffic::new(INTERNAL), None),
        }
    }
}

impl Clients {
    /// A connection that was opened.
    #[must_use]
    pub fn connected(&self, from: &ConnectionInfo) -> Arc<OpenConnection> {
        OpenConnection::of(self.named(&name_of(from)), address_of(from))
    }

    /// The connection of a call, which was counted when it was opened.
    #[must_use]
    pub fn calling(&self, from: &ConnectionInfo) -> Arc<OpenConnection> {
        OpenConnection::uncounted(self.named(&name_of(from)), address_of(from))
    }

    /// The connection of a call, from its extensions; the router's own calls have none.
    #[must_use]
    pub fn of_call(&self, extensions: &Extensions) -> Arc<OpenConnection> {
        ConnectionInfo::of(extensions).map_or_else(|| self.internal(), |from| self.calling(from))
    }

    /// What the router asks of itself.
    #[must_use]
    pub fn internal(&self) -> Arc<OpenConnection> {
        self.internal.clone()
    }

    fn named(&self, name: &str) -> Arc<ClientTraffic> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(name) {
            return client.clone();
        }
        if clients.len() >= CLIENTS_MAX {
            // Those that are gone make room. Their numbers begin anew if they come back, as after a restart.
            clients.retain(|_, client| client.connections.load(Ordering::Relaxed) > 0);
        }
        if clients.len() >= CLIENTS_MAX {
            return self.other.clone();
        }
        let client = ClientTraffic::new(name);
        clients.insert(client.name.clone(), client.clone());
        client
    }

    /// All clients, those with the most calls first, and at the end what is not one client.
    #[must_use]
    pub fn all(&self) -> Vec<(Arc<str>, Shown)> {
        let of = |client: &Arc<ClientTraffic>| (client.name.clone(), client.shown());
        let mut all: Vec<_> = self.clients.lock().values().map(of).collect();
        all.sort_by(|(a, x), (b, y)| y.calls.cmp(&x.calls).then_with(|| a.cmp(b)));
        all.extend(
            [&self.internal.client, &self.other].into_iter().filter(|one| one.shown().calls > 0).map(of),
        );
        all
    }
}

fn address_of(from: &ConnectionInfo) -> Option<SocketAddr> {
    match from.peer {
        Peer::Tcp(address) => Some(address),
        Peer::Unix => None,
    }
}

/// The name of a client.
fn name_of(from: &ConnectionInfo) -> String {
    match (from.common_name(), &from.peer) {
        (Some(name), _) => name.chars().take(NAME_MAX).collect(),
        (None, Peer::Tcp(address)) => address.ip().to_string(),
        (None, Peer::Unix) => "unix".to_owned(),
    }
}
