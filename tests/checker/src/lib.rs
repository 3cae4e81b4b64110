//! Checks recorded histories of etcd clients against the guarantees that etcd publishes and kindred keeps.
