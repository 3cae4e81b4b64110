//! A digest of the keys of a Kind and of their revisions, which is the one that a kube-apiserver computes of its watch
//! cache and of etcd to find out whether they differ.
//!
//! Source: `calculateStoreDigest` in `staging/src/k8s.io/apiserver/pkg/storage/cacher/delegator.go`: FNV-1 with 64 bits of
//! `<namespace>/<name>/<resourceVersion>` of each object, in the order of the list.

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// The digest of the objects that were added so far, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(OFFSET)
    }
}

impl Digest {
    /// Adds an object: its key behind the Kind's prefix, `<namespace>/<name>` or `<name>`, and the revision of its last
    /// change.
    pub fn add(&mut self, below: &[u8], mod_revision: i64) {
        if !below.contains(&b'/') {
            // The namespace of an object without one is empty.
            self.write(b"/");
        }
        self.write(below);
        self.write(b"/");
        self.write(mod_revision.to_string().as_bytes());
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(PRIME) ^ u64::from(*byte);
        }
    }

    /// In the form of the apiserver's: hexadecimal, without zeros in front.
    #[must_use]
    pub fn to_hex(self) -> String {
        format!("{:x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1_of_64_bits() {
        // The published test vectors of FNV-1.
        for (text, sum) in
            [("", 0xcbf2_9ce4_8422_2325_u64), ("a", 0xaf63_bd4c_8601_b7be), ("foobar", 0x340d_8765_a4dd_a9c2)]
        {
            let mut digest = Digest::default();
            digest.write(text.as_bytes());
            assert_eq!(digest.0, sum, "{text}");
        }
    }

    #[test]
    fn an_object_without_a_namespace_has_an_empty_one() {
        let (mut digest, mut written) = (Digest::default(), Digest::default());
        digest.add(b"a-node", 12);
        digest.add(b"ns/pod", 13);
        written.write(b"/a-node/12ns/pod/13");
        assert_eq!(digest, written);
    }
}
