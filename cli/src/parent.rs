//! Ends a child of `kindred up` with its supervisor, even if that is killed. The child's standard input is a pipe
//! that only the supervisor holds open, so end of file means that the supervisor is gone.

use std::io::Read;

use clap::Args;
use kindred_transport::logging;

/// The flag that `kindred up` gives its children.
#[derive(Debug, Clone, Copy, Args)]
pub struct ParentArgs {
    /// End when standard input is closed (set by `kindred up`).
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

/// Starts to watch the pipe if the flag is set.
pub fn follow(args: ParentArgs) {
    if !args.exit_with_parent {
        return;
    }
    logging::named_by_parent();
    std::thread::spawn(|| {
        let mut byte = [0];
        // Nothing is ever written to the pipe; an error means the same as its end.
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        std::process::exit(0);
    });
}
