//! Collects errors, so that everything that is wrong with a document or with flags is reported at once.

use std::{fmt, ops::Deref};

/// The errors found so far, in the order in which they were found. Displayed, each has a line of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors<E>(Vec<E>);

impl<E> Errors<E> {
    pub fn push(&mut self, error: impl Into<E>) {
        self.0.push(error.into());
    }

    /// The value or, after its error was added, a stand-in that nobody uses.
    pub fn or<T>(&mut self, result: Result<T, E>, stand_in: T) -> T {
        result.unwrap_or_else(|error| {
            self.push(error);
            stand_in
        })
    }

    /// Ends the collection.
    ///
    /// # Errors
    /// Every error that was added; without one, the answer is `value`.
    pub fn into_result<T>(self, value: T) -> Result<T, Vec<E>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

impl Errors<String> {
    /// The value, or `None` after its error was added.
    pub fn keep<T>(&mut self, result: Result<T, impl fmt::Display>) -> Option<T> {
        result.map_err(|error| self.push(error.to_string())).ok()
    }
}

impl<E> Default for Errors<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E: fmt::Display> fmt::Display for Errors<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl<E> Deref for Errors<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &self.0
    }
}

impl<E> Extend<E> for Errors<E> {
    fn extend<I: IntoIterator<Item = E>>(&mut self, errors: I) {
        self.0.extend(errors);
    }
}

impl<E> FromIterator<E> for Errors<E> {
    fn from_iter<I: IntoIterator<Item = E>>(errors: I) -> Self {
        Self(errors.into_iter().collect())
    }
}

impl<E> IntoIterator for Errors<E> {
    type Item = E;
    type IntoIter = std::vec::IntoIter<E>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<E> From<Errors<E>> for Vec<E> {
    fn from(errors: Errors<E>) -> Self {
        errors.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_errors_are_kept_in_their_order_and_have_a_line_each() {
        let mut errors = Errors::default();
        assert_eq!(errors.keep("7".parse::<u8>()), Some(7));
        assert_eq!(errors.keep("x".parse::<u8>()), None);
        assert_eq!(errors.or(Err("no port".to_owned()), 0), 0);
        errors.push("no name");
        assert_eq!(errors.to_string(), "\n  invalid digit found in string\n  no port\n  no name");
        assert_eq!(errors.len(), 3);
        assert_eq!(errors.clone().into_result(7), Err(errors.into()));
        assert_eq!(Errors::<String>::default().into_result(7), Ok(7));
    }
}
