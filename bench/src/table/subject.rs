//! Who is measured.

use std::path::PathBuf;

use anyhow::Context;

use crate::servers::{self, Server};

/// A server, as it is named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Subject {
    /// A stock etcd.
    Etcd,
    /// A mem_etcd, of which the user has the binary.
    MemEtcd,
    /// A kindred shard alone.
    Shard,
    /// A kindred router and a shard.
    Router,
    /// The same with certificates on both sides of every connection.
    RouterMtls,
}

/// Another's programs.
#[derive(Debug, Clone)]
pub struct Peers {
    /// An etcd.
    pub etcd: Option<PathBuf>,
    /// A mem_etcd.
    pub mem_etcd: Option<PathBuf>,
}

impl Subject {
    /// All that there can be, in the order of the tables; `asked` if any are.
    pub fn chosen(asked: &[Self], mem_etcd: bool) -> anyhow::Result<Vec<Self>> {
        if asked.contains(&Self::MemEtcd) {
            anyhow::ensure!(mem_etcd, "where mem_etcd's program is, --mem-etcd or MEM_ETCD has to say");
        }
        let mut all = vec![Self::Etcd, Self::MemEtcd, Self::Shard, Self::Router, Self::RouterMtls];
        all.retain(
            |one| if asked.is_empty() { *one != Self::MemEtcd || mem_etcd } else { asked.contains(one) },
        );
        Ok(all)
    }

    /// The head of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::MemEtcd => "mem_etcd",
            Self::Shard => "kindred shard alone",
            Self::Router => "kindred router + shard",
            Self::RouterMtls => "kindred router + shard, mTLS",
        }
    }

    /// Its colour in plots: told apart by those who see no red or no green, too.
    pub fn colour(self) -> &'static str {
        match self {
            Self::Etcd => "#777777",
            Self::MemEtcd => "#e69f00",
            Self::Shard => "#0072b2",
            Self::Router => "#009e73",
            Self::RouterMtls => "#b3478c",
        }
    }

    /// How it is run.
    pub fn how(self) -> &'static str {
        match self {
            Self::Etcd => "`--unsafe-no-fsync`, its data in memory (`/dev/shm`)",
            Self::MemEtcd => "`--wal-default=none`, all in memory",
            Self::Shard => "one process, all in memory",
            Self::Router => {
                "a router of one thread and the shard of the Kind, all in memory, plain TCP; \
                 the default shard beside them has nothing to do and does not count"
            }
            Self::RouterMtls => {
                "the same with TLS 1.3, where each side shows a certificate: clients to router, and router to shards"
            }
        }
    }

    /// Starts it.
    pub fn start(self, peers: &Peers) -> anyhow::Result<Server> {
        let program = |path: &Option<PathBuf>| path.clone().context("its program is not known");
        match self {
            Self::Etcd => servers::etcd(&program(&peers.etcd)?),
            Self::MemEtcd => servers::mem_etcd(&program(&peers.mem_etcd)?),
            Self::Shard => servers::shard(),
            Self::Router => servers::routed(),
            Self::RouterMtls => servers::routed_by_mtls(),
        }
        .with_context(|| format!("starting {}", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::Subject::{Etcd, MemEtcd, Router, RouterMtls, Shard};
    use super::*;

    #[test]
    fn mem_etcd_is_there_when_the_user_has_it() {
        assert_eq!(Subject::chosen(&[], false).unwrap(), [Etcd, Shard, Router, RouterMtls]);
        assert_eq!(Subject::chosen(&[], true).unwrap(), [Etcd, MemEtcd, Shard, Router, RouterMtls]);
        assert_eq!(Subject::chosen(&[Router, Etcd, Router], true).unwrap(), [Etcd, Router]);
        assert_eq!(Subject::chosen(&[MemEtcd], true).unwrap(), [MemEtcd]);
        assert!(Subject::chosen(&[MemEtcd], false).is_err());
    }
}
