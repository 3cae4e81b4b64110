//! What a router does for a client's watch: it opens a feed at every store that owns some of the range, merges the
//! feeds by watermarks, and places the watch again from its own position when one of them ends because keys move (R6,
//! R15a, R16).

use kindred_engine::engine::FeedId;
use kindred_partition_config::{ids::Revision, key::KeyRange};

use crate::moves_model::{
    reference::{Wrote, seen_event},
    world::World,
};

struct Placed {
    e: usize,
    id: FeedId,
    watermark: Revision,
    moved: bool,
}

pub struct Client {
    range: KeyRange,
    /// The first revision that the client wants.
    start: Revision,
    /// Everything up to here was given to the client.
    position: Revision,
    feeds: Vec<Placed>,
    buffer: Vec<Wrote>,
    got: Vec<Wrote>,
}

impl World {
    pub fn client_steps(&mut self) {
        if self.clients.len() < 3 {
            let range = self.random_range();
            let position = self.engines.iter_mut().map(|engine| engine.current_all()).min().expect("some");
            let start = position.next();
            let (feeds, buffer, got) = (Vec::new(), Vec::new(), Vec::new());
            self.clients.push(Client { range, start, position, feeds, buffer, got });
        }
        for mut client in std::mem::take(&mut self.clients) {
            if self.place(&mut client) {
                for _ in 0..6 {
                    self.pull(&mut client);
                }
            }
            self.clients.push(client);
        }
    }

    /// Answers false while keys of the watch are between two owners.
    fn place(&mut self, client: &mut Client) -> bool {
        if !client.feeds.is_empty() {
            return true;
        }
        let owners: Vec<usize> =
            (0..self.engines.len()).filter(|e| self.owns_some(*e, &client.range)).collect();
        let waits = owners.iter().any(|e| self.waits(*e, &client.range));
        if waits || self.cells_in(&client.range).any(|(_, cell)| cell.owner.is_none()) {
            return false;
        }
        for e in owners {
            let owns = self.engines[e].owns(std::slice::from_ref(&client.range), Some(self.generation));
            assert_eq!(owns, Ok(()), "by the newest map");
            let start = client.position.next();
            let id = self.engines[e].feed_open(vec![client.range.clone()], Some(start));
            client.feeds.push(Placed { e, id, watermark: Revision::ZERO, moved: false });
        }
        true
    }

    fn pull(&mut self, client: &mut Client) {
        let mut compacted = false;
        let highest = self.engines.iter_mut().map(|engine| engine.current_all()).max().expect("some");
        let mut feeds = std::mem::take(&mut client.feeds);
        for feed in &mut feeds {
            if self.random.one_in(3) {
                self.engines[feed.e].feed_advance(self.now, feed.id, highest);
            }
            let bytes = 1 + self.random.below(300);
            let Some(out) = self.engines[feed.e].feed_pull(feed.id, bytes) else { continue };
            assert!(!feed.moved, "nothing behind the end");
            if let Some(floor) = out.compacted {
                let next = client.position.max(feed.watermark).next();
                let (_, high) = self.floors(feed.e, &client.range);
                assert!(next < high, "{next} is not compacted: {floor} {high}");
                compacted = true;
                break;
            }
            for event in out.events.iter().map(seen_event) {
                assert!(event.at > feed.watermark, "{event:?} is below the watermark {}", feed.watermark);
                assert!(event.at > client.position, "{event:?} again");
                client.buffer.push(event);
            }
            if let Some(watermark) = out.watermark {
                assert!(watermark >= feed.watermark);
                feed.watermark = watermark;
            }
            if let Some(last) = out.moved {
                assert_eq!(Some(last), out.watermark);
                feed.moved = true;
            }
        }
        client.feeds = feeds;
        if compacted {
            // The client lists again.
            self.unplace(client);
            client.position = highest;
            client.start = highest.next();
            client.got.clear();
            return;
        }
        let safe = client.feeds.iter().map(|feed| feed.watermark).min().unwrap_or(Revision::ZERO);
        client.buffer.sort_by(|a, b| (a.at, &a.key).cmp(&(b.at, &b.key)));
        let ready = client.buffer.partition_point(|event| event.at <= safe);
        client.got.extend(client.buffer.drain(..ready));
        client.position = client.position.max(safe);
        let mut want = self.reference.since(&client.range, client.start, |_| true);
        want.retain(|event| event.at <= client.position);
        want.sort_by(|a, b| (a.at, &a.key).cmp(&(b.at, &b.key)));
        assert_eq!(client.got, want, "{:?} from {} to {}", client.range, client.start, client.position);
        if client.feeds.iter().any(|feed| feed.moved) {
            self.unplace(client);
        }
    }

    fn unplace(&mut self, client: &mut Client) {
        for feed in client.feeds.drain(..) {
            self.engines[feed.e].feed_close(feed.id);
        }
        client.buffer.clear();
    }
}
