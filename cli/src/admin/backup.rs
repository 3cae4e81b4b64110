//! `kindred backup`, `kindred backup verify` and `kindred restore`.

pub mod args;
mod etcd;
mod folder;
mod format;
mod manifest;
mod merge;
mod moment;
mod rate;
mod records;
pub mod restore;
mod select;
mod sides;
pub mod take;
#[cfg(test)]
mod tests;
mod verify;
