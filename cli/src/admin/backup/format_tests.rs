use proptest::prelude::*;

use super::*;

fn kv(key: &str, value: &[u8], lease: i64) -> KeyValue {
    KeyValue {
        key: Bytes::copy_from_slice(key.as_bytes()),
        create_revision: 5,
        mod_revision: 1_792_000_000_000_000_003,
        version: 2,
        value: Bytes::copy_from_slice(value),
        lease,
    }
}

fn written(kvs: &[KeyValue]) -> (Vec<u8>, Sum) {
    let mut file = FileWriter::new(Vec::new()).unwrap();
    kvs.iter().for_each(|kv| file.add(kv).unwrap());
    let (sum, bytes) = file.finish().unwrap();
    (bytes, sum)
}

fn read(bytes: &[u8]) -> Result<(Vec<KeyValue>, Sum), FormatError> {
    let mut file = FileReader::new(bytes, bytes.len() as u64)?;
    let mut kvs = Vec::new();
    loop {
        let frame = file.next()?;
        if frame.is_empty() {
            return Ok((kvs, file.sum()));
        }
        kvs.extend(frame);
    }
}

/// Version 1 is frozen: a change of these bytes would make old backups unreadable.
#[test]
fn the_bytes_of_version_1() {
    let (bytes, sum) =
        written(&[kv("/registry/pods/a/b", b"value", 0), kv("/registry/pods/a/c", &[0, 255], 7)]);
    let golden = include_str!("golden.hex").split_whitespace().collect::<String>();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden);
    assert_eq!((sum.keys, sum.bytes), (2, bytes.len() as u64));
    assert_eq!(sum.xxh3, sum_of(&bytes));
    assert_eq!(read(&bytes).unwrap().0.len(), 2);
}

#[test]
fn large_values_and_many_frames() {
    let kvs: Vec<_> = (0..2_000).map(|i| kv(&format!("k{i:05}"), &vec![b'x'; i * 3], i as i64)).collect();
    let mut kvs = kvs;
    kvs.push(kv("z", &vec![7; 3 << 20], 0));
    let (bytes, sum) = written(&kvs);
    assert_eq!(read(&bytes).unwrap(), (kvs, sum));
    let (nothing, sum) = written(&[]);
    assert_eq!(read(&nothing).unwrap(), (Vec::new(), sum));
}

#[test]
fn refusals_say_where() {
    let (bytes, _) = written(&[kv("a", b"1", 0)]);
    let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(error(&bytes[..10]).contains("header"));
    assert_eq!(error(&bytes[..bytes.len() - 1]), "it ends inside the frame at byte 16");
    assert_eq!(error(&bytes[..20]), "it ends inside the frame at byte 16");
    let mut later = bytes.clone();
    later[8] = 9;
    let crc = crc32c::crc32c(&later[..12]);
    later[12..16].copy_from_slice(&crc.to_le_bytes());
    assert!(error(&later).contains("version 9"));
    // A length beyond the end of the file must not cause an allocation.
    let mut long = bytes.clone();
    long[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(error(&long), "it ends inside the frame at byte 16");
}

proptest! {
    #[test]
    fn a_flipped_bit_is_found(at in 0..10_000_usize, bit in 0..8_u32) {
        let (mut bytes, sum) = written(&[kv("a", b"1", 0), kv("b", &[0; 100], 3)]);
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        // The file's checksum also detects what a frame's checksum would miss.
        prop_assert!(read(&bytes).is_err() || sum_of(&bytes) != sum.xxh3);
        prop_assert!(read(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), valid in any::<bool>()) {
        if valid {
            let payload = bytes.clone();
            bytes = written(&[]).0;
            bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
            bytes.extend_from_slice(&payload);
        }
        let _ = read(&bytes);
    }
}
