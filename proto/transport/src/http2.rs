//! Serves connections of HTTP/2 with the state machine of `kindred-http2`: the calls that are answered here, and by a bridge
//! of `http`'s types everything else.

mod answer;
mod driver;
mod request;
mod slots;

pub(crate) use driver::{Driver, Others, Paths, drive};
pub(crate) use request::RequestBody;
