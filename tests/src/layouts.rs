//! The list of layouts that the suites run over: where the keys of a suite's Kinds are, in which processes, and behind how
//! many routers. A suite names its Kinds, and gets each layout of them.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use anyhow::ensure;
use kindred_partition_config::parse::{DEFAULT_CONFIG, parse_config};
use serde_json::{Value, json};

use crate::servers::{Etcd, Shard, Up};

/// A Kind of a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its name in the configuration.
    pub resource: &'static str,
    /// The names at which its second and its third range begin.
    pub cuts: [&'static str; 2],
}

/// Where the keys of a suite's Kinds are. All other keys are on the store `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// On a real etcd, without kindred: the control of a suite.
    Etcd,
    /// On a shard without a router.
    Shard,
    /// The same with revisions that count as etcd's do.
    Dense,
    /// Where the embedded configuration has them.
    Default,
    /// On the store `a`.
    Whole,
    /// In three ranges of names, on `a`, `b` and `c`.
    Ranges,
    /// On a ring of four stores.
    Ring,
    /// On `a`, which is a stock etcd.
    Stock,
    /// In three ranges, whose stores are in the process of the first router.
    Together,
    /// On `a`, and each store has a standby.
    Standbys,
}

/// A layout, and the number of routers that its clients use in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub layout: Layout,
    /// None without kindred's routers.
    pub routers: usize,
}

impl Layout {
    /// The layouts with routers.
    pub const ROUTED: [Self; 7] =
        [Self::Default, Self::Whole, Self::Ranges, Self::Ring, Self::Stock, Self::Together, Self::Standbys];

    const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Shard => "shard alone, revisions as times",
            Self::Dense => "shard alone",
            Self::Default => "embedded configuration",
            Self::Whole => "whole on one store",
            Self::Ranges => "three ranges of names",
            Self::Ring => "ring of four stores",
            Self::Stock => "on a stock etcd",
            Self::Together => "three ranges, together",
            Self::Standbys => "whole, with standbys",
        }
    }

    /// Whether each Kind is on several stores.
    #[must_use]
    pub const fn is_spread(self) -> bool {
        matches!(self, Self::Ranges | Self::Ring | Self::Together)
    }

    /// This layout behind so many routers.
    #[must_use]
    pub const fn behind(self, routers: usize) -> Place {
        Place { layout: self, routers }
    }

    /// The stores beside the default one, which have the slots from 2 on.
    const fn stores(self) -> &'static [&'static str] {
        match self {
            Self::Etcd | Self::Shard | Self::Dense | Self::Default => &[],
            // A Kind may move to the second.
            Self::Whole | Self::Standbys => &["a", "b"],
            Self::Ranges | Self::Together => &["a", "b", "c"],
            Self::Ring => &["a", "b", "c", "d"],
            Self::Stock => &["a"],
        }
    }

    /// The configuration that lays Kinds out so. The etcd of the layout `Stock` has an address that nobody listens at.
    ///
    /// # Errors
    /// If the layout has none, as it has no router.
    pub fn config(self, kinds: &[Kind]) -> anyhow::Result<Value> {
        let stores = self.stores();
        if self == Self::Default {
            return Ok(serde_json::to_value(parse_config(DEFAULT_CONFIG)?)?);
        }
        ensure!(!stores.is_empty(), "{self} has no configuration");
        let listed = ["default"].iter().chain(stores).zip(1..);
        let mut listed: Vec<_> = listed.map(|(name, slot)| json!({ "name": name, "slot": slot })).collect();
        if self == Self::Stock {
            listed[1]["type"] = json!("etcd");
            listed[1]["endpoints"] = json!([NOBODY]);
        }
        let partitions: Vec<_> = kinds.iter().flat_map(|kind| self.partitions(*kind)).collect();
        Ok(json!({ "default": "default", "stores": listed, "partitions": partitions }))
    }

    fn partitions(self, kind: Kind) -> Vec<Value> {
        let Kind { resource, cuts: [first, second] } = kind;
        let part = |name: &str, placed: Value| {
            let mut part =
                json!({ "metadata": { "name": format!("{resource}{name}") }, "resource": resource });
            part.as_object_mut().expect("an object").extend(placed.as_object().cloned().unwrap_or_default());
            part
        };
        let on = |store: &str, from: Option<&str>, to: Option<&str>| {
            let mut placed = json!({ "serviceGroupId": store });
            for (field, valid, name) in
                [("rangeStart", "isRangeStartValid", from), ("rangeEnd", "isRangeEndValid", to)]
            {
                if let Some(name) = name {
                    placed[field] = json!(name);
                    placed[valid] = json!(true);
                }
            }
            placed
        };
        if self == Self::Ring {
            return vec![part("", json!({ "ring": { "stores": self.stores() } }))];
        }
        if !self.is_spread() {
            return vec![part("", on("a", None, None))];
        }
        let ends = [None, Some(first), Some(second), None];
        let placed = self.stores().iter().zip(ends.windows(2));
        placed.map(|(store, ends)| part(&format!("-{store}"), on(store, ends[0], ends[1]))).collect()
    }
}

