use proptest::prelude::*;

use super::*;
use crate::{
    head::{Path, Timeout},
    hpack::{field::Known, huffman, integer},
    routes::RouteId,
};

/// Keeps what the fields say, as text.
#[derive(Default)]
struct Fields(Vec<String>);

impl Sink for Fields {
    fn field(&mut self, _id: FieldId, field: &Field, _size: u32) {
        self.0.push(match field {
            Field::Method(method) => format!("method {method:?}"),
            Field::Scheme => "scheme".to_owned(),
            Field::Authority(value) => format!("authority {}", text(value)),
            Field::Path(Path::Known(route)) => format!("route {}", route.0),
            Field::Path(Path::Unknown(path)) => format!("path {}", text(path)),
            Field::Timeout(timeout) => format!("timeout {:?}", timeout.duration()),
            Field::Metadata(both) => format!("{}: {}", text(&both.0), text(&both.1)),
            Field::Malformed(name) => format!("malformed {}", text(name)),
            other => format!("{other:?}"),
        });
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or("binary")
}

fn decoder() -> Decoder {
    Decoder::new(4096, Arc::new([("/known", RouteId(5))].into_iter().collect()))
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Decodes a block and returns its fields and the size of the table.
fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<(Vec<String>, usize), CompressionError> {
    let mut fields = Fields::default();
    assert_eq!(decoder.decode(block, usize::MAX, &mut fields)?, Taken::All);
    Ok((fields.0, decoder.table().size()))
}

fn check(decoder: &mut Decoder, block: &str, fields: &[&str], size: usize) {
    let found = decoded(decoder, &hex(block)).unwrap();
    assert_eq!((found.0.iter().map(String::as_str).collect::<Vec<_>>(), found.1), (fields.to_vec(), size));
}

/// RFC 7541, appendix C.2.
#[test]
fn single_fields_of_the_rfc() {
    let block = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    check(&mut decoder(), block, &["custom-key: custom-header"], 55);
    check(&mut decoder(), "040c 2f73 616d 706c 652f 7061 7468", &["path /sample/path"], 0);
    check(&mut decoder(), "1008 7061 7373 776f 7264 0673 6563 7265 74", &["password: secret"], 0);
    check(&mut decoder(), "82", &["method Get"], 0);
}

/// RFC 7541, appendix C.3 and C.4, which is the same with Huffman's code.
#[test]
fn requests_of_the_rfc() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, coded] {
        let mut decoder = decoder();
        let start = ["method Get", "scheme", "path /", "authority www.example.com"];
        check(&mut decoder, blocks[0], &start, 57);
        check(&mut decoder, blocks[1], &[&start[..], &["cache-control: no-cache"]].concat(), 110);
        let third = [
            "method Get",
            "scheme",
            "path /index.html",
            "authority www.example.com",
            "custom-key: custom-value",
        ];
        check(&mut decoder, blocks[2], &third, 164);
        assert_eq!(decoder.table().len(), 3);
    }
}

/// RFC 7541, appendix C.5 and C.6: a table of 256 bytes, from which entries are evicted. A request with a status is
/// malformed, but the table is kept.
#[test]
fn responses_of_the_rfc() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, coded] {
        let mut decoder = decoder();
        // The size is set to 256 by an update.
        let (status, location) = ("malformed :status", "location: https://www.example.com");
        let private = "cache-control: private";
        let first = [status, private, "date: Mon, 21 Oct 2013 20:13:21 GMT", location];
        check(&mut decoder, &format!("3fe101{}", blocks[0]), &first, 222);
        check(&mut decoder, blocks[1], &first, 222);
        assert_eq!(decoder.table().len(), 4);
        let third = [
            status,
            private,
            "date: Mon, 21 Oct 2013 20:13:22 GMT",
            location,
            "content-encoding: gzip",
            "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ];
        check(&mut decoder, blocks[2], &third, 215);
        assert_eq!(decoder.table().len(), 3);
    }
}

