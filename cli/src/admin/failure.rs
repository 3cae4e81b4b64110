//! How commands fail, and their exit statuses.

/// Why a command failed. Its code is the exit status, on which scripts may rely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// 1: the request was refused or failed.
    #[error("{0}")]
    Refused(String),
    /// 2: the command line or a file is invalid; no request was sent.
    #[error("{0}")]
    Usage(String),
    /// 3: no router can be reached, or no meta store behind it.
    #[error("{0}")]
    Unreachable(String),
    /// 4: a move was aborted.
    #[error("{0}")]
    Aborted(String),
    /// 5: the command stopped waiting; what it began continues.
    #[error("{0}")]
    StillRunning(String),
}

impl Failure {
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
            Self::Aborted(_) => 4,
            Self::StillRunning(_) => 5,
        }
    }
}

/// The description of exit statuses in `kindred --help`.
pub const EXIT_STATUS: &str = "\
Exit status of the commands that talk to a router:
  0  done; health: ready
  1  refused or failed; nothing was changed unless the message says so; health: not ready
  2  the command line or a file cannot be understood
  3  no router, or no meta store, can be reached
  4  the move was aborted: everything is where it was
  5  the wait ended first (--timeout, Ctrl-C); what was begun goes on";
