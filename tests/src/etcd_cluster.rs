//! A real etcd of three members, with mutual TLS for clients and between the members, whose members can be killed,
//! stopped and started again.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use kindred_proto::etcdserverpb::{StatusRequest, StatusResponse};
use kindred_transport::{
    connect::Connector,
    tls::{ClientTls, ClientTlsSettings},
};

use crate::{
    certs::{Authority, Leaf},
    client::Client,
    etcdctl::Etcdctl,
    peers::peer,
    ports::Port,
    process::{Process, Spec},
    scenario::wait_for,
};

pub const MEMBERS: usize = 3;
/// The unit of a member in production. Its flags are what the members of this cluster have.
const UNIT: &str = include_str!("../../deploy/systemd/kindred-meta-etcd.service");
const LIMIT: Duration = Duration::from_secs(30);
const STATUS_LIMIT: Duration = Duration::from_secs(2);

/// The members, and how clients reach them.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Process>,
    urls: Vec<String>,
    tls: ClientTls,
    own: Leaf,
    /// The authority of servers and clients.
    pub authority: Authority,
    _ports: Vec<Port>,
}

impl EtcdCluster {
    /// Starts the members with the flags of their unit in `deploy/`, but without fsync. Clients and peers have an
    /// authority each.
    ///
    /// # Errors
    /// If they do not start.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        let (authority, peers) = (Authority::new(dir, "meta-ca")?, Authority::new(dir, "meta-peer-ca")?);
        let (server, peer_leaf) = (authority.leaf("meta-server")?, peers.leaf("meta-peer")?);
        let own = authority.leaf("meta-test")?;
        let ports = (0..2 * MEMBERS).map(|_| Port::free()).collect::<anyhow::Result<Vec<_>>>()?;
        let url = |port: &Port| format!("https://127.0.0.1:{}", port.number());
        let urls: Vec<String> = ports[..MEMBERS].iter().map(url).collect();
        let of_peers: Vec<String> = ports[MEMBERS..].iter().map(url).collect();
        let cluster: Vec<String> =
            of_peers.iter().enumerate().map(|(at, url)| format!("meta{at}={url}")).collect();
        let cluster = cluster.join(",");
        let starting = (0..MEMBERS).map(|at| {
            let data_dir = dir.join(format!("meta{at}"));
            let own = [
                ("name", format!("meta{at}")),
                ("data-dir", data_dir.display().to_string()),
                ("listen-client-urls", urls[at].clone()),
                ("advertise-client-urls", urls[at].clone()),
                ("listen-peer-urls", of_peers[at].clone()),
                ("initial-advertise-peer-urls", of_peers[at].clone()),
                ("listen-metrics-urls", "http://127.0.0.1:0".to_owned()),
                ("initial-cluster", cluster.clone()),
                ("cert-file", server.cert.display().to_string()),
                ("key-file", server.key.display().to_string()),
                ("trusted-ca-file", authority.cert.display().to_string()),
                ("peer-cert-file", peer_leaf.cert.display().to_string()),
                ("peer-key-file", peer_leaf.key.display().to_string()),
                ("peer-trusted-ca-file", peers.cert.display().to_string()),
            ];
            async move { spawn(dir, at, flags(&own)?).await }
        });
        let members = try_join_all(starting).await?;
        let tls = ClientTls::load(ClientTlsSettings {
            trusted_ca_file: Some(authority.cert.clone()),
            identity: Some((own.cert.clone(), own.key.clone())),
            ..ClientTlsSettings::default()
        })?;
        Ok(Self { members, urls, tls, own, authority, _ports: ports })
    }

    /// The value of `--meta`.
    #[must_use]
    pub fn urls(&self) -> String {
        self.urls.join(",")
    }

    /// A client of one member alone, with this TLS.
    ///
    /// # Errors
    /// If the TLS cannot be used.
    pub fn client_with(&self, member: usize, tls: ClientTls) -> anyhow::Result<Client> {
        Ok(Client::over(Connector::with_tls(Some(tls)).channel(&self.urls[member].parse()?)?))
    }

    /// The member that leads. Waits until all live, agree on it, and have what it has: one that is just back does not
    /// count for a majority yet.
    ///
    /// # Errors
    /// If that does not come about in time.
    pub async fn leader(&self) -> anyhow::Result<usize> {
        wait_for("a meta store that is whole", LIMIT, || async {
            let mut all = Vec::new();
            for at in 0..MEMBERS {
                let Ok(status) = self.status(at).await else { return Ok(None) };
                all.push(status);
            }
            let own = |status: &StatusResponse| status.header.as_ref().map_or(0, |header| header.member_id);
            let leader = all.iter().position(|status| own(status) == status.leader);
            Ok(leader.filter(|leader| {
                let of = &all[*leader];
                all.iter().all(|one| one.leader == of.leader && one.raft_applied_index >= of.raft_index)
            }))
        })
        .await
    }

    async fn status(&self, member: usize) -> anyhow::Result<StatusResponse> {
        let mut maintenance = self.client_with(member, self.tls.clone())?.maintenance;
        Ok(tokio::time::timeout(STATUS_LIMIT, maintenance.status(StatusRequest {})).await??.into_inner())
    }

    /// Makes a member the leader.
    ///
    /// # Errors
    /// If it does not become the leader.
    pub async fn lead(&self, member: usize) -> anyhow::Result<()> {
        let leader = self.leader().await?;
        if leader == member {
            return Ok(());
        }
        let id = self.status(member).await?.header.map_or(0, |header| header.member_id);
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let flags =
            [flag("cacert", &self.authority.cert), flag("cert", &self.own.cert), flag("key", &self.own.key)];
        Etcdctl::new(&self.urls[leader]).with(&flags).ok(&["move-leader", &format!("{id:x}")]).await?;
        wait_for("the new leader", LIMIT, || async { Ok((self.leader().await? == member).then_some(())) })
            .await
    }

    /// Kills a member as `kill -9` does.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub fn kill(&mut self, member: usize) -> anyhow::Result<()> {
        self.members[member].kill()
    }

    /// Starts members that were killed, all at the same time: one alone would not become ready.
    ///
    /// # Errors
    /// If one does not start.
    pub async fn restart(&mut self, members: &[usize]) -> anyhow::Result<()> {
        let dead = self.members.iter_mut().enumerate().filter(|(at, _)| members.contains(at));
        try_join_all(dead.map(|(_, process)| process.restart())).await.map(drop)
    }

    /// Sends a signal, such as `-STOP` or `-CONT`, to one member.
    ///
    /// # Errors
    /// If it does not run.
    pub fn signal(&self, member: usize, signal: &str) -> anyhow::Result<()> {
        let pid = self.members[member].pid().context("the member runs")?.to_string();
        ensure!(Command::new("kill").args([signal, &pid]).status()?.success(), "kill {signal} {pid}");
        Ok(())
    }
}

/// The flags of the unit, with these values in place of its own.
fn flags(own: &[(&str, String)]) -> anyhow::Result<Vec<String>> {
    let line = UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=")).context("a command line")?;
    let mut flags = Vec::<String>::new();
    for word in line.split_whitespace().skip(1) {
        match (word.starts_with("--"), flags.last_mut()) {
            (false, Some(flag)) => *flag = format!("{flag}={word}"),
            _ => flags.push(word.to_owned()),
        }
    }
    for (name, value) in own {
        let start = format!("--{name}=");
        let flag = flags.iter_mut().find(|flag| flag.starts_with(&start));
        *flag.with_context(|| format!("the unit has no --{name}"))? = format!("{start}{value}");
    }
    flags.push("--unsafe-no-fsync".to_owned());
    Ok(flags)
}

async fn spawn(dir: &Path, at: usize, args: Vec<String>) -> anyhow::Result<Process> {
    let spec = Spec {
        name: format!("meta{at}"),
        program: peer("etcd")?,
        args,
        env: Vec::new(),
        ready: "serving client traffic securely".to_owned(),
    };
    Process::start(dir, spec).await
}
