//! Integers with a prefix (RFC 7541, section 5.1), up to 2^32 - 1.

use super::decoder::CompressionError;

/// Reads an integer whose first byte, which is at `at`, ends with `bits` bits of it, and goes on to what is behind it.
///
/// # Errors
/// When bytes are missing, or the integer is larger than what anyone needs.
#[inline]
pub(crate) fn read(block: &[u8], at: &mut usize, bits: u8) -> Result<u32, CompressionError> {
    let mask = (1_u8 << bits) - 1;
    let first = *block.get(*at).ok_or(CompressionError::Truncated)? & mask;
    *at += 1;
    if first < mask { Ok(u32::from(first)) } else { read_on(block, at, mask) }
}

#[cold]
fn read_on(block: &[u8], at: &mut usize, mask: u8) -> Result<u32, CompressionError> {
    let mut value = u64::from(mask);
    // Five bytes have 35 bits, which is more than fits. A sixth could only add zeros.
    for shift in [0, 7, 14, 21, 28] {
        let byte = *block.get(*at).ok_or(CompressionError::Truncated)?;
        *at += 1;
        value += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(value).map_err(|_| CompressionError::Integer);
        }
    }
    Err(CompressionError::Integer)
}

/// Writes an integer behind the flags of its first byte.
pub(crate) fn write(out: &mut Vec<u8>, flags: u8, bits: u8, value: usize) {
    let mask = (1_usize << bits) - 1;
    if value < mask {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests;
