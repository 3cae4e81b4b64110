//! How much memory a process may use.

use std::path::Path;

/// An amount of memory, and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    pub bytes: u64,
    /// The kernel's file that states it.
    pub says: String,
}

/// The memory limit of this process' cgroup or the machine's memory, whichever is lower; `None` if neither is known.
#[must_use]
pub fn available() -> Option<Memory> {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    limit(&cgroups, read).into_iter().chain(machine(read)).min_by_key(|memory| memory.bytes)
}

/// The lowest limit from this process' cgroup up to the root, for cgroups of either version.
fn limit(cgroups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<Memory> {
    let mut lowest: Option<Memory> = None;
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            all if all.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the path may be that of the host, of which only the root is visible.
        let inner = Path::new(path.trim_start_matches('/'));
        for dir in inner.ancestors() {
            let at = Path::new(root).join(dir).join(file);
            let bytes = read(&at).and_then(|text| text.trim().parse::<u64>().ok());
            if let Some(bytes) = bytes.filter(|bytes| lowest.as_ref().is_none_or(|low| *bytes < low.bytes)) {
                lowest = Some(Memory { bytes, says: at.display().to_string() });
            }
        }
    }
    lowest
}

fn machine(read: impl Fn(&Path) -> Option<String>) -> Option<Memory> {
    const FILE: &str = "/proc/meminfo";
    let text = read(Path::new(FILE))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Memory { bytes: kib.saturating_mul(1024), says: FILE.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn limit_of(cgroups: &str, files: &[(&str, &str)]) -> Option<(u64, String)> {
        let files: HashMap<&str, &str> = files.iter().copied().collect();
        let read = |path: &Path| files.get(path.to_str()?).map(|text| (*text).to_owned());
        limit(cgroups, read).map(|memory| (memory.bytes, memory.says))
    }

    #[test]
    fn f41_the_lowest_limit_of_either_kind_of_cgroup_counts() {
        let second = [
            ("/sys/fs/cgroup/kubepods/pod1/memory.max", "1000\n"),
            ("/sys/fs/cgroup/kubepods/pod1/c/memory.max", "max\n"),
            ("/sys/fs/cgroup/kubepods/memory.max", "5000\n"),
        ];
        let says = "/sys/fs/cgroup/kubepods/pod1/memory.max".to_owned();
        assert_eq!(limit_of("0::/kubepods/pod1/c\n", &second), Some((1000, says)));
        let first = [
            ("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "700"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ];
        let says = "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes".to_owned();
        assert_eq!(limit_of("5:cpu:/docker/x\n4:memory:/docker/x\n", &first), Some((700, says)));
        // Inside a container only the root of the tree is visible.
        let seen = [("/sys/fs/cgroup/memory.max", "800")];
        assert_eq!(
            limit_of("0::/system.slice/x", &seen),
            Some((800, "/sys/fs/cgroup/memory.max".to_owned()))
        );
        assert_eq!(limit_of("0::/\n", &[("/sys/fs/cgroup/memory.max", "max")]), None);
        assert_eq!(limit_of("nonsense", &[]), None);
    }

    #[test]
    fn the_memory_of_the_machine_is_read() {
        let memory = machine(|_| Some("MemFree: 1 kB\nMemTotal:   16777216 kB\n".to_owned())).unwrap();
        assert_eq!(memory.bytes, 16 << 30);
        assert!(available().is_some_and(|memory| memory.bytes > 0), "this machine has some");
    }
}
