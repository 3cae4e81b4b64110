//! `kindred trace`: the calls of clients of a router, a line of JSON each, as they end.

use clap::Args;
use http::Method;

use super::args::Connect;
use super::client::{Client, escaped};
use super::failure::Failure;
use super::output;

#[derive(Debug, Clone, Default, Args)]
pub struct TraceArgs {
    /// Only calls of this Kind, as `kindred get kinds` names it; `<rest>` for keys of no Kind.
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Only calls of this client: the common name of its certificate, or its address.
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
    /// Only calls with this verb: get, list, count, create, update, delete, put or txn.
    #[arg(long, value_name = "VERB")]
    pub verb: Option<String>,
    /// Only calls whose key begins with this.
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<String>,
    /// Only calls that took so long or longer.
    #[arg(long, value_name = "MILLISECONDS")]
    pub min_millis: Option<u64>,
    /// Only calls that did not end with OK.
    #[arg(long)]
    pub errors: bool,
    /// One of so many matching calls.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub sample: Option<u64>,
    /// End after so many seconds [default: when it is interrupted].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// Show each request whole, in hexadecimal: with its values, such as secrets. Needs the role admin.
    #[arg(long)]
    pub values: bool,
    /// The router to ask; each traces its own clients.
    #[command(flatten)]
    pub connect: Connect,
}

impl TraceArgs {
    fn path(&self) -> String {
        let texts =
            [("kind", &self.kind), ("client", &self.client), ("verb", &self.verb), ("key", &self.prefix)];
        let numbers = [("minMillis", self.min_millis), ("sample", self.sample), ("seconds", self.seconds)];
        let texts = texts
            .into_iter()
            .filter_map(|(name, text)| Some(format!("{name}={}", escaped(text.as_deref()?))));
        let numbers = numbers.into_iter().filter_map(|(name, number)| Some(format!("{name}={}", number?)));
        let errors = self.errors.then(|| "errors=true".to_owned());
        let query: Vec<String> = texts.chain(numbers).chain(errors).collect();
        format!("/api/v1/trace?{}", query.join("&"))
    }
}

/// Prints lines until the trace ends.
pub async fn trace(client: &Client, args: &TraceArgs) -> Result<(), Failure> {
    let method = if args.values { Method::POST } else { Method::GET };
    client.stream(method, &args.path(), |bytes| output::print(&String::from_utf8_lossy(bytes))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_a_query() {
        assert_eq!(TraceArgs::default().path(), "/api/v1/trace?");
        let args = TraceArgs {
            kind: Some("<rest>".to_owned()),
            prefix: Some("/registry/pods/ä".to_owned()),
            min_millis: Some(5),
            errors: true,
            ..TraceArgs::default()
        };
        assert_eq!(
            args.path(),
            "/api/v1/trace?kind=%3Crest%3E&key=%2Fregistry%2Fpods%2F%C3%A4&minMillis=5&errors=true"
        );
    }
}
