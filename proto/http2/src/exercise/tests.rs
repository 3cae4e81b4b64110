use proptest::prelude::*;

use super::*;
use crate::support::{data, frame, headers, literal, request, reset, settings, window_update};

/// Frames of which most are right.
fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let id = prop_oneof![Just(1_u32), Just(3), Just(5), Just(7), Just(9), 0_u32..20];
    let one = prop_oneof![
        3 => (id.clone(), any::<bool>()).prop_map(|(id, end)| request(id | 1, end)),
        3 => (id.clone(), any::<bool>(), 0_usize..3000).prop_map(|(id, end, length)| data(id, end, &vec![3; length])),
        2 => (id.clone(), 0_u32..100_000).prop_map(|(id, by)| window_update(id, by)),
        2 => (0_u32..100_000).prop_map(|by| window_update(0, by)),
        1 => id.clone().prop_map(reset),
        1 => (0_u16..8, 0_u32..100_000).prop_map(|(name, value)| settings(&[(name, value)])),
        1 => Just(frame(kind::PING, 0, 0, &[8; 8])),
        1 => Just(frame(kind::PING, 0, 0, &crate::probe::PROBE)),
        1 => (0_u8..12, any::<u8>(), id, prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(kind, flags, id, payload)| frame(kind, flags, id, &payload)),
        1 => (11_u32..13, prop::collection::vec(any::<u8>(), 0..30)).prop_map(|(id, name)| {
            headers(id | 1, true, &[&[0x83, 0x86, 0x84][..], &literal(&name, b"x")].concat())
        }),
    ];
    prop::collection::vec(one, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn cuts_of_the_input_make_no_difference(frames in frames(), cuts in prop::collection::vec(0_usize..200, 0..60)) {
        let input = frames.concat();
        prop_assert_eq!(received(&input, &[]), received(&input, &cuts));
        let bytes = vec![1; 300];
        prop_assert_eq!(received(&input, &[]), received(&input, &bytes));
    }

    #[test]
    fn any_script_keeps_the_rules(script in prop::collection::vec(any::<u8>(), 0..3000)) {
        run(&script);
    }
}

#[test]
fn scripts_reach_answers() {
    let mut bytes = Vec::new();
    let mut random = 1_u64;
    for _ in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.push((random >> 56) as u8);
    }
    let (mut ends, mut used) = (0, 0);
    for script in bytes.chunks(500) {
        let mut world = World::new(false);
        let mut script = Script(script);
        while !script.0.is_empty() {
            world.step(&mut script);
        }
        world.send(usize::MAX);
        ends += world.ended.len();
        used += world.used;
    }
    assert!(ends > 30 && used > 400_000, "{ends} streams ended and {used} bytes were sent");
}

#[test]
fn the_model_sees_what_is_sent() {
    let mut world = World::new(true);
    world.frame(kind::HEADERS, flag::END_HEADERS, 1, &[0x83, 0x86, 0x84]);
    let mut script = Script(&[0; 8]);
    world.act(9, &mut script);
    world.send(usize::MAX);
    assert!(world.ended.contains(&1));
    assert_eq!(world.used_by[&1], 6);
    world.end();
}
