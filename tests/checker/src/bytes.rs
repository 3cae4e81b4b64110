//! Bytes of keys and values. A person can read them in a stored history.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Opaque bytes. JSON has printable ASCII as it is, and every other byte and the backslash as `\xNN`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Blob(Vec<u8>);

/// A key; compared bytewise.
pub type Key = Blob;
/// A value. A recorder may store a digest instead, as long as different values stay different.
pub type Value = Blob;

impl Blob {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first key after this one in bytewise order.
    pub fn successor(&self) -> Self {
        let mut bytes = self.0.clone();
        bytes.push(0);
        Self(bytes)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            if first != b'\\' {
                bytes.push(first);
                rest = tail;
                continue;
            }
            let hex = tail.get(1..3).filter(|_| tail[0] == b'x').and_then(|h| std::str::from_utf8(h).ok());
            let byte = hex.and_then(|h| u8::from_str_radix(h, 16).ok()).ok_or("bad escape in bytes")?;
            bytes.push(byte);
            rest = &tail[3..];
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in &self.0 {
            if (0x20..0x7f).contains(&byte) && byte != b'\\' {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl From<&str> for Blob {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Blob {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_json() {
        let all = Blob((0..=255u8).collect());
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Blob>(&text).unwrap(), all);
        assert_eq!(serde_json::to_string(&Blob::from("/registry/pods/a")).unwrap(), "\"/registry/pods/a\"");
        assert!(serde_json::from_str::<Blob>("\"\\\\x4\"").is_err());
        assert!(serde_json::from_str::<Blob>("\"\\\\\"").is_err());
    }
}
