//! The command line of the commands that talk to a router. The doc comments of arguments are the help texts.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use kindred_partition_config::duration::parse_duration;
use kindred_transport::tls::ClientTlsArgs;

use super::backup::args::{BackupArgs, RestoreArgs, Through};

/// The commands of the admin API.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Show objects: partition configs, stores, moves, partitions. Without a type, show the types.
    Get(GetArgs),
    /// Create or update the objects of a file, all or none. Kinds whose store changes are moved while they are in
    /// use.
    Apply(ApplyArgs),
    /// Delete an object. The keys of a deleted config move to the default store while they are in use.
    Delete(DeleteArgs),
    /// Change objects in $EDITOR. A refused change is shown there again with the reasons.
    Edit(EditArgs),
    /// Show what applying a file would move: keys, bytes, time and write pause. Changes nothing.
    Plan(PlanArgs),
    /// Move a Kind to a store while it is in use; or operate on a move: status, reverse, complete, abort.
    #[command(visible_alias = "moves")]
    Move(MoveArgs),
    /// Split a range of a Kind: another store serves the names from a given one on.
    Split(SplitArgs),
    /// Merge ranges of a Kind into one.
    Merge(MergeArgs),
    /// Empty a store: everything that it serves moves to other stores.
    Drain(DrainArgs),
    /// Show the stores, the map, and the moves in progress.
    Status(StatusArgs),
    /// Show Kinds by load, time, size and watches, and stores, as they change.
    Top(TopArgs),
    /// Show the calls of clients as lines of JSON, as they end.
    Trace(TraceArgs),
    /// Say what the load of the stores calls for, with the reason and what is expected of it; on request do it.
    Advise(AdviseArgs),
    /// Add, replace, remove or list stores.
    Store(StoreArgs),
    /// Show the version of this program, its commit and compiler; with --router also a router's and its stores'.
    Version(VersionArgs),
    /// Compare the map with what the stores own and show the differences; repair them with --apply. For a meta
    /// store that has lost data.
    Reconcile(ReconcileArgs),
    /// Write all keys at one revision to a folder; or verify an existing backup.
    Backup(BackupArgs),
    /// Restore keys of a backup to a running cluster: all, one Kind, or one namespace.
    Restore(RestoreArgs),
    /// Show the number of keys, the bytes and a hash of each Kind at one revision. Equal keys and values have equal
    /// hashes.
    Verify(Through),
}

/// Where a router's admin port is, and how to authenticate there.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub struct Connect {
    /// URL of a router's admin port, http://HOST:PORT. Several may be given, comma-separated; the first that
    /// answers is used [env: KINDRED_ADMIN; then the context file; then http://127.0.0.1:2381].
    #[arg(long, value_name = "URL[,URL]")]
    pub admin: Option<String>,
    /// A named context of the context file [env: KINDRED_CONFIG, or ~/.config/kindred/config.yaml].
    #[arg(long, value_name = "NAME", conflicts_with = "admin")]
    pub context: Option<String>,
    /// TLS for an https:// admin port.
    #[command(flatten)]
    pub tls: ClientTlsArgs,
    /// File whose first word is a token for the admin port [env: KINDRED_TOKEN_FILE; the TLS files also have
    /// KINDRED_CACERT, KINDRED_CERT and KINDRED_KEY].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl Connect {
    /// These options, completed with those given before the command.
    #[must_use]
    pub fn over(&self, outer: &Self) -> Self {
        let named = self.admin.is_some() || self.context.is_some();
        let where_to = if named { self } else { outer };
        let tls = &self.tls;
        Self {
            admin: where_to.admin.clone(),
            context: where_to.context.clone(),
            tls: ClientTlsArgs {
                cacert: tls.cacert.clone().or_else(|| outer.tls.cacert.clone()),
                cert: tls.cert.clone().or_else(|| outer.tls.cert.clone()),
                key: tls.key.clone().or_else(|| outer.tls.key.clone()),
                insecure_skip_tls_verify: tls.insecure_skip_tls_verify || outer.tls.insecure_skip_tls_verify,
            },
            token_file: self.token_file.clone().or_else(|| outer.token_file.clone()),
        }
    }

    /// Whether no option was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let tls = &self.tls;
        self.admin.is_none()
            && self.context.is_none()
            && tls.cacert.is_none()
            && tls.cert.is_none()
            && tls.key.is_none()
            && !tls.insecure_skip_tls_verify
            && self.token_file.is_none()
    }
}

/// The output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Columns, like kubectl.
    #[default]
    Table,
    /// JSON, as in the API.
    Json,
    /// YAML, as `apply` reads it.
    Yaml,
}

