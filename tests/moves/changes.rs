//! The changes of the map while clients work. They go through the admin API of both routers.

use std::time::Duration;

use anyhow::ensure;
use kindred_tests::{admin::Admin, scenario::wait_for};
use serde_json::{Value, json};

/// The longest time for a step of a move on a busy machine.
const MOVE_LIMIT: Duration = Duration::from_secs(20);
/// The pause between two changes, in which clients work with the result of the last one.
const BREATH: Duration = Duration::from_millis(150);

/// A sequence of changes.
#[derive(Debug, Clone, Copy)]
pub enum Program {
    /// Whole Kinds move to another store, and back by a second move or by a reversal.
    ThereAndBack,
    /// A Kind is split into two and then three ranges on as many stores, and merged again.
    SplitAndMerged,
    /// A ring of two stores gets a third one, and loses it again.
    Ring,
}

impl Program {
    /// The number of threads for connections in each router.
    pub fn threads(self) -> usize {
        match self {
            Self::ThereAndBack | Self::Ring => 1,
            Self::SplitAndMerged => 2,
        }
    }
}

/// The results of a program.
#[derive(Debug, Default)]
pub struct Changed {
    /// Moves that are over.
    pub moves: u64,
    /// Legs that were switched.
    pub switches: u64,
    /// Attempts that were given up and repeated.
    pub given_up: u64,
    /// The longest time between a freeze and the opening, as the coordinators report it.
    pub longest_switch: Duration,
}

/// Repeats a program until `switches` legs were switched.
///
/// # Errors
/// If a change is refused, or a move does not end.
pub async fn carry_out(program: Program, admins: &[Admin], switches: u64) -> anyhow::Result<Changed> {
    let mut mover = Mover { admins, turn: 0, changed: Changed::default() };
    while mover.changed.switches < switches {
        match program {
            Program::ThereAndBack => mover.there_and_back().await?,
            Program::SplitAndMerged => mover.split_and_merged().await?,
            Program::Ring => mover.ring().await?,
        }
    }
    Ok(mover.changed)
}

struct Mover<'a> {
    admins: &'a [Admin],
    turn: usize,
    changed: Changed,
}

impl Mover<'_> {
    fn admin(&mut self) -> Admin {
        self.turn += 1;
        self.admins[self.turn % self.admins.len()].clone()
    }

    async fn there_and_back(&mut self) -> anyhow::Result<()> {
        let to = |kind: &str, store: &str| json!({ "kind": kind, "to": store });
        let ids = self.begin("move", &to("pods", "b")).await?;
        self.switched(&ids, "there").await?;
        self.complete(&ids).await?;
        let ids = self.begin("move", &to("pods", "a")).await?;
        self.switched(&ids, "there").await?;
        self.complete(&ids).await?;
        // Two Kinds move at once, and both moves are reversed.
        let mut ids = self.begin("move", &to("pods", "c")).await?;
        ids.extend(self.begin("move", &to("events", "a")).await?);
        self.switched(&ids, "there").await?;
        for id in &ids {
            let admin = self.admin();
            // A move can be reversed once the old owner follows the new one.
            wait_for("the way back", MOVE_LIMIT, || async {
                let (code, answer) = admin.ask("POST", &format!("/api/v1/moves/{id}/reverse"), "").await?;
                ensure!(code == 200 || answer.contains("does not follow yet"), "{code} {answer}");
                Ok((code == 200).then_some(()))
            })
            .await?;
        }
        self.switched(&ids, "back").await?;
        self.complete(&ids).await
    }

    async fn split_and_merged(&mut self) -> anyhow::Result<()> {
        // One split is in the middle of a namespace, the other between two.
        for (at, to) in [("mike/n2", "b"), ("t", "c")] {
            let ids = self.begin("split", &json!({ "kind": "pods", "at": at, "to": to })).await?;
            self.switched(&ids, "there").await?;
            self.complete(&ids).await?;
        }
        let ids = self.begin("merge", &json!({ "kind": "pods", "to": "a" })).await?;
        self.switched(&ids, "there").await?;
        self.complete(&ids).await
    }

    async fn ring(&mut self) -> anyhow::Result<()> {
        for stores in [json!(["a", "b", "c"]), json!(["a", "b"])] {
            let config = json!({
                "kind": "DataPartitionConfig", "metadata": { "name": "leases" },
                "resource": "leases.coordination.k8s.io", "ring": { "stores": stores },
            });
            let ids = self.begin("apply", &json!({ "items": [config] })).await?;
            self.switched(&ids, "there").await?;
            self.complete(&ids).await?;
        }
        Ok(())
    }

    async fn begin(&mut self, verb: &str, body: &Value) -> anyhow::Result<Vec<u64>> {
        tokio::time::sleep(BREATH).await;
        let ids = self.admin().change(verb, body).await?;
        ensure!(!ids.is_empty(), "{verb} {body} moves nothing");
        Ok(ids)
    }

    /// Waits until all these moves have switched to their goal.
    async fn switched(&mut self, ids: &[u64], goal: &str) -> anyhow::Result<()> {
        for id in ids {
            let there = |shown: &Value| shown["phase"] == "Switched" && shown["goal"] == goal;
            let shown = self.admin().until(*id, MOVE_LIMIT, there).await?;
            let legs = shown["legs"].as_array().map_or(0, Vec::len);
            self.changed.switches += legs as u64;
        }
        Ok(())
    }

    /// Completes these moves and waits until they are over.
    async fn complete(&mut self, ids: &[u64]) -> anyhow::Result<()> {
        for id in ids {
            let admin = self.admin();
            // This router may not know the move yet, and then refuses requests for it.
            admin.until(*id, MOVE_LIMIT, |_| true).await?;
            let before = admin.shown(*id).await?;
            if let Some(micros) = before["progress"]["pauseMicros"].as_u64() {
                self.changed.longest_switch = self.changed.longest_switch.max(Duration::from_micros(micros));
            }
            admin.request(*id, "complete").await?;
            let over = admin.until(*id, MOVE_LIMIT, |shown| shown["over"] == true).await?;
            ensure!(over["phase"] == "Done", "{over}");
            let (attempts, legs) = (over["attempts"].as_u64(), over["legs"].as_array().map(Vec::len));
            let decided = legs.unwrap_or_default() as u64 * if over["goal"] == "back" { 2 } else { 1 };
            self.changed.given_up += attempts.unwrap_or_default().saturating_sub(decided);
            self.changed.moves += 1;
        }
        Ok(())
    }
}
