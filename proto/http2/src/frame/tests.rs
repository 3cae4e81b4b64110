use super::*;

#[test]
fn a_head_survives_the_wire() {
    let head = Head { length: 0x01_02_03, kind: kind::DATA, flags: flag::END_STREAM, stream: 0x7fff_fffe };
    assert_eq!(head.encode(), [1, 2, 3, 0, 1, 0x7f, 0xff, 0xff, 0xfe]);
    assert_eq!(Head::parse(&head.encode()), head);
}

#[test]
fn the_reserved_bit_is_ignored() {
    assert_eq!(Head::parse(&[0, 0, 0, 0, 0, 0x80, 0, 0, 5]).stream, 5);
}

#[test]
fn padding_is_cut_off() {
    let padded = Head { length: 0, kind: kind::DATA, flags: flag::PADDED, stream: 1 };
    assert_eq!(without_padding(padded, &[2, b'a', 0, 0]), Ok(&b"a"[..]));
    assert_eq!(without_padding(padded, &[2, 0, 0]), Ok(&b""[..]));
    assert_eq!(without_padding(padded, &[2, 0]), Err(BadPadding));
    assert_eq!(without_padding(padded, &[]), Err(BadPadding));
    assert_eq!(without_padding(Head { flags: 0, ..padded }, &[2, 0]), Ok(&[2, 0][..]));
}

#[test]
fn codes_have_names() {
    assert_eq!(ErrorCode::ENHANCE_YOUR_CALM.to_string(), "ENHANCE_YOUR_CALM");
    assert_eq!(ErrorCode(0xff).to_string(), "error code 0xff");
}
