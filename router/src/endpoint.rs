//! etcd's public API, one file a service. A service decodes no more than it must, calls, and answers.

pub mod auth;
pub mod cluster;
pub mod kv;
pub mod lease;
pub mod maintenance;
pub mod refuse;
pub mod watch;
