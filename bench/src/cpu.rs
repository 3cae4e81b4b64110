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

/// Counts what the threads of a process have used so far. It misses threads that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU nanoseconds.
    pub nanos: u64,
    /// The kernel's ticks in user mode and in system mode. They divide `nanos`, and are coarse by themselves.
    pub ticks: [u64; 2],
    /// Voluntary context switches (a thread went to sleep), and involuntary ones (another thread took its processor).
    pub switches: [u64; 2],
}

impl Usage {
    /// That of a process up to now.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let tasks =
            fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))?;
        let mut all = Self { nanos: process_nanos(pid)?, ..Self::default() };
        for task in tasks {
            let path = task?.path();
            // A thread may end between the listing and the reads.
            let Ok(stat) = fs::read_to_string(path.join("stat")) else { continue };
            let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
            let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
            for (sum, field) in all.ticks.iter_mut().zip(fields) {
                *sum += field.parse::<u64>().with_context(|| format!("odd {}/stat", path.display()))?;
            }
            let names = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
            for (sum, name) in all.switches.iter_mut().zip(names) {
                let value =
                    status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
                *sum += value.with_context(|| format!("no {name} in {}/status", path.display()))?;
            }
        }
        Ok(all)
    }

    /// Returns what was used since `before`.
    pub fn since(self, before: Self) -> Self {
        let minus = |now: [u64; 2], then: [u64; 2]| [0, 1].map(|at| now[at].saturating_sub(then[at]));
        Self {
            nanos: self.nanos.saturating_sub(before.nanos),
            ticks: minus(self.ticks, before.ticks),
            switches: minus(self.switches, before.switches),
        }
    }
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

    #[tokio::test]
    async fn sleeps_are_voluntary_switches() {
        let before = super::Usage::of(std::process::id()).unwrap();
        // Not each sleep is one: on a busy machine its time may be over before the thread goes to sleep.
        for _ in 0..100 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let used = super::Usage::of(std::process::id()).unwrap().since(before);
        assert!(used.switches[0] >= 5, "{used:?}");
        assert!(super::Usage::of(u32::MAX - 1).is_err());
    }
}
