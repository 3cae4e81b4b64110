//! Where the tests of Kubernetes' storage run: at a real etcd, at a shard alone, and at routers over stores.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use kindred_tests::servers::{Etcd, Shard, Up};

/// What the tests that set it expect of their server.
const PROGRESS: &str = "--watch-progress-notify-interval=1s";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    Etcd,
    Shard,
    /// The pods are on one store, beside the default one.
    Whole,
    Ranges,
    Ring,
    /// The pods are on a stock etcd.
    Stock,
    /// The stores run in the process of the first router.
    Together,
}

/// A layout, and how many routers the clients use in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub layout: Layout,
    pub routers: usize,
}

impl Layout {
    const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Shard => "shard alone",
            Self::Whole => "whole on one store",
            Self::Ranges => "three ranges of names",
            Self::Ring => "ring of four stores",
            Self::Stock => "on a stock etcd",
            Self::Together => "three ranges, together",
        }
    }
}

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

/// The servers of a place. Their data goes with them: the log of one etcd takes 128 MiB.
#[derive(Debug)]
pub struct Servers {
    pub addresses: Vec<String>,
    #[expect(dead_code, reason = "they run as long as this")]
    running: Running,
    #[expect(dead_code, reason = "it is removed behind the processes")]
    data: Data,
}

#[derive(Debug)]
#[expect(dead_code, reason = "the servers run as long as this")]
enum Running {
    Etcd(Etcd),
    Shard(Shard),
    Up(Box<Up>, Option<Etcd>),
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

impl Place {
    pub const ETCD: Self = Self { layout: Layout::Etcd, routers: 0 };

    /// All places but etcd.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self { layout: Layout::Shard, routers: 0 }];
        for layout in [Layout::Whole, Layout::Ranges, Layout::Ring, Layout::Stock, Layout::Together] {
            all.extend([1, 2].map(|routers| Self { layout, routers }));
        }
        all
    }

    /// Starts the servers with their data and their logs in `dir`; only the logs stay.
    pub async fn start(self, dir: &Path) -> anyhow::Result<Servers> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let (name, stock) = (format!("server{number}"), format!("stock{number}"));
        let data = Data(vec![dir.join(&name), dir.join(&stock)]);
        let config = match self.layout {
            Layout::Etcd => {
                let etcd = Etcd::start_with(dir, &name, &[PROGRESS]).await?;
                let addresses = vec![etcd.address.clone()];
                return Ok(Servers { addresses, running: Running::Etcd(etcd), data });
            }
            Layout::Shard => {
                let flags = ["--revisions=dense", PROGRESS].map(str::to_owned);
                let shard = Shard::start(dir, &name, &flags).await?;
                let addresses = vec![shard.address.clone()];
                return Ok(Servers { addresses, running: Running::Shard(shard), data });
            }
            Layout::Whole => include_str!("configs/whole.yaml"),
            Layout::Ranges | Layout::Together => include_str!("configs/ranges.yaml"),
            Layout::Ring => include_str!("configs/ring.yaml"),
            Layout::Stock => include_str!("configs/stock.yaml"),
        };
        let mut config = config.to_owned();
        let mut behind = None;
        if self.layout == Layout::Stock {
            let etcd = Etcd::start_with(dir, &stock, &[PROGRESS]).await?;
            config = config.replace("ETCD", &etcd.address);
            behind = Some(etcd);
        }
        let file = dir.join(format!("{name}.yaml"));
        fs::write(&file, config)?;
        let mut flags = vec![format!("--config={}", file.display()), format!("--routers={}", self.routers)];
        flags.extend((self.layout == Layout::Together).then(|| "--together".to_owned()));
        let up = Up::start(dir, &name, &flags).await?;
        let addresses = up.addresses("listen")?;
        Ok(Servers { addresses, running: Running::Up(Box::new(up), behind), data })
    }
}
