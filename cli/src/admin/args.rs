//! The command line of the commands that talk to a router.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use kindred_transport::tls::ClientTlsArgs;

use super::backup::args::{BackupArgs, RestoreArgs, Through};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Show objects: partition configs, stores, moves, partitions.
    Get(GetArgs),
    /// Create or update the objects of a file, all or none; Kinds whose store changes are moved, live.
    Apply(ApplyArgs),
    /// Delete an object; what a config held goes to the default store, live.
    Delete(DeleteArgs),
    /// Change objects in $EDITOR; what is refused is shown there again with the reasons.
    Edit(EditArgs),
    /// Say what applying a file would move: keys, bytes, time and write pause. Changes nothing.
    Plan(PlanArgs),
    /// Move a Kind to a store while it is used; or ask of a move: status, reverse, complete, abort.
    #[command(visible_alias = "moves")]
    Move(MoveArgs),
    /// Give the names of a Kind from a name on to another store.
    Split(SplitArgs),
    /// Make ranges of a Kind one again.
    Merge(MergeArgs),
    /// Empty a store: all that it serves goes elsewhere.
    Drain(DrainArgs),
    /// Show stores, who serves what, and the moves under way.
    Status(StatusArgs),
    /// Add or remove stores.
    Store(StoreArgs),
    /// Compare the map with what the stores own, say what differs, and with --apply repair it: for a meta store that has lost
    /// data.
    Reconcile(ReconcileArgs),
    /// Write all keys, as they are at one revision, to a folder; or verify one that was written.
    Backup(BackupArgs),
    /// Put keys of a backup back into a running cluster: all, one Kind, or one namespace.
    Restore(RestoreArgs),
    /// Show keys, bytes and a hash of each Kind, as all is at one revision: equal where keys and values are.
    Verify(Through),
}

/// Where a router's admin port is.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub struct Connect {
    /// Admin port of a router, as http://HOST:PORT; of several, comma-separated, the first that answers
    /// [env: KINDRED_ADMIN; then the context file; then http://127.0.0.1:2381].
    #[arg(long, value_name = "URL[,URL]")]
    pub admin: Option<String>,
    /// A context of the context file [env: KINDRED_CONFIG, or ~/.config/kindred/config.yaml].
    #[arg(long, value_name = "NAME", conflicts_with = "admin")]
    pub context: Option<String>,
    /// TLS towards an https:// admin port.
    #[command(flatten)]
    pub tls: ClientTlsArgs,
    /// File with a token for the admin port (the first word in it) [env: KINDRED_TOKEN_FILE; those of TLS are KINDRED_CACERT,
    /// KINDRED_CERT and KINDRED_KEY].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl Connect {
    /// These, and where they say nothing, those that stand before the command.
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

    /// Whether nothing was given.
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

/// How to print.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Columns.
    #[default]
    Table,
    /// JSON, as the API has it.
    Json,
    /// YAML, as `apply` reads it.
    Yaml,
}

/// What there are objects of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resource {
    /// Who serves which Kind, or range of a Kind.
    #[value(name = "datapartitionconfigs", aliases = ["datapartitionconfig", "dpc", "configs", "config"])]
    Configs,
    /// Stores.
    #[value(name = "servicegroups", aliases = ["servicegroup", "sg", "stores", "store"])]
    Groups,
    /// Moves, over ones included.
    #[value(name = "moves", aliases = ["move"])]
    Moves,
    /// The map in use: every range of keys with its store.
    #[value(name = "partitions", aliases = ["partition", "map"])]
    Partitions,
}

impl Resource {
    /// As in paths of the API.
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
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// Return as soon as the moves have begun, not when they have switched.
    #[arg(long, conflicts_with = "dry_run")]
    pub no_wait: bool,
    /// How long to wait, as 90s, 10m or 1h; then exit with 5, and the move goes on [default: as long as it takes].
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "no_wait")]
    pub timeout: Option<Duration>,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// `kindred get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// What.
    #[arg(value_enum)]
    pub resource: Resource,
    /// Which; all unless given.
    pub name: Option<String>,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// `kindred apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// YAML or JSON: objects (several documents, or a List), or a whole configuration as `kindred up --config` reads it;
    /// `-` is standard input.
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// How.
    #[command(flatten)]
    pub run: Run,
}

/// `kindred delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// datapartitionconfigs or servicegroups.
    #[arg(value_enum)]
    pub resource: Resource,
    /// Which.
    pub name: String,
    /// How.
    #[command(flatten)]
    pub run: Run,
}

/// `kindred edit`.
#[derive(Debug, Args)]
pub struct EditArgs {
    /// datapartitionconfigs or servicegroups.
    #[arg(value_enum)]
    pub resource: Resource,
    /// Which; all in one file unless given.
    pub name: Option<String>,
    /// How.
    #[command(flatten)]
    pub run: Run,
}

