use proptest::prelude::*;

use super::*;
use crate::{
    head::{ContentType, Method},
    routes::RouteId,
};

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Fields by their numbers, which say all; a hundred more is the same field that has entered the table again.
fn field(number: u64) -> Field {
    match number % 100 {
        1 => Field::Method(Method::Post),
        2 => Field::Scheme,
        3 => Field::Path(Path::Known(RouteId(3))),
        4 => Field::Path(Path::Known(RouteId(4))),
        5 => Field::Authority(bytes("a")),
        6 => Field::Authority(bytes("b")),
        7 => Field::Timeout(Timeout::parse(b"7S")),
        8 => Field::Timeout(Timeout::parse(b"8S")),
        9 => Field::ContentType(ContentType::Grpc),
        10 => Field::UserAgent(bytes("u")),
        11 => Field::Metadata(Box::new((bytes("x"), bytes("1")))),
        12 => Field::Metadata(Box::new((bytes("x"), bytes("2")))),
        13 => Field::ContentLength(13),
        14 => Field::ContentLength(14),
        15 => Field::Host(bytes("a")),
        16 => Field::TeTrailers,
        17 => Field::AcceptEncoding,
        _ => Field::Malformed(bytes("bad")),
    }
}

type Built = Result<(RequestHead, Option<u64>), Malformed>;

fn built(memory: &mut Memory, numbers: &[u64]) -> Built {
    let mut builder = HeadBuilder::new(memory);
    for number in numbers {
        if builder.expected(FieldId(*number)).is_none() {
            builder.field(FieldId(*number), &field(*number), 40);
        }
    }
    builder.finish()
}

fn alone(numbers: &[u64]) -> Built {
    built(&mut Memory::default(), numbers)
}

#[test]
fn equal_requests_share_what_they_have_in_common() {
    let mut memory = Memory::default();
    let mut heads = Vec::new();
    for numbers in [&[1, 2, 3, 5, 9, 10, 7, 11][..], &[1, 2, 4, 5, 9, 10, 8, 11], &[1, 2, 3, 5, 9, 10, 11]] {
        heads.push(built(&mut memory, numbers).unwrap().0);
    }
    assert!(heads.iter().all(|head| Arc::ptr_eq(&head.common, &heads[0].common)));
    assert_eq!(heads[1].path, Path::Known(RouteId(4)));
    assert_eq!(heads[1].timeout, Timeout::parse(b"8S"));
    assert_eq!(heads[2].timeout, Timeout::None);
    assert_eq!(memory.requests.iter().flatten().count(), 2, "one of them is none");
}

#[test]
fn requests_that_take_turns_are_all_remembered() {
    let mut memory = Memory::default();
    let kinds = [&[1, 2, 3, 5, 9][..], &[1, 2, 3, 5, 9, 11], &[1, 2, 3, 5, 10], &[1, 2, 3, 5]];
    let first: Vec<_> = kinds.iter().map(|kind| built(&mut memory, kind).unwrap().0.common).collect();
    for _ in 0..3 {
        for (kind, first) in kinds.iter().zip(&first) {
            assert!(Arc::ptr_eq(&built(&mut memory, kind).unwrap().0.common, first), "{kind:?}");
        }
    }
    built(&mut memory, kinds[0]).unwrap();
    let again = built(&mut memory, &[101, 2, 3, 105, 9]).unwrap().0.common;
    assert!(Arc::ptr_eq(&again, &first[0]), "the same fields have entered the table again");
    for number in 0..20 {
        built(&mut memory, &[&[1, 2, 3, 5, 9][..], &vec![11; number]].concat()).unwrap();
    }
    assert_eq!(memory.requests.iter().flatten().count(), REMEMBERED);
}

#[test]
fn the_order_of_fields_is_judged_although_they_are_remembered() {
    let mut memory = Memory::default();
    built(&mut memory, &[1, 2, 3, 5, 9]).unwrap();
    for wrong in [
        &[1, 2, 5, 9, 3][..],
        &[1, 2, 5, 9],
        &[1, 2, 3, 3, 5, 9],
        &[1, 2, 3, 7, 5, 9],
        &[7, 1, 2, 3, 5, 9],
        &[1, 2, 7, 3, 5, 9],
        &[1, 3, 5, 9],
    ] {
        assert_eq!(built(&mut memory, wrong).unwrap_err(), Malformed, "{wrong:?}");
        assert_eq!(alone(wrong).unwrap_err(), Malformed, "{wrong:?}");
    }
    for right in [&[3, 1, 2, 5, 9][..], &[1, 2, 5, 3, 9], &[1, 2, 5, 3, 7, 9, 8]] {
        built(&mut memory, right).unwrap();
    }
}

proptest! {
    /// Whatever is remembered, a request is what it would be without that.
    #[test]
    fn memory_changes_nothing(requests in prop::collection::vec(
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_u64..19, 0..5_usize), 1..40
    )) {
        let mut memory = Memory::default();
        let usual = [1, 2, 3, 5, 9, 10, 7, 11, 16];
        for (at, from, number, change) in requests {
            let mut request = usual.to_vec();
            match change {
                0 => {}
                1 => request.insert(at.index(usual.len()), number),
                4 => request[at.index(usual.len())] += 100,
                2 => drop(request.remove(at.index(usual.len()))),
                _ => request.swap(at.index(usual.len()), from.index(usual.len())),
            }
            prop_assert_eq!(built(&mut memory, &request), alone(&request), "{:?}", request);
        }
    }
}
