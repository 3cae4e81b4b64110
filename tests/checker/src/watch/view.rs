//! Prepares a watch for the checks: its events and promises in arrival order, its start, and what it covers.

use std::collections::BTreeMap;

use crate::history::{Event, History, Nanos, Revision, StreamId, Watch, WatchBody, WatchId, WatchResponse};

/// An event with the response that brought it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventItem<'a> {
    pub(crate) event: &'a Event,
    pub(crate) sequence: u64,
    pub(crate) at: Nanos,
    /// The number of the response among those with events. All fragments of a response have the same number.
    pub(crate) group: usize,
}

/// A progress notification that covers a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProgressItem {
    pub(crate) revision: Revision,
    pub(crate) sequence: u64,
    pub(crate) at: Nanos,
    pub(crate) manual: bool,
    pub(crate) requested: Option<Nanos>,
}

#[derive(Debug)]
pub(crate) struct WatchView<'a> {
    pub(crate) watch: &'a Watch,
    pub(crate) created: Option<&'a WatchResponse>,
    pub(crate) events: Vec<EventItem<'a>>,
    /// In order of `sequence`. It includes the manual progress of the whole stream.
    pub(crate) progress: Vec<ProgressItem>,
    pub(crate) canceled: Option<(&'a WatchResponse, Revision)>,
    /// The first revision that the watch must deliver.
    pub(crate) start: Option<Revision>,
    /// The last revision up to which the watch delivered everything, or promised to have done so.
    pub(crate) covered: Option<Revision>,
    /// The index of the watch that this one continues.
    pub(crate) resumes: Option<usize>,
    /// The index of the watch that continues this one.
    pub(crate) resumed_by: Option<usize>,
    /// The last fragment of a response is missing.
    unfinished: bool,
    /// For each event, the index of the event with the highest revision up to it.
    highest: Vec<usize>,
}

impl<'a> WatchView<'a> {
    /// The event with the highest revision that came in before this response of the stream.
    pub(crate) fn highest_before(&self, sequence: u64) -> Option<&EventItem<'a>> {
        let count = self.events.partition_point(|item| item.sequence < sequence);
        Some(&self.events[self.highest[count.checked_sub(1)?]])
    }
}

pub(crate) fn views(history: &History) -> Vec<WatchView<'_>> {
    let mut views: Vec<WatchView<'_>> = history.watches.iter().map(view).collect();
    share_manual_progress(&mut views);
    let index: BTreeMap<WatchId, usize> =
        history.watches.iter().enumerate().map(|(i, w)| (w.id, i)).collect();
    for current in 0..views.len() {
        let Some(before) = views[current].watch.resumes.and_then(|id| index.get(&id).copied()) else {
            continue;
        };
        views[current].resumes = Some(before);
        views[before].resumed_by = Some(current);
    }
    for current in 0..views.len() {
        let resume_point = views[current].resumed_by.and_then(|next| views[next].watch.options.start);
        let view = &mut views[current];
        let last_event = view.events.iter().map(|item| item.event.kv.modified).max();
        let last_event = if view.unfinished { last_event.map(Revision::previous) } else { last_event };
        let progress = view.progress.iter().map(|p| p.revision).max();
        view.covered = last_event.max(progress).max(resume_point.map(Revision::previous));
    }
    views
}

fn view(watch: &Watch) -> WatchView<'_> {
    let mut view = WatchView {
        watch,
        created: None,
        events: Vec::new(),
        progress: Vec::new(),
        canceled: None,
        start: watch.options.start,
        covered: None,
        resumes: None,
        resumed_by: None,
        unfinished: false,
        highest: Vec::new(),
    };
    let mut responses: Vec<&WatchResponse> = watch.responses.iter().collect();
    responses.sort_by_key(|response| response.sequence);
    let mut group = 0;
    for response in responses {
        let (sequence, at) = (response.sequence, response.at);
        match &response.body {
            WatchBody::Created => {
                view.created = view.created.or(Some(response));
                view.start = view.start.or(Some(response.header.next()));
            }
            WatchBody::Events { events, fragment } => {
                view.events.extend(events.iter().map(|event| EventItem { event, sequence, at, group }));
                view.unfinished = *fragment;
                group += usize::from(!fragment);
            }
            WatchBody::Progress { manual, requested } => view.progress.push(ProgressItem {
                revision: response.header,
                sequence,
                at,
                manual: *manual,
                requested: *requested,
            }),
            WatchBody::Canceled { compact_revision, .. } => {
                view.canceled = Some((response, *compact_revision))
            }
            WatchBody::Broken => {}
        }
    }
    let mut highest = 0;
    for (index, item) in view.events.iter().enumerate() {
        if item.event.kv.modified > view.events[highest].event.kv.modified {
            highest = index;
        }
        view.highest.push(highest);
    }
    view
}

/// A manual progress (watch id -1) covers every watch of the stream that exists when it comes in.
fn share_manual_progress(views: &mut [WatchView<'_>]) {
    let mut manual: BTreeMap<StreamId, Vec<ProgressItem>> = BTreeMap::new();
    for view in views.iter() {
        let of_stream = manual.entry(view.watch.stream).or_default();
        for progress in view.progress.iter().filter(|progress| progress.manual) {
            if !of_stream.iter().any(|known| known.sequence == progress.sequence) {
                of_stream.push(*progress);
            }
        }
    }
    for view in views.iter_mut() {
        let Some(created) = view.created.map(|created| created.sequence) else { continue };
        let end = view.canceled.map_or(u64::MAX, |(response, _)| response.sequence);
        for progress in manual.get(&view.watch.stream).into_iter().flatten() {
            let alive = created < progress.sequence && progress.sequence < end;
            if alive && !view.progress.iter().any(|known| known.sequence == progress.sequence) {
                view.progress.push(*progress);
            }
        }
        view.progress.sort_by_key(|progress| progress.sequence);
    }
}