/// `kindred plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// As for `apply`.
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// `kindred move`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct MoveArgs {
    /// Of a move that was begun.
    #[command(subcommand)]
    pub existing: Option<Existing>,
    /// The Kind: pods, leases.coordination.k8s.io, or the prefix of its keys.
    #[arg(required = true)]
    pub kind: Option<String>,
    /// The store that is to serve it.
    #[arg(long, value_name = "STORE", required = true)]
    pub to: Option<String>,
    /// How.
    #[command(flatten)]
    pub run: Run,
}

/// `kindred move status` and so on.
#[derive(Debug, Subcommand)]
pub enum Existing {
    /// How far moves are.
    Status(OfMove),
    /// Switch back to the old store; as live as the way there. A move that is being aborted goes on instead.
    Reverse(OfMove),
    /// Close the way back: the old store drops its copy.
    Complete(OfMove),
    /// Give a move up that has not switched yet, or the way back of one that is being reversed.
    Abort(OfMove),
}

impl Existing {
    /// What was given.
    #[must_use]
    pub fn of(&self) -> &OfMove {
        match self {
            Self::Status(of) | Self::Reverse(of) | Self::Complete(of) | Self::Abort(of) => of,
        }
    }

    /// Whom to ask.
    #[must_use]
    pub fn connect(&self) -> &Connect {
        &self.of().run.connect
    }
}

/// A move.
#[derive(Debug, Args)]
pub struct OfMove {
    /// Its number; may be left out while no other move is under way.
    pub id: Option<u64>,
    /// How.
    #[command(flatten)]
    pub run: Run,
}

/// `kindred split`.
#[derive(Debug, Args)]
pub struct SplitArgs {
    /// The Kind.
    pub kind: String,
    /// The first name of the new range: NAMESPACE/NAME, or NAME.
    #[arg(long, value_name = "NAME")]
    pub at: String,
    /// The store that is to serve it.
    #[arg(long, value_name = "STORE")]
    pub to: String,
    /// How.
    #[command(flatten)]
    pub run: Run,
}

/// `kindred merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The Kind.
    pub kind: String,
    /// Only the two ranges that meet at this name; all of the Kind unless given.
    #[arg(long, value_name = "NAME")]
    pub at: Option<String>,
    /// The store that is to serve them; that of the first one unless given.
    #[arg(long, value_name = "STORE")]
    pub to: Option<String>,
    /// How.
    #[command(flatten)]
    pub run: Run,
}

/// `kindred drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The store.
    pub store: String,
    /// Where all goes that no ring takes; the default store unless given.
    #[arg(long, value_name = "STORE")]
    pub to: Option<String>,
    /// How.
    #[command(flatten)]
    pub run: Run,
}

/// `kindred status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// `kindred reconcile`.
#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// Repair it. The only copy of anything is never dropped.
    #[arg(long)]
    pub apply: bool,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// `kindred store`.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// `kindred store add` and so on.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Make a store known; with --local `kindred up` starts its process.
    Add(StoreAdd),
    /// Put a new, empty store in the place of one that is lost with all that it held.
    Replace(StoreReplace),
    /// Forget a store that owns nothing any more.
    Remove(StoreRemove),
    /// Show the stores (the same as `get servicegroups`).
    List(StatusArgs),
}

impl StoreCommand {
    /// Whom to ask.
    #[must_use]
    pub fn connect(&self) -> &Connect {
        match self {
            Self::Add(args) => &args.connect,
            Self::Replace(args) => &args.connect,
            Self::Remove(args) => &args.connect,
            Self::List(args) => &args.connect,
        }
    }
}

/// `kindred store add`.
#[derive(Debug, Args)]
pub struct StoreAdd {
    /// Its name.
    pub name: String,
    /// A shard process of `kindred up`, started by it.
    #[arg(long, conflicts_with = "endpoint", required_unless_present = "endpoint")]
    pub local: bool,
    /// Where it listens; several of a stock etcd.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    pub endpoint: Vec<String>,
    /// It is a stock etcd, not a shard.
    #[arg(long, requires = "endpoint", conflicts_with = "local")]
    pub etcd: bool,
    /// Do not wait until it can be reached.
    #[arg(long)]
    pub no_wait: bool,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// `kindred store replace`.
#[derive(Debug, Args)]
pub struct StoreReplace {
    /// The store that is lost; the new one gets its name.
    pub name: String,
    /// The new one is a shard process of `kindred up`, started by it.
    #[arg(long, conflicts_with = "endpoint", required_unless_present = "endpoint")]
    pub local: bool,
    /// Where the new one listens. Start it with its new slot and --in-cluster.
    #[arg(long, value_name = "URL")]
    pub endpoint: Vec<String>,
    /// The lost one's process is dead and stays so. Without this it is refused.
    #[arg(long)]
    pub force: bool,
    /// Say what it would change.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not wait until it has opened.
    #[arg(long)]
    pub no_wait: bool,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// `kindred store remove`.
#[derive(Debug, Args)]
pub struct StoreRemove {
    /// Its name.
    pub name: String,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write 90s, 10m or 1h");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}
