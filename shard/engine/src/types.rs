//! Types that all modules of the engine share. Of those modules they use only [`crate::version`].

mod gap;
mod modes;
mod streams;
mod time;
mod views;

pub(crate) use self::{gap::gaps_of, time::LATEST};
pub use self::{gap::*, modes::*, streams::*, time::*, views::*};
