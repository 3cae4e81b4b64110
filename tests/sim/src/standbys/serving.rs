//! The loop of a member: requests as of now, what is shipped and shown, and answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kindred_engine::engine::Engine;
use kindred_engine::ops::{Contents, Op, Put, RangeQuery, RevisionFilter};
use kindred_partition_config::ids::{MemberId, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_shard::durability::ceiling;
use kindred_shard::standby::shipping::{self, Shipment, cost};
use tokio::sync::{mpsc, oneshot};

use super::Sabotage;
use super::client::{Reply, Request, Shown, key};
use super::net::{ConnId, Side};
use super::stream::Said;
use super::world::{Event, MEMBERS, Sim};
use crate::world::{MS, Micros};

/// A stream to a standby.
pub struct Outgoing {
    pub conn: ConnId,
    pub id: MemberId,
    pub shipments: mpsc::Receiver<Shipment>,
    pub waiting: Arc<AtomicU64>,
}

/// An answer to a write, which waits for the standbys.
pub struct Waiting {
    pub position: u64,
    pub request: Request,
    pub shown: Shown,
}

/// What a key has.
pub fn read(engine: &mut Engine, at: usize) -> Option<Shown> {
    let query = RangeQuery {
        range: KeyRange::Single(key(at)),
        revision: None,
        limit: 0,
        sort: None,
        contents: Contents::Whole,
        count_only: false,
        filter: RevisionFilter::default(),
    };
    let answer = engine.range(&query).ok()?;
    let found = answer.kvs.first()?;
    let value = std::str::from_utf8(&found.value()).ok()?.parse().ok()?;
    Some(Shown { key: at, revision: found.mod_revision(), version: found.version(), value })
}

impl Sim {
    pub fn turn_soon(&mut self, m: usize) {
        if let Some(open) = &mut self.members[m].open
            && !std::mem::replace(&mut open.turns, true)
        {
            self.after(20, Some(m), Event::Turn);
        }
    }

    pub fn member_asked(&mut self, m: usize, request: Request) {
        let Some(open) = &mut self.members[m].open else {
            return self.reply(m, &request, Reply::Refused);
        };
        open.requests.push_back(request);
        self.turn_soon(m);
    }

    fn reply(&mut self, m: usize, request: &Request, reply: Reply) {
        let (client, op, router) = (request.client, request.op, MEMBERS + request.router);
        if let Reply::Shown(Some(shown)) = &reply {
            self.truth_sends(m, shown);
        }
        if self.cuts.contains_key(&(m, router)) && self.percent(70) {
            return;
        }
        let delay = self.delay();
        self.after(delay, None, Event::Reply(client, op, reply));
    }

    /// Whether the loop of a member would execute a request now.
    #[must_use]
    pub fn answers(&self, m: usize) -> bool {
        let now = self.mono(m);
        self.members[m]
            .open
            .as_ref()
            .is_some_and(|open| open.replica.is_none() && open.machine.serves() && open.shipping.answers(now))
    }

    pub fn turn(&mut self, m: usize) {
        let (now, wall) = (self.mono(m), self.wall(m));
        let Some(open) = &mut self.members[m].open else { return };
        open.turns = false;
        let looked = std::mem::replace(&mut open.looked, now);
        let looked = if self.sabotage == Some(Sabotage::OldClock) { looked } else { now };
        if open.replica.is_some() || !open.machine.serves() || open.shipping.is_superseded() {
            let refused: Vec<Request> = open.requests.drain(..).collect();
            refused.iter().for_each(|request| self.reply(m, request, Reply::Refused));
            if self.members[m].open.as_ref().is_some_and(|open| open.replica.is_some()) {
                return;
            }
        }
        if self.sabotage == Some(Sabotage::GoesOnAlone) {
            self.goes_on_alone(m);
        }
        let mut written = Vec::new();
        let stale = self.sabotage == Some(Sabotage::Stale);
        while let Some(open) = &mut self.members[m].open
            && let Some(request) = open.requests.front().cloned()
            && (open.shipping.answers(looked) || (stale && request.write.is_none()))
        {
            if request.write.is_some() && !open.engine.may_assign(wall) {
                break;
            }
            open.requests.pop_front();
            if !stale {
                self.truth_executes(m);
            }
            if let Some(shown) = self.execute(m, &request) {
                written.push((request, shown));
            }
        }
        self.hand_over(m, written);
        self.sends(m);
        self.next_turn(m);
    }

    /// Returns what was written; a read is answered.
    fn execute(&mut self, m: usize, request: &Request) -> Option<Shown> {
        let wall = self.wall(m);
        let open = self.members[m].open.as_mut()?;
        let Some(value) = request.write else {
            let shown = read(&mut open.engine, request.key);
            self.reply(m, request, Reply::Shown(shown));
            return None;
        };
        let put = Put {
            key: key(request.key),
            value: Bytes::from(value.to_string()),
            lease: None,
            ignore_value: false,
            ignore_lease: false,
            prev_kv: false,
        };
        if open.engine.apply(wall, Op::Put(put)).is_err() {
            self.reply(m, request, Reply::Refused);
            return None;
        }
        let revision = open.engine.last_revision();
        self.truth_assigns(m, revision);
        Some(Shown { key: request.key, revision, version: 0, value })
    }

    /// Hands what was applied to disk and standbys, shows what all have, and answers.
    fn hand_over(&mut self, m: usize, written: Vec<(Request, Shown)>) {
        let (now, wall) = (self.mono(m), self.wall(m));
        let early = self.sabotage == Some(Sabotage::AnswersEarly);
        let disk_takes = self.disk();
        let member = &mut self.members[m];
        let Some(open) = &mut member.open else { return };
        let applied = open.engine.take_applied();
        member.disk.records.extend(applied.shipped.iter().map(|(_, logged)| logged.clone()));
        open.shipping.ship(&mut open.engine, &applied, now);
        open.engine.publish();
        let in_force = open.shipping.ceiling(member.disk.ceiling);
        open.engine.set_ceiling(in_force);
        let took = std::time::Duration::from_micros(disk_takes);
        let wanted = ceiling::wanted(wall, open.engine.last_revision(), member.disk.ceiling, took);
        let keeps = wanted.filter(|_| !std::mem::replace(&mut open.keeps_ceiling, wanted.is_some()));
        let position = open.shipping.position();
        let waiting = written.into_iter().map(|(request, shown)| Waiting { position, request, shown });
        open.answers.extend(waiting);
        open.shipping.copy(&mut open.engine);
        let received = if early { u64::MAX } else { open.shipping.received() };
        let mut ready = Vec::new();
        while let Some(waiting) = open.answers.pop_front_if(|waiting| waiting.position <= received) {
            ready.push(waiting);
        }
        if let Some(wanted) = keeps {
            self.after(disk_takes, Some(m), Event::CeilingKept(wanted));
        }
        for Waiting { request, mut shown, .. } in ready {
            // The loop of one that is superseded refuses what waits, or drops it.
            let open = self.members[m].open.as_mut();
            let found = open.and_then(|open| read(&mut open.engine, request.key));
            if let Some(found) = found.filter(|found| found.revision == shown.revision) {
                shown.version = found.version;
            }
            self.reply(m, &request, Reply::Shown(Some(shown)));
        }
    }

    pub fn ceiling_kept(&mut self, m: usize, ceiling: Revision) {
        let member = &mut self.members[m];
        member.disk.ceiling = member.disk.ceiling.max(ceiling);
        if let Some(open) = &mut member.open {
            open.keeps_ceiling = false;
        }
        self.turn_soon(m);
    }

    /// Writes what waits to the connections.
    fn sends(&mut self, m: usize) {
        let Some(open) = &mut self.members[m].open else { return };
        let (mut messages, mut closed) = (Vec::new(), Vec::new());
        for stream in &mut open.streams {
            loop {
                match stream.shipments.try_recv() {
                    Ok(shipment) => {
                        stream.waiting.fetch_sub(cost(&shipment), Ordering::AcqRel);
                        messages.push((stream.conn, shipment));
                    }
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => {
                        closed.push(stream.conn);
                        break;
                    }
                }
            }
        }
        for (conn, Shipment { position, records, ceiling, copy }) in messages {
            self.send(conn, Side::Standby, Said::Shipment { position, records, ceiling, copy });
        }
        for conn in closed {
            self.close(conn, Side::Primary);
            self.follower_gone(m, conn);
        }
    }

    fn next_turn(&mut self, m: usize) {
        let now = self.mono(m);
        let Some(open) = &mut self.members[m].open else { return };
        if open.shipping.has_work() {
            return self.turn_soon(m);
        }
        // The sweep of the loop, at least.
        let beat = open
            .shipping
            .next_beat()
            .map_or(200 * MS, |at| Micros::try_from(at.saturating_sub(now).as_micros()).unwrap_or(0));
        if !open.timer {
            open.timer = true;
            self.after_local(beat.clamp(MS, 200 * MS), m, Event::Beat);
        }
    }

    pub fn beat(&mut self, m: usize) {
        if let Some(open) = &mut self.members[m].open {
            open.timer = false;
        }
        self.turn(m);
    }

    /// A standby goes on in its primary's place.
    pub fn takes_over(&mut self, m: usize, behind: Option<Revision>) {
        self.replicate(m);
        let (wall, mono) = (self.wall(m), self.mono_millis(m));
        let no_ceiling = self.sabotage == Some(Sabotage::NoCeiling);
        let member = &mut self.members[m];
        let Some(open) = &mut member.open else { return };
        let Some(replica) = open.replica.take() else { return };
        let replica = if no_ceiling { Revision::ZERO } else { replica.max(behind.unwrap_or(replica)) };
        let promoted = match behind {
            None => open.engine.promote(replica, mono),
            Some(_) => open.engine.promote_behind(open.engine.found(), replica, mono),
        };
        let applied = open.engine.take_applied();
        member.disk.records.extend(applied.fsync.into_iter().chain(applied.buffered));
        open.engine.publish();
        open.engine.publish_fsync(applied.mark);
        open.engine.ship(true);
        member.disk.ceiling = ceiling::first(wall, open.engine.last_revision(), replica);
        if let Err(error) = promoted {
            return self.broke("panic", format!("m{m}: {error}"));
        }
        self.truth_promotes(m, behind.is_some());
        self.turn_soon(m);
    }

    /// A former primary goes on by force.
    pub fn reopens(&mut self, m: usize, behind: Revision, in_doubt: bool) {
        let Some(open) = &mut self.members[m].open else { return };
        let after = if in_doubt { open.engine.found() } else { open.engine.last_revision() };
        open.shipping.stands_alone();
        // They hear nothing, as if they had given up.
        open.answers.clear();
        self.hand_over(m, Vec::new());
        let (wall, mono) = (self.wall(m), self.mono_millis(m));
        let Some(open) = &mut self.members[m].open else { return };
        let promoted = open.engine.promote_behind(after, behind, mono);
        let highest = open.engine.last_revision().max(behind);
        self.members[m].disk.ceiling = ceiling::first(wall, highest, behind);
        if let Err(error) = promoted {
            return self.broke("panic", format!("m{m}: {error}"));
        }
        self.hand_over(m, Vec::new());
        self.truth_promotes(m, true);
        self.turn_soon(m);
    }

    fn goes_on_alone(&mut self, m: usize) {
        let now = self.mono(m);
        let Some(open) = &mut self.members[m].open else { return };
        let (answer, mut shown) = oneshot::channel();
        open.shipping.hear(&mut open.engine, shipping::Said::Show { answer }, now);
        let silent = shown.try_recv().unwrap_or_default();
        if silent.iter().any(|shown| shown.counts && shown.silent.as_millis() > 900) {
            let (answer, _counted) = oneshot::channel();
            self.hear(m, shipping::Said::Count { ids: Vec::new(), recorded: true, answer });
        }
    }
}
