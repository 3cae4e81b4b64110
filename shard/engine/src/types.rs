//! Types that all modules of the engine share. Of those modules they use only [`crate::version`].

mod gap;
mod modes;
mod streams;
mod time;
mod views;

pub use self::{gap::*, modes::*, streams::*, time::*, views::*};
pub(crate) use self::{
    gap::{floor_among, gaps_of},
    time::LATEST,
};
