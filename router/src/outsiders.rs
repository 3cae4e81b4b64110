//! Clients of stock etcds that use them beside the routers: before an etcd is adopted, and after keys have moved away.

pub mod bypass;
pub mod direct;
