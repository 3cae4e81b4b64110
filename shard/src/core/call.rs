//! What the loop runs for others.

use super::Core;
use crate::etcd_status::KvError;

/// See [`Request::Call`](crate::apply_loop::Request::Call).
pub(crate) type Call = Box<dyn FnOnce(&mut Core) -> AfterPublish + Send>;

/// Sends an answer.
pub(crate) type AfterPublish = Box<dyn FnOnce() + Send>;

/// See [`Request::Flushed`](crate::apply_loop::Request::Flushed); with an error when the disk takes too long.
pub(crate) type Flushed = Box<dyn FnOnce(Result<&mut Core, KvError>) -> AfterPublish + Send>;
