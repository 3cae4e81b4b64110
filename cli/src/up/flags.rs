//! The section `up` of the configuration: flags of the processes that `kindred up` starts, with their names on the
//! command lines of `kindred shard` and `kindred router`. The available flags are derived from those command lines,
//! so that none can be forgotten.

use clap::{Arg, ArgAction, Args as _, Command};
use kindred_partition_config::errors::Errors;
use kindred_partition_config::model::{Flags, UpConfig};
use serde_json::Value;

use crate::cli::{RouterCommand, ShardCommand};

/// The name of the meta store in flags and in the section.
pub const META: &str = "meta";

/// The process that a flag belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    Shard,
    Meta,
    Router,
}

/// Flags that only `kindred up` may set, with the alternative.
const OF_SHARDS: [(&str, &str); 34] = [
    ("cluster-secret-file", "it is made in the data directory"),
    ("insecure-listen", "shards listen on this machine alone"),
    ("member-names", "standbys show what routers show"),
    ("router-names", "certificates of the inner connections are made in the data directory"),
    ("standby-cert-file", "certificates of the inner connections are made in the data directory"),
    ("standby-key-file", "certificates of the inner connections are made in the data directory"),
    ("standby-trusted-ca-file", "certificates of the inner connections are made in the data directory"),
    ("standby-of", "see `kindred up --standbys`"),
    ("reclaim", "it ends the process: run `kindred shard --reclaim` by hand"),
    ("admin-cert-file", "see the admin flags of `kindred up`"),
    ("admin-key-file", "see the admin flags of `kindred up`"),
    ("admin-client-ca-file", "see the admin flags of `kindred up`"),
    ("admin-client-names", "see the admin flags of `kindred up`"),
    ("admin-token-file", "see the admin flags of `kindred up`"),
    ("admin-anonymous-probes", "see the admin flags of `kindred up`"),
    ("name", "the name is the store's in the configuration"),
    ("slot", "the slot is the store's in the configuration"),
    ("config", "write the flags here"),
    ("listen", "a port is chosen, and kept"),
    ("advertise-client-urls", "nobody connects to a shard but routers"),
    ("admin-listen", "a port is chosen"),
    ("data-dir", "see `kindred up --data-dir`"),
    ("revisions", "shards of a cluster have comparable revisions, the meta store dense ones"),
    ("cluster-id", "all processes of a `kindred up` have the same: give it that flag itself"),
    ("in-cluster", "always so"),
    ("etcd-prefix", "see `etcdPrefix` of the configuration"),
    ("log-level", "see `kindred up --log-level`"),
    ("log-format", "see `kindred up --log-format`"),
    ("exit-with-parent", "always so"),
    ("cert-file", "see the TLS flags of `kindred up`"),
    ("key-file", "see the TLS flags of `kindred up`"),
    ("trusted-ca-file", "see the TLS flags of `kindred up`"),
    ("client-cert-auth", "see the TLS flags of `kindred up`"),
    ("allow-plaintext", "see the TLS flags of `kindred up`"),
];

const OF_META: [(&str, &str); 2] =
    [("durability", "always fsync"), ("durability-of", "the meta store has one mode, fsync")];

