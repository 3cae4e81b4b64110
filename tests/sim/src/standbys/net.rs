//! Connections between a standby and its primary. What is sent on one arrives in order; while a link is cut it waits, and
//! after a while each end gives the connection up by itself.

use std::collections::VecDeque;

use super::stream::Said;
use super::world::{Event, Sim, name};
use crate::world::{MS, Micros, SECOND};

pub type ConnId = u64;

/// An end of a connection, by what it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Primary,
    Standby,
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    waits: VecDeque<(Micros, Said)>,
    last: Micros,
    /// Since when a cut holds it up.
    held: Option<Micros>,
}

#[derive(Debug)]
pub struct Conn {
    pub standby: usize,
    pub primary: usize,
    to_primary: Way,
    to_standby: Way,
    /// Whether each end takes it for open.
    pub open: [bool; 2],
    broken: bool,
}

impl Conn {
    fn way(&mut self, side: Side) -> &mut Way {
        match side {
            Side::Primary => &mut self.to_primary,
            Side::Standby => &mut self.to_standby,
        }
    }

    fn ends(&self, side: Side) -> (usize, usize) {
        match side {
            Side::Primary => (self.standby, self.primary),
            Side::Standby => (self.primary, self.standby),
        }
    }
}

const fn index(side: Side) -> usize {
    match side {
        Side::Primary => 0,
        Side::Standby => 1,
    }
}

impl Sim {
    /// A standby connects to whatever is at an address.
    pub fn connect(&mut self, standby: usize, primary: usize) -> ConnId {
        self.next_conn += 1;
        let id = self.next_conn;
        let conn = Conn {
            standby,
            primary,
            to_primary: Way::default(),
            to_standby: Way::default(),
            open: [true, true],
            broken: false,
        };
        self.conns.insert(id, conn);
        if !self.processes.get(primary).is_some_and(|process| process.up) {
            self.break_conn(id);
        }
        id
    }

    /// Sends to the end at `side`.
    pub fn send(&mut self, id: ConnId, side: Side, said: Said) {
        let (delay, now) = (self.delay(), self.now);
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.broken) else { return };
        let (_, to) = conn.ends(side);
        let way = conn.way(side);
        let due = (now + delay).max(way.last);
        way.last = due;
        way.waits.push_back((due, said));
        self.after(due - now, Some(to), Event::Pump(id, side));
    }

    /// Something may arrive.
    pub fn pump(&mut self, id: ConnId, side: Side) {
        loop {
            let now = self.now;
            let Some(conn) = self.conns.get_mut(&id) else { return };
            if !conn.open[index(side)] {
                return;
            }
            let (from, to) = conn.ends(side);
            let cut = self.cuts.contains_key(&(from, to));
            let way = conn.way(side);
            if way.waits.front().is_none_or(|(due, _)| *due > now) {
                return;
            }
            if cut {
                let since = *way.held.get_or_insert(now);
                if now - since > 3 * SECOND {
                    return self.break_conn(id);
                }
                return self.after(20 * MS, Some(to), Event::Pump(id, side));
            }
            way.held = None;
            let Some((_, said)) = way.waits.pop_front() else { return };
            match side {
                Side::Primary => self.primary_hears(to, id, said),
                Side::Standby => self.standby_hears(to, id, said),
            }
        }
    }

    /// The connection is lost: what is under way may still arrive, and each end learns of it in its own time.
    pub fn break_conn(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if std::mem::replace(&mut conn.broken, true) {
            return;
        }
        for side in [Side::Primary, Side::Standby] {
            let cut = if self.percent(50) { 0 } else { self.between(0, 5 * MS) };
            let (notice, until) = (self.between(0, 400 * MS), self.now + cut);
            let Some(conn) = self.conns.get_mut(&id) else { return };
            let (_, to) = conn.ends(side);
            conn.way(side).waits.retain(|(due, _)| *due <= until);
            self.after(cut + notice, Some(to), Event::Ended(id, side));
        }
    }

    /// An end closes the connection.
    pub fn close(&mut self, id: ConnId, side: Side) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.open[index(side)] = false;
        }
        self.break_conn(id);
    }

    /// An end learns that the connection is lost.
    pub fn conn_ended(&mut self, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let was_open = std::mem::replace(&mut conn.open[index(side)], false);
        let (_, to) = conn.ends(side);
        if conn.open == [false, false] {
            self.conns.remove(&id);
        }
        if was_open {
            match side {
                Side::Primary => self.follower_gone(to, id),
                Side::Standby => self.stream_lost(to, id),
            }
        }
    }

    /// The connections of a process that has ended.
    pub fn break_all_of(&mut self, process: usize) {
        let of = |conn: &Conn| conn.standby == process || conn.primary == process;
        let ids: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| of(conn)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(conn) = self.conns.get_mut(&id) {
                if conn.standby == process {
                    conn.open[index(Side::Standby)] = false;
                }
                if conn.primary == process {
                    conn.open[index(Side::Primary)] = false;
                }
            }
            self.break_conn(id);
        }
    }

    /// Sends a message that is not on a connection. A cut loses it, or holds it up for a while.
    pub fn throw(&mut self, from: usize, to: usize, to_life: Option<usize>, event: Event) {
        let mut delay = self.delay();
        if self.cuts.contains_key(&(from, to)) {
            if self.percent(70) {
                return self.note(|| format!("lost from {} to {}", name(from), name(to)));
            }
            delay += self.between(100 * MS, 4 * SECOND);
        }
        self.after(delay, to_life, event);
    }
}
