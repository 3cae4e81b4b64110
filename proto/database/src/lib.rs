//! etcd's database: the file that `Maintenance.Snapshot` sends, that `etcdutl snapshot restore` takes, and that `kindred
//! import` reads.
//!
//! | module | what |
//! | --- | --- |
//! | [`bolt`] | the B+ trees of bbolt in a file |
//! | [`etcd`] | what etcd keeps in them |
//! | [`spool`] | the keys of a snapshot, gathered in key order and given out by revision |
//! | [`reading`] | a range that is read to its end, whatever interrupts it |
//! | [`serve`] | `Maintenance.Snapshot`, on top of the KV and Lease of the process itself |

pub mod bolt;
pub mod etcd;
pub mod reading;
pub mod serve;
pub mod spool;