/// An address for a configuration that is only read.
const NOBODY: &str = "http://127.0.0.1:1";

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.routers {
            0 => write!(f, "{}", self.layout),
            1 => write!(f, "{}, one router", self.layout),
            routers => write!(f, "{}, {routers} routers", self.layout),
        }
    }
}

/// What a suite wants of the servers of each place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    pub kinds: &'a [Kind],
    /// How often idle watches are told the current revision, as in `1s`.
    pub progress: Option<&'a str>,
    /// Sections of the configuration, such as `up`, for layouts that have one.
    pub sections: Option<&'a Value>,
    /// More flags of `kindred up`.
    pub flags: &'a [&'a str],
}

impl Place {
    pub const ETCD: Self = Layout::Etcd.behind(0);

    /// All places but etcd: shards alone, and each layout behind one router and behind two.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let routed = Layout::ROUTED.iter().flat_map(|layout| [1, 2].map(|routers| layout.behind(routers)));
        [Layout::Shard, Layout::Dense].map(|layout| layout.behind(0)).into_iter().chain(routed).collect()
    }

    /// Starts the servers. Their logs are in `dir`, and their data in folders of it that are removed behind them: the log of
    /// one etcd takes 128 MiB.
    ///
    /// # Errors
    /// If one of them does not start.
    pub async fn start(self, dir: &Path, wanted: Wanted<'_>) -> anyhow::Result<Servers> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Relaxed);
        let (name, stock) = (format!("server{number}"), format!("stock{number}"));
        let data = Data(vec![dir.join(&name), dir.join(&stock)]);
        let progress = wanted.progress.map(|every| format!("--watch-progress-notify-interval={every}"));
        let of_etcd: Vec<&str> = progress.iter().map(String::as_str).collect();
        match self.layout {
            Layout::Etcd => {
                let etcd = Etcd::start_with(dir, &name, &of_etcd).await?;
                let addresses = vec![etcd.address.clone()];
                Ok(Servers { addresses, place: self, running: Running::Etcd(etcd), data })
            }
            Layout::Shard | Layout::Dense => {
                let revisions = if self.layout == Layout::Dense { "dense" } else { "hlc" };
                let flags = [format!("--revisions={revisions}")].into_iter().chain(progress);
                let shard = Shard::start(dir, &name, &flags.collect::<Vec<_>>()).await?;
                let addresses = vec![shard.address.clone()];
                Ok(Servers { addresses, place: self, running: Running::Shard(shard), data })
            }
            _ => {
                let behind = match self.layout {
                    Layout::Stock => Some(Etcd::start_with(dir, &stock, &of_etcd).await?),
                    _ => None,
                };
                let flags = self.flags(dir, &name, behind.as_ref(), wanted)?;
                let up = Up::start(dir, &name, &flags).await?;
                let addresses = up.addresses("listen")?;
                Ok(Servers { addresses, place: self, running: Running::Up(Box::new(up), behind), data })
            }
        }
    }

    /// The flags of `kindred up`, and its configuration in a file.
    fn flags(
        self,
        dir: &Path,
        name: &str,
        stock: Option<&Etcd>,
        wanted: Wanted<'_>,
    ) -> anyhow::Result<Vec<String>> {
        let mut flags = vec![format!("--routers={}", self.routers)];
        let mut config = self.layout.config(wanted.kinds)?;
        if let Some(etcd) = stock {
            config["stores"][1]["endpoints"] = json!([format!("http://{}", etcd.address)]);
        }
        if let (Some(config), Some(Value::Object(more))) = (config.as_object_mut(), wanted.sections) {
            config.extend(more.clone());
        }
        if let Some(every) = wanted.progress {
            config["up"]["router"]["watch-progress-notify-interval"] = json!(every);
        }
        let file = dir.join(format!("{name}.yaml"));
        fs::write(&file, config.to_string())?;
        flags.push(format!("--config={}", file.display()));
        match self.layout {
            Layout::Together => flags.push("--together".to_owned()),
            Layout::Standbys => flags.push("--standbys".to_owned()),
            _ => {}
        }
        flags.extend(wanted.flags.iter().map(|&flag| flag.to_owned()));
        Ok(flags)
    }
}

