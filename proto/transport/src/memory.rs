//! Sets up how a process gets memory from the system and returns it.

pub mod limit;
mod purge;

/// Sets up memory as kindred's servers need it: small pages, and a thread that returns freed memory.
pub fn set_up() {
    small_pages();
    purge::aside();
}

/// Disables transparent huge pages of 2 MiB for this process and its children, so that memory comes in pages of 4
/// KiB.
///
/// The thread that first touches a huge page clears all 2 MiB of it. A shard has a single thread, which on a
/// virtual machine was then blocked for milliseconds. With huge pages the 99th percentile of writes to a growing
/// shard was three times as long, and a write cost a fifth more; reads of 500,000 keys cost the same (`bench/`).
/// Does nothing if the system refuses or is not Linux.
fn small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "transparent huge pages stay as the system has them");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn huge_pages_are_off() {
        super::small_pages();
        let disabled = rustix::thread::transparent_huge_pages_are_disabled();
        assert_eq!(disabled.ok(), Some(true));
    }
}
