//! `kindred trace`: the calls of clients of a router, a line of JSON each, as they end.

use http::Method;

use super::args::TraceArgs;
use super::client::{Client, escaped};
use super::failure::Failure;
use super::output;

/// The request for a trace.
fn path(args: &TraceArgs) -> String {
    let texts = [("kind", &args.kind), ("client", &args.client), ("verb", &args.verb), ("key", &args.prefix)];
    let numbers = [("minMillis", args.min_millis), ("sample", args.sample), ("seconds", args.seconds)];
    let texts =
        texts.into_iter().filter_map(|(name, text)| Some(format!("{name}={}", escaped(text.as_deref()?))));
    let numbers = numbers.into_iter().filter_map(|(name, number)| Some(format!("{name}={}", number?)));
    let errors = args.errors.then(|| "errors=true".to_owned());
    let query: Vec<String> = texts.chain(numbers).chain(errors).collect();
    format!("/api/v1/trace?{}", query.join("&"))
}

/// Prints lines until the trace ends.
pub async fn trace(client: &Client, args: &TraceArgs) -> Result<(), Failure> {
    let method = if args.values { Method::POST } else { Method::GET };
    client.stream(method, &path(args), |bytes| output::print(&String::from_utf8_lossy(bytes))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_a_query() {
        assert_eq!(path(&TraceArgs::default()), "/api/v1/trace?");
        let args = TraceArgs {
            kind: Some("<all else>".to_owned()),
            prefix: Some("/registry/pods/ä".to_owned()),
            min_millis: Some(5),
            errors: true,
            ..TraceArgs::default()
        };
        assert_eq!(
            path(&args),
            "/api/v1/trace?kind=%3Call%20else%3E&key=%2Fregistry%2Fpods%2F%C3%A4&minMillis=5&errors=true"
        );
    }
}
