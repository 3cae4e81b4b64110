//! Describes the machine and the programs behind a table.

use std::{fs, path::Path, process::Command};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub cpu: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    pub memory_mib: u64,
    pub kernel: String,
}

const UNKNOWN: &str = "unknown";

impl Machine {
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: cpu_model(&read("/proc/cpuinfo")),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            memory_mib: memory_mib(&read("/proc/meminfo")),
            kernel: word(&read("/proc/sys/kernel/osrelease")),
        }
    }
}

/// The `model name` of the first processor, or the architecture if there is none.
fn cpu_model(cpuinfo: &str) -> String {
    let named = |line: &str| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == "model name").then(|| value.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    cpuinfo.lines().find_map(named).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn memory_mib(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

fn word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or(UNKNOWN).to_owned()
}

/// The commit that is checked out, and whether files differ from it.
pub fn commit() -> String {
    let git = |words: &[&str]| {
        let output =
            Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    };
    // Results of an earlier run do not change what is measured.
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results"]);
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        None => UNKNOWN.to_owned(),
        Some(commit) if changed.is_some_and(|files| !files.trim().is_empty()) => {
            format!("{}, changed", word(&commit))
        }
        Some(commit) => word(&commit),
    }
}

/// The version that a program reports.
pub fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    output.map_or_else(
        |_| UNKNOWN.to_owned(),
        |output| version_in(&String::from_utf8_lossy(&output.stdout)).unwrap_or_else(|| UNKNOWN.to_owned()),
    )
}

/// The first word that begins with a digit, or with `v` and a digit: `etcd Version: 3.7.3`, `mem_etcd 0.1.0`.
fn version_in(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit());
    text.split_whitespace().find(is_version).map(|word| word.trim_start_matches('v').to_owned())
}

/// This program's command line without the folders of absolute paths, so that others can reuse it.
pub fn command_line(words: impl Iterator<Item = String>) -> String {
    let name = |path: &str| match Path::new(path).file_name() {
        Some(name) if path.starts_with('/') => name.to_string_lossy().into_owned(),
        _ => path.to_owned(),
    };
    let plain = |word: String| match word.split_once('=') {
        Some((flag, value)) => format!("{flag}={}", name(value)),
        None => name(&word),
    };
    let mut words = words.skip(1).map(plain).collect::<Vec<_>>();
    words.insert(0, "kindred-bench".to_owned());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_and_its_memory_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some(R)  CPU @ 2.00GHz\n\nprocessor\t: 1\n";
        assert_eq!(cpu_model(cpuinfo), "Some(R) CPU @ 2.00GHz");
        assert_eq!(cpu_model("processor : 0\n"), std::env::consts::ARCH);
        assert_eq!(memory_mib("MemTotal:       16303428 kB\nMemFree: 5 kB\n"), 15_921);
        assert_eq!(memory_mib(""), 0);
        assert_eq!(word("6.1.0-13-amd64\n"), "6.1.0-13-amd64");
    }

    #[test]
    fn versions_are_told_by_the_programs() {
        assert_eq!(version_in("etcd Version: 3.7.3\nGit SHA: v3.7.3\n").unwrap(), "3.7.3");
        assert_eq!(version_in("mem_etcd 0.1.0\n").unwrap(), "0.1.0");
        assert_eq!(version_in("v1.2").unwrap(), "1.2");
        assert_eq!(version_in("none"), None);
    }

    #[test]
    fn a_command_names_no_folder_of_this_machine() {
        let words = ["/a/b/kindred-bench", "--ops", "200", "--etcd", "/x/etcd", "--mem-etcd=/y/mem_etcd"];
        assert_eq!(
            command_line(words.into_iter().map(str::to_owned)),
            "kindred-bench --ops 200 --etcd etcd --mem-etcd=mem_etcd"
        );
        let words = ["kindred-bench", "--out", "bench/results"].map(str::to_owned);
        assert_eq!(command_line(words.into_iter()), "kindred-bench --out bench/results");
    }
}
