//! Numbers as protobuf writes them: seven bits a byte, the lowest first, with the highest bit set in all but the last.

/// The longest number.
pub(super) const BYTES_MAX: usize = 10;

/// The bytes that a number takes.
#[inline]
pub(super) const fn len(number: u64) -> usize {
    // A seventh of the bits, rounded up, without a division.
    ((number | 1).ilog2() as usize * 9 + 73) / 64
}

const MORE: u64 = 0x8080_8080_8080_8080;

/// Takes the lowest 56 bits apart in two halves, four quarters and eight groups of seven bits.
#[inline]
fn apart(number: u64) -> u64 {
    let bits = (number & 0x0fff_ffff) | (number & 0x00ff_ffff_f000_0000) << 4;
    let bits = (bits & 0x0000_3fff_0000_3fff) | (bits & 0x0fff_c000_0fff_c000) << 2;
    (bits & 0x007f_007f_007f_007f) | (bits & 0x3f80_3f80_3f80_3f80) << 1
}

/// The bytes of a number that takes nine of them, as present-day revisions do.
#[inline]
pub(super) fn nine(number: u64) -> Option<[u8; 9]> {
    let high = (number >> 56) as u8;
    (1..0x80).contains(&high).then(|| {
        let mut bytes = [high; 9];
        bytes[..8].copy_from_slice(&(apart(number) | MORE).to_le_bytes());
        bytes
    })
}

/// Writes a number at the beginning of `out`, and anything behind it. Returns its length.
#[inline]
pub(super) fn put(out: &mut [u8; BYTES_MAX], number: u64) -> usize {
    if number < 0x80 {
        out[0] = number as u8;
        return 1;
    }
    if number < 0x4000 {
        [out[0], out[1]] = [number as u8 | 0x80, (number >> 7) as u8];
        return 2;
    }
    let bits = apart(number);
    let high = (number >> 56) as u8;
    // All bytes but the last have the highest bit.
    let (more, len) = match high {
        0 => (MORE & ((1 << (8 * (len(number) - 1))) - 1), len(number)),
        // Present-day revisions have a ninth byte; only negative numbers have a tenth.
        1..0x80 => (MORE, 9),
        _ => (MORE, 10),
    };
    out[..8].copy_from_slice(&(bits | more).to_le_bytes());
    out[8] = high;
    out[9] = 1;
    len
}

/// Reads a number of at most 32 bits and returns it with its length.
pub(super) fn read_short(bytes: &[u8]) -> (usize, usize) {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(5).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return (value, at + 1);
        }
    }
    (0, 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_as_prost_writes_them(number: u64, bits in 0..64_u32) {
            let number = number >> bits;
            let mut want = Vec::new();
            prost::encoding::encode_varint(number, &mut want);
            let mut out = [0xff; BYTES_MAX];
            let written = put(&mut out, number);
            prop_assert_eq!((written, &out[..written]), (len(number), &want[..]));
            let nine = nine(number);
            prop_assert_eq!(nine.as_ref().map(|bytes| &bytes[..]), (want.len() == 9).then_some(&want[..]));
            if let Ok(short) = u32::try_from(number) {
                prop_assert_eq!(read_short(&out), (short as usize, written));
            }
        }
    }

    #[test]
    fn every_length_is_written() {
        for bit in 0..64 {
            for number in [(1_u64 << bit) - 1, 1 << bit, u64::MAX >> bit] {
                let mut want = Vec::new();
                prost::encoding::encode_varint(number, &mut want);
                let mut out = [0; BYTES_MAX];
                let written = put(&mut out, number);
                assert_eq!(&out[..written], &want[..], "{number:x}");
            }
        }
    }
}
