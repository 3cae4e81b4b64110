//! `make fuzz`: decodes arbitrary bytes as each kind of a shard's files.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kindred_wal::exercise::decode(input));