/// A type of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resource {
    /// The stores that serve each Kind or range of a Kind.
    #[value(name = "datapartitionconfigs", aliases = ["datapartitionconfig", "dpc", "configs", "config"])]
    Configs,
    /// Stores.
    #[value(name = "servicegroups", aliases = ["servicegroup", "sg", "stores", "store"])]
    Groups,
    /// Moves, including finished ones.
    #[value(name = "moves", aliases = ["move"])]
    Moves,
    /// The map in use: every key range with its store.
    #[value(name = "partitions", aliases = ["partition", "map"])]
    Partitions,
}

impl Resource {
    /// The name in the API's paths.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Configs => "datapartitionconfigs",
            Self::Groups => "servicegroups",
            Self::Moves => "moves",
            Self::Partitions => "partitions",
        }
    }
}

/// How a change is made.
#[derive(Debug, Clone, Default, Args)]
pub struct Run {
    /// Only show what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// Return when the moves have begun, before they have switched.
    #[arg(long, conflicts_with = "dry_run")]
    pub no_wait: bool,
    /// Let moves to a stock etcd delete the keys that it has where they go and that kindred has not put there.
    #[arg(long)]
    pub delete_its_keys: bool,
    /// How long to wait, as 90s, 10m or 1h; then exit with 5, and the move goes on [default: as long as it takes].
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "no_wait")]
    pub timeout: Option<Duration>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// The type of the objects; all types are listed unless given.
    #[arg(value_enum)]
    pub resource: Option<Resource>,
    /// The name of one object; all unless given.
    pub name: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// YAML or JSON file with objects (several documents, or a List), or with a whole configuration as for `kindred
    /// up --config`; `-` is standard input.
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// How the change is made.
    #[command(flatten)]
    pub run: Run,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Type of the object: datapartitionconfigs or servicegroups.
    #[arg(value_enum)]
    pub resource: Resource,
    /// The object's name.
    pub name: String,
    /// How the change is made.
    #[command(flatten)]
    pub run: Run,
}

