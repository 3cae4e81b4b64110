//! The bytes that grpc-go sends for calls: its encoder puts every field that it has not sent into the table, and the oldest
//! fields make room.

use std::collections::VecDeque;

use kindred_http2::frame::{Head, PREFACE, flag, kind};

const TABLE_BYTES: usize = 4096;

/// A client that calls one method again and again.
pub struct Calls {
    table: VecDeque<(&'static str, String)>,
    size: usize,
    stream: u32,
    fields: Vec<(&'static str, String)>,
    block: Vec<u8>,
}

impl Calls {
    pub fn new(path: &str) -> Self {
        let fields = [
            (":path", path),
            (":authority", "127.0.0.1:2379"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.76.0"),
            ("te", "trailers"),
            ("grpc-accept-encoding", "gzip"),
            ("hasleader", "true"),
        ];
        let fields = fields.map(|(name, value)| (name, value.to_owned())).to_vec();
        Self { table: VecDeque::new(), size: 0, stream: 1, fields, block: Vec::new() }
    }

    /// The preface, settings, and a window that never closes.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(PREFACE);
        frame(out, kind::SETTINGS, 0, 0, &[]);
        frame(out, kind::SETTINGS, flag::ACK, 0, &[]);
        frame(out, kind::WINDOW_UPDATE, 0, 0, &(i32::MAX - 65_535).to_be_bytes());
    }

    /// The next call, and nothing else.
    pub fn next(&mut self, out: &mut Vec<u8>) {
        out.clear();
        self.block.clear();
        self.block.extend([0x83, 0x86]);
        for field in std::mem::take(&mut self.fields) {
            self.field(&field.0, &field.1);
            self.fields.push(field);
        }
        self.field(&"grpc-timeout", &format!("{}u", 4_999_000 + self.stream % 1000));
        frame(out, kind::HEADERS, flag::END_HEADERS, self.stream, &self.block);
        frame(out, kind::DATA, flag::END_STREAM, self.stream, &[9; 200]);
        self.stream = (self.stream + 2) & 0x7fff_ffff;
    }

    fn field(&mut self, name: &&'static str, value: &str) {
        if let Some(at) = self.table.iter().position(|(known, its)| known == name && its == value) {
            self.integer(0x80, 7, 62 + at);
            return;
        }
        match self.table.iter().position(|(known, _)| known == name) {
            Some(at) => self.integer(0x40, 6, 62 + at),
            None => {
                self.block.push(0x40);
                self.integer(0, 7, name.len());
                self.block.extend(name.as_bytes());
            }
        }
        let coded = digits(value);
        self.integer(if coded.is_some() { 0x80 } else { 0 }, 7, coded.as_ref().map_or(value.len(), Vec::len));
        self.block.extend(coded.as_deref().unwrap_or(value.as_bytes()));
        self.size += name.len() + value.len() + 32;
        self.table.push_front((name, value.to_owned()));
        while self.size > TABLE_BYTES
            && let Some((name, value)) = self.table.pop_back()
        {
            self.size -= name.len() + value.len() + 32;
        }
    }

    fn integer(&mut self, flags: u8, bits: u8, value: usize) {
        let mask = (1 << bits) - 1;
        if value < mask {
            self.block.push(flags | value as u8);
            return;
        }
        self.block.push(flags | mask as u8);
        let mut rest = value - mask;
        while rest >= 128 {
            self.block.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.block.push(rest as u8);
    }
}

/// A timeout in Huffman's code: digits and a unit.
fn digits(value: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut out) = (0_u64, 0_u32, Vec::new());
    for byte in value.bytes() {
        let (code, length) = match byte {
            b'0'..=b'2' => (u64::from(byte - b'0'), 5),
            b'3'..=b'9' => (u64::from(byte - b'3') + 0x19, 6),
            b'u' => (0x2d, 6),
            _ => return None,
        };
        (bits, count) = (bits << length | code, count + length);
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | 0xff >> count);
    }
    Some(out)
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&Head { length: payload.len() as u32, kind, flags, stream }.encode());
    out.extend_from_slice(payload);
}
