//! Three shards and two routers. Two of the shards are a ring with three Kinds, and the third one has three other
//! Kinds. Each of the two groups has a Kind of each mode.

use std::path::Path;

use anyhow::ensure;
use kindred_partition_config::{map::PartitionMap, parse::parse_config, validate::validate};
use kindred_tests::{
    client::Client,
    process::{Process, Spec},
    servers::Shard,
};

const CLUSTER: &str = "--cluster-id=0xc4a5";
/// The shards in the order of their slots, which begin at 1.
pub const STORES: [&str; 3] = ["a", "b", "c"];
const ROUTERS: usize = 2;

/// The modes, ordered from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    None,
    Buffered,
    Fsync,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::None, Self::Buffered, Self::Fsync];

    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Buffered => "buffered",
            Self::Fsync => "fsync",
        }
    }
}

/// A Kind of the test.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub resource: &'static str,
    pub prefix: &'static str,
    pub mode: Mode,
    /// Whether the Kind is on the ring of the first two shards. Otherwise it is on the third.
    pub spread: bool,
    /// If set, the mode of the Kind changes repeatedly, and its results are counted separately under this word.
    pub changes: Option<&'static str>,
}

impl Kind {
    pub const fn new(resource: &'static str, prefix: &'static str, mode: Mode, spread: bool) -> Self {
        Self { resource, prefix, mode, spread, changes: None }
    }

    /// The first key after those of the Kind.
    pub fn end(&self) -> String {
        format!("{}0", self.prefix.trim_end_matches('/'))
    }
}

/// A Kind of each mode on two shards, and one of each on a single shard.
pub const KINDS: [Kind; 6] = [
    Kind::new("pods", "/registry/pods/", Mode::Buffered, true),
    Kind::new("nodes", "/registry/minions/", Mode::Fsync, true),
    Kind::new("leases", "/registry/leases/", Mode::None, true),
    Kind::new("configmaps", "/registry/configmaps/", Mode::Buffered, false),
    Kind::new("secrets", "/registry/secrets/", Mode::Fsync, false),
    Kind::new("events", "/registry/events/", Mode::None, false),
];

pub struct Cluster {
    pub stores: Vec<Shard>,
    routers: Vec<Process>,
    /// The addresses of the routers.
    pub addresses: Vec<String>,
    pub map: PartitionMap,
}

impl Cluster {
    pub async fn start(dir: &Path, kinds: &[Kind]) -> anyhow::Result<Self> {
        let text = config(kinds);
        let file = dir.join("crash.yaml");
        std::fs::write(&file, &text)?;
        let valid = validate(&parse_config(&text)?);
        let map = valid.map_err(|errors| anyhow::anyhow!("the configuration: {errors:?}"))?.map;
        let mut stores = Vec::new();
        for (slot, name) in (1..).zip(STORES) {
            let mut flags = vec![format!("--name={name}"), format!("--slot={slot}"), CLUSTER.to_owned()];
            // The modes that routers send must override this flag.
            flags.push("--durability=buffered".to_owned());
            stores.push(Shard::start(dir, name, &flags).await?);
        }
        let (mut routers, mut addresses) = (Vec::new(), Vec::new());
        for number in 0..ROUTERS {
            let mut args = vec![
                "--listen=127.0.0.1:0".to_owned(),
                "--admin=127.0.0.1:0".to_owned(),
                format!("--name=router{number}"),
                format!("--config={}", file.display()),
                CLUSTER.to_owned(),
            ];
            let shards = STORES.iter().zip(&stores);
            args.extend(shards.map(|(name, shard)| format!("--store={name}=http://{}", shard.address)));
            let spec = Spec::router(&format!("router{number}"), args)?;
            let process = Process::start(dir, spec).await?;
            addresses.push(process.ready_field("listen")?.trim_start_matches("http://").to_owned());
            routers.push(process);
        }
        Ok(Self { stores, routers, addresses, map })
    }

    /// A client of a router.
    pub fn client(&self, router: usize) -> anyhow::Result<Client> {
        Client::lazy(&self.addresses[router])
    }

    /// The index of the shard that has a key.
    pub fn store_of(&self, key: &str) -> usize {
        usize::from(self.map.store_of(key.as_bytes()).0)
    }

    /// Fails if a router has ended, as no test ends one.
    pub fn routers_run(&mut self) -> anyhow::Result<()> {
        for router in &mut self.routers {
            ensure!(router.is_running()?, "a router has ended");
        }
        Ok(())
    }
}

fn config(kinds: &[Kind]) -> String {
    let mut text = "default: c\nstores:\n".to_owned();
    for (slot, name) in (1..).zip(STORES) {
        text += &format!("- {{name: {name}, slot: {slot}}}\n");
    }
    text += "partitions:\n";
    for Kind { resource, mode, spread, .. } in kinds {
        let at = if *spread { "ring: {stores: [a, b]}" } else { "serviceGroupId: c" };
        let mode = mode.word();
        text += &format!(
            "- {{metadata: {{name: {resource}}}, resource: {resource}, {at}, durability: {mode}}}\n"
        );
    }
    text
}
