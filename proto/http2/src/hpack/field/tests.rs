use super::*;
use crate::routes::RouteId;

fn read(name: &str, value: &[u8]) -> Field {
    let routes: Routes = [("/a/B", RouteId(7))].into_iter().collect();
    Field::read(Name::of(name.as_bytes()), value, &routes)
}

#[test]
fn fields_have_their_meaning() {
    assert!(matches!(read(":method", b"POST"), Field::Method(Method::Post)));
    assert!(matches!(read(":path", b"/a/B"), Field::Path(Path::Known(RouteId(7)))));
    assert!(matches!(read(":path", b"/a/b"), Field::Path(Path::Unknown(path)) if path == "/a/b"));
    assert!(matches!(read("te", b"trailers"), Field::TeTrailers));
    assert!(matches!(read("grpc-encoding", b"identity"), Field::Encoding(None)));
    assert!(matches!(read("grpc-encoding", b"gzip"), Field::Encoding(Some(_))));
    assert!(matches!(read("content-length", b"12"), Field::ContentLength(12)));
    assert!(matches!(read("grpc-timeout", b"x"), Field::Timeout(Timeout::Malformed)));
    assert!(matches!(read("x-y-bin", b"AA"), Field::Metadata(..)));
}

#[test]
fn what_the_rfc_forbids_is_malformed() {
    for (name, value) in [
        ("Upper", &b"x"[..]),
        ("", b"x"),
        ("a b", b"x"),
        ("a\x7f", b"x"),
        ("\u{e4}", b"x"),
        ("a:b", b"x"),
        (":status", b"200"),
        (":protocol", b"x"),
        ("connection", b"close"),
        ("proxy-connection", b"x"),
        ("keep-alive", b"x"),
        ("transfer-encoding", b"chunked"),
        ("upgrade", b"h2c"),
        ("te", b"gzip"),
        ("a", b"x\ny"),
        ("a", b"x\ry"),
        ("a", b"x\0y"),
        ("a", b" x"),
        ("a", b"x\t"),
        ("user-agent", b"x\n"),
        (":path", b""),
        (":path", b"a"),
        (":scheme", b""),
        (":method", b""),
        (":method", b"CONNECT"),
        ("content-length", b""),
        ("content-length", b"+1"),
        ("content-length", b"-1"),
        ("content-length", b"18446744073709551616"),
    ] {
        let field = read(name, value);
        assert!(matches!(&field, Field::Malformed(kept) if kept == name), "{name:?}: {field:?}");
    }
}

#[test]
fn a_field_keeps_its_name() {
    let known = [
        ":method",
        ":scheme",
        ":authority",
        ":path",
        "content-type",
        "content-length",
        "te",
        "grpc-timeout",
        "grpc-encoding",
        "grpc-accept-encoding",
        "user-agent",
        "host",
    ];
    for name in known {
        for value in [&b"GET"[..], b"/a", b"12", b"trailers", b"identity", b"bad\n"] {
            let kept = read(name, value).name();
            assert!(matches!(kept, Name::Known(known) if known.text() == name), "{name}");
            assert_eq!(kept.len(), name.len());
        }
    }
    for name in ["x-other", "Upper", "upgrade"] {
        assert!(matches!(read(name, b"v").name(), Name::Other(kept) if kept == name));
    }
}
