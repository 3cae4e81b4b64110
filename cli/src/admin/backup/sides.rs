//! Reads the cluster's keys in some intervals, in key order.

use std::collections::VecDeque;

use kindred_database::reading::Reading;
use kindred_proto::mvccpb::KeyValue;

use super::etcd::{Calls, Etcd, Interval};
use crate::admin::failure::Failure;

pub struct Cluster {
    etcd: Etcd,
    intervals: VecDeque<Interval>,
    reading: Option<Reading<Calls>>,
    page: VecDeque<KeyValue>,
}

impl Cluster {
    /// The keys of these intervals, as they are when they are read.
    #[must_use]
    pub fn new(etcd: Etcd, intervals: Vec<Interval>) -> Self {
        Self { etcd, intervals: intervals.into(), reading: None, page: VecDeque::new() }
    }

    /// The next key.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn next(&mut self) -> Result<Option<KeyValue>, Failure> {
        loop {
            if let Some(kv) = self.page.pop_front() {
                return Ok(Some(kv));
            }
            match &mut self.reading {
                Some(reading) => {
                    let page = reading.next().await.map_err(|status| self.etcd.failed(&status))?;
                    if page.is_empty() {
                        self.reading = None;
                    }
                    self.page = page.into();
                }
                None => {
                    let Some(interval) = self.intervals.pop_front() else { return Ok(None) };
                    self.reading = Some(self.etcd.read(interval, None));
                }
            }
        }
    }
}