#[derive(Debug, Args)]
pub struct EditArgs {
    /// Type of the objects: datapartitionconfigs or servicegroups.
    #[arg(value_enum)]
    pub resource: Resource,
    /// The object's name; all in one file unless given.
    pub name: Option<String>,
    /// How the change is made.
    #[command(flatten)]
    pub run: Run,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// File as for `apply`.
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct MoveArgs {
    /// Operations on a move that has begun.
    #[command(subcommand)]
    pub existing: Option<Existing>,
    /// The Kind: pods, leases.coordination.k8s.io, or the prefix of its keys.
    #[arg(required = true)]
    pub kind: Option<String>,
    /// The store that will serve the Kind.
    #[arg(long, value_name = "STORE", required = true)]
    pub to: Option<String>,
    /// Copy and compare, follow all changes, and switch only when `kindred move switch` says so. Returns when it could.
    #[arg(long)]
    pub hold: bool,
    /// How the change is made.
    #[command(flatten)]
    pub run: Run,
}

/// The operations on a move that has begun.
#[derive(Debug, Subcommand)]
pub enum Existing {
    /// How far moves are.
    Status(MoveStatusArgs),
    /// Switch back to the old store; as live as the way there. A move that is being aborted goes on instead.
    Reverse(OfMove),
    /// Complete a move: the old store drops its copy, and there is no way back.
    Complete(OfMove),
    /// Give up a move that has not switched yet, or the reversal of one.
    Abort(OfMove),
    /// Switch a move that was begun with --hold.
    Switch(OfMove),
}

impl Existing {
    /// Whom to ask.
    #[must_use]
    pub fn connect(&self) -> &Connect {
        match self {
            Self::Status(args) => &args.connect,
            Self::Reverse(of) | Self::Complete(of) | Self::Abort(of) | Self::Switch(of) => &of.run.connect,
        }
    }
}

/// `kindred move status`.
#[derive(Debug, Args)]
pub struct MoveStatusArgs {
    /// Its number; all unless given.
    pub id: Option<u64>,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// A move.
#[derive(Debug, Args)]
pub struct OfMove {
    /// The move's number; optional if there is only one move in progress.
    pub id: Option<u64>,
    /// How the operation is made.
    #[command(flatten)]
    pub run: Run,
}

#[derive(Debug, Args)]
pub struct SplitArgs {
    /// The Kind.
    pub kind: String,
    /// The first name of the new range: NAMESPACE/NAME, or NAME.
    #[arg(long, value_name = "NAME")]
    pub at: String,
    /// The store that will serve the new range.
    #[arg(long, value_name = "STORE")]
    pub to: String,
    /// How the change is made.
    #[command(flatten)]
    pub run: Run,
}

#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The Kind.
    pub kind: String,
    /// Merge only the two ranges that meet at this name [default: all ranges of the Kind].
    #[arg(long, value_name = "NAME")]
    pub at: Option<String>,
    /// The store that will serve the merged range [default: the store of the first range].
    #[arg(long, value_name = "STORE")]
    pub to: Option<String>,
    /// How the change is made.
    #[command(flatten)]
    pub run: Run,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The store to empty.
    pub store: String,
    /// The store for everything that no ring takes over [default: the default store].
    #[arg(long, value_name = "STORE")]
    pub to: Option<String>,
    /// How the change is made.
    #[command(flatten)]
    pub run: Run,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Also ask this router's admin port, or without a URL the one that other commands ask.
    #[arg(long, value_name = "URL")]
    #[expect(clippy::option_option, reason = "clap's form of a flag with an optional value")]
    pub router: Option<Option<String>>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// Repair the differences. The only copy of any data is never dropped.
    #[arg(long)]
    pub apply: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct StoreArgs {
    /// The operation.
    #[command(subcommand)]
    pub command: StoreCommand,
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Add a store; with --local, `kindred up` starts its process.
    Add(StoreAdd),
    /// Replace a store that is lost with all its data by a new, empty one.
    Replace(StoreReplace),
    /// Remove a store that owns no keys.
    Remove(StoreRemove),
    /// Add or remove a standby: a shard that has everything of the store, and takes over when its primary is lost.
    #[command(subcommand)]
    Standby(StandbyCommand),
    /// Let a standby serve the store in place of its primary.
    Failover(Failover),
    /// Show the stores (the same as `get servicegroups`).
    List(StatusArgs),
}

impl StoreCommand {
    /// The router to ask.
    #[must_use]
    pub fn connect(&self) -> &Connect {
        match self {
            Self::Add(args) => &args.connect,
            Self::Replace(args) => &args.connect,
            Self::Remove(args) => &args.connect,
            Self::Standby(StandbyCommand::Add(args)) => &args.connect,
            Self::Standby(StandbyCommand::Remove(args)) => &args.connect,
            Self::Failover(args) => &args.connect,
            Self::List(args) => &args.connect,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum StandbyCommand {
    /// Add a standby: a shard that was started with --standby-of.
    Add(StandbyAdd),
    /// Remove a standby. The primary no longer waits for it.
    Remove(StandbyRemove),
}

#[derive(Debug, Args)]
pub struct StandbyAdd {
    /// The store's name.
    pub name: String,
    /// The address of the standby.
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// Whether the primary waits for its standbys [default: as it is, at first sync].
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// What happens when a standby is lost [default: as it is, at first alone].
    #[arg(long, value_enum)]
    pub on_loss: Option<Loss>,
    /// Do not wait until the standby has everything.
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait, as 90s or 10m; then exit with 5, and the routers go on.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s", conflicts_with = "no_wait")]
    pub timeout: Duration,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Nothing is acknowledged before every standby has it.
    Sync,
    /// The primary waits for nobody; a standby takes over only by force.
    Async,
}

impl Mode {
    /// The mode's name in a configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Loss {
    /// The primary continues without the standby.
    Alone,
    /// The primary acknowledges nothing until the standby is back or removed.
    Wait,
}

impl Loss {
    /// The name in a configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Wait => "wait",
        }
    }
}

#[derive(Debug, Args)]
pub struct StandbyRemove {
    /// The store's name.
    pub name: String,
    /// The address of the standby [default: the only one].
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct Failover {
    /// The store's name.
    pub name: String,
    /// The address of the standby that is to serve [default: one that is in sync].
    #[arg(long, value_name = "URL")]
    pub to: Option<String>,
    /// Assert that the primary's process is dead and stays so. The standby may lack the last changes, and opens after
    /// about 20 s.
    #[arg(long)]
    pub force: bool,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct StoreAdd {
    /// The store's name.
    pub name: String,
    /// The store is a shard process that `kindred up` starts.
    #[arg(long, conflicts_with = "endpoint", required_unless_present = "endpoint")]
    pub local: bool,
    /// The store's address; a stock etcd may have several.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    pub endpoint: Vec<String>,
    /// The store is a stock etcd, not a shard.
    #[arg(long, requires = "endpoint", conflicts_with = "local")]
    pub etcd: bool,
    /// Do not wait until the store can be reached.
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait, as 90s or 10m; then exit with 5, and the store stays added.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s", conflicts_with = "no_wait")]
    pub timeout: Duration,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct StoreReplace {
    /// The lost store; the new one gets its name.
    pub name: String,
    /// The new store is a shard process that `kindred up` starts.
    #[arg(long, conflicts_with = "endpoint", required_unless_present = "endpoint")]
    pub local: bool,
    /// The address of the new store. Start it with its new slot and --in-cluster.
    #[arg(long, value_name = "URL")]
    pub endpoint: Vec<String>,
    /// Assert that the lost store's process is dead and stays so; required.
    #[arg(long)]
    pub force: bool,
    /// Only show what would be changed.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not wait until the new store has opened.
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait, as 90s or 10m; then exit with 5, and the store stays replaced.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s", conflicts_with = "no_wait")]
    pub timeout: Duration,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct StoreRemove {
    /// The store's name.
    pub name: String,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// The column by which Kinds are sorted, the largest number first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Calls per second.
    Calls,
    /// Failed calls per second.
    Errors,
    /// The mean time of a call.
    Time,
    /// Bytes of requests, answers and events per second.
    Traffic,
    /// Bytes in the stores, history included.
    Size,
    /// Live keys.
    Keys,
    /// Open watches.
    Watches,
}

#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// Sort Kinds by this column.
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = Order::Calls)]
    pub sort: Order,
    /// Print one table and end, as without a terminal.
    #[arg(long)]
    pub once: bool,
    /// The router to ask; numbers of calls are of its own clients.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Clone, Args)]
pub struct AdviseArgs {
    /// How long to look at the load; with --auto, how often.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Relieve shards that use more of a core than this; the engine of a shard is one thread.
    #[arg(long, value_name = "PART", default_value_t = 0.6, value_parser = part)]
    pub cores: f64,
    /// Relieve stores that use more of their quota than this.
    #[arg(long, value_name = "PART", default_value_t = 0.8, value_parser = part)]
    pub room: f64,
    /// Do the first of it that a router can do, and wait for its moves.
    #[arg(long, conflicts_with_all = ["auto", "output"])]
    pub apply: bool,
    /// Go on looking, and do what was found in several looks in a row, one change at a time. Each decision is a line.
    #[arg(long, conflicts_with = "output")]
    pub auto: bool,
    /// Show what --auto and --apply have decided, the newest first, from the routers' list of the last 200.
    #[arg(long, conflicts_with_all = ["auto", "apply"])]
    pub history: bool,
    /// With --auto: so many looks in a row must find the same.
    #[arg(long, value_name = "N", default_value_t = 6, requires = "auto", value_parser = clap::value_parser!(u32).range(1..))]
    pub looks: u32,
    /// With --auto: at most so many changes in 24 hours.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "auto")]
    pub changes_per_day: u32,
    /// With --auto: change nothing in these hours (UTC), such as 08:00-20:00.
    #[arg(long, value_name = "FROM-TO", requires = "auto")]
    pub quiet_hours: Option<String>,
    /// With --auto: make no move for which writes would wait longer than this.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration, requires = "auto")]
    pub pause_max: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The router to ask; traffic is that of its own clients.
    #[command(flatten)]
    pub connect: Connect,
}

/// A part of a whole, above 0.
fn part(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is no number above 0 and at most 64, such as 0.6");
    let part: f64 = text.parse().map_err(|_| wrong())?;
    if part > 0.0 && part <= 64.0 { Ok(part) } else { Err(wrong()) }
}

#[derive(Debug, Clone, Default, Args)]
pub struct TraceArgs {
    /// Only calls of this Kind, as `kindred get kinds` names it; `<all else>` for keys of no Kind.
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Only calls of this client: the common name of its certificate, or its address.
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
    /// Only calls with this verb: get, list, count, create, update, delete, put, txn,
    /// watch or lease.
    #[arg(long, value_name = "VERB")]
    pub verb: Option<String>,
    /// Only calls whose key begins with this.
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<String>,
    /// Only calls that took so long or longer.
    #[arg(long, value_name = "MILLISECONDS")]
    pub min_millis: Option<u64>,
    /// Only calls that did not end with OK.
    #[arg(long)]
    pub errors: bool,
    /// One of so many matching calls.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub sample: Option<u64>,
    /// End after so many seconds [default: when it is interrupted].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// Show each request whole, in hexadecimal: with its values, such as secrets. Needs the role admin.
    #[arg(long)]
    pub values: bool,
    /// The router to ask; each traces its own clients.
    #[command(flatten)]
    pub connect: Connect,
}
