use proptest::prelude::*;

use super::*;

fn written(bits: u8, value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, 0, bits, value);
    out
}

/// RFC 7541, appendix C.1.
#[test]
fn examples_of_the_rfc() {
    assert_eq!(written(5, 10), [0x0a]);
    assert_eq!(written(5, 1337), [0x1f, 0x9a, 0x0a]);
    assert_eq!(written(8 - 1, 42), [0x2a]);
    let mut at = 0;
    assert_eq!(read(&[0xff, 0x9a, 0x0a, 1], &mut at, 5), Ok(1337));
    assert_eq!(at, 3);
}

#[test]
fn overflow_and_missing_bytes_are_errors() {
    assert_eq!(read(&[], &mut 0, 5), Err(CompressionError::Truncated));
    assert_eq!(read(&[0x1f, 0x80], &mut 0, 5), Err(CompressionError::Truncated));
    assert_eq!(read(&[0x1f, 0xff, 0xff, 0xff, 0xff, 0x7f], &mut 0, 5), Err(CompressionError::Integer));
    assert_eq!(read(&[0x1f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], &mut 0, 5), Err(CompressionError::Integer));
    assert_eq!(read(&[0x1f, 0xe0, 0xff, 0xff, 0xff, 0x0f], &mut 0, 5), Ok(u32::MAX));
}

proptest! {
    #[test]
    fn any_integer_survives(value in any::<u32>(), bits in 4_u8..8) {
        let bytes = written(bits, value as usize);
        let mut at = 0;
        prop_assert_eq!(read(&bytes, &mut at, bits), Ok(value));
        prop_assert_eq!(at, bytes.len());
    }
}
