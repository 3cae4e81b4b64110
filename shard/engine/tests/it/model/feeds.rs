//! Feed clients. They receive every event of their ranges once and in order, and no event at or below a watermark comes
//! after it.

use kindred_engine::engine::{FeedId, FeedOut};
use kindred_partition_config::{ids::Revision, key::KeyRange};

use crate::model::{
    reference::Change,
    watches::change,
    world::{Step, World, pick},
};

struct Feed {
    id: FeedId,
    ranges: Vec<KeyRange>,
    start: Option<Revision>,
    /// The feed holds every event above this revision; known from its first message.
    opened: Option<Revision>,
    got: Vec<Change>,
    /// No event at or below this revision may still come.
    watermark: Revision,
    /// A watermark at or above this revision is due.
    asked: Option<Revision>,
    over: bool,
    /// Whether the feed has something to send, by its wakes and its last message. A server pulls only then.
    due: bool,
}

#[derive(Default)]
pub struct Feeds(Vec<Feed>);

pub fn step(world: &mut World, step: &Step) {
    match step {
        Step::FeedOpen(ranges, start) => {
            let ranges: Vec<KeyRange> = ranges.iter().map(pick).filter(|range| !range.is_empty()).collect();
            if ranges.is_empty() {
                return;
            }
            let start = start.as_ref().map(|at| world.revision(at));
            let id = world.engine.feed_open(ranges.clone(), start);
            let (opened, watermark, asked) = (None, Revision::ZERO, None);
            world.feeds.0.push(Feed {
                id,
                ranges,
                start,
                opened,
                got: vec![],
                watermark,
                asked,
                over: false,
                due: false,
            });
        }
        Step::FeedAdvance(which, by) => {
            if !world.feeds.0.is_empty() {
                let which = which.index(world.feeds.0.len());
                let to = Revision(world.engine.current_all().get() + by);
                advance(world, which, to);
            }
        }
        Step::FeedPull(which, bytes) => {
            if !world.feeds.0.is_empty() {
                let which = which.index(world.feeds.0.len());
                pull(world, which, *bytes);
            }
        }
        Step::FeedClose(which) => {
            if !world.feeds.0.is_empty() {
                let feed = world.feeds.0.swap_remove(which.index(world.feeds.0.len()));
                world.engine.feed_close(feed.id);
                assert!(world.engine.feed_pull(feed.id, 1).is_none());
            }
        }
        other => panic!("{other:?}"),
    }
}

fn advance(world: &mut World, which: usize, to: Revision) {
    let id = world.feeds.0[which].id;
    // If the clock may not follow, the feed answers with the present.
    let allowed = world.engine.raise(world.now(), &[], to).is_ok();
    world.engine.feed_advance(world.now(), id, to);
    let asked = &mut world.feeds.0[which].asked;
    *asked = (*asked).max(Some(if allowed { to } else { Revision::ZERO }));
}

/// The events that a feed must have delivered of the published history up to `to`.
fn due(world: &World, feed: &Feed, to: Revision) -> Vec<Change> {
    let Some(opened) = feed.opened else { return Vec::new() };
    let everything = KeyRange::everything();
    let all = world.reference.history(&everything, opened.next());
    let inside = all.filter(|change| feed.ranges.iter().any(|range| range.contains(&change.key)));
    inside.filter(|change| change.revision <= to.get()).cloned().collect()
}

/// Pulls once and checks the message; false when there was none.
fn pull(world: &mut World, which: usize, bytes: usize) -> bool {
    for woken in world.engine.take_feed_wakes() {
        world.feeds.0.iter_mut().filter(|feed| feed.id == woken).for_each(|feed| feed.due = true);
    }
    let feed = &mut world.feeds.0[which];
    let due = std::mem::take(&mut feed.due);
    let Some(out) = world.engine.feed_pull(feed.id, bytes) else { return false };
    assert!(due, "it has something to say and nobody was told: {out:?}");
    // A message with a watermark is complete.
    feed.due = out.watermark.is_none();
    hear(world, which, &out);
    true
}

fn hear(world: &mut World, which: usize, out: &FeedOut) {
    let feed = &mut world.feeds.0[which];
    assert!(!feed.over, "nothing after the end");
    assert!(out.says_something());
    if let Some(opened) = out.opened {
        assert_eq!(feed.opened, None, "opened once");
        assert!(feed.start.is_none_or(|start| start.prev() == opened));
        feed.opened = Some(opened);
    }
    if let Some(floor) = out.compacted {
        feed.over = true;
        let (feed, all) = (&world.feeds.0[which], due(world, &world.feeds.0[which], Revision(i64::MAX)));
        let missed = all.get(feed.got.len()).map(|change| Revision(change.revision));
        assert!(missed.is_some_and(|missed| missed < floor) || feed.start < Some(floor), "nothing was lost");
        return;
    }
    assert!(feed.opened.is_some(), "opened comes first");
    if let (Some(first), Some(last)) = (out.events.first(), out.events.last()) {
        let (first, last) = (first.kv.mod_revision(), last.kv.mod_revision());
        assert!(first > feed.watermark, "E6: {first} at or below the watermark {}", feed.watermark);
        assert!(feed.got.last().is_none_or(|c| c.revision < first.get()), "a revision is whole");
        feed.got.extend(out.events.iter().map(|event| change(event, true)));
        let feed = &world.feeds.0[which];
        assert_eq!(feed.got, due(world, feed, last), "feed of {:?}", feed.ranges);
    }
    let Some(watermark) = out.watermark else { return };
    let feed = &mut world.feeds.0[which];
    assert!(watermark >= feed.watermark, "watermarks do not fall");
    feed.watermark = watermark;
    feed.asked = feed.asked.filter(|asked| watermark < *asked);
    let feed = &world.feeds.0[which];
    assert_eq!(feed.got, due(world, feed, watermark), "the watermark {watermark} overtakes events");
    // What was promised is readable.
    for range in feed.ranges.clone() {
        let current = world.engine.current(std::slice::from_ref(&range));
        assert!(current >= watermark, "{range:?} shows {current} below {watermark}");
    }
}

/// Pulls everything: every feed must have the whole history of its ranges, and the answer to every advance.
pub fn finish(world: &mut World) {
    for which in 0..world.feeds.0.len() {
        while pull(world, which, 64) {}
        let feed = &world.feeds.0[which];
        assert!(feed.over || feed.asked.is_none(), "no watermark at {:?}", feed.asked);
        if !feed.over {
            assert_eq!(feed.got, due(world, feed, Revision(i64::MAX)), "the end of {:?}", feed.ranges);
        }
    }
    // R6: an idle feed reaches any revision of another store, and a tick advances it.
    for which in 0..world.feeds.0.len() {
        let to = world.engine.current_all();
        advance(world, which, to);
        advance(world, which, to.prev());
        let mut messages = 0;
        while pull(world, which, 64) {
            messages += 1;
        }
        let feed = &world.feeds.0[which];
        assert!(feed.over || (feed.watermark >= to && messages == 1), "advances share one answer");
    }
    world.tick();
    world.tick();
    for which in 0..world.feeds.0.len() {
        let feed = &world.feeds.0[which];
        let (over, watermark) = (feed.over, feed.watermark);
        assert!(over || pull(world, which, 64), "a watermark a tick");
        assert!(over || world.dense || world.feeds.0[which].watermark > watermark);
    }
    world.engine.validate();
}
