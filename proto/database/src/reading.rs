//! Reads a range to its end, through RangeStream or page by page, and goes on after interruptions.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as HttpBody;
use kindred_partition_config::key::Key;
use kindred_proto::etcdserverpb::{self as pb, kv_client::KvClient};
use kindred_proto::mvccpb::KeyValue;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::{Code, Request, Status, Streaming};

/// The time limit of a call.
const LIMIT: Duration = Duration::from_secs(30);
/// The maximum number of attempts at a call, or at resuming a range without progress.
pub const TRIES: u32 = 8;
/// The initial number of keys in a page, for servers without RangeStream.
const PAGE_KEYS: i64 = 200;
/// The target size of a page.
const PAGE_BYTES: usize = 2 << 20;

/// What a client of a KV service is made of: a channel, or the services of the process.
pub trait Reads:
    GrpcService<
        Body,
        Error: Into<Box<dyn Error + Send + Sync>>,
        ResponseBody: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>> + Send>
                          + Send
                          + 'static,
    > + Clone
{
}

impl<T> Reads for T where
    T: GrpcService<
            Body,
            Error: Into<Box<dyn Error + Send + Sync>>,
            ResponseBody: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>> + Send>
                              + Send
                              + 'static,
        > + Clone
{
}

/// A range of keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    pub start: Key,
    /// The exclusive upper bound; `None` for none.
    pub end: Option<Key>,
}

impl Interval {
    #[must_use]
    pub fn everything() -> Self {
        Self { start: Key::copy_from(b""), end: None }
    }

    /// Every key with this prefix.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let start = Key::copy_from(prefix);
        Self { end: start.prefix_end(), start }
    }

    /// The interval of a single key.
    #[must_use]
    pub fn single(key: &[u8]) -> Self {
        let start = Key::copy_from(key);
        Self { end: Some(start.successor()), start }
    }

    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.end.as_ref().is_none_or(|end| key < &end[..])
    }

    /// The intersection; `None` if it is empty.
    #[must_use]
    pub fn with(&self, other: &Self) -> Option<Self> {
        let end = match (&self.end, &other.end) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (end, None) | (None, end) => end.as_ref(),
        };
        let both = Self { start: self.start.clone().max(other.start.clone()), end: end.cloned() };
        both.end.as_ref().is_none_or(|end| both.start < *end).then_some(both)
    }

    /// The `key` and `range_end` of a request. etcd has no empty key; `\0` is the first.
    #[must_use]
    pub fn on_wire(&self) -> (Bytes, Bytes) {
        let first = Bytes::from_static(&[0]);
        let key = if self.start.is_empty() { first.clone() } else { self.start.0.clone() };
        (key, self.end.as_ref().map_or(first, |end| end.0.clone()))
    }
}

/// A request with the time limit of a call.
pub fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LIMIT);
    request
}

/// Whether the same call may succeed a little later.
#[must_use]
pub fn may_pass(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Aborted
            | Code::Unknown
            | Code::Internal
    ) || grpc::etcd_error(status) == Some(EtcdError::TooManyRequests)
}

/// Waits before another attempt.
pub async fn pause(tries: u32) {
    tokio::time::sleep(Duration::from_millis(100 << tries.min(5))).await;
}

enum Mode {
    /// Through RangeStream; `None` until the stream is open.
    Stream(Option<Box<Opened>>),
    /// Page by page, from a server without RangeStream.
    Pages,
    Done,
}

/// An open stream of pages, and the check of its completeness.
struct Opened {
    pages: Streaming<pb::RangeStreamResponse>,
    told: Told,
}

/// Compares the number of keys that a stream delivered with its last message, so that a broken stream does not
/// count as complete.
#[derive(Debug, Default)]
struct Told {
    keys: u64,
    /// Count and `more` of the last message, which is the only one with a header.
    last: Option<(i64, bool)>,
}

impl Told {
    fn note(&mut self, page: &pb::RangeResponse) {
        self.keys += page.kvs.len() as u64;
        if page.header.is_some() {
            self.last = Some((page.count, page.more));
        }
    }

    /// Refuses a stream that ended before all keys were delivered.
    fn check(&self) -> Result<(), Status> {
        let Some((count, more)) = self.last else {
            return Err(Status::unavailable("a list ended before its last message"));
        };
        if more || u64::try_from(count) != Ok(self.keys) {
            return Err(Status::data_loss(format!(
                "a list of {} keys says that there are {count}{}: it cannot be trusted, and nothing may be made of it",
                self.keys,
                if more { " and more" } else { "" }
            )));
        }
        Ok(())
    }
}

/// A range that is being read.
pub struct Reading<T> {
    kv: KvClient<T>,
    start: Key,
    end: Option<Key>,
    at: Option<i64>,
    mode: Mode,
    page_keys: i64,
    tries: u32,
}

impl<T: Reads> Reading<T> {
    /// Reads keys in key order, either at a revision or as they are at the time of each read.
    #[must_use]
    pub fn new(kv: KvClient<T>, interval: Interval, at: Option<i64>) -> Self {
        let Interval { start, end } = interval;
        Self { kv, start, end, at, mode: Mode::Stream(None), page_keys: PAGE_KEYS, tries: 0 }
    }

