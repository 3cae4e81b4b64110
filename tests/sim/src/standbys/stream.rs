//! Following: what `Follow` and the thread of a standby do around the product's decisions.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use kindred_engine::recover::Recovered;
use kindred_partition_config::ids::{MemberId, Revision, Term};
use kindred_shard::durability::recovery::shipped;
use kindred_shard::standby::Position;
use kindred_shard::standby::shipping::{self, CopyPart, MESSAGES_MAX, Outlet};
use tokio::sync::{mpsc, oneshot};

use super::calls::Queued;
use super::net::{ConnId, Side};
use super::serving::Outgoing;
use super::world::{Event, Sim, at_url, url};
use crate::world::MS;

/// The first message of a standby.
#[derive(Debug)]
pub struct Begin {
    pub id: MemberId,
    pub former: Option<MemberId>,
    pub run: u64,
    pub position: Position,
}

/// A message on a connection.
#[derive(Debug)]
pub enum Said {
    Begin(Begin),
    Received {
        position: Position,
        whole: bool,
    },
    Welcome {
        run: u64,
        term: Term,
        uuid: u64,
        incarnation: u64,
    },
    Shipment {
        position: Position,
        records: Bytes,
        ceiling: Revision,
        copy: Option<CopyPart>,
    },
    /// It is tried again later, at whoever is the primary.
    Lost(Option<String>),
    /// What the standby has cannot be continued.
    Anew,
}

impl Sim {
    // ---- the primary's end

    pub fn primary_hears(&mut self, m: usize, conn: ConnId, said: Said) {
        match said {
            Said::Begin(begin) => self.member_called(m, Queued::Follow(conn, begin)),
            Said::Received { position, whole } => {
                let open = self.members[m].open.as_ref();
                let id = open.and_then(|open| open.streams.iter().find(|stream| stream.conn == conn));
                let Some(id) = id.map(|stream| stream.id.clone()) else { return };
                self.hear(m, shipping::Said::Received { id, position, whole });
            }
            _ => {}
        }
    }

    pub fn follows(&mut self, m: usize, conn: ConnId, begin: Begin) {
        let Some(open) = &mut self.members[m].open else { return };
        if let Some(former) = begin.former {
            open.machine.note_never_promoted(former);
        }
        let term = match open.machine.may_be_followed() {
            Ok(term) => term,
            Err(primary) => return self.send(conn, Side::Standby, Said::Lost(primary)),
        };
        let has = (begin.run == open.run).then_some(begin.position);
        let (to, shipments) = mpsc::channel(MESSAGES_MAX);
        let waiting = Arc::new(AtomicU64::new(0));
        let outlet = Outlet { to, waiting: waiting.clone() };
        let (answer, mut accepted) = oneshot::channel();
        let (id, run, incarnation) = (begin.id.clone(), open.run, open.machine.incarnation());
        let uuid = self.members[m].disk.uuid;
        self.send(conn, Side::Standby, Said::Welcome { run, term, uuid, incarnation });
        if begin.run != 0 && has.is_none() {
            return self.send(conn, Side::Standby, Said::Anew);
        }
        self.hear(m, shipping::Said::Follow { id: begin.id, has, outlet, answer });
        if !accepted.try_recv().unwrap_or(false) {
            return self.send(conn, Side::Standby, Said::Anew);
        }
        if let Some(open) = &mut self.members[m].open {
            open.streams.push(Outgoing { conn, id, shipments, waiting });
        }
        self.turn_soon(m);
    }

    pub fn follower_gone(&mut self, m: usize, conn: ConnId) {
        let Some(open) = &mut self.members[m].open else { return };
        let Some(at) = open.streams.iter().position(|stream| stream.conn == conn) else { return };
        let Outgoing { id, waiting, .. } = open.streams.remove(at);
        self.hear(m, shipping::Said::Gone { id, waiting });
    }

    // ---- the standby's end

    pub fn reconnect(&mut self, m: usize) {
        let told = self.members[m].following.as_mut().and_then(|following| following.told.take());
        let primary = told.as_ref().and_then(|told| at_url(told)).or(self.primary_of(m));
        let Some(primary) = primary else { return };
        let member = &mut self.members[m];
        let Some(following) = &mut member.following else { return };
        if following.stopped || following.conn.is_some() {
            return;
        }
        following.copy = None;
        let (run, position) = match following.copied {
            true => (following.run, following.follower.position()),
            false => (0, Position(0)),
        };
        let begin = Begin { id: member.id.clone(), former: following.former.clone(), run, position };
        if primary == m {
            // Nobody is there who could be followed.
            return self.after_local(100 * MS, m, Event::Reconnect);
        }
        let conn = self.connect(m, primary);
        if let Some(following) = &mut self.members[m].following {
            following.conn = Some(conn);
        }
        self.send(conn, Side::Primary, Said::Begin(begin));
    }

