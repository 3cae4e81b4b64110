//! Every kind of read of every Kind, held against what was written.

use kindred_partition_config::{ids::Revision, key::Key};
use kindred_router_core::routes::Routes;

use crate::verbs::{
    requests::{Answer, Asked, Refused},
    world::{KINDS, World, Wrote},
};

fn prefix_end(prefix: &str) -> String {
    let end = Key::from(prefix).prefix_end().expect("not the last");
    String::from_utf8(end.to_vec()).expect("text")
}

impl World {
    /// What there was of a range.
    fn want(&self, asked: &Asked, at: Revision) -> Vec<Wrote> {
        let range = asked.range();
        let mut keys: Vec<&str> = self.wrote.iter().map(|event| event.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| range.contains(key.as_bytes()));
        keys.into_iter().filter_map(|key| self.live(key, at)).cloned().collect()
    }

    /// Everything, of every Kind, by the newest map; nothing is at a switch.
    pub fn ask_all(&mut self) {
        let routes = self.routes();
        for name in KINDS {
            self.ask_kind(&routes, name);
        }
        for (key, end) in [("\0", "\0"), ("/registry/n", "/registry/t"), ("/registry/", "/registry0")] {
            self.check(&routes, &Asked::span(key, end));
        }
        self.pump_clients(true);
    }

    /// Some of it, by some map, whatever is at a switch.
    pub fn ask_some(&mut self) {
        for _ in 0..2 {
            let maps = self.maps.clone();
            let routes = self.random.of(&maps).clone();
            let name = *self.random.of(&KINDS);
            let prefix = self.kind(name).to_string();
            let stem = prefix.trim_end_matches('/').to_owned();
            let end = prefix_end(&prefix);
            let key = self.key();
            for asked in
                [Asked::one(&stem), Asked::span(&prefix, &end), Asked::one(&key), Asked::span(&stem, &end)]
            {
                if let Some(answer) = self.check(&routes, &asked)
                    && answer.header > self.compacted
                {
                    self.check(&routes, &asked.at(answer.header));
                }
            }
        }
        if self.random.one_in(3) {
            self.write();
        }
        self.pump_clients(false);
    }

    /// What an apiserver sends of one Kind.
    fn ask_kind(&mut self, routes: &Routes, name: &str) {
        let prefix = self.kind(name).to_string();
        let stem = prefix.trim_end_matches('/').to_owned();
        let end = prefix_end(&prefix);
        let all = Asked::span(&prefix, &end);
        // The probe covers all that was acknowledged, and the list is at it or above.
        let probe = self.must(routes, &Asked::one(&stem)).header;
        let of_kind = all.range();
        let newest = self.wrote.iter().rev().find(|event| of_kind.contains(event.key.as_bytes()));
        let newest = newest.map_or(Revision::ZERO, |event| event.at);
        if probe < newest {
            self.fail(&format!("the probe of {name} shows {probe}, below the write at {newest}"));
        }
        let list = self.must(routes, &all).header;
        assert!(list >= probe, "the list of {name} shows {list}, below its probe's {probe}");
        let again = self.must(routes, &Asked::one(&stem)).header;
        assert!(again >= list, "the probe of {name} shows {again}, below the list's {list}");
        self.must(routes, &Asked::one(&stem).at(list));
        self.must(routes, &Asked { count_only: true, ..all.clone() });
        self.must(routes, &Asked::one(&prefix));
        let key = format!("{prefix}c/1");
        let get = self.must(routes, &Asked::one(&key)).header;
        assert!(get >= list, "a get of {key} shows {get}, below the list's {list}");
        self.must(routes, &Asked::one(&key).at(list));
        self.must(routes, &Asked::span(&format!("{prefix}d"), &format!("{prefix}e")));
        self.must(routes, &Asked::span(&stem, &format!("{stem}\0")));
        self.must(routes, &Asked::span(&stem, &end));
        self.pages(routes, &all);
        // What is not compacted can be read, and watched.
        let low = self.compacted.max(self.begun);
        let mut past: Vec<Revision> =
            self.wrote.iter().map(|event| event.at).filter(|at| *at >= low && *at <= list).collect();
        past.push(low);
        for _ in 0..2 {
            let at = *self.random.of(&past);
            if at <= list {
                self.must(routes, &all.clone().at(at));
                self.must(routes, &Asked { count_only: true, ..all.clone() }.at(at));
                self.must(routes, &Asked::one(&key).at(at));
                self.must(routes, &Asked::one(&stem).at(at));
            }
            self.watch_from(routes, &prefix, &end, at.next());
        }
        if self.compacted > Revision::ZERO {
            let gone = self.ask(routes, &all.clone().at(self.compacted.prev()));
            assert_eq!(gone.map(|answer| answer.kvs), Err(Refused::Compacted), "{name} below the compaction");
        }
        for (key, end) in [(&prefix, end.as_str()), (&stem, ""), (&key, "")] {
            self.watch_from(routes, key, end, list.next());
            match self.current_of(routes, key, end) {
                Ok(current) => assert!(current >= list, "a watch of {key} begins at {current}, below {list}"),
                Err(refused) => self.fail(&format!("a watch of {key} from now on: {refused:?}")),
            }
        }
    }

    /// A list in pages, all at the revision of the first.
    fn pages(&mut self, routes: &Routes, all: &Asked) {
        let mut page = Asked { limit: 2, ..all.clone() };
        let mut keys = Vec::new();
        let first = loop {
            let answer = self.must(routes, &page);
            keys.extend(answer.kvs.iter().map(|kv| kv.key.clone()));
            let first = page.revision.unwrap_or(answer.header);
            page.revision = Some(first);
            if !answer.more {
                break first;
            }
            page.key = format!("{}\0", keys.last().expect("a page is not empty"));
        };
        let want: Vec<String> = self.want(all, first).into_iter().map(|kv| kv.key).collect();
        assert_eq!(keys, want, "pages of {} at {first}", all.key);
    }

    /// An answer that there must be.
    fn must(&mut self, routes: &Routes, asked: &Asked) -> Answer {
        match self.check(routes, asked) {
            Some(answer) => answer,
            None => self.fail(&format!("{asked:?} is not answered")),
        }
    }

    /// Asks, and checks what is answered; `None` when it is to be asked again.
    fn check(&mut self, routes: &Routes, asked: &Asked) -> Option<Answer> {
        self.tick();
        let answer = match self.ask(routes, asked) {
            Ok(answer) => answer,
            Err(Refused::NotOwned(refused)) => {
                self.may_wait(&format!("{asked:?}"), &asked.range(), routes.generation(), &refused);
                return None;
            }
            // A range of keys of no Kind reads what a young store may have held in an earlier life.
            Err(Refused::Compacted) if asked.revision.is_some_and(|at| at < self.compacted) => return None,
            Err(other) => self.fail(&format!("{asked:?} by map {}: {other:?}", routes.generation())),
        };
        let at = asked.revision.unwrap_or(answer.header);
        let want = self.want(asked, at);
        if answer.count != want.len() as u64 {
            self.fail(&format!("{asked:?} at {at} counts {}, not {}: {want:?}", answer.count, want.len()));
        }
        if !asked.count_only {
            let page = if asked.limit == 0 { want.len() } else { asked.limit.min(want.len()) };
            if answer.kvs != want[..page] || answer.more != (page < want.len()) {
                self.fail(&format!("{asked:?} at {at} has {:?}, not {want:?}", answer.kvs));
            }
        }
        Some(answer)
    }
}