fn literal(first: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    for text in [name, value] {
        integer::write(&mut out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
    out
}

/// A field whose name is that of an entry, with a new value.
fn renamed(index: usize, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    integer::write(&mut out, 0x40, 6, index);
    let coded = huffman::encode(value);
    integer::write(&mut out, 0x80, 7, coded.len());
    out.extend(coded);
    out
}

/// What grpc-go sends: every timeout is a new entry, which shifts the others.
#[test]
fn timeouts_shift_the_other_entries() {
    let mut decoder = decoder();
    let mut first = literal(0x40, b":path", b"/known");
    first.extend(literal(0x40, b"grpc-timeout", b"1S"));
    decoded(&mut decoder, &first).unwrap();
    for call in 0..60_u32 {
        // The path is behind the timeouts; the newest of them is 62.
        let mut block = Vec::new();
        integer::write(&mut block, 0x80, 7, 63 + call as usize);
        block.extend(renamed(62, format!("{call}u").as_bytes()));
        let fields = decoded(&mut decoder, &block).unwrap().0;
        let timeout = Timeout::parse(format!("{call}u").as_bytes()).duration();
        assert_eq!(fields, ["route 5".to_owned(), format!("timeout {timeout:?}")]);
    }
}

#[test]
fn an_entry_may_take_its_name_from_one_that_it_evicts() {
    let mut decoder = decoder();
    let mut block = vec![0x3f, 0x21]; // 64
    block.extend(literal(0x40, b"x-abc", b"0123456789"));
    block.extend(renamed(62, b"98765432109876543210"));
    block.push(0x80 | 62);
    let (fields, size) = decoded(&mut decoder, &block).unwrap();
    assert_eq!(fields[1..], ["x-abc: 98765432109876543210", "x-abc: 98765432109876543210"]);
    assert_eq!(size, 57);
}

#[test]
fn an_entry_larger_than_the_table_empties_it() {
    let mut decoder = decoder();
    let mut block = vec![0x3f, 0x21];
    block.extend(literal(0x40, b"a", b"b"));
    block.extend(literal(0x40, b"a", &[b'x'; 100]));
    let (fields, size) = decoded(&mut decoder, &block).unwrap();
    assert_eq!((fields.len(), size), (2, 0));
    assert_eq!(decoded(&mut decoder, &[0x80 | 62]), Err(CompressionError::Index));
}

#[test]
fn what_cannot_be_decoded_is_an_error() {
    for (block, error) in [
        (&[0x80][..], CompressionError::Index),
        (&[0x80 | 62], CompressionError::Index),
        (&[0x40 | 63, 0], CompressionError::Index),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff], CompressionError::Integer),
        (&[0x40], CompressionError::Truncated),
        (&[0x40, 3, b'a'], CompressionError::Truncated),
        (&[0x40, 1, b'a'], CompressionError::Truncated),
        (&[0x40, 1, b'a', 0x7f, 0xff, 0xff, 0xff, 0xff, 0x0f], CompressionError::Integer),
        (&[0x40, 0x81, 0], CompressionError::Huffman),
        (&[0x3f, 0xe2, 0x1f], CompressionError::TableSize),
        (&[0x82, 0x20], CompressionError::LateUpdate),
    ] {
        assert_eq!(decoded(&mut decoder(), block).unwrap_err(), error, "{block:x?}");
    }
    // 4096 is allowed, and so are two updates.
    assert_eq!(decoded(&mut decoder(), &[0x20, 0x3f, 0xe1, 0x1f, 0x82]).unwrap().0, ["method Get"]);
}

#[test]
fn a_smaller_table_must_be_confirmed() {
    let new = || Decoder::new(100, Arc::new(Routes::default()));
    let mut early = new();
    decoded(&mut early, &[0x3f, 0xe1, 0x1f, 0x82]).expect("the default holds before the acknowledgement");
    let mut none = new();
    none.acknowledged(100);
    assert_eq!(decoded(&mut none, &[0x82]), Err(CompressionError::MissingUpdate));
    let mut large = new();
    large.acknowledged(100);
    assert_eq!(decoded(&mut large, &[0x3f, 0x46, 0x82]), Err(CompressionError::TableSize), "101");
    let mut early = new();
    decoded(&mut early, &[0x3f, 0x45, 0x82]).unwrap();
    early.acknowledged(100);
    decoded(&mut early, &[0x82]).expect("the table is small already");
    let mut right = new();
    right.acknowledged(100);
    decoded(&mut right, &[0x3f, 0x45, 0x82]).unwrap();
    decoded(&mut right, &[0x82]).expect("once is enough");
}

#[test]
fn a_list_that_is_too_large_is_cut() {
    let mut decoder = decoder();
    let mut block = literal(0x40, b"a", b"b");
    block.extend([0x80 | 62; 3]);
    let mut fields = Fields::default();
    assert_eq!(decoder.decode(&block, 34 * 2 + 33, &mut fields), Ok(Taken::TooLarge));
    assert_eq!(fields.0.len(), 2);
    assert_eq!(decoder.decode(&[0x80 | 62], 34, &mut fields), Ok(Taken::All));
}

#[test]
fn every_static_entry_is_read() {
    for index in 1..=61_u8 {
        decoded(&mut decoder(), &[0x80 | index]).unwrap();
        let mut literal = Vec::new();
        integer::write(&mut literal, 0, 4, usize::from(index));
        literal.extend([1, b'1']);
        decoded(&mut decoder(), &literal).unwrap();
    }
    assert!(matches!(Name::of(b"host"), Name::Known(Known::Host)));
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..10)) {
        let mut decoder = decoder();
        for block in blocks {
            if decoder.decode(&block, 1000, &mut Fields::default()).is_err() {
                break;
            }
            prop_assert!(decoder.table().size() <= 4096);
        }
    }
}
