//! A child of `kindred up` ends with it, even when the supervisor is killed: its standard input is a pipe that only the
//! supervisor holds open, and end of file means that nobody is left to restart or stop this process.

use std::io::Read;

use clap::Args;

/// The flag by which `kindred up` starts its children.
#[derive(Debug, Clone, Copy, Args)]
pub struct ParentArgs {
    /// End when standard input is closed (set by `kindred up`).
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

/// Starts watching the pipe when asked to.
pub fn follow(args: ParentArgs) {
    if !args.exit_with_parent {
        return;
    }
    std::thread::spawn(|| {
        let mut byte = [0];
        // Nothing is ever written to it; an error means the same as its end.
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        std::process::exit(0);
    });
}
