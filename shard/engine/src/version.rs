//! One version of one key: the only copy of a value, kept as the encoded `KeyValue` that every answer and event carries.
//! SKELETON of the public surface; see the engine's contract in `engine.rs`.

use kindred_partition_config::ids::Revision;

/// A cheap handle (one pointer, reference counted) on an immutable version of a key.
#[derive(Clone)]
pub struct Version(std::sync::Arc<Vec<u8>>);

impl Version {
    /// The key's bytes.
    #[must_use]
    pub fn key(&self) -> &[u8] { todo!() }
    /// The value's bytes.
    #[must_use]
    pub fn value(&self) -> &[u8] { todo!() }
    /// When the key was created.
    #[must_use]
    pub fn create_revision(&self) -> Revision { todo!() }
    /// When this version was written.
    #[must_use]
    pub fn mod_revision(&self) -> Revision { todo!() }
    /// Writes since creation, 1 for the first.
    #[must_use]
    pub fn version(&self) -> i64 { todo!() }
    /// The attached lease's id, 0 for none.
    #[must_use]
    pub fn lease(&self) -> i64 { todo!() }
    /// The version as a protobuf `mvccpb.KeyValue` message (encoded once, at the write).
    #[must_use]
    pub fn encoded(&self) -> &[u8] { &self.0 }
}

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Version")
    }
}
