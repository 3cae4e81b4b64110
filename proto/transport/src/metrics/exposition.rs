//! Prometheus' text format, for metrics that are kept in tables of our own.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4.

use std::fmt::{Display, Write as _};

use super::histogram::Histogram;

/// The type of a metric, in the words of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric: its name on `/metrics`, its type, and its help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

impl Metric {
    /// Begins the metric: its help and its type. Its samples follow.
    pub fn begin(&self, out: &mut String) {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let name = self.name;
        written(writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", self.help));
    }

    /// One sample with its labels.
    pub fn sample(&self, out: &mut String, labels: &[(&str, &str)], value: impl Display) {
        sample(out, self.name, "", labels, None, value);
    }

    /// The samples of a histogram with its labels.
    pub fn histogram<const N: usize>(
        &self,
        out: &mut String,
        labels: &[(&str, &str)],
        histogram: &Histogram<N>,
        bounds: &[f64; N],
    ) {
        let shown = histogram.read();
        let mut below = 0;
        for (count, bound) in shown.counts.iter().zip(bounds) {
            below += count;
            sample(out, self.name, "_bucket", labels, Some(&bound.to_string()), below);
        }
        sample(out, self.name, "_bucket", labels, Some("+Inf"), shown.count);
        sample(out, self.name, "_sum", labels, None, shown.sum_seconds());
        sample(out, self.name, "_count", labels, None, shown.count);
    }
}

fn sample(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[(&str, &str)],
    bound: Option<&str>,
    value: impl Display,
) {
    out.push_str(name);
    out.push_str(suffix);
    let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
    let mut open = '{';
    for (label, text) in labels {
        out.push(open);
        open = ',';
        out.push_str(label);
        out.push_str("=\"");
        escaped(out, text);
        out.push('"');
    }
    if open == ',' {
        out.push('}');
    }
    written(writeln!(out, " {value}"));
}

/// A label's value: backslash, quote and line feed are escaped.
fn escaped(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

fn written(result: std::fmt::Result) {
    result.expect("a String takes every text");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn samples_have_their_labels_and_escapes() {
        let metric = Metric { name: "things_total", kind: Kind::Counter, help: "Things." };
        let mut out = String::new();
        metric.begin(&mut out);
        metric.sample(&mut out, &[], 1);
        metric.sample(&mut out, &[("kind", "a\"b\\c\nd"), ("verb", "get")], 2.5);
        assert_eq!(
            out,
            "# HELP things_total Things.\n# TYPE things_total counter\nthings_total 1\n\
             things_total{kind=\"a\\\"b\\\\c\\nd\",verb=\"get\"} 2.5\n"
        );
    }

    #[test]
    fn buckets_of_a_histogram_count_what_is_at_most_their_bound() {
        let metric = Metric { name: "took_seconds", kind: Kind::Histogram, help: "Time." };
        let (histogram, bounds) = (Histogram::default(), [0.001, 0.5]);
        for micros in [1000, 1001, 400_000, 3_000_000] {
            histogram.record(Duration::from_micros(micros), &bounds);
        }
        let mut out = String::new();
        metric.histogram(&mut out, &[("verb", "get")], &histogram, &bounds);
        assert_eq!(
            out,
            "took_seconds_bucket{verb=\"get\",le=\"0.001\"} 1\ntook_seconds_bucket{verb=\"get\",le=\"0.5\"} 3\n\
             took_seconds_bucket{verb=\"get\",le=\"+Inf\"} 4\ntook_seconds_sum{verb=\"get\"} 3.402001\n\
             took_seconds_count{verb=\"get\"} 4\n"
        );
    }
}
