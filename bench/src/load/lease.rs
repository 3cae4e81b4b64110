//! Lease objects as kubelets write them, encoded as kube-apiserver stores them: protobuf after `k8s\0`. A renewal
//! changes only the time.

use bytes::{BufMut, Bytes, BytesMut};

/// The prefix of the nodes' leases.
pub const PREFIX: &str = "/registry/leases/kube-node-lease/";
/// The duration of a kubelet's lease.
const SECONDS: u64 = 40;
/// The creation time of every lease.
const CREATED: u64 = 1_700_000_000;

pub fn key(node: usize) -> Bytes {
    format!("{PREFIX}node-{node:07}").into()
}

/// A node's lease after this many renewals.
pub fn object(node: usize, renewals: u64) -> Bytes {
    let name = format!("node-{node:07}");
    let uid = format!("{node:08x}-7d3a-4c51-9a4e-0242ac120002");
    // Kubelets renew every ten seconds, at odd microseconds.
    let renewed = time(CREATED + renewals * 10, 123_456_000);
    let owner = Message::default().text(1, "Node").text(3, &name).text(4, &uid).text(5, "v1");
    let fields = format!(
        r#"{{"f:metadata":{{"f:ownerReferences":{{".":{{}},"k:{{\"uid\":\"{uid}\"}}":{{}}}}}},"f:spec":{{"f:holderIdentity":{{}},"f:leaseDurationSeconds":{{}},"f:renewTime":{{}}}}}}"#
    );
    let managed = Message::default()
        .text(1, "kubelet")
        .text(2, "Update")
        .text(3, "coordination.k8s.io/v1")
        .message(4, time(CREATED + renewals * 10, 0))
        .text(6, "FieldsV1")
        .message(7, Message::default().text(1, &fields));
    let metadata = Message::default()
        .text(1, &name)
        .text(2, "")
        .text(3, "kube-node-lease")
        .text(4, "")
        .text(5, &uid)
        .text(6, "")
        .number(7, 0)
        .message(8, time(CREATED, 0))
        .message(13, owner)
        .message(17, managed);
    let spec = Message::default().text(1, &name).number(2, SECONDS).message(4, renewed);
    let lease = Message::default().message(1, metadata).message(2, spec);
    let kind = Message::default().text(1, "coordination.k8s.io/v1").text(2, "Lease");
    let unknown = Message::default().message(1, kind).message(2, lease).text(3, "").text(4, "");
    let mut bytes = BytesMut::from(&b"k8s\0"[..]);
    bytes.extend_from_slice(&unknown.0);
    bytes.freeze()
}

fn time(seconds: u64, nanos: u64) -> Message {
    Message::default().number(1, seconds).number(2, nanos)
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(BytesMut);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.put_u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.put_u8(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    fn message(self, field: u64, value: Self) -> Self {
        self.bytes(field, &value.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a message: their numbers, and the bytes of length-delimited ones.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        }
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let length = varint(&mut bytes);
            let length = if tag & 7 == 2 { usize::try_from(length).unwrap() } else { 0 };
            all.push((tag >> 3, &bytes[..length]));
            bytes = &bytes[length..];
        }
        all
    }

    #[test]
    fn a_lease_is_what_an_apiserver_stores() {
        let bytes = object(42, 7);
        let unknown = fields(bytes.strip_prefix(b"k8s\0").unwrap());
        let kind = fields(unknown[0].1);
        assert_eq!(kind, [(1, &b"coordination.k8s.io/v1"[..]), (2, b"Lease")]);
        let lease = fields(unknown[1].1);
        let (metadata, spec) = (fields(lease[0].1), fields(lease[1].1));
        assert_eq!(metadata[0], (1, &b"node-0000042"[..]));
        assert_eq!(metadata.last().unwrap().0, 17);
        assert_eq!(spec[0], (1, &b"node-0000042"[..]));
        assert_eq!(spec.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn a_renewal_changes_times_and_no_length() {
        let (one, two) = (object(42, 7), object(42, 8));
        assert_eq!(one.len(), two.len());
        let differ = one.iter().zip(&two).filter(|(a, b)| a != b).count();
        // In the spec, and in the apiserver's managed fields.
        assert!((2..=4).contains(&differ), "{differ} bytes differ");
        assert!((470..490).contains(&one.len()), "{} bytes, and the table says about 480", one.len());
        assert_ne!(object(42, 7), object(43, 7));
        assert_eq!(key(42), "/registry/leases/kube-node-lease/node-0000042");
    }
}
