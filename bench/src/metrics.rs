//! Reads the metrics of servers.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

/// How long a server may take.
const WAIT: Duration = Duration::from_secs(10);

/// The metrics of the server at this address, as text.
pub fn fetch(address: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(WAIT))?;
    // With HTTP/1.1 the answer may come in chunks, which cut lines.
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// The sum of a metric over all its labels; `None` if there is no such metric.
pub fn sum(text: &str, name: &str) -> Option<f64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let rest = if rest.starts_with('{') { rest.rsplit_once('}')?.1 } else { rest };
        rest.strip_prefix(' ')?.trim().parse::<f64>().ok()
    };
    let mut values = text.lines().filter_map(value).peekable();
    values.peek()?;
    Some(values.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text =
            "# TYPE turn gauge\nturn_other 3\nturn 0.25\nsent{to=\"a b\"} 4\nsent{to=\"c}\"} 1.5e+01\n";
        assert_eq!(sum(text, "turn"), Some(0.25));
        assert_eq!(sum(text, "turn_oth"), None);
        assert_eq!(sum(text, "sent"), Some(19.0));
    }
}
