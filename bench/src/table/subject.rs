//! The servers that the table compares.

use std::path::PathBuf;

use anyhow::Context;

use crate::servers::{self, Server};

/// A server, as named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Subject {
    /// A stock etcd.
    Etcd,
    /// A mem_etcd, if the user provides the binary.
    MemEtcd,
    /// A server that answers with a fixed page, which shows the cost of just sending it. For pages only, and only
    /// on request.
    Echo,
    /// A kindred shard alone.
    Shard,
    /// A kindred router and a shard.
    Router,
    /// A router and a shard, with certificates on both sides of every connection.
    RouterMtls,
    /// A router and a shard on one machine, connected by a Unix socket.
    RouterUnix,
    /// A router with a shard in its process.
    Together,
}

/// The programs of other projects.
#[derive(Debug, Clone)]
pub struct Peers {
    pub etcd: Option<PathBuf>,
    pub mem_etcd: Option<PathBuf>,
}

impl Subject {
    /// The subjects to measure, in the order of the table: those in `asked`, or if it is empty all except those
    /// that are measured only on request.
    pub fn chosen(asked: &[Self], mem_etcd: bool) -> anyhow::Result<Vec<Self>> {
        if asked.contains(&Self::MemEtcd) {
            anyhow::ensure!(mem_etcd, "where mem_etcd's program is, --mem-etcd or MEM_ETCD has to say");
        }
        let mut all = vec![
            Self::Etcd,
            Self::MemEtcd,
            Self::Echo,
            Self::Shard,
            Self::Router,
            Self::RouterMtls,
            Self::RouterUnix,
            Self::Together,
        ];
        all.retain(|one| match one {
            one if !asked.is_empty() => asked.contains(one),
            Self::MemEtcd => mem_etcd,
            // Measured only on request.
            Self::Echo | Self::RouterUnix | Self::Together => false,
            _ => true,
        });
        Ok(all)
    }

    /// The title of the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::MemEtcd => "mem_etcd",
            Self::Echo => "bare echo",
            Self::Shard => "kindred shard alone",
            Self::Router => "kindred router + shard",
            Self::RouterMtls => "kindred router + shard, mTLS",
            Self::RouterUnix => "kindred router + shard, Unix",
            Self::Together => "kindred router with its shard",
        }
    }

    /// The colour in plots. The colours are distinguishable with red-green blindness.
    pub fn colour(self) -> &'static str {
        match self {
            Self::Etcd => "#777777",
            Self::MemEtcd => "#e69f00",
            Self::Echo => "#cc9900",
            Self::Shard => "#0072b2",
            Self::Router => "#009e73",
            Self::RouterMtls => "#b3478c",
            Self::RouterUnix => "#56b4e9",
            Self::Together => "#d55e00",
        }
    }

    /// Describes how the subject is run.
    pub fn how(self) -> &'static str {
        match self {
            Self::Etcd => "`--unsafe-no-fsync`, its data in memory (`/dev/shm`)",
            Self::MemEtcd => "`--wal-default=none`, all in memory",
            Self::Echo => {
                "a server of one thread that holds a page, and answers with it as kindred's servers do"
            }
            Self::Shard => "one process, all in memory",
            Self::Router => {
                "a router of one thread and the shard of the Kind, all in memory, plain TCP; \
                 the default shard beside them has nothing to do and does not count"
            }
            Self::RouterMtls => {
                "the same with TLS 1.3, where each side shows a certificate: clients to router, and router to shards"
            }
            Self::RouterUnix => "as on plain TCP, but router to shard by a Unix socket",
            Self::Together => "router and shard in one process, on one thread",
        }
    }

    pub fn start(self, peers: &Peers, value_bytes: usize) -> anyhow::Result<Server> {
        let program = |path: &Option<PathBuf>| path.clone().context("its program is not known");
        match self {
            Self::Etcd => servers::etcd(&program(&peers.etcd)?),
            Self::MemEtcd => servers::mem_etcd(&program(&peers.mem_etcd)?),
            Self::Echo => servers::echo(value_bytes),
            Self::Shard => servers::shard(),
            Self::Router => servers::routed(),
            Self::RouterMtls => servers::routed_by_mtls(),
            Self::RouterUnix => servers::routed_by_unix(),
            Self::Together => servers::together(),
        }
        .with_context(|| format!("starting {}", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::Subject::{Etcd, MemEtcd, Router, RouterMtls, RouterUnix, Shard};
    use super::*;

    #[test]
    fn mem_etcd_is_there_when_the_user_has_it() {
        assert_eq!(Subject::chosen(&[], false).unwrap(), [Etcd, Shard, Router, RouterMtls]);
        assert_eq!(Subject::chosen(&[], true).unwrap(), [Etcd, MemEtcd, Shard, Router, RouterMtls]);
        assert_eq!(Subject::chosen(&[Router, Etcd, Router], true).unwrap(), [Etcd, Router]);
        assert_eq!(Subject::chosen(&[RouterUnix, Router], false).unwrap(), [Router, RouterUnix]);
        assert_eq!(Subject::chosen(&[MemEtcd], true).unwrap(), [MemEtcd]);
        assert!(Subject::chosen(&[MemEtcd], false).is_err());
    }
}
