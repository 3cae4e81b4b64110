//! etcd's users and roles: who may read and write which keys.
//!
//! | module | decides |
//! | --- | --- |
//! | [`document`] | what is kept: users, roles, and whether clients must say who they are |
//! | [`change`] | what a change makes of it, or why it is refused |
//! | [`ranges`] | which keys the permissions of a user cover together |
//! | [`rules`] | what a caller may do |
//! | [`request`] | what a request of KV needs |
//! | [`token`] | what a caller proves with a token |
//! | [`methods`] | who may call which method |
//!
//! The rules follow etcd's (`server/auth/store.go`, `server/etcdserver/apply/auth.go`), with its errors. Whatever is not
//! permitted is refused, also what this module does not know.

pub mod change;
pub mod document;
pub mod methods;
pub mod ranges;
pub mod request;
pub mod rules;
#[cfg(test)]
mod tests;
pub mod token;

pub use document::{Access, AuthState, Permission, ROOT, Role, User};
pub use rules::{Caller, Rules};
