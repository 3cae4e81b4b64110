use super::*;

#[test]
fn timeouts_are_those_of_grpc() {
    for (text, expected) in [
        ("1H", Some(Duration::from_secs(3600))),
        ("2M", Some(Duration::from_secs(120))),
        ("3S", Some(Duration::from_secs(3))),
        ("4m", Some(Duration::from_millis(4))),
        ("5u", Some(Duration::from_micros(5))),
        ("99999999n", Some(Duration::from_nanos(99_999_999))),
        ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
        ("0n", Some(Duration::ZERO)),
        ("", None),
        ("n", None),
        ("123456789n", None),
        ("1x", None),
        ("-1n", None),
        ("1 n", None),
    ] {
        assert_eq!(Timeout::parse(text.as_bytes()).duration(), expected, "{text}");
    }
    assert_eq!(Timeout::None.duration(), None);
}

#[test]
fn content_types_are_those_of_grpc() {
    for (text, expected) in [
        ("application/grpc", ContentType::Grpc),
        ("application/grpc+proto", ContentType::Grpc),
        ("application/grpc;charset=utf-8", ContentType::Grpc),
        ("application/grpc+json", ContentType::GrpcOther("application/grpc+json".into())),
        ("application/grpc-web", ContentType::Other("application/grpc-web".into())),
        ("application/json", ContentType::Other("application/json".into())),
    ] {
        assert_eq!(ContentType::parse(text.as_bytes()), expected, "{text}");
    }
}
