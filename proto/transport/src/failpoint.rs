//! Places where a test may stop or end this process: `KINDRED_FAILPOINTS=freeze.before=exit,decide.after=hold@2`.
//!
//! A process has steps, each with a side before it and one after it. `exit` ends the process there at once, as `kill -9`
//! would; `hold` says where it is on standard error and stays there for five seconds; `wait` writes where it is to the file
//! that a second variable names, and stays, with the thread or task that came there and no other, until that file is
//! removed. With `@n` it is the n-th time that counts. Each acts once. Without the variable a failpoint is one load.
//!
//! Only what is built with debug assertions has them: a release build reads no variable, and has nothing of this in it.

#[cfg(not(debug_assertions))]
mod absent;
#[cfg(debug_assertions)]
mod armed;

#[cfg(not(debug_assertions))]
pub use self::absent::Failpoints;
#[cfg(debug_assertions)]
pub use self::armed::Failpoints;

/// The variables of a part of a process, and its steps.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// Says what to do where.
    pub variable: &'static str,
    /// The file of `wait`.
    pub file_variable: &'static str,
    /// Whether there is a step of this name.
    pub is_step: fn(&str) -> bool,
}

/// Of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Nothing of it is done.
    Before,
    /// It is done.
    After,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Before, Self::After];

    /// As in the variable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}
