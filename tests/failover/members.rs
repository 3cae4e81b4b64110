//! The members of one store, and the calls that whoever keeps the record makes.

use std::{path::Path, time::Duration};

use anyhow::Context;
use kindred_proto::shard_v1::{
    CountRequest, MemberRequest, MemberResponse, PrepareRequest, PromoteRequest, SupersedeRequest,
};
use kindred_tests::{client::Client, scenario::wait_for, servers::Shard};

pub const LIMIT: Duration = Duration::from_secs(60);
/// Kinds of every mode; all others have `fsync`.
const MODES: [&str; 2] = ["--durability=fsync", "--durability-of=events=none,nodes=buffered"];

/// A member.
pub struct Member {
    pub shard: Shard,
    pub client: Client,
}

fn flags(more: &[String]) -> Vec<String> {
    let mut flags: Vec<String> = MODES.map(str::to_owned).to_vec();
    flags.extend(["--name=pods".to_owned(), "--slot=4".to_owned()]);
    flags.extend_from_slice(more);
    flags
}

impl Member {
    /// The first primary.
    pub async fn primary(dir: &Path) -> anyhow::Result<Self> {
        Self::start(dir, "first", &[]).await
    }

    /// A standby of another member. It is ready when it has a copy.
    pub async fn standby(dir: &Path, name: &str, of: &Self) -> anyhow::Result<Self> {
        Self::start(dir, name, &[format!("--standby-of=http://{}", of.shard.address)]).await
    }

    async fn start(dir: &Path, name: &str, more: &[String]) -> anyhow::Result<Self> {
        let shard = Shard::start(dir, name, &flags(more)).await?;
        let client = Client::lazy(&shard.address)?;
        Ok(Self { shard, client })
    }

    pub async fn shown(&self) -> anyhow::Result<MemberResponse> {
        Ok(self.client.standbys.clone().member(MemberRequest::default()).await?.into_inner())
    }

    /// Waits until a whole copy is on the disk of this standby, and returns its id.
    pub async fn whole(&self) -> anyhow::Result<String> {
        wait_for("a whole copy", LIMIT, || async {
            let shown = self.shown().await?;
            Ok(shown.whole.then_some(shown.member))
        })
        .await
    }

    /// From now on this primary waits for a standby, once it knows that the copy is whole. Returns the standby's id.
    pub async fn add(&self, term: u64, standby: &Self) -> anyhow::Result<String> {
        let id = standby.whole().await?;
        wait_for("the primary to hear of the copy", LIMIT, || async {
            let shown = self.shown().await?;
            Ok(shown
                .standbys
                .iter()
                .any(|standby| standby.member == id && standby.whole && standby.follows)
                .then_some(()))
        })
        .await?;
        self.count(term, std::slice::from_ref(&id)).await?;
        wait_for("the standby to have all that was shown", LIMIT, || async {
            let shown = self.shown().await?;
            Ok(shown.standbys.iter().any(|standby| standby.member == id && standby.has_shown).then_some(()))
        })
        .await?;
        Ok(id)
    }

    /// From now on this primary waits for these standbys.
    pub async fn count(&self, term: u64, members: &[String]) -> anyhow::Result<()> {
        let request = CountRequest { term, members: members.to_vec(), recorded: true, meant: None };
        self.client.standbys.clone().count(request).await.context("Count")?;
        Ok(())
    }

    /// What happens before the record names this standby as the primary of a term, and after that.
    pub async fn promote(&self, term: u64, incarnation_above: u64) -> anyhow::Result<u64> {
        let mut standbys = self.client.standbys.clone();
        loop {
            let prepared = standbys
                .prepare(PrepareRequest { term, ..PrepareRequest::default() })
                .await
                .context("Prepare")?
                .into_inner();
            if prepared.wait_millis == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(prepared.wait_millis.into())).await;
        }
        let promoted = standbys
            .promote(PromoteRequest { term, incarnation_above, ..PromoteRequest::default() })
            .await
            .context("Promote")?;
        Ok(promoted.into_inner().incarnation)
    }

    /// The record names another member as the primary.
    pub async fn supersede(&self, term: u64, primary: &Self) -> anyhow::Result<()> {
        let primary_url = format!("http://{}", primary.shard.address);
        let request = SupersedeRequest { term, primary_url, meant: None };
        self.client.standbys.clone().supersede(request).await.context("Supersede")?;
        Ok(())
    }

    /// Stops the process as it is, or lets it go on.
    pub fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let pid = self.shard.process.pid().context("the process has ended")?;
        let status = std::process::Command::new("kill").args([signal, &pid.to_string()]).status()?;
        anyhow::ensure!(status.success(), "kill {signal} {pid}");
        Ok(())
    }
}
