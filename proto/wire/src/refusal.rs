//! kindred's own refusals, which etcd does not have, with their codes and texts.
//!
//! Every text begins with `kindred: `, to distinguish it from etcd's, and says what to do. The codes:
//!
//! * `FailedPrecondition` for what the partition map forbids (operations over several stores). etcd clients do not
//!   retry it, and it depends on the state of the system, not on the request alone. `Unimplemented` would be wrong:
//!   clients fall back on it only from RangeStream to Range, which would be refused for good, too.
//! * `Unimplemented` for a call that kindred does not serve at all, as from a server that does not know the method.
//! * `Unavailable` only if nothing was executed, because etcd clients retry reads on it (100 times, 25 ms apart). A
//!   write with an unknown outcome gets [`EtcdError::TimeoutDueToConnectionLost`] instead (R11).
//!
//! [`EtcdError::TimeoutDueToConnectionLost`]: crate::error::EtcdError::TimeoutDueToConnectionLost

use std::fmt;

use crate::error::Code;

/// The maximum length in bytes of a key or a foreign text in a message, because HTTP/2 trailers are limited.
const TEXT_MAX: usize = 256;
/// The maximum number of keys in a message.
const KEYS_MAX: usize = 4;

/// Whether etcd's clients resend a *write* when an `Unavailable` error contains this text. No error of kindred may
/// contain it.
#[must_use]
pub fn clients_resend_writes_on(text: &str) -> bool {
    text.contains("there is no address available") || text.contains("there is no connection available")
}

/// The end of every [`KindredError::NotOwned`] text. Watches need it, because their refusal carries only a text.
const ASK_AGAIN: &str = "ask again by the newest map";

/// Whether this is the text of a [`KindredError::NotOwned`] that a shard sent to a router.
#[must_use]
pub fn is_not_owned(text: &str) -> bool {
    text.starts_with("kindred: ") && text.ends_with(ASK_AGAIN)
}

/// A key of a refused request with the store that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOnStore {
    /// The key, or the first key of a range.
    pub key: Vec<u8>,
    /// The store's name.
    pub store: String,
}

/// An error of kindred's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KindredError {
    /// The keys of a txn are on several stores.
    CrossStoreTxn {
        /// One key for each store, in the order of the request.
        keys: Vec<KeyOnStore>,
    },
    /// The keys of a txn have different durability modes (R9).
    CrossDurabilityTxn {
        /// One key for each mode, with the mode's name in place of a store's.
        keys: Vec<KeyOnStore>,
    },
    /// A range, watch or delete spans a stock etcd and another store. An etcd can neither be raised to nor read at
    /// another store's revision.
    RangeJoinsEtcd {
        /// The first key of the range.
        key: Vec<u8>,
        /// The stores of the range.
        stores: Vec<String>,
    },
    /// kindred does not serve the call.
    Unsupported {
        /// The call or field, such as `Maintenance/Snapshot`.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// The store cannot be reached or refuses connections. Nothing was executed there.
    StoreUnavailable {
        /// The store's name.
        store: String,
        /// The reason, from the transport.
        reason: String,
    },
    /// The unit is moving to another store, and the request waited as long as it may. Nothing was executed.
    UnitMoving {
        /// The key, or the first key of the range.
        key: Vec<u8>,
    },
    /// A shard does not own the requested keys (R13). Nothing was executed. The request may be sent again later or
    /// by another map.
    NotOwned {
        /// The key, or the first key of the range.
        key: Vec<u8>,
        /// The generation of the map since which another store owns the keys; 0 while the ownership is being
        /// decided.
        epoch: u64,
    },
    /// The coordinator that sent a call for a move has been superseded.
    StaleTerm {
        move_id: u64,
        /// The term of the call.
        term: u64,
        /// The highest term seen.
        seen: u64,
    },
    /// The unit's state does not allow this call of a move.
    UnitState {
        /// What is wrong and what to do.
        reason: String,
    },
    /// The router has no partition map yet.
    NotReady {
        /// What the router waits for.
        waiting_for: String,
    },
    /// A limit of this process was reached. Nothing was executed.
    LimitReached {
        /// What the limit counts, such as `watches on one stream`.
        what: &'static str,
        limit: u64,
    },
    /// The request's bytes are not the message that the method takes.
    Malformed {
        /// What is wrong.
        reason: String,
    },
}

impl KindredError {
    /// The gRPC status code; the module's documentation explains the choice.
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
            // grpc-go answers Internal if it cannot unmarshal a message.
            Self::Malformed { .. } => Code::Internal,
        }
    }

    /// The gRPC status message: bounded, on one line, and never a text on which clients resend writes.
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
                write!(f, "move {move_id} has a coordinator of term {seen}, this is term {term}; stop")
            }
            Self::UnitState { reason } => f.write_str(&Foreign(reason).to_string()),
            Self::NotReady { waiting_for } => write!(f, "not ready, waiting for {}", Foreign(waiting_for)),
            Self::LimitReached { what, limit } => write!(f, "too many {what} (limit {limit})"),
            Self::Malformed { reason } => write!(f, "the request does not decode: {}", Foreign(reason)),
        }
    }
}

impl std::error::Error for KindredError {}

/// A quoted key, escaped and truncated.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.0.len().min(TEXT_MAX);
        let escaped = self.0[..cut].escape_ascii().to_string();
        // The client chose the key, so it must not be able to imitate another error.
        write!(f, "\"{}\"{}", Foreign(&escaped), if cut < self.0.len() { "…" } else { "" })
    }
}

/// The first few keys with their stores.
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

/// A foreign text: truncated, on one line, and without the phrases on which clients resend writes.
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
        // Checked after cleaning, so that a line break cannot hide the phrase.
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
