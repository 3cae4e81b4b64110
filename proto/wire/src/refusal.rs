//! What kindred refuses or cannot do and etcd could: codes and texts of our own.
//!
//! Every text begins with `kindred: `, so that nobody mistakes it for etcd's, and says what to do. Choice of codes:
//!
//! * What the partition map forbids (operations over several stores) is `FailedPrecondition`: etcd clients do not retry
//!   it, and it depends on the state of the system, not on the request alone. Not `Unimplemented`: the only call on
//!   which clients fall back is RangeStream, and its fallback (Range) would meet the same refusal, for good.
//! * A call that kindred does not serve at all is `Unimplemented`, as from a server that does not know the method.
//! * `Unavailable` only where nothing was executed: etcd clients retry reads on it (100 times, 25 ms apart). A write
//!   whose outcome is unknown is answered with [`EtcdError::TimeoutDueToConnectionLost`] instead (R11).
//!
//! [`EtcdError::TimeoutDueToConnectionLost`]: crate::error::EtcdError::TimeoutDueToConnectionLost

use std::fmt;

use crate::error::Code;

/// Longest text about a key or taken from elsewhere, in bytes: a status travels in HTTP/2 trailers, which are small.
const TEXT_MAX: usize = 256;
/// Most keys that a refusal names.
const KEYS_MAX: usize = 4;

/// Whether etcd's clients send a *write* again when an `Unavailable` error contains this text. No error of ours may.
#[must_use]
pub fn clients_resend_writes_on(text: &str) -> bool {
    text.contains("there is no address available") || text.contains("there is no connection available")
}

/// What every text of [`KindredError::NotOwned`] ends with: a watch is told nothing but a text.
const ASK_AGAIN: &str = "ask again by the newest map";

/// Whether this is a text of [`KindredError::NotOwned`], made by a shard for a router.
#[must_use]
pub fn is_not_owned(text: &str) -> bool {
    text.starts_with("kindred: ") && text.ends_with(ASK_AGAIN)
}

/// What stands before the highest term seen in a text of [`KindredError::StaleTerm`].
const COORDINATOR: &str = " has a coordinator of term ";

/// The highest term seen, of a text of [`KindredError::StaleTerm`].
#[must_use]
pub fn stale_term(text: &str) -> Option<u64> {
    let (_, seen) = text.split_once(COORDINATOR)?;
    seen.split(',').next()?.parse().ok()
}

/// One key of a refused request and the store that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOnStore {
    /// The key, or the first key of a range.
    pub key: Vec<u8>,
    /// The store's name.
    pub store: String,
}

/// A refusal of kindred's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KindredError {
    /// A txn whose keys live on several stores.
    CrossStoreTxn {
        /// One key for each store, in the order of the request.
        keys: Vec<KeyOnStore>,
    },
    /// A txn over Kinds of different durability modes (R9).
    CrossDurabilityTxn {
        /// One key for each mode, with the mode's name in place of the store's.
        keys: Vec<KeyOnStore>,
    },
    /// A range, watch or delete that joins a stock etcd with another store: an etcd can neither be raised nor read at
    /// another store's revision.
    RangeJoinsEtcd {
        /// The first key of the range.
        key: Vec<u8>,
        /// The stores that it touches.
        stores: Vec<String>,
    },
    /// A call that is not served.
    Unsupported {
        /// The call or field, such as `Maintenance/Snapshot`.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// The store cannot be reached or refuses connections, and nothing was executed there.
    StoreUnavailable {
        /// The store's name.
        store: String,
        /// Why, from the transport.
        reason: String,
    },
    /// The unit moves to another store and the request waited as long as it may; nothing was executed.
    UnitMoving {
        /// The key, or the first key of the range.
        key: Vec<u8>,
    },
    /// A shard was asked for keys that it does not own now (R13). Nothing was executed: by another map, or a little
    /// later, the request may be sent again.
    NotOwned {
        /// The key, or the first key of the range.
        key: Vec<u8>,
        /// The generation of the map since which another store owns it; 0 when it is about to be decided.
        epoch: u64,
    },
    /// A call for a move by a coordinator that another one has followed.
    StaleTerm {
        /// The move.
        move_id: u64,
        /// The term of the call.
        term: u64,
        /// The highest term seen.
        seen: u64,
    },
    /// A call for a move that the unit's state does not allow.
    UnitState {
        /// What is wrong and what to do.
        reason: String,
    },
    /// No partition map has been read yet.
    NotReady {
        /// What the router waits for.
        waiting_for: String,
    },
    /// A limit of this process, with nothing executed.
    LimitReached {
        /// What there are too many of, such as `watches on one stream`.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The request's bytes are not the message that the method takes.
    Malformed {
        /// What is wrong.
        reason: String,
    },
}

impl KindredError {
    /// The gRPC status code; the module says why.
    #[must_use]
    pub const fn grpc_code(&self) -> Code {
        match self {
            Self::CrossStoreTxn { .. }
            | Self::CrossDurabilityTxn { .. }
            | Self::RangeJoinsEtcd { .. }
            | Self::StaleTerm { .. }
            | Self::UnitState { .. } => Code::FailedPrecondition,
            Self::Unsupported { .. } => Code::Unimplemented,
            Self::StoreUnavailable { .. }
            | Self::UnitMoving { .. }
            | Self::NotOwned { .. }
            | Self::NotReady { .. } => Code::Unavailable,
            Self::LimitReached { .. } => Code::ResourceExhausted,
            // grpc-go answers Internal when a message does not unmarshal.
            Self::Malformed { .. } => Code::Internal,
        }
    }

    /// The gRPC status message: bounded in length, on one line, never a text that clients resend writes on.
    #[must_use]
    pub fn message(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for KindredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("kindred: ")?;
        match self {
            Self::CrossStoreTxn { keys } => {
                write!(f, "a txn cannot span stores: {}; put these keys on one store", Keys(keys, "on store"))
            }
            Self::CrossDurabilityTxn { keys } => write!(
                f,
                "a txn cannot span durability modes: {}; give these Kinds one mode",
                Keys(keys, "with durability")
            ),
            Self::RangeJoinsEtcd { key, stores } => {
                let stores: Vec<_> = stores.iter().map(|store| format!("{store:?}")).collect();
                let stores = Foreign(&stores.join(", ")).to_string();
                write!(
                    f,
                    "the range from {} joins a stock etcd with another store ({stores}); ask for each store's keys alone",
                    Shown(key)
                )
            }
            Self::Unsupported { what, instead } => write!(f, "{what} is not supported; {instead}"),
            Self::StoreUnavailable { store, reason } => {
                write!(f, "store {store:?} is unavailable: {}", Foreign(reason))
            }
            Self::UnitMoving { key } => {
                write!(
                    f,
                    "{} is being moved to another store and the wait was too long; try again",
                    Shown(key)
                )
            }
            Self::NotOwned { key, epoch: 0 } => {
                write!(f, "{} is changing its store; {ASK_AGAIN}", Shown(key))
            }
            Self::NotOwned { key, epoch } => {
                write!(f, "{} is on another store since map {epoch}; {ASK_AGAIN}", Shown(key))
            }
            Self::StaleTerm { move_id, term, seen } => {
                write!(f, "move {move_id}{COORDINATOR}{seen}, this is term {term}; stop")
            }
            Self::UnitState { reason } => f.write_str(&Foreign(reason).to_string()),
            Self::NotReady { waiting_for } => write!(f, "not ready, waiting for {}", Foreign(waiting_for)),
            Self::LimitReached { what, limit } => write!(f, "too many {what} (limit {limit})"),
            Self::Malformed { reason } => write!(f, "the request does not decode: {}", Foreign(reason)),
        }
    }
}

impl std::error::Error for KindredError {}

/// A key in quotes, escaped and cut.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.0.len().min(TEXT_MAX);
        let escaped = self.0[..cut].escape_ascii().to_string();
        // A key is the client's own text: it must not be able to make the error look like another.
        write!(f, "\"{}\"{}", Foreign(&escaped), if cut < self.0.len() { "…" } else { "" })
    }
}