    /// The next keys; empty at the end. An interrupted read resumes after the last key.
    ///
    /// # Errors
    /// When the range cannot be read; `Compacted` when the revision is no longer readable.
    pub async fn next(&mut self) -> Result<Vec<KeyValue>, Status> {
        loop {
            match self.some().await {
                Ok(Some(kvs)) => {
                    if let Some(last) = kvs.last() {
                        self.start = Key(last.key.clone()).successor();
                        self.tries = 0;
                        return Ok(kvs);
                    }
                    if matches!(self.mode, Mode::Done) {
                        return Ok(kvs);
                    }
                }
                Ok(None) => {}
                Err(status)
                    if status.code() == Code::Unimplemented && matches!(self.mode, Mode::Stream(_)) =>
                {
                    self.mode = Mode::Pages;
                }
                Err(status) => {
                    // Without a fixed revision, a read at a newer revision will do.
                    let compacted = grpc::etcd_error(&status) == Some(EtcdError::Compacted);
                    let passes = may_pass(&status) || (compacted && self.at.is_none());
                    if !passes || self.tries >= TRIES {
                        return Err(status);
                    }
                    self.tries += 1;
                    if let Mode::Stream(stream) = &mut self.mode {
                        *stream = None;
                    }
                    pause(self.tries).await;
                }
            }
        }
    }

    fn request(&self, limit: i64) -> pb::RangeRequest {
        let (key, range_end) = Interval { start: self.start.clone(), end: self.end.clone() }.on_wire();
        pb::RangeRequest { key, range_end, limit, revision: self.at.unwrap_or(0), ..Default::default() }
    }

    /// The next message or page; `None` if another call is needed first.
    async fn some(&mut self) -> Result<Option<Vec<KeyValue>>, Status> {
        if self.end.as_ref().is_some_and(|end| *end <= self.start) {
            self.mode = Mode::Done;
        }
        match &mut self.mode {
            Mode::Done => Ok(Some(Vec::new())),
            Mode::Stream(Some(stream)) => match tokio::time::timeout(LIMIT, stream.pages.message()).await {
                Ok(message) => {
                    let Some(message) = message? else {
                        stream.told.check()?;
                        self.mode = Mode::Done;
                        return Ok(None);
                    };
                    let page = message.range_response.unwrap_or_default();
                    stream.told.note(&page);
                    Ok(Some(page.kvs))
                }
                Err(_) => Err(Status::deadline_exceeded(format!("no answer within {} s", LIMIT.as_secs()))),
            },
            Mode::Stream(None) => {
                // The stream as a whole has no deadline.
                let request = self.request(0);
                let opened = self.kv.range_stream(request).await?.into_inner();
                self.mode = Mode::Stream(Some(Box::new(Opened { pages: opened, told: Told::default() })));
                Ok(None)
            }
            Mode::Pages => {
                let page = self.kv.range(timed(self.request(self.page_keys))).await?.into_inner();
                if !page.more {
                    self.mode = Mode::Done;
                }
                let weight = page.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>()
                    / page.kvs.len().max(1);
                self.page_keys = i64::try_from(PAGE_BYTES / weight.max(1)).unwrap_or(1).clamp(1, 10_000);
                Ok(Some(page.kvs))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f01_a_list_that_says_otherwise_is_not_whole() {
        let page = |keys: usize, end: Option<(i64, bool)>| pb::RangeResponse {
            kvs: vec![KeyValue::default(); keys],
            header: end.map(|_| pb::ResponseHeader::default()),
            count: end.map_or(0, |(count, _)| count),
            more: end.is_some_and(|(_, more)| more),
        };
        let told = |pages: &[pb::RangeResponse]| {
            let mut told = Told::default();
            pages.iter().for_each(|page| told.note(page));
            told.check().map_err(|status| status.code())
        };
        assert_eq!(told(&[page(2, None), page(1, Some((3, false)))]), Ok(()));
        assert_eq!(told(&[page(0, Some((0, false)))]), Ok(()));
        assert_eq!(told(&[page(2, None)]), Err(Code::Unavailable), "it is gone on with");
        assert_eq!(told(&[page(2, Some((3, false)))]), Err(Code::DataLoss));
        assert_eq!(told(&[page(2, Some((2, true)))]), Err(Code::DataLoss));
    }

    #[test]
    fn intervals() {
        let span = |start: &str, end: &str| Interval { start: Key::from(start), end: Some(Key::from(end)) };
        assert_eq!(span("a", "c").with(&span("b", "d")), Some(span("b", "c")));
        assert_eq!(span("a", "b").with(&span("b", "c")), None);
        assert_eq!(Interval::everything().with(&span("a", "b")), Some(span("a", "b")));
        let single = Interval::single(b"a");
        assert!(single.contains(b"a") && !single.contains(b"a\0\0") && !single.contains(b"b"));
        let (key, end) = Interval::everything().on_wire();
        assert_eq!((&key[..], &end[..]), (&[0][..], &[0][..]));
    }
}
