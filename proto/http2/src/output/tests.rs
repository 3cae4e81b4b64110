use super::*;

fn all(output: &Output) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); 64];
    let filled = output.gather(&mut slices);
    slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect()
}

/// Whatever the sizes of writes are, the bytes come in order and once.
#[test]
fn bytes_come_in_order_however_they_are_sent() {
    for step in [1, 7, 1000, 1500, 100_000] {
        let mut output = Output::default();
        let mut expected = Vec::new();
        for round in 0..60_u8 {
            let long = vec![round; usize::from(round) * 60];
            output.bytes().extend_from_slice(&[round, 1, 2]);
            output.payload(Bytes::from(long.clone()));
            expected.extend_from_slice(&[round, 1, 2]);
            expected.extend_from_slice(&long);
        }
        assert_eq!(output.len(), expected.len());
        let mut sent: Vec<u8> = Vec::new();
        while output.len() > 0 {
            let mut slices = [IoSlice::new(&[]); 4];
            let filled = output.gather(&mut slices);
            let next = slices[..filled].iter().flat_map(|slice| slice.iter()).take(step);
            let before = sent.len();
            sent.extend(next);
            output.advance(sent.len() - before);
        }
        assert_eq!(sent, expected);
        assert!(all(&output).is_empty());
    }
}

#[test]
fn few_slices_get_the_first_bytes() {
    let mut output = Output::default();
    output.bytes().push(1);
    output.payload(Bytes::from(vec![2; 2000]));
    output.bytes().push(3);
    let mut slices = [IoSlice::new(&[]); 2];
    assert_eq!(output.gather(&mut slices), 2);
    assert_eq!((slices[0].len(), slices[1].len()), (1, 2000));
    assert_eq!(output.gather(&mut []), 0);
}

#[test]
fn control_answers_are_forgotten_when_they_were_sent() {
    let mut output = Output::default();
    for _ in 0..3 {
        output.bytes().extend_from_slice(b"four");
        output.mark_control();
    }
    output.advance(7);
    assert_eq!(output.controls(), 2);
    output.advance(5);
    assert_eq!(output.controls(), 0);
}
