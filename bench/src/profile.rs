//! Attributes the instructions of a profile to crates.

use std::collections::{BTreeMap, HashMap};

/// Crates below this share of a path are summed as "other".
const SHARE_MIN: f64 = 0.01;

/// Instructions per operation by crate.
pub type ByCrate = BTreeMap<String, u64>;

/// Reads a callgrind profile. Counts each function's own instructions, not those of its callees.
#[must_use]
pub fn by_crate(profile: &str, ops: u64) -> ByCrate {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let (mut function, mut is_call) = ("", false);
    let mut spent: HashMap<&str, u64> = HashMap::new();
    for line in profile.lines() {
        if let Some(named) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            // A name is `(12) name` the first time and `(12)` after that.
            let (id, name) = named.split_once(' ').unwrap_or((named, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            if line.starts_with("fn=") {
                function = id;
            }
        } else if line.starts_with("calls=") {
            // The next line has the cost of the callee.
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok());
            if !std::mem::take(&mut is_call) {
                *spent.entry(function).or_default() += cost.unwrap_or(0);
            }
        }
    }
    let mut crates = BTreeMap::new();
    for (id, cost) in spent {
        let name = names.get(id).copied().unwrap_or_default();
        *crates.entry(crate_of(name).to_owned()).or_default() += cost;
    }
    crates.values_mut().for_each(|cost| *cost /= ops.max(1));
    crates
}

/// The crate of a function, as far as its name tells.
fn crate_of(function: &str) -> &str {
    let path = function.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '_');
    let path = path.strip_prefix("dyn ").unwrap_or(path);
    match path.split_once("::") {
        Some((first, _)) if first.chars().all(|c| c.is_alphanumeric() || c == '_') => match first {
            "core" | "alloc" | "std" | "hashbrown" => "Rust's own",
            first => first,
        },
        _ if path.starts_with("mi_") || path.starts_with("_mi_") => "mimalloc",
        _ if path.contains("mem") => "copying and comparing bytes",
        _ => "other",
    }
}

/// A Markdown table with crates as rows and paths as columns.
#[must_use]
pub fn table(paths: &[(String, ByCrate)]) -> String {
    let totals: Vec<u64> = paths.iter().map(|(_, spent)| spent.values().sum()).collect();
    let mut rows: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (column, (_, spent)) in paths.iter().enumerate() {
        for (name, cost) in spent {
            let is_small = (*cost as f64) < totals[column] as f64 * SHARE_MIN;
            let row =
                rows.entry(if is_small { "other" } else { name }).or_insert_with(|| vec![0; paths.len()]);
            row[column] += cost;
        }
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(name, costs)| (std::cmp::Reverse(costs.iter().sum::<u64>()), *name));
    let line = |name: &str, cells: Vec<String>| format!("| {name} | {} |\n", cells.join(" | "));
    let mut text = line("instructions", paths.iter().map(|(path, _)| path.clone()).collect());
    text += &line("---", paths.iter().map(|_| "---".to_owned()).collect());
    for (name, costs) in rows {
        text += &line(name, costs.iter().map(u64::to_string).collect());
    }
    text + &line("all", totals.iter().map(u64::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_its_own_instructions() {
        let profile = "events: Ir\nfn=(1) h2::codec::read\n10 400\n+1 200\ncfn=(2) <tokio::io::A as B>::poll'2\n\
                       calls=3 7\n* 5000\n12 100\n\nfn=(2)\n7 5000\nfn=(3) __memcpy_avx\n0 50\nfn=(4) _mi_page\n0 30\n\
                       fn=(5) <core::pin::Pin<P> as core::future::Future>::poll\n0 20\ntotals: 5800\n";
        let spent = by_crate(profile, 10);
        let want = [
            ("h2", 70),
            ("tokio", 500),
            ("copying and comparing bytes", 5),
            ("mimalloc", 3),
            ("Rust's own", 2),
        ];
        assert_eq!(spent, want.map(|(name, cost)| (name.to_owned(), cost)).into());
    }

    #[test]
    fn crates_are_told_by_what_they_take() {
        let spent = |of: &[(&str, u64)]| of.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect();
        let paths = [
            ("shard put".to_owned(), spent(&[("h2", 300), ("tokio", 690), ("tiny", 5), ("small", 5)])),
            ("shard get".to_owned(), spent(&[("h2", 500)])),
        ];
        let want = "| instructions | shard put | shard get |\n| --- | --- | --- |\n| h2 | 300 | 500 |\n\
                    | tokio | 690 | 0 |\n| other | 10 | 0 |\n| all | 1000 | 500 |\n";
        assert_eq!(table(&paths), want);
    }
}
