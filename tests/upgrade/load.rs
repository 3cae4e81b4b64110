//! All clients of a run: random ones whose history is checked, writers that own their keys, and leases.

use std::{path::Path, sync::Arc};

use anyhow::{Context, bail, ensure};
use kindred_checker::{
    Config, Key, check,
    history::{DefiniteError, Outcome, Request, Revision},
};
use kindred_tests::{
    client::Client,
    workload::{
        caller::{Caller, Endpoints},
        crowd::Crowd,
        keys::KINDS,
        recorder::{Recorder, kind_of_request},
    },
};
use rand::{SeedableRng as _, rngs::StdRng};

use crate::upgrade::{
    faults::{Fault, Faults, Struck},
    leases::Leases,
    ledger::Ledger,
};

/// The clients.
pub struct Load {
    recorder: Arc<Recorder>,
    faults: Arc<Faults>,
    crowd: Crowd,
    ledger: Ledger,
    pub leases: Leases,
    compactor: Caller,
    rng: StdRng,
}

impl Load {
    /// Starts all clients.
    pub async fn start(addresses: &[String]) -> anyhow::Result<Self> {
        let (recorder, faults) = (Arc::new(Recorder::new()), Arc::<Faults>::default());
        let endpoints = Endpoints::over_tcp(addresses.to_vec());
        let mut clients = Vec::new();
        for address in addresses {
            clients.push(Client::lazy(address)?);
        }
        let mut rng = StdRng::seed_from_u64(1);
        let compactor = Caller::new(recorder.clone(), endpoints.clone(), &mut rng)?;
        let ledger = Ledger::start(&clients, &recorder, &faults).await?;
        let leases = Leases::start(&clients, &recorder, &faults).await?;
        let crowd = Crowd::without_compactor(&recorder, &endpoints, 1)?;
        Ok(Self { recorder, faults, crowd, ledger, leases, compactor, rng })
    }

    /// Takes a step under load, and then checks what must be there.
    pub async fn during<T>(
        &mut self,
        name: &str,
        struck: Struck,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let began = self.recorder.now();
        let stepped = step.await.with_context(|| name.to_owned())?;
        // Connections may still break, and requests fail, that were under way when the step was over.
        let more = self.ledger.more(2).await;
        self.faults.stepped(name, struck, began, self.recorder.now());
        more.with_context(|| format!("after {name}"))?;
        self.check().await.with_context(|| format!("after {name}"))?;
        Ok(stepped)
    }

    /// What was acknowledged is there, watches have shown it, leases live, and nothing failed but what steps explain.
    /// Then what every watch has behind it is compacted.
    async fn check(&mut self) -> anyhow::Result<()> {
        let (_, behind) = self.ledger.check().await?;
        self.leases.check().await?;
        let unexplained = self.faults.unexplained(&[]);
        ensure!(unexplained.is_empty(), "{}", unexplained.join("\n"));
        let compact = Request::Compact { revision: Revision(behind) };
        let outcome = self.compactor.call(&mut self.rng, compact).await?;
        ensure!(matches!(outcome, Outcome::Compacted { .. }), "a compaction: {outcome:?}");
        Ok(())
    }

    /// Waits until the random clients have done enough that their history says something.
    pub async fn enough(&self) -> anyhow::Result<()> {
        self.crowd.enough(std::time::Duration::from_millis(500)).await
    }

    /// Ends all clients, and checks everything that they have seen. Returns what it was.
    pub async fn finish(mut self, dir: &Path) -> anyhow::Result<String> {
        let (writes, _) = self.ledger.check().await?;
        let finished = self.crowd.finish(false).await;
        self.leases.finish().await?;
        let history = self.recorder.history();
        let prefixes = KINDS.iter().map(|kind| Key::from(kind.prefix));
        let report = check(&history, &Config::kindred(prefixes));
        let mut complaints = Vec::new();
        if let Err(error) = finished {
            complaints.push(format!("{error:#}"));
        }
        if !report.is_clean() {
            complaints.push(report.to_string());
        }
        let failed: Vec<Fault> = history.operations.iter().filter_map(fault).collect();
        complaints.extend(self.faults.unexplained(&failed));
        complaints.extend(self.recorder.oddities());
        let counts = &report.counts;
        if counts.watches < 20 || counts.progress < 10 || counts.keys_linearizable < 20 {
            complaints.push(format!("too little happened: {counts:?}"));
        }
        if !complaints.is_empty() {
            complaints.extend(self.recorder.why_unknown());
            let path = dir.join("history.jsonl");
            std::fs::write(&path, history.to_json_lines()?)?;
            std::fs::write(dir.join("assumptions.json"), r#"{"order":"per_kind","spread":true,"gaps":[]}"#)?;
            bail!(
                "{}\nthe history is {path}\ncheck it again: KINDRED_GUARANTEES_HISTORY={path} \
                 make test ONLY=guarantees::replay",
                complaints.join("\n"),
                path = path.display()
            );
        }
        Ok(format!(
            "writes={writes} operations={} failed={} events={} watches={} resumes={} linearizable_keys={} \
             undecided={} unexplained=0 violations=0",
            counts.operations,
            failed.len(),
            counts.events,
            counts.watches,
            counts.resumes,
            counts.keys_linearizable,
            counts.keys_undecided
        ))
    }
}

/// The fault that an operation of a random client was, if it was one.
fn fault(operation: &kindred_checker::history::Operation) -> Option<Fault> {
    // The keys of a txn may be on two stores, which is refused.
    let refusable = matches!(operation.request, Request::Txn { .. });
    let what = match &operation.outcome {
        Outcome::Unknown => "an unknown outcome".to_owned(),
        Outcome::Failed(DefiniteError::Other(text)) if refusable && text.contains("stores") => return None,
        Outcome::Failed(DefiniteError::Other(text)) => text.clone(),
        Outcome::Failed(DefiniteError::FutureRevision) => "a future revision".to_owned(),
        _ => return None,
    };
    let prefix = kind_of_request(&operation.request).map(|kind| KINDS[kind].prefix);
    Some(Fault { prefix, call: operation.call, returned: operation.returned, what })
}