const OF_ROUTERS: [(&str, &str); 39] = [
    ("cluster-secret-file", "it is made in the data directory"),
    ("insecure-listen", "see `kindred up --insecure-listen`"),
    ("store-cert-file", "certificates of the inner connections are made in the data directory"),
    ("store-key-file", "certificates of the inner connections are made in the data directory"),
    ("store-trusted-ca-file", "certificates of the inner connections are made in the data directory"),
    ("admin-cert-file", "see the admin flags of `kindred up`"),
    ("admin-key-file", "see the admin flags of `kindred up`"),
    ("admin-client-ca-file", "see the admin flags of `kindred up`"),
    ("admin-client-names", "see the admin flags of `kindred up`"),
    ("admin-token-file", "see the admin flags of `kindred up`"),
    ("admin-anonymous-probes", "see the admin flags of `kindred up`"),
    ("name", "routers are named by their number"),
    ("listen", "see `kindred up --listen`"),
    ("admin", "see `kindred up --admin`"),
    ("config", "this is that file"),
    ("meta", "the meta store is run here"),
    ("meta-cache", "it is kept in the data directory"),
    ("meta-trusted-ca-file", "the meta store is run here"),
    ("meta-cert-file", "the meta store is run here"),
    ("meta-key-file", "the meta store is run here"),
    ("store", "write `endpoints` of the store"),
    ("with-shard", "see `kindred up --together`"),
    ("advertise-client-urls", "see `kindred up --advertise-client-urls`"),
    ("cluster-id", "all processes of a `kindred up` have the same: give it that flag itself"),
    ("lineage", "`kindred up` keeps it in its folder"),
    ("etcd-prefix", "see `etcdPrefix` of the configuration"),
    ("threads", "see `kindred up --threads`"),
    ("log-level", "see `kindred up --log-level`"),
    ("log-format", "see `kindred up --log-format`"),
    ("exit-with-parent", "always so"),
    ("cert-file", "see the TLS flags of `kindred up`"),
    ("key-file", "see the TLS flags of `kindred up`"),
    ("trusted-ca-file", "see the TLS flags of `kindred up`"),
    ("client-cert-auth", "see the TLS flags of `kindred up`"),
    ("client-cert-allowed-cn", "see the TLS flags of `kindred up`"),
    ("client-cert-allowed-hostname", "see the TLS flags of `kindred up`"),
    ("tls-min-version", "see the TLS flags of `kindred up`"),
    ("allow-plaintext", "see the TLS flags of `kindred up`"),
    ("help", "see `kindred router --help`"),
];

impl Process {
    fn command(self) -> Command {
        match self {
            Self::Shard | Self::Meta => ShardCommand::augment_args(Command::new("shard")),
            Self::Router => RouterCommand::augment_args(Command::new("router")),
        }
    }

    /// The alternative to this flag, if only `up` may set it.
    fn instead(self, flag: &str) -> Option<&'static str> {
        let own = match self {
            Self::Shard | Self::Meta => &OF_SHARDS[..],
            Self::Router => &OF_ROUTERS[..],
        };
        let of_meta = OF_META.iter().filter(|_| self == Self::Meta);
        own.iter().chain(of_meta).find(|(name, _)| *name == flag).map(|(_, instead)| *instead)
    }

    /// The flags that the section may set.
    pub fn settable(self) -> Vec<String> {
        let command = self.command();
        let all = command.get_arguments().filter_map(|arg| arg.get_long());
        let mut names: Vec<_> = all.filter(|name| self.instead(name).is_none()).map(str::to_owned).collect();
        names.sort_unstable();
        names
    }
}

/// Whether a flag takes `true` and `false` as its value.
fn is_yes_or_no(arg: &Arg) -> bool {
    arg.get_possible_values().iter().any(|value| value.get_name() == "true")
}

/// The command-line words for the flags of a process, sorted by flag.
///
/// # Errors
/// Every error, with its field.
fn words(field: &str, process: Process, flags: &Flags) -> Result<Vec<String>, Errors<String>> {
    let (mut words, mut errors) = (Vec::new(), Errors::<String>::default());
    let command = process.command();
    for (name, value) in flags {
        let field = format!("{field}.{name}");
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name.as_str()));
        match (arg, process.instead(name)) {
            (None, _) => {
                errors.push(format!(
                    "{field}: there is no such flag; there are {}",
                    process.settable().join(", ")
                ));
            }
            (Some(_), Some(instead)) => {
                errors.push(format!("{field}: `kindred up` gives this flag itself: {instead}"));
            }
            (Some(arg), None) if matches!(arg.get_action(), ArgAction::SetTrue) => match value {
                Value::Bool(true) => words.push(format!("--{name}")),
                Value::Bool(false) => {}
                other => errors.push(format!("{field}: {other} is neither true nor false")),
            },
            (Some(arg), None) if value.is_boolean() && is_yes_or_no(arg) => {
                words.push(format!("--{name}={value}"));
            }
            (Some(_), None) => match text(value) {
                Some(text) => words.push(format!("--{name}={text}")),
                None => errors.push(format!("{field}: {value} is no value for it")),
            },
        }
    }
    if errors.is_empty() { Ok(words) } else { Err(errors) }
}

