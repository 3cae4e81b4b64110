//! Who calls, and whether it may: etcd's users and roles at the door of a router.
//!
//! The decisions are in [`kindred_router_core::auth`], and [`crate::meta::auth`] keeps what they go by.
//!
//! | module | what |
//! | --- | --- |
//! | [`gate`] | the rules in use; every call of a client passes it |
//! | [`credentials`] | what a call says of its caller |
//! | [`signer`] | tokens that cannot be forged |
//! | [`guarded`] | the services, with the methods that some callers may not call |
//! | [`passwords`] | bcrypt, a few at a time |
//!
//! Calls of the router's own do not pass the gate: moves, snapshots, digests, and what the admin port shows.

pub mod credentials;
pub mod gate;
pub mod guarded;
pub mod passwords;
pub mod signer;

pub use credentials::Credentials;
pub use gate::{Entered, Gate};
