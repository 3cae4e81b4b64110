//! `make fuzz`: any bytes as an HTTP/2 client, and as what the server's owner does in between.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kindred_http2::exercise::run(input));
