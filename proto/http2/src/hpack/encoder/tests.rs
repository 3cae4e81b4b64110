use super::*;

fn text(block: &Block) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut rest = block.bytes();
    while let [0, more @ ..] = rest {
        let mut at = 0;
        let mut take = || {
            let length = integer::read(more, &mut at, 7).unwrap() as usize;
            at += length;
            String::from_utf8(more[at - length..at].to_vec()).unwrap()
        };
        fields.push((take(), take()));
        rest = &more[at..];
    }
    assert!(rest.is_empty());
    fields
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn messages_are_percent_encoded() {
    for (message, encoded) in [
        ("plain text", "plain text"),
        ("100%", "100%25"),
        ("a\nb", "a%0Ab"),
        ("\u{fc}", "%C3%BC"),
        (" x ", "%20x%20"),
        (" ", "%20"),
        ("~", "~"),
        ("\u{7f}", "%7F"),
    ] {
        let expected = [pair("grpc-status", "5"), pair("grpc-message", encoded)];
        assert_eq!(text(&Block::status(5, message)), expected);
    }
    assert_eq!(text(&Block::status(14, "")), [pair("grpc-status", "14")]);
}

#[test]
fn fields_are_checked_and_encoded() {
    let block = Block::http(415).field("x-a", b"b c").unwrap().binary("d-bin", &[0xff, 0xfe, 1, 2]).unwrap();
    assert_eq!(text(&block), [pair(":status", "415"), pair("x-a", "b c"), pair("d-bin", "//4BAg")]);
    for (bytes, coded) in
        [(&b""[..], ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"foob", "Zm9vYg")]
    {
        assert_eq!(base64(bytes), coded.as_bytes());
    }
    for (name, value) in
        [("X", &b"y"[..]), ("", b"y"), (":a", b"y"), ("a", b"\n"), ("a", b" y"), ("a", b"y\t")]
    {
        assert!(Block::new().field(name, value).is_err(), "{name} {value:?}");
    }
}

#[test]
fn later_heads_and_trailers_are_short() {
    let mut encoder = Encoder::new();
    let mut write = |head: bool| {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        if head {
            encoder.head(&mut out)
        } else {
            encoder.trailers_ok(&mut out)
        };
        out
    };
    assert_eq!(write(true)[..2], [0x88, 0x40]);
    assert_eq!(write(true), [0x88, 0x80 | 62], "a head before the first trailers");
    assert_eq!(write(false)[0], 0x40);
    assert_eq!((write(true), write(false)), (vec![0x88, 0x80 | 63], vec![0x80 | 62]));
}

#[test]
fn a_client_without_a_table_gets_literals() {
    let mut encoder = Encoder::new();
    let mut out = Vec::new();
    encoder.head(&mut out);
    encoder.trailers_ok(&mut out);
    encoder.table_size(4096);
    encoder.table_size(10_000);
    out.clear();
    encoder.begin(&mut out);
    assert!(out.is_empty(), "a larger table changes nothing");
    encoder.table_size(4095);
    encoder.table_size(8192);
    encoder.begin(&mut out);
    encoder.head(&mut out);
    assert_eq!(out[..3], [0x20, 0x88, 0], "the table is emptied, once");
    out.clear();
    encoder.table_size(0);
    encoder.begin(&mut out);
    encoder.trailers_ok(&mut out);
    assert_eq!(out[0], 0);
}
