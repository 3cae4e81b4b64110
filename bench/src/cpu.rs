//! CPU times of processes, from the kernel's statistics.

use std::fs;

use anyhow::Context;

/// The CPU nanoseconds that all threads of a process have used.
///
/// `/proc/PID/task/*/schedstat` counts nanoseconds, but omits threads that have ended, so callers measure servers
/// with a fixed number of threads.
pub fn process_nanos(pid: u32) -> anyhow::Result<u64> {
    let tasks =
        fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))?;
    let mut total = 0;
    for task in tasks {
        let path = task?.path().join("schedstat");
        // A thread may end between the listing and the read.
        if let Ok(text) = fs::read_to_string(&path) {
            let run = text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
            total += run.with_context(|| format!("{} is not a schedstat line", path.display()))?;
        }
    }
    Ok(total)
}

/// The CPU seconds that a process has used, including ended threads, in the kernel's steps of 10 ms.
pub fn whole_process_seconds(pid: u32) -> anyhow::Result<f64> {
    let text =
        fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    // The name in parentheses may contain any characters. User and system time are fields 14 and 15.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: u64 = fields
        .map(|field| field.parse::<u64>())
        .sum::<Result<u64, _>>()
        .or_else(|_| anyhow::bail!("odd /proc/{pid}/stat"))?;
    Ok(ticks as f64 / TICKS_A_SECOND)
}

/// `USER_HZ`, which is always 100 in Linux's /proc.
const TICKS_A_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    #[test]
    fn own_process_uses_cpu() {
        let before = super::process_nanos(std::process::id()).unwrap();
        let mut x = 1u64;
        for i in 0..5_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
        }
        assert!(super::process_nanos(std::process::id()).unwrap() > before);
        assert!(super::process_nanos(u32::MAX - 1).is_err());
    }
}
