//! How the system gives a process its memory, and gets it back.

mod purge;

/// Sets up the memory of this process as every server of ours wants it: small pages, given back from a thread aside.
pub fn set_up() {
    small_pages();
    purge::aside();
}

/// Memory comes in pages of 4 KiB from now on, also to the process' children, rather than in transparent huge pages of 2 MiB.
///
/// Those are cleared when they are first touched, 2 MiB at a time, by the thread that happens to touch them: a shard's only one, which then
/// does nothing else for milliseconds on a virtual machine. With them the 99th percentile of writes to a growing shard was three times as long
/// and a write cost a fifth more; reads of 500,000 keys cost the same (`bench/`). Where the system refuses, or is not Linux, all stays as it was.
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
