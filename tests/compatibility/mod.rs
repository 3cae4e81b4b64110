//! What clients and tools that were written for etcd get: the same requests go to a real etcd, to a shard alone and to a
//! router, and the answers are compared.

mod clients;
pub mod documented;
mod gateway;
mod import;
mod kube_consistency;
mod kube_storage;
mod patroni;
mod plain;
mod recipes;
mod snapshot;
mod web;
