//! Bar charts in panels. Each panel has its own scale, because the values of different panels differ a hundredfold.

use super::{Anchor, Svg};

const MARGIN: f64 = 12.0;
const HEAD: f64 = 30.0;
const COLUMNS: usize = 2;
/// The widths of a panel's names, longest bar and labels.
const NAMES: f64 = 176.0;
const LONGEST: f64 = 220.0;
const BEHIND: f64 = 130.0;
const TITLE: f64 = 20.0;
const ROW: f64 = 19.0;
const BAR: f64 = 14.0;
const GAP: f64 = 16.0;
const FOOT: f64 = 20.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// The title of the picture.
    pub title: String,
    /// A note below the panels.
    pub note: String,
    /// The names and colours of the bars, the same in every panel.
    pub subjects: Vec<(String, String)>,
    pub panels: Vec<Panel>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    pub title: String,
    /// The bar of each subject, if it has one.
    pub bars: Vec<Option<Bar>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// The lengths of the bar's parts; the first has the full colour, the others are paler.
    pub parts: Vec<f64>,
    /// The ends of the mark for the spread.
    pub spread: (f64, f64),
    /// The text after the bar.
    pub label: String,
}

impl Bar {
    fn end(&self) -> f64 {
        self.parts.iter().sum::<f64>().max(self.spread.1)
    }
}

impl Bars {
    pub fn svg(&self) -> String {
        let panel_height = TITLE + ROW * self.subjects.len() as f64 + GAP;
        let panel_width = NAMES + LONGEST + BEHIND;
        let rows = self.panels.len().div_ceil(COLUMNS);
        let columns = self.panels.len().clamp(1, COLUMNS);
        let width = MARGIN * 2.0 + panel_width * columns as f64;
        let height = HEAD + panel_height * rows as f64 + FOOT;
        let mut svg = Svg::new(width, height, &self.title);
        svg.text((MARGIN, 20.0), Anchor::Begin, true, &self.title);
        for (at, panel) in self.panels.iter().enumerate() {
            let x = MARGIN + panel_width * (at % COLUMNS) as f64;
            let y = HEAD + panel_height * (at / COLUMNS) as f64;
            self.panel(&mut svg, panel, (x, y));
        }
        svg.text((MARGIN, height - 8.0), Anchor::Begin, false, &self.note);
        svg.done()
    }

    fn panel(&self, svg: &mut Svg, panel: &Panel, (x, y): (f64, f64)) {
        let longest = panel.bars.iter().flatten().map(Bar::end).fold(0.0, f64::max);
        let scale = if longest > 0.0 { LONGEST / longest } else { 0.0 };
        let left = x + NAMES;
        svg.text((left, y + 13.0), Anchor::Begin, true, &panel.title);
        for (at, ((name, colour), bar)) in self.subjects.iter().zip(&panel.bars).enumerate() {
            let top = y + TITLE + ROW * at as f64;
            let base = top + BAR - 3.0;
            svg.text((left - 6.0, base), Anchor::End, false, name);
            let Some(bar) = bar else {
                svg.text((left + 4.0, base), Anchor::Begin, false, "none");
                continue;
            };
            let mut from = left;
            for (number, part) in bar.parts.iter().enumerate() {
                let opacity = if number == 0 { 1.0 } else { 0.5 };
                svg.rect((from, top), (part * scale, BAR), colour, opacity);
                from += part * scale;
            }
            let (low, high) = (left + bar.spread.0 * scale, left + bar.spread.1 * scale);
            let middle = top + BAR / 2.0;
            svg.line(&[(low, middle), (high, middle)], super::TEXT, 1.0, false);
            for end in [low, high] {
                svg.line(&[(end, middle - 3.0), (end, middle + 3.0)], super::TEXT, 1.0, false);
            }
            svg.text((left + bar.end() * scale + 6.0, base), Anchor::Begin, false, &bar.label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars() -> Bars {
        let bar = |parts: &[f64], spread, label: &str| {
            Some(Bar { parts: parts.to_vec(), spread, label: label.to_owned() })
        };
        Bars {
            title: "CPU".to_owned(),
            note: "a < b".to_owned(),
            subjects: vec![
                ("etcd".to_owned(), "#777777".to_owned()),
                ("router".to_owned(), "#009e73".to_owned()),
            ],
            panels: vec![
                Panel {
                    title: "put".to_owned(),
                    bars: vec![
                        bar(&[40.0], (35.0, 44.0), "40.0"),
                        bar(&[6.0, 5.0], (10.0, 12.0), "11.0 (0.28)"),
                    ],
                },
                Panel { title: "get".to_owned(), bars: vec![bar(&[2.0], (2.0, 2.0), "2.00"), None] },
            ],
        }
    }

    #[test]
    fn a_picture_is_the_same_for_the_same_numbers() {
        assert_eq!(bars().svg(), include_str!("golden-bars.svg"));
    }

    #[test]
    fn the_longest_bar_of_each_panel_is_as_long_as_can_be() {
        let svg = bars().svg();
        // The longest is 44 in the first panel, and 2 in the second.
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("fill=\"#777777\"") || line.contains("fill=\"#009e73\""))
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(widths, [200.0, 30.0, 25.0, LONGEST]);
    }

    #[test]
    fn nothing_but_zeros_is_a_picture_too() {
        let mut bars = bars();
        bars.panels[0].bars =
            vec![Some(Bar { parts: vec![0.0], spread: (0.0, 0.0), label: "0".into() }), None];
        assert!(!bars.svg().contains("NaN"));
        bars.panels.clear();
        assert!(bars.svg().ends_with("</svg>\n"));
    }
}
