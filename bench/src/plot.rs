//! Draws plots as SVG: bar charts, and lines on a logarithmic scale. The same numbers produce the same text.

mod bars;
mod lines;

use std::fmt::Write as _;

pub use bars::{Bar, Bars, Panel};
pub use lines::{Line, Lines};

const FONT: f64 = 11.0;
const TEXT: &str = "#222222";
const GRID: &str = "#dddddd";

/// A picture under construction. Positions are in pixels from the upper left corner.
struct Svg {
    text: String,
}

impl Svg {
    fn new(width: f64, height: f64, title: &str) -> Self {
        let (width, height) = (number(width), number(height));
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"{}\">\n",
            number(FONT)
        );
        let _ = writeln!(text, "<title>{}</title>", escaped(title));
        let _ = writeln!(text, "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>");
        Self { text }
    }

    fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str, opacity: f64) {
        let _ = write!(
            self.text,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\"",
            number(x),
            number(y),
            number(width),
            number(height)
        );
        if opacity < 1.0 {
            let _ = write!(self.text, " fill-opacity=\"{}\"", number(opacity));
        }
        self.text += "/>\n";
    }

    fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64, dashed: bool) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
        let _ = write!(
            self.text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"",
            points.join(" "),
            number(width)
        );
        if dashed {
            self.text += " stroke-dasharray=\"5 3\"";
        }
        self.text += "/>\n";
    }

    fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        let _ = writeln!(
            self.text,
            "<circle cx=\"{}\" cy=\"{}\" r=\"2.5\" fill=\"{colour}\"/>",
            number(x),
            number(y)
        );
    }

    /// Adds a text that begins at, is centred on, or ends at the position.
    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, bold: bool, text: &str) {
        let _ = write!(self.text, "<text x=\"{}\" y=\"{}\" fill=\"{TEXT}\"", number(x), number(y));
        match anchor {
            Anchor::Begin => {}
            Anchor::Middle => self.text += " text-anchor=\"middle\"",
            Anchor::End => self.text += " text-anchor=\"end\"",
        }
        if bold {
            self.text += " font-weight=\"bold\"";
        }
        let _ = writeln!(self.text, ">{}</text>", escaped(text));
    }

    fn done(mut self) -> String {
        self.text += "</svg>\n";
        self.text
    }
}

#[derive(Clone, Copy)]
enum Anchor {
    Begin,
    Middle,
    End,
}

/// At most two decimals, without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A readable measured value: at least three digits.
pub fn digits(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(12.0), "12");
        assert_eq!(number(0.5), "0.5");
        assert_eq!(number(1.0 / 3.0), "0.33");
        assert_eq!(number(-0.001), "0");
        assert_eq!(number(100.0), "100");
        assert_eq!(
            (digits(1234.5), digits(56.78), digits(9.876)),
            ("1234".into(), "56.8".into(), "9.88".into())
        );
        assert_eq!((digits(99.96), digits(9.996), digits(0.0)), ("100".into(), "10.0".into(), "0.00".into()));
    }

    #[test]
    fn texts_cannot_break_a_picture() {
        assert_eq!(escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
    }
}
