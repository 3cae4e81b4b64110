
/// The server that the tests find. As they are written, it is at port 2379.
pub fn endpoint() -> &'static str {
    static ENDPOINT: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("KINDRED_ADDRESS").expect("KINDRED_ADDRESS"));
    &ENDPOINT
}
