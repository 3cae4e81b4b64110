//! `kindred backup`, `kindred backup verify`, `kindred restore` and `kindred verify`.

pub mod args;
pub mod etcd;
mod folder;
mod format;
pub mod hashes;
mod kinds;
mod manifest;
mod merge;
mod moment;
pub mod rate;
mod records;
pub mod restore;
mod select;
mod sides;
pub mod snapshot;
pub mod take;
#[cfg(test)]
mod tests;
mod verify;
