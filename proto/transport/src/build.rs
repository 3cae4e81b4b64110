//! The source that a program was built from.

use std::sync::OnceLock;

use serde::Serialize;

/// A program's version and origin. What is not known is `unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Build {
    pub version: &'static str,
    /// The commit of the source.
    pub commit: &'static str,
    /// The compiler.
    pub rustc: &'static str,
    /// The platform that it was built for.
    pub target: &'static str,
}

const UNKNOWN: &str = "unknown";

static OF_PROGRAM: OnceLock<Build> = OnceLock::new();

impl Build {
    /// What every program knows: the packages' version, and the commit that a packager named in `KINDRED_COMMIT`.
    const PLAIN: Self = Self {
        version: env!("CARGO_PKG_VERSION"),
        commit: match option_env!("KINDRED_COMMIT") {
            Some(commit) if !commit.is_empty() => commit,
            _ => UNKNOWN,
        },
        rustc: UNKNOWN,
        target: UNKNOWN,
    };

    /// Says what this program was built from. The first call counts.
    pub fn set(self) {
        let _ = OF_PROGRAM.set(self);
    }

    /// What this program was built from.
    #[must_use]
    pub fn get() -> Self {
        OF_PROGRAM.get().copied().unwrap_or(Self::PLAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_says_nothing_has_the_version_of_the_packages() {
        let (plain, other) = (Build::get(), Build { version: "2", commit: "c", rustc: "r", target: "t" });
        assert_eq!((plain.version, plain.rustc), (env!("CARGO_PKG_VERSION"), UNKNOWN));
        other.set();
        assert_eq!(Build::get(), other);
        plain.set();
        assert_eq!(Build::get(), other, "the first counts");
    }
}
