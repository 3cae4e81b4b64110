//! The document in the meta store that has the users and roles.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The user and the role that may do everything.
pub const ROOT: &str = "root";
/// The version of the form.
const VERSION: u32 = 1;
/// The revision of a store without users, as in etcd.
const FIRST_REVISION: u64 = 1;

/// Why a document cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// It is no such document.
    #[error("it is no document of users and roles: {0}")]
    Malformed(String),
    /// A later version of kindred has written it.
    #[error(
        "it has the form {found}, and this version of kindred knows {VERSION}: use the version that wrote it"
    )]
    Version {
        /// The form that it has.
        found: u32,
    },
}

/// What a permission permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// To read keys.
    Read,
    /// To write and delete keys.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    /// Whether it permits to read.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether it permits to write.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

/// A permission of a role.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Permission {
    /// What it permits.
    pub access: Access,
    /// The key, or the first key of a range; not empty.
    #[serde(with = "hex")]
    pub key: Vec<u8>,
    /// Empty for one key, `\0` for all keys from `key` on, or else the first key behind the range.
    #[serde(with = "hex")]
    pub range_end: Vec<u8>,
}

/// A role: its permissions, sorted by key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Role {
    /// Each range at most once.
    pub permissions: Vec<Permission>,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct User {
    /// The bcrypt hash of the password; `None` for a user that cannot log in with one.
    pub password: Option<String>,
    /// The names of its roles.
    pub roles: BTreeSet<String>,
    /// The revision that made the user, or gave it its password. Tokens from before are not good any more.
    pub since: u64,
}

/// The users and roles of a cluster.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthState {
    version: u32,
    /// Counts the changes; of two documents of one cluster, the one with more is newer.
    pub change: u64,
    /// Whether clients must say who they are.
    pub enabled: bool,
    /// etcd's revision of users and roles.
    pub revision: u64,
    /// Tokens of earlier revisions are not good any more.
    pub tokens_from: u64,
    /// The key that signs tokens; empty before the first change.
    #[serde(with = "hex")]
    pub key: Vec<u8>,
    /// The users by name.
    pub users: BTreeMap<String, User>,
    /// The roles by name.
    pub roles: BTreeMap<String, Role>,
}

impl Default for AuthState {
    fn default() -> Self {
        Self {
            version: VERSION,
            change: 0,
            enabled: false,
            revision: FIRST_REVISION,
            tokens_from: FIRST_REVISION,
            key: Vec::new(),
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
        }
    }
}

/// Shows neither the key nor hashes, which must not get into logs.
impl std::fmt::Debug for AuthState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let users: Vec<_> = self.users.iter().map(|(name, user)| (name, &user.roles, user.since)).collect();
        f.debug_struct("AuthState")
            .field("change", &self.change)
            .field("enabled", &self.enabled)
            .field("revision", &self.revision)
            .field("tokens_from", &self.tokens_from)
            .field("users", &users)
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

impl AuthState {
    /// Reads a document.
    ///
    /// # Errors
    /// When it is none, or of a later version. Nothing of it can be gone by then.
    pub fn from_json(json: &[u8]) -> Result<Self, DocumentError> {
        #[derive(Deserialize)]
        struct Form {
            version: u32,
        }
        let malformed = |error: serde_json::Error| DocumentError::Malformed(error.to_string());
        let Form { version } = serde_json::from_slice(json).map_err(malformed)?;
        if version != VERSION {
            return Err(DocumentError::Version { found: version });
        }
        serde_json::from_slice(json).map_err(malformed)
    }

    /// Writes the document.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Bytes as text.
pub mod hex {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    /// The digits of these bytes.
    #[must_use]
    pub fn encode(bytes: &[u8]) -> String {
        let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }

    /// The bytes of these digits; `None` if there are others among them, or an odd number.
    #[must_use]
    pub fn decode(text: &str) -> Option<Vec<u8>> {
        let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
        let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
        digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).ok()).collect()
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        decode(&text).ok_or_else(|| D::Error::custom("bytes are written as pairs of hexadecimal digits"))
    }
}
