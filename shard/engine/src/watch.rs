//! Stub until the next commit.
use crate::{
    engine::*,
    error::EngineError,
    space::{KindId, Space},
    version::Version,
};
use kindred_partition_config::ids::Revision;
#[derive(Default)]
pub(crate) struct Watches {}
impl Watches {
    pub(crate) fn len(&self) -> usize {
        0
    }
    pub(crate) fn open(&mut self) -> StreamId {
        StreamId(0)
    }
    pub(crate) fn published(&mut self, _: &[(KindId, Version)]) {}
    pub(crate) fn tick(&mut self, _: &mut Space, _: Revision) {}
    pub(crate) fn compacted(&mut self, _: Revision) {}
    pub(crate) fn create(
        &mut self,
        _: &mut Space,
        _: Revision,
        _: StreamId,
        _: WatchSpec,
    ) -> Result<WatchId, EngineError> {
        Ok(WatchId(0))
    }
    pub(crate) fn cancel(&mut self, _: &mut Space, _: StreamId, _: WatchId) -> bool {
        false
    }
    pub(crate) fn request_progress(&mut self, _: &mut Space, _: StreamId) {}
    pub(crate) fn pull(&mut self, _: &mut Space, _: Revision, _: StreamId, _: usize) -> Vec<WatchOut> {
        vec![]
    }
    pub(crate) fn close(&mut self, _: StreamId) {}
    pub(crate) fn take_wakes(&mut self) -> Vec<StreamId> {
        vec![]
    }
    pub(crate) fn validate(&self) {}
}