/// Keys with their stores, a few of them.
struct Keys<'a>(&'a [KeyOnStore], &'static str);

impl fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, KeyOnStore { key, store }) in self.0.iter().take(KEYS_MAX).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} {} {store:?}", Shown(key), self.1)?;
        }
        match self.0.len().saturating_sub(KEYS_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A text from elsewhere: cut, on one line, and harmless to clients that look for texts to resend writes on.
struct Foreign<'a>(&'a str);

impl fmt::Display for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = String::new();
        for c in self.0.chars() {
            if line.len() + c.len_utf8() > TEXT_MAX * 2 {
                line.push('…');
                break;
            }
            line.push(if c.is_control() { ' ' } else { c });
        }
        // Looked for in the cleaned text: a line break must not hide it.
        f.write_str(if clients_resend_writes_on(&line) { "no address or connection" } else { &line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(key: &str, store: &str) -> KeyOnStore {
        KeyOnStore { key: key.into(), store: store.into() }
    }

    #[test]
    fn texts_name_keys_and_stores() {
        let keys = vec![on("/registry/pods/a", "pods"), on("/registry/minions/b", "nodes")];
        let error = KindredError::CrossStoreTxn { keys };
        assert_eq!(
            error.message(),
            r#"kindred: a txn cannot span stores: "/registry/pods/a" on store "pods", "/registry/minions/b" on store "nodes"; put these keys on one store"#
        );
        assert_eq!(error.grpc_code(), Code::FailedPrecondition);
        let error = KindredError::StoreUnavailable { store: "pods".into(), reason: "refused\nagain".into() };
        assert_eq!(error.message(), r#"kindred: store "pods" is unavailable: refused again"#);
        assert_eq!(error.grpc_code(), Code::Unavailable);
    }

    #[test]
    fn never_a_text_that_clients_resend_writes_on() {
        let evil = "rpc error: there is no connection available";
        for error in [
            KindredError::StoreUnavailable { store: "s".into(), reason: evil.into() },
            KindredError::NotReady { waiting_for: "there is no\naddress available".into() },
            KindredError::UnitMoving { key: evil.into() },
            KindredError::Malformed { reason: evil.into() },
        ] {
            assert!(!clients_resend_writes_on(&error.message()), "{error}");
        }
    }

    #[test]
    fn a_refusal_for_ownership_is_known_by_its_text() {
        for epoch in [0, 7] {
            let key = vec![b'k'; 5000];
            assert!(is_not_owned(&KindredError::NotOwned { key, epoch }.message()));
        }
        assert!(!is_not_owned(&KindredError::UnitMoving { key: b"k".to_vec() }.message()));
        assert!(!is_not_owned("mvcc: required revision has been compacted"));
    }

    #[test]
    fn texts_are_bounded() {
        let keys = (0..100).map(|_| KeyOnStore { key: vec![0; 5000], store: "s".into() }).collect();
        let text = KindredError::CrossStoreTxn { keys }.message();
        assert!(text.len() < 5000 && text.contains("and 96 more") && !text.contains('\0'), "{}", text.len());
    }
}
