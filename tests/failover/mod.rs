//! A store with a primary and standbys: members are killed and paused while clients write and watch, and a standby is
//! promoted. Nothing acknowledged may be lost, whatever the modes of the Kinds are; watches go on at their next revision;
//! whoever is not the primary any more answers nothing.
//!
//! And the meta store, an etcd of three members with mutual TLS, whose members are killed and stopped in turn.

mod clients;
mod cluster;
mod cuts;
mod full_disk;
mod load;
mod members;
mod meta_cluster;
mod meta_etcd;
mod meta_traffic;
mod meta_went_back;
mod mistyped;
mod modes;
mod paused;
mod promoted;
mod rounds;
mod routers;
