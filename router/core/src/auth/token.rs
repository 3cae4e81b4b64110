//! Tokens: who has logged in, when, and until when, signed by whoever has the key. Every router has it, so a token is good
//! at each of them.

use super::document::hex;

/// How long a token is good. Clients log in again when it is over.
pub const LIFETIME_S: u64 = 3600;
/// The form of the text.
const FORM: &str = "k1";

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The user who has logged in.
    pub user: String,
    /// The revision of users and roles by which the password was checked.
    pub revision: u64,
    /// The time of its end, in seconds since 1970.
    pub expires: u64,
}

impl Token {
    /// One for a user who logs in now.
    #[must_use]
    pub fn new(user: &str, revision: u64, now: u64) -> Self {
        Self { user: user.to_owned(), revision, expires: now.saturating_add(LIFETIME_S) }
    }

    /// What is signed.
    #[must_use]
    pub fn signed(&self) -> String {
        format!("{FORM}.{}.{}.{}", hex::encode(self.user.as_bytes()), self.revision, self.expires)
    }

    /// The text of a token.
    #[must_use]
    pub fn text(signed: &str, signature: &[u8]) -> String {
        format!("{signed}.{}", hex::encode(signature))
    }

    /// The parts of a text: what is signed, and the signature. `None` if it is none.
    #[must_use]
    pub fn parts(text: &str) -> Option<(&str, Vec<u8>)> {
        let (signed, signature) = text.rsplit_once('.')?;
        Some((signed, hex::decode(signature)?))
    }

    /// Reads what was signed.
    #[must_use]
    pub fn read(signed: &str) -> Option<Self> {
        let mut parts = signed.split('.');
        let mut next = || parts.next();
        if next()? != FORM {
            return None;
        }
        let user = String::from_utf8(hex::decode(next()?)?).ok()?;
        let (revision, expires) = (next()?.parse().ok()?, next()?.parse().ok()?);
        next().is_none().then_some(Self { user, revision, expires })
    }
}