    pub fn stream_lost(&mut self, m: usize, conn: ConnId) {
        let Some(following) = &mut self.members[m].following else { return };
        if following.conn != Some(conn) {
            return;
        }
        (following.conn, following.connected) = (None, false);
        self.after_local(100 * MS, m, Event::Reconnect);
    }

    fn leaves(&mut self, m: usize, conn: ConnId) {
        self.close(conn, Side::Standby);
        self.stream_lost(m, conn);
    }

    pub fn standby_hears(&mut self, m: usize, conn: ConnId, said: Said) {
        let now = self.mono(m);
        let Some(primary) = self.conns.get(&conn).map(|conn| conn.primary) else { return };
        let Some(following) = &mut self.members[m].following else { return };
        if following.stopped || following.conn != Some(conn) {
            return;
        }
        match said {
            Said::Welcome { run, term, uuid, incarnation } => {
                let from = if following.copied { following.follower.position() } else { Position(0) };
                let another = following.copied && following.uuid != uuid;
                if another || following.follower.follow(term, from).is_err() {
                    return self.leaves(m, conn);
                }
                (following.connected, following.run, following.term) = (true, run, term);
                following.primary = url(primary);
                if !following.copied {
                    following.copy = Some(Recovered { copied: true, ..Recovered::default() });
                    (following.uuid, following.incarnation) = (uuid, incarnation);
                    following.welcome_term = term;
                }
            }
            Said::Shipment { position, records, ceiling, copy } => {
                let Ok(records) = shipped(&records) else {
                    return self.broke("panic", "a shipment cannot be read".to_owned());
                };
                let Ok(position) = following.follower.received(following.term, position, now) else {
                    return self.leaves(m, conn);
                };
                match &mut following.copy {
                    Some(recovered) => records.into_iter().for_each(|logged| recovered.push(logged)),
                    None => following.incoming.push_back((records, ceiling)),
                }
                let mut is_copied = false;
                if copy == Some(CopyPart::Last)
                    && let Some(recovered) = &mut following.copy
                {
                    recovered.start = ceiling;
                    following.copied = true;
                    is_copied = true;
                }
                let whole = following.whole;
                self.send(conn, Side::Primary, Said::Received { position, whole });
                if is_copied {
                    if let Some(following) = &mut self.members[m].following {
                        // What comes behind the copy waits until it is open.
                        following.opens = following.copy.take();
                    }
                    let disk = self.disk();
                    self.after(disk, Some(m), Event::Opened);
                } else {
                    self.replicate_soon(m);
                }
            }
            Said::Anew if following.copied => self.standby_fails(m, "the primary says so"),
            Said::Lost(primary) => {
                following.told = primary.filter(|primary| *primary != following.primary);
                self.leaves(m, conn);
            }
            Said::Anew => self.leaves(m, conn),
            Said::Begin(_) | Said::Received { .. } => {}
        }
    }

    pub fn opened(&mut self, m: usize) {
        let Some(following) = &mut self.members[m].following else { return };
        if let Some(recovered) = following.opens.take() {
            self.standby_opens(m, recovered);
        }
    }

    pub fn is_whole(&mut self, m: usize) {
        if let Some(following) = &mut self.members[m].following {
            following.whole = true;
        }
    }

    pub fn replicate_soon(&mut self, m: usize) {
        let lag = if self.percent(20) { self.between(0, 50 * MS) } else { 50 };
        let Some(following) = &mut self.members[m].following else { return };
        if !std::mem::replace(&mut following.replicates, true) {
            self.after(lag, Some(m), Event::Replicate);
        }
    }

    /// The loop of a standby takes over what waits.
    pub fn replicate(&mut self, m: usize) {
        let mono = self.mono_millis(m);
        let member = &mut self.members[m];
        let (Some(following), Some(open)) = (&mut member.following, &mut member.open) else { return };
        following.replicates = false;
        let Some(replica) = open.replica else { return };
        let mut ceilings = replica;
        let mut failed = None;
        for (records, ceiling) in following.incoming.drain(..) {
            for logged in records {
                member.disk.records.push(logged.clone());
                failed = open.engine.replicate(mono, logged).err().or(failed);
            }
            ceilings = ceilings.max(ceiling);
        }
        open.replica = Some(ceilings);
        let applied = open.engine.take_applied();
        open.engine.publish();
        open.engine.publish_fsync(applied.mark);
        if let Some(error) = failed {
            self.broke("panic", format!("m{m}: {error}"));
        }
    }

    /// Nothing is received any more, and everything that was is at the loop.
    pub fn stops_following(&mut self, m: usize) {
        let Some(following) = &mut self.members[m].following else { return };
        (following.stopped, following.connected) = (true, false);
        if let Some(conn) = following.conn.take() {
            self.close(conn, Side::Standby);
        }
        self.replicate(m);
    }
}