/// A value as on the command line: a list with commas, an object `KIND: VALUE` as `KIND=VALUE`.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Array(parts) => {
            let parts: Option<Vec<_>> = parts.iter().map(text).collect();
            parts.map(|parts| parts.join(","))
        }
        Value::Object(of) => {
            let parts: Option<Vec<_>> =
                of.iter().map(|(name, value)| Some(format!("{name}={}", text(value)?))).collect();
            parts.map(|parts| parts.join(","))
        }
        Value::Bool(_) | Value::Null => None,
    }
}

/// The flags of a store: those of all shards, overridden by its own.
fn of_store(section: &UpConfig, name: &str) -> Flags {
    let mut flags = section.shard.clone();
    flags.extend(section.stores.get(name).cloned().unwrap_or_default());
    flags
}

/// The field of the section that a shard's flags are told by.
#[must_use]
pub fn field_of(section: &UpConfig, name: &str) -> String {
    if section.stores.contains_key(name) { format!("up.stores.{name}") } else { "up.shard".to_owned() }
}

/// The words for a shard.
///
/// # Errors
/// Those that [`check`] reports.
pub fn of_shard(section: &UpConfig, name: &str) -> Result<Vec<String>, Errors<String>> {
    words(&field_of(section, name), Process::Shard, &of_store(section, name))
}

/// The words for the meta store.
///
/// # Errors
/// Those that [`check`] reports.
pub fn of_meta(section: &UpConfig) -> Result<Vec<String>, Errors<String>> {
    words("up.meta", Process::Meta, &section.meta)
}

/// The words for a router.
///
/// # Errors
/// Those that [`check`] reports.
pub fn of_router(section: &UpConfig) -> Result<Vec<String>, Errors<String>> {
    words("up.router", Process::Router, &section.router)
}

/// All errors in the names of a section; `stores` are the local ones.
#[must_use]
pub fn check(section: &UpConfig, stores: &[String]) -> Errors<String> {
    let mut errors = Errors::default();
    for (field, process, flags) in [
        ("up.shard", Process::Shard, &section.shard),
        ("up.meta", Process::Meta, &section.meta),
        ("up.router", Process::Router, &section.router),
    ] {
        errors.extend(words(field, process, flags).err().unwrap_or_default());
    }
    for (name, flags) in &section.stores {
        if !stores.contains(name) {
            errors
                .push(format!("up.stores.{name}: no such store runs here; there are {}", stores.join(", ")));
        }
        errors.extend(words(&format!("up.stores.{name}"), Process::Shard, flags).err().unwrap_or_default());
    }
    errors
}

/// Checks whether a shard would accept these words; the first is the subcommand.
///
/// # Errors
/// The shard's own error.
pub fn try_shard(words: &[String]) -> Result<(), String> {
    #[derive(clap::Parser)]
    struct Shard {
        #[command(flatten)]
        shard: ShardCommand,
    }
    let parsed = <Shard as clap::Parser>::try_parse_from(words).map_err(|error| first_line(&error))?;
    kindred_shard::config::Settings::resolve(parsed.shard.args).map(drop).map_err(|error| error.to_string())
}

