use proptest::prelude::*;

use super::*;

fn decoded(coded: &[u8]) -> Result<Vec<u8>, BadCode> {
    let mut out = Decoded::default();
    decode(coded, &mut out).map(<[u8]>::to_vec)
}

/// Codes of RFC 7541, appendix B, from its begin, middle and end.
#[test]
fn the_codes_are_those_of_the_rfc() {
    let codes = codes();
    for (symbol, code, length) in [
        (0, 0x1ff8, 13),
        (1, 0x7f_ffd8, 23),
        (10, 0x3fff_fffc, 30),
        (32, 0x14, 6),
        (48, 0x0, 5),
        (97, 0x3, 5),
        (122, 0x7b, 7),
        (127, 0xfff_fffc, 28),
        (128, 0xf_ffe6, 20),
        (200, 0x3ff_ffe2, 26),
        (255, 0x3ff_ffee, 26),
        (256, 0x3fff_ffff, 30),
    ] {
        assert_eq!((codes[symbol], LENGTHS[symbol]), (code, length), "symbol {symbol}");
    }
}

#[test]
fn strings_of_the_rfc_are_decoded() {
    for (coded, text) in [
        (&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..], "www.example.com"),
        (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
        (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f], "custom-key"),
        (&[0x64, 0x02], "302"),
        (&[], ""),
    ] {
        assert_eq!(decoded(coded).unwrap(), text.as_bytes());
        assert_eq!(encode(text.as_bytes()), coded);
    }
}

#[test]
fn padding_must_be_seven_ones_or_fewer() {
    // "0" is 00000.
    assert_eq!(decoded(&[0x07]).unwrap(), b"0");
    assert_eq!(decoded(&[0x06]), Err(BadCode), "a zero in the padding");
    assert_eq!(decoded(&[0x07, 0xff]), Err(BadCode), "eleven bits of padding");
    assert_eq!(decoded(&[0xff]), Err(BadCode), "eight bits of padding");
    // "&" is 11111000, and seven ones are the most.
    assert_eq!(decoded(&[0xf8]).unwrap(), b"&");
    // "X" is 11111100, "a" is 00011.
    assert_eq!(decoded(&[0xfc, 0x1f]).unwrap(), b"Xa");
}

/// Eight bytes that begin with a code which is too long for the fast way.
#[test]
fn eight_bytes_of_long_codes_are_decoded() {
    let coded = encode(&[200, 200]);
    assert_eq!(coded.len(), 7);
    assert_eq!(decoded(&coded).unwrap(), [200, 200]);
    let coded = encode(&[255, 255, b'0', b'0']);
    assert_eq!(coded.len(), 8);
    assert_eq!(decoded(&coded).unwrap(), [255, 255, b'0', b'0']);
}

#[test]
fn the_code_for_the_end_is_an_error() {
    assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(BadCode));
    assert_eq!(decoded(&[0x07, 0xff, 0xff, 0xff, 0xff]), Err(BadCode));
}

proptest! {
    #[test]
    fn any_text_survives(text in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert_eq!(decoded(&encode(&text)).unwrap(), text);
    }

    #[test]
    fn what_is_decoded_is_what_was_coded(coded in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(text) = decoded(&coded) {
            prop_assert_eq!(encode(&text), coded);
        }
    }

    /// The fast way says what the other says, or nothing.
    #[test]
    fn short_strings_are_decoded_as_long_ones(coded in prop::collection::vec(any::<u8>(), 0..10), zeros in 0..20_usize) {
        let digits = encode(&b"1203456789mSu"[zeros.min(13)..]);
        for coded in [&coded, &digits] {
            let mut slow = Vec::new();
            let result = decode_any(coded, &mut slow);
            let mut fast = [0; SHORT_SYMBOLS];
            if coded.len() <= 8 && let Some(symbols) = short(coded, &mut fast) {
                prop_assert_eq!(result, Ok(()));
                prop_assert_eq!(&fast[..symbols], &slow[..]);
            }
        }
        prop_assert!(digits.len() > 8 || short(&digits, &mut [0; SHORT_SYMBOLS]).is_some());
    }
}