/// The servers of a place.
#[derive(Debug)]
pub struct Servers {
    /// Where clients connect: `host:port` of each router.
    pub addresses: Vec<String>,
    pub place: Place,
    running: Running,
    #[expect(dead_code, reason = "it is removed behind the processes")]
    data: Data,
}

#[derive(Debug)]
enum Running {
    #[expect(dead_code, reason = "it runs as long as this")]
    Etcd(Etcd),
    #[expect(dead_code, reason = "it runs as long as this")]
    Shard(Shard),
    Up(Box<Up>, #[expect(dead_code, reason = "it runs as long as this")] Option<Etcd>),
}

impl Servers {
    /// The `kindred up`, for layouts with routers.
    #[must_use]
    pub fn up(&self) -> Option<&Up> {
        match &self.running {
            Running::Up(up, _) => Some(up),
            Running::Etcd(_) | Running::Shard(_) => None,
        }
    }
}

/// Folders that are removed with this.
#[derive(Debug)]
struct Data(Vec<PathBuf>);

impl Drop for Data {
    fn drop(&mut self) {
        for folder in &self.0 {
            // A server that never started has none.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::{key::KeyRange, validate::validate};

    use super::*;

    const PODS: Kind = Kind { resource: "pods", cuts: ["h", "s"] };

    #[test]
    fn each_layout_has_as_many_stores_of_a_kind_as_it_says() {
        for layout in Layout::ROUTED {
            let mut config = parse_config(&layout.config(&[PODS]).unwrap().to_string()).unwrap();
            for store in &mut config.stores {
                store.endpoints = vec![NOBODY.to_owned()];
            }
            let map = validate(&config).unwrap().map;
            let stores = map.stores_of(&KeyRange::prefix("/registry/pods/".into()));
            let wanted = match layout {
                Layout::Ranges | Layout::Together => 3,
                Layout::Ring => 4,
                _ => 1,
            };
            assert_eq!(stores.len(), wanted, "{layout}");
            assert_eq!(layout.is_spread(), wanted > 1, "{layout}");
            let at = |name: &str| map.store_of(format!("/registry/pods/{name}").as_bytes());
            if layout == Layout::Ranges {
                assert!(at("g/x") != at("h/x") && at("r/x") != at("s/x") && at("h/x") == at("r/x"));
            }
        }
    }
}