/// The same for a router.
///
/// # Errors
/// The router's own error.
pub fn try_router(words: &[String]) -> Result<(), String> {
    #[derive(clap::Parser)]
    struct Router {
        #[command(flatten)]
        router: RouterCommand,
    }
    let parsed = <Router as clap::Parser>::try_parse_from(words).map_err(|error| first_line(&error))?;
    parsed.router.args.settings().map(drop).map_err(|error| error.to_string())
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::parse;

    use super::*;

    fn section(text: &str) -> UpConfig {
        parse::parse_object(text).unwrap()
    }

    /// Every flag of a shard or router can be set, unless it is listed as one that only `up` sets.
    #[test]
    fn f40_every_flag_is_given_by_up_or_can_be_given() {
        for process in [Process::Shard, Process::Meta, Process::Router] {
            let command = process.command();
            let all: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
            assert!(command.get_arguments().all(|arg| arg.get_long().is_some()), "each has a name");
            let settable = process.settable();
            for name in &all {
                assert_ne!(settable.iter().any(|one| one == name), process.instead(name).is_some(), "{name}");
            }
        }
        let shard = Process::Shard.settable();
        for flag in [
            "durability",
            "durability-of",
            "flush-interval",
            "checkpoint-bytes",
            "accept-data-loss",
            "quota-backend-bytes",
            "quota",
            "max-request-bytes",
            "max-txn-ops",
            "watch-progress-notify-interval",
            "threads",
        ] {
            assert!(shard.iter().any(|one| one == flag), "{flag}");
        }
        let router = Process::Router.settable();
        for flag in [
            "revision-scope",
            "move-bytes-per-second",
            "reverse-window",
            "feed-ring-bytes",
            "max-request-bytes",
        ] {
            assert!(router.iter().any(|one| one == flag), "{flag}");
        }
        // Every listed flag exists, or is clap's own.
        for (process, own) in [
            (Process::Shard, &OF_SHARDS[..]),
            (Process::Meta, &OF_META[..]),
            (Process::Router, &OF_ROUTERS[..]),
        ] {
            let command = process.command();
            for (name, _) in own.iter().filter(|(name, _)| *name != "help") {
                assert!(command.get_arguments().any(|arg| arg.get_long() == Some(name)), "{name} is no flag");
            }
        }
    }

    #[test]
    fn f40_a_store_has_its_own_flags_above_those_of_all() {
        let section = section(
            "shard: {durability: fsync, durability-of: {events: none, leases: none}, max-txn-ops: 256}\n\
             stores: {pods: {durability: buffered, accept-data-loss: true}, nodes: {accept-data-loss: false}}\n\
             meta: {accept-data-loss: true}\nrouter: {revision-scope: global, reverse-window: 60, enable-distributed-tracing: true}\n",
        );
        assert_eq!(check(&section, &["pods".to_owned(), "nodes".to_owned()]), Errors::default());
        let others = ["--durability=fsync", "--durability-of=events=none,leases=none", "--max-txn-ops=256"];
        assert_eq!(of_shard(&section, "events").unwrap(), others);
        assert_eq!(of_shard(&section, "nodes").unwrap(), others);
        let pods = of_shard(&section, "pods").unwrap();
        assert_eq!(pods[..2], ["--accept-data-loss", "--durability=buffered"]);
        assert_eq!(of_meta(&section).unwrap(), ["--accept-data-loss"]);
        assert_eq!(
            of_router(&section).unwrap(),
            ["--enable-distributed-tracing=true", "--reverse-window=60", "--revision-scope=global"]
        );
    }

    #[test]
    fn f40_what_is_wrong_is_named_by_its_field() {
        let section = section(
            "shard: {durabilty: fsync, slot: 4}\nstores: {pots: {durability: fsync}, pods: {accept-data-loss: 1}}\n\
             meta: {durability: none}\nrouter: {threads: 3, feed-ring-bytes: null}\n",
        );
        let errors = check(&section, &["pods".to_owned()]);
        let fields: Vec<&str> = errors.iter().filter_map(|error| error.split(':').next()).collect();
        assert_eq!(
            fields,
            [
                "up.shard.durabilty",
                "up.shard.slot",
                "up.meta.durability",
                "up.router.feed-ring-bytes",
                "up.router.threads",
                "up.stores.pods.accept-data-loss",
                "up.stores.pots"
            ]
        );
        assert!(errors[0].contains("durability, "), "{}", errors[0]);
        // The process itself validates the values.
        let words = |text: &[&str]| text.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert!(
            try_shard(&words(&["shard", "--durability=fync", "--data-dir=d"])).unwrap_err().contains("fync")
        );
        assert!(try_shard(&words(&["shard", "--max-txn-ops=x"])).unwrap_err().contains("--max-txn-ops"));
        assert!(try_shard(&words(&["shard", "--exit-with-parent", "--data-dir=d"])).is_ok());
        assert!(
            try_router(&words(&["router", "--revision-scope=all"])).unwrap_err().contains("--revision-scope")
        );
        let none = try_router(&words(&["router", "--threads=0", "--meta=http://h:1"])).unwrap_err();
        assert!(none.contains("--threads: 0 threads"), "{none}");
        assert!(try_router(&words(&["router", "--meta=http://h:1", "--meta-cache=f"])).is_ok());
    }
}
