//! The paths that a server knows, each with an id of its own.

use std::collections::HashMap;

/// What the user of the crate calls a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteId(pub u16);

/// Paths and their ids. A path is looked up when it enters the table of a connection, not at each request.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    routes: HashMap<Box<[u8]>, RouteId>,
}

impl Routes {
    /// The id of a path, if it has one.
    #[must_use]
    pub fn route(&self, path: &[u8]) -> Option<RouteId> {
        self.routes.get(path).copied()
    }
}

impl<'a> FromIterator<(&'a str, RouteId)> for Routes {
    fn from_iter<I: IntoIterator<Item = (&'a str, RouteId)>>(routes: I) -> Self {
        Self { routes: routes.into_iter().map(|(path, id)| (path.as_bytes().into(), id)).collect() }
    }
}
