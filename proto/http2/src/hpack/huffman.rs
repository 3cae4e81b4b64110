//! Huffman decoding of strings (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: the lengths of the codes, in the order of symbols, determine it. From them the compiler makes a
//! state machine that takes four bits at a time. No code is shorter than five bits, so a step emits at most one symbol.

/// The length of the code of each symbol; the last is the end of the string.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26, 30,
];
const END: usize = 256;

/// The string is no Huffman code, or its padding is not the begin of the code for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadCode;

#[derive(Clone, Copy)]
struct Step {
    next: u8,
    symbol: u8,
    flags: u8,
}
const EMITS: u8 = 1;
const FAILS: u8 = 2;

/// A state is an inner node of the tree of codes; the root is state 0.
struct Machine {
    steps: [[Step; 16]; 256],
    /// Whether a string may end in a state: all bits since the last symbol are ones, and there are at most seven.
    ends: [bool; 256],
}

static MACHINE: Machine = machine();

/// The codes by the lengths, aligned to the right.
const fn codes() -> [u32; 257] {
    let mut codes = [0; 257];
    let (mut length, mut code) = (1, 0_u32);
    while length <= 30 {
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] == length {
                codes[symbol] = code;
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        length += 1;
    }
    codes
}

const fn machine() -> Machine {
    // A child below 256 is an inner node, and 256 more than a symbol is a leaf. Nothing leads back to the root.
    let codes = codes();
    let mut children = [[0_u16; 2]; 256];
    let (mut nodes, mut symbol) = (1, 0);
    while symbol < 257 {
        let (mut node, mut bit) = (0, LENGTHS[symbol]);
        while bit > 1 {
            bit -= 1;
            let side = (codes[symbol] >> bit & 1) as usize;
            if children[node][side] == 0 {
                children[node][side] = nodes;
                nodes += 1;
            }
            node = children[node][side] as usize;
        }
        children[node][(codes[symbol] & 1) as usize] = 256 + symbol as u16;
        symbol += 1;
    }
    let mut steps = [[Step { next: 0, symbol: 0, flags: 0 }; 16]; 256];
    let mut state = 0;
    while state < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            let mut step = Step { next: 0, symbol: 0, flags: 0 };
            let (mut node, mut bit) = (state, 4);
            while bit > 0 {
                bit -= 1;
                let child = children[node][nibble >> bit & 1] as usize;
                if child == 256 + END {
                    step.flags |= FAILS;
                    node = 0;
                } else if child >= 256 {
                    step.symbol = (child - 256) as u8;
                    step.flags |= EMITS;
                    node = 0;
                } else {
                    node = child;
                }
            }
            step.next = node as u8;
            steps[state][nibble] = step;
            nibble += 1;
        }
        state += 1;
    }
    let mut ends = [false; 256];
    let (mut node, mut ones) = (0, 0);
    while ones <= 7 {
        ends[node] = true;
        node = children[node][1] as usize;
        ones += 1;
    }
    Machine { steps, ends }
}

/// For each eight bits the symbol whose code they begin with, and its length; `LONGER` where they are a part of a code.
static FIRST: [(u8, u8); 256] = first();

const LONGER: u8 = u8::MAX;

const fn first() -> [(u8, u8); 256] {
    let codes = codes();
    let mut first = [(0, LONGER); 256];
    let mut symbol = 0;
    while symbol < END {
        let length = LENGTHS[symbol];
        if length <= 8 {
            let begin = (codes[symbol] as usize) << (8 - length);
            let mut at = begin;
            while at < begin + (1 << (8 - length)) {
                first[at] = (symbol as u8, length);
                at += 1;
            }
        }
        symbol += 1;
    }
    first
}

/// More symbols than are in eight bytes, of which there are the most when all have five bits.
const SHORT_SYMBOLS: usize = 13;

/// Where strings are decoded to.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    short: [u8; SHORT_SYMBOLS],
    long: Vec<u8>,
}

/// Decodes a string.
///
/// # Errors
/// When the string is not a sequence of codes with proper padding.
#[inline]
pub(crate) fn decode<'a>(coded: &[u8], out: &'a mut Decoded) -> Result<&'a [u8], BadCode> {
    if coded.len() <= 8
        && let Some(symbols) = short(coded, &mut out.short)
    {
        return Ok(&out.short[..symbols]);
    }
    out.long.clear();
    decode_any(coded, &mut out.long)?;
    Ok(&out.long)
}

/// Decodes a string of at most eight bytes, such as a timeout, if none of its codes is longer than eight bits. Returns the
/// number of symbols.
#[inline]
fn short(coded: &[u8], out: &mut [u8; SHORT_SYMBOLS]) -> Option<usize> {
    let mut bits = 0;
    for byte in coded {
        bits = bits << 8 | u64::from(*byte);
    }
    let mut left = coded.len() as u32 * 8;
    bits = bits.checked_shl(64 - left).unwrap_or(0);
    let mut symbols = 0;
    for place in out.iter_mut() {
        let (symbol, length) = FIRST[(bits >> 56) as usize];
        if u32::from(length) > left {
            break;
        }
        *place = symbol;
        symbols += 1;
        bits <<= length;
        left -= u32::from(length);
    }
    // Padding is less than a byte of ones, which no code of up to eight bits consists of.
    if left >= 8 {
        return None;
    }
    let padding = !(u64::MAX >> left);
    (bits & padding == padding).then_some(symbols)
}

/// Appends a decoded string of any length.
fn decode_any(coded: &[u8], out: &mut Vec<u8>) -> Result<(), BadCode> {
    out.reserve(coded.len() * 8 / 5);
    let mut state = 0;
    for byte in coded {
        for nibble in [byte >> 4, byte & 15] {
            let step = MACHINE.steps[usize::from(state)][usize::from(nibble)];
            if step.flags != 0 {
                if step.flags & FAILS != 0 {
                    return Err(BadCode);
                }
                out.push(step.symbol);
            }
            state = step.next;
        }
    }
    if MACHINE.ends[usize::from(state)] { Ok(()) } else { Err(BadCode) }
}

#[cfg(test)]
pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
    let codes = codes();
    let (mut out, mut bits, mut count) = (Vec::new(), 0_u64, 0);
    for &byte in text {
        let length = LENGTHS[usize::from(byte)];
        bits = bits << length | u64::from(codes[usize::from(byte)]);
        count += length;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | 0xff >> count);
    }
    out
}

#[cfg(test)]
mod tests;
