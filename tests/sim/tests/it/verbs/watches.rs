//! Clients' watches, as a router serves them: feeds of the stores, merged; placed again from their own position when keys
//! move (R16).

use kindred_engine::engine::{FeedId, WatchOut, WatchSpec};
use kindred_partition_config::{ids::Revision, key::KeyRange};
use kindred_router_core::{
    place::{FeedKey, Placed, place},
    routes::Routes,
    watch_merge::{Command, Entry, Event, Group, SourceIx, WatchMerge},
};

use crate::verbs::{
    requests::seen,
    world::{KINDS, World, Wrote},
};

#[derive(Debug, Clone)]
pub struct Events(Vec<Wrote>);

impl Group for Events {
    fn join(&mut self, more: Self) {
        self.0.extend(more.0);
    }
}

struct Placing {
    key: FeedKey,
    merge: WatchMerge<Events>,
    feeds: Vec<(usize, FeedId)>,
    moved: bool,
    compacted: bool,
}

pub struct Client {
    key: String,
    end: String,
    start: Revision,
    /// Everything up to here was given to it.
    position: Revision,
    placing: Option<Placing>,
    got: Vec<Vec<Wrote>>,
}

impl World {
    /// A watch that begins here and is read to the present. It must tell all.
    pub fn watch_from(&mut self, routes: &Routes, key: &str, end: &str, start: Revision) {
        let placed = place(key.as_bytes(), end.as_bytes(), routes).expect("no etcd").0;
        if let Some(e) = Self::at_one_store(&placed) {
            return self.watch_at(e, key, start);
        }
        let mut client = client(key, end, start);
        self.pump(&mut client, routes, true);
        self.unplace(&mut client);
    }

    /// A watch on a store's own stream.
    fn watch_at(&mut self, e: usize, key: &str, start: Revision) {
        let range = KeyRange::Single(key.into());
        let stream = self.engines[e].watch_open();
        let spec = WatchSpec {
            range: range.clone(),
            start: Some(start),
            id: None,
            prev_kv: false,
            no_put: false,
            no_delete: false,
            progress_notify: false,
            fragment: false,
        };
        if let Err(refused) = self.engines[e].watch_create(stream, spec) {
            self.fail(&format!("a watch of {key} at {e}: {refused}"));
        }
        let mut got = Vec::new();
        for said in self.engines[e].watch_pull(stream, 1 << 20) {
            match said {
                WatchOut::Created { .. } | WatchOut::Progress { .. } => {}
                WatchOut::Events { events, .. } => got.extend(events.iter().map(|event| seen(&event.kv))),
                other => self.fail(&format!("a watch of {key} from {start} at {e}: {other:?}")),
            }
        }
        self.engines[e].watch_close(stream);
        let want: Vec<Wrote> =
            self.wrote.iter().filter(|event| event.at >= start && event.key == key).cloned().collect();
        assert_eq!(got, want, "a watch of {key} from {start}");
    }

    /// Reads the watches that stand; when nothing is at a switch, to the present.
    pub fn pump_clients(&mut self, settled: bool) {
        let routes = self.routes();
        if settled {
            let name = *self.random.of(&KINDS);
            let prefix = self.kind(name).to_string();
            let (key, end) = match self.random.below(3) {
                0 => (prefix.clone(), format!("{}0", prefix.trim_end_matches('/'))),
                1 => (format!("{prefix}d"), format!("{prefix}e")),
                _ => ("/registry/".to_owned(), "/registry0".to_owned()),
            };
            if let Ok(current) = self.current_of(&routes, &key, &end) {
                self.clients.push(client(&key, &end, current.next()));
            }
            if self.clients.len() > 4 {
                let mut oldest = self.clients.remove(0);
                self.unplace(&mut oldest);
            }
        }
        for mut client in std::mem::take(&mut self.clients) {
            self.pump(&mut client, &routes, settled);
            self.clients.push(client);
        }
    }

    fn unplace(&mut self, client: &mut Client) {
        for (e, feed) in client.placing.take().into_iter().flat_map(|placing| placing.feeds) {
            self.engines[e].feed_close(feed);
        }
    }

    /// False while keys of it are between two owners.
    fn place(&mut self, client: &mut Client, routes: &Routes) -> bool {
        let Placed::Feed(key) =
            place(client.key.as_bytes(), client.end.as_bytes(), routes).expect("no etcd").0
        else {
            unreachable!("spans are read from feeds")
        };
        if client.placing.as_ref().is_some_and(|placing| !placing.moved && placing.key == key) {
            return true;
        }
        self.unplace(client);
        let mut feeds = Vec::new();
        let stores: Vec<usize> = key.stores().map(|store| store.0).collect();
        for (at, e) in stores.into_iter().enumerate() {
            if let Err(refused) = self.engines[e].owns(key.ranges(at), Some(routes.generation())) {
                let what = format!("a feed of {}..{} at {e}", client.key, client.end);
                let range = KeyRange::from_wire(client.key.clone().into(), client.end.clone().into());
                self.may_wait(&what, &range, routes.generation(), &refused);
                feeds.into_iter().for_each(|(e, feed): (usize, FeedId)| self.engines[e].feed_close(feed));
                return false;
            }
            let start = Some(client.position.next());
            feeds.push((e, self.engines[e].feed_open(key.ranges(at).to_vec(), start)));
        }
        let merge = WatchMerge::new(feeds.len(), client.position, 1 << 20);
        client.placing = Some(Placing { key, merge, feeds, moved: false, compacted: false });
        true
    }

