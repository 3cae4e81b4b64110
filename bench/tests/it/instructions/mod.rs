//! Counts the instructions of the hot paths in the tests' own build. The script makes a fixed sequence of calls in
//! one thread, without a clock, socket or disk, so that the counts depend only on the code. `make instructions`
//! counts whole servers of a release build.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests are tests")]

mod script;

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    process::Command,
};

use script::{CALLS, PATHS};

/// The file of limits. Its first line names the compiler; the others have the instructions of each path.
const LIMITS: &str = "instructions.debug";
/// Hash tables have a new seed in every process, so runs differ slightly.
const TOLERANCE_PERCENT: u64 = 5;

/// Instructions per call, by path.
type Counts = BTreeMap<String, u64>;

/// The compiler and its target. Another compiler generates other code.
fn compiler() -> String {
    let told = Command::new("rustc").arg("-vV").output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let host = told.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    format!("{} {host}", told.lines().next().unwrap())
}

/// The inclusive instructions of the script's counted functions, by name, from a callgrind profile.
fn spent(profile: &str) -> HashMap<&str, u64> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut spent = HashMap::new();
    let (mut called, mut is_call) = ("", false);
    for line in profile.lines() {
        if let Some(named) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            // A name is `(12) name` the first time and `(12)` after that.
            let (id, name) = named.split_once(' ').unwrap_or((named, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            called = names.get(id).copied().unwrap_or_default();
        } else if line.starts_with("calls=") {
            // The next line has the cost of the callee.
            is_call = true;
        } else if std::mem::take(&mut is_call)
            && let Some((_, name)) = called.split_once("script::counted_")
        {
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok());
            *spent.entry(name).or_default() += cost.unwrap();
        }
    }
    spent
}

/// Runs the script under callgrind; `None` without valgrind.
fn counted() -> Option<Counts> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("profile");
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", out.display())])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "instructions::the_script_is_answered", "--test-threads=1"])
        .output();
    let Ok(ran) = ran else { return None };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let profile = fs::read_to_string(&out).unwrap();
    let spent = spent(&profile);
    let count = |path: &&str| {
        let all = spent.get(path.replace([' ', '.'], "_").as_str());
        ((*path).to_owned(), *all.unwrap_or_else(|| panic!("{path} is not in the profile")) / CALLS)
    };
    Some(PATHS.iter().map(count).collect())
}

fn limits(text: &str) -> Counts {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let limit = |line: &str| {
        let (path, count) = line.rsplit_once(' ').unwrap();
        (path.to_owned(), count.parse().unwrap())
    };
    lines.map(limit).collect()
}

/// The new content of the file, for a change that is worth its cost.
fn written(counts: &Counts) -> String {
    let lines = counts.iter().map(|(path, count)| format!("{path} {count}\n"));
    let head = format!(
        "# {}\n# Instructions for one call of a fixed script, of the build that tests use. They may only go down, or up with a reason.\n",
        compiler()
    );
    head + &lines.collect::<String>()
}

/// Runs the counted script and checks its answers.
#[test]
fn the_script_is_answered() {
    script::run();
}

#[test]
fn f52_no_hot_path_takes_more_instructions_than_before() {
    let Some(counts) = counted() else {
        // Valgrind is optional; `make test` tries to install it.
        eprintln!("NOT RUN: instructions are counted by valgrind, and there is none");
        return;
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(LIMITS);
    let text = fs::read_to_string(&file).unwrap();
    if text.lines().next().unwrap() != format!("# {}", compiler()) {
        eprintln!("NOT RUN: {LIMITS} is of another compiler, so it was counted but not compared");
        return;
    }
    let limits = limits(&text);
    assert!(limits.keys().eq(counts.keys()), "{LIMITS} has other paths; it should be:\n{}", written(&counts));
    let over = |path: &str| counts[path] > limits[path] * (100 + TOLERANCE_PERCENT) / 100;
    let over: Vec<_> = limits.keys().filter(|path| over(path)).collect();
    assert!(
        over.is_empty(),
        "more than before: {over:?}; were it right, {LIMITS} would be:\n{}",
        written(&counts)
    );
}

#[test]
fn a_profile_tells_what_the_paths_took() {
    let profile = "events: Ir\nfn=(1) instructions::script::run\n10 400\ncfn=(2) instructions::script::counted_shard_put\n\
                   calls=1 7\n* 5000\ncfn=(3) core::fmt::write\ncalls=2 9\n+1 70\ncfn=(2)\ncalls=1 7\n* 300\n\nfn=(2)\n7 5300\n";
    assert_eq!(spent(profile), HashMap::from([("shard_put", 5300)]));
}