    fn pump(&mut self, client: &mut Client, routes: &Routes, settled: bool) {
        for _ in 0..if settled { 6 } else { 1 } {
            if !self.place(client, routes) {
                return;
            }
            let Some(mut placing) = client.placing.take() else { return };
            let to = self.engines.iter_mut().map(|engine| engine.current_all()).max().expect("some");
            let mut commands = match placing.merge.step(Event::Want { to: to.max(client.start) }) {
                Ok(commands) => commands,
                Err(error) => self.fail(&format!("the merge of {}: {error}", client.key)),
            };
            for _ in 0..4 {
                for command in std::mem::take(&mut commands) {
                    self.obey(client, &placing, command);
                }
                for at in 0..placing.feeds.len() {
                    self.pull(client, &mut placing, at, &mut commands);
                }
            }
            for command in commands {
                self.obey(client, &placing, command);
            }
            client.position = client.position.max(placing.merge.merged());
            let reached = client.position >= to;
            if placing.compacted {
                // It lists again.
                client.placing = Some(placing);
                self.unplace(client);
                (client.start, client.position) = (to.next(), to);
                client.got.clear();
                continue;
            }
            client.placing = Some(placing);
            self.check_client(client);
            if reached {
                return;
            }
        }
        if settled {
            self.fail(&format!(
                "the watch of {}..{} stands at {} and does not come to the present",
                client.key, client.end, client.position
            ));
        }
    }

    fn obey(&mut self, client: &mut Client, placing: &Placing, command: Command<Events>) {
        match command {
            Command::Emit(entry) => {
                client.position = entry.revision;
                client.got.push(entry.payload.0);
            }
            Command::Advance { source, to } => {
                let (e, feed) = placing.feeds[source.0];
                self.engines[e].feed_advance(self.now, feed, to);
            }
            Command::Watermark(_) => {}
            other => self.fail(&format!("the watch of {}..{}: {other:?}", client.key, client.end)),
        }
    }

    fn pull(
        &mut self,
        client: &Client,
        placing: &mut Placing,
        at: usize,
        commands: &mut Vec<Command<Events>>,
    ) {
        let (e, feed) = placing.feeds[at];
        let source = SourceIx(at);
        while let Some(out) = self.engines[e].feed_pull(feed, 100) {
            if let Some(floor) = out.compacted {
                if client.position.next() < self.compacted.max(self.begun) {
                    placing.compacted = true;
                    return;
                }
                self.fail(&format!(
                    "the watch of {}..{} from {} is compacted at {e}: {floor}",
                    client.key,
                    client.end,
                    client.position.next()
                ));
            }
            let mut batch: Vec<Entry<Events>> = Vec::new();
            for event in out.events.iter().map(|event| seen(&event.kv)) {
                match batch.last_mut().filter(|last| last.revision == event.at) {
                    Some(last) => last.payload.0.push(event),
                    None => batch.push(Entry { revision: event.at, bytes: 1, payload: Events(vec![event]) }),
                }
            }
            let mut steps = Vec::new();
            if !batch.is_empty() {
                steps.push(Event::Events { source, batch });
            }
            // A store that has not come to where the feed was opened may say so.
            let after = placing.merge.position(source).expect("a source");
            let last = steps.iter().find_map(|step| match step {
                Event::Events { batch, .. } => batch.last().map(|entry| entry.revision),
                _ => None,
            });
            let proved = after.max(last.unwrap_or(after));
            steps.extend(
                out.watermark
                    .filter(|watermark| *watermark > proved)
                    .map(|revision| Event::Watermark { source, revision }),
            );
            for step in steps {
                match placing.merge.step(step) {
                    Ok(more) => commands.extend(more),
                    Err(error) => self.fail(&format!("the watch of {}..{}: {error}", client.key, client.end)),
                }
            }
            if out.moved.is_some() {
                placing.moved = true;
                return;
            }
        }
    }

    fn check_client(&self, client: &Client) {
        let range = KeyRange::from_wire(client.key.clone().into(), client.end.clone().into());
        let mut want: Vec<Vec<Wrote>> = Vec::new();
        for event in &self.wrote {
            if event.at < client.start || event.at > client.position || !range.contains(event.key.as_bytes())
            {
                continue;
            }
            match want.last_mut().filter(|last| last[0].at == event.at) {
                Some(last) => last.push(event.clone()),
                None => want.push(vec![event.clone()]),
            }
        }
        let in_order = |groups: &[Vec<Wrote>]| -> Vec<Vec<Wrote>> {
            let of_range = |group: &Vec<Wrote>| {
                let mut group: Vec<Wrote> =
                    group.iter().filter(|event| range.contains(event.key.as_bytes())).cloned().collect();
                group.sort_by(|a, b| a.key.cmp(&b.key));
                group
            };
            groups.iter().map(of_range).filter(|group| !group.is_empty()).collect()
        };
        let got = in_order(&client.got);
        if got != in_order(&want) {
            self.fail(&format!(
                "the watch of {}..{} from {} to {} has {got:?}, not {want:?}",
                client.key, client.end, client.start, client.position
            ));
        }
    }
}

fn client(key: &str, end: &str, start: Revision) -> Client {
    Client {
        key: key.to_owned(),
        end: end.to_owned(),
        start,
        position: start.prev(),
        placing: None,
        got: Vec::new(),
    }
}
