//! Line charts over named steps, with a logarithmic scale.

use super::{Anchor, GRID, Svg, digits};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
/// The positions of the first and the last step, and the ends of the scale.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 590.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 330.0;
const LEGEND: f64 = 614.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// The title of the picture.
    pub title: String,
    /// The label of the steps.
    pub below: String,
    /// The label of the values.
    pub beside: String,
    pub steps: Vec<String>,
    pub lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub name: String,
    pub colour: String,
    pub dashed: bool,
    /// The value at each step, if there is one. Values that are not positive cannot be shown.
    pub values: Vec<Option<f64>>,
}

/// The powers of ten that enclose all values.
fn decades(values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (low, high) =
        values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high <= 0.0 {
        return (0, 1);
    }
    let (low, high) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    (low, high.max(low + 1))
}

impl Lines {
    pub fn svg(&self) -> String {
        let shown = |value: &f64| value.is_finite() && *value > 0.0;
        let all = self.lines.iter().flat_map(|line| line.values.iter().flatten().copied());
        let (low, high) = decades(all.filter(|value| shown(value)));
        let y =
            |value: f64| BOTTOM - (value.log10() - f64::from(low)) / f64::from(high - low) * (BOTTOM - TOP);
        let step = (RIGHT - LEFT) / (self.steps.len().max(2) - 1) as f64;
        let x = |at: usize| LEFT + step * at as f64;
        let mut svg = Svg::new(WIDTH, HEIGHT, &self.title);
        svg.text((12.0, 20.0), Anchor::Begin, true, &self.title);
        for power in low..=high {
            let value = 10_f64.powi(power);
            svg.line(&[(LEFT, y(value)), (RIGHT, y(value))], GRID, 1.0, false);
            let label = if power < 0 { digits(value) } else { format!("{value:.0}") };
            svg.text((LEFT - 8.0, y(value) + 4.0), Anchor::End, false, &label);
        }
        svg.text((12.0, TOP - 8.0), Anchor::Begin, false, &self.beside);
        for (at, name) in self.steps.iter().enumerate() {
            svg.line(&[(x(at), TOP), (x(at), BOTTOM)], GRID, 1.0, false);
            svg.text((x(at), BOTTOM + 18.0), Anchor::Middle, false, name);
        }
        svg.text(((LEFT + RIGHT) / 2.0, BOTTOM + 38.0), Anchor::Middle, false, &self.below);
        for (number, line) in self.lines.iter().enumerate() {
            let points = line.values.iter().enumerate();
            let points =
                points.filter_map(|(at, value)| Some((x(at), y(value.filter(|value| shown(value))?))));
            let points: Vec<_> = points.collect();
            svg.line(&points, &line.colour, 1.8, line.dashed);
            for point in points {
                svg.dot(point, &line.colour);
            }
            let at = TOP + 18.0 * number as f64;
            svg.line(&[(LEGEND, at), (LEGEND + 28.0, at)], &line.colour, 1.8, line.dashed);
            svg.text((LEGEND + 34.0, at + 4.0), Anchor::Begin, false, &line.name);
        }
        svg.done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        let line = |name: &str, dashed, values: &[Option<f64>]| Line {
            name: name.to_owned(),
            colour: "#0072b2".to_owned(),
            dashed,
            values: values.to_vec(),
        };
        Lines {
            title: "Latency".to_owned(),
            below: "calls in flight".to_owned(),
            beside: "us".to_owned(),
            steps: ["1", "4", "16"].map(str::to_owned).to_vec(),
            lines: vec![
                line("p50", false, &[Some(10.0), Some(100.0), Some(1_000.0)]),
                line("p99", true, &[Some(20.0), None, Some(0.0)]),
            ],
        }
    }

    #[test]
    fn a_picture_is_the_same_for_the_same_numbers() {
        assert_eq!(lines().svg(), include_str!("golden-lines.svg"));
    }

    #[test]
    fn powers_of_ten_are_equally_far_apart() {
        let svg = lines().svg();
        assert!(svg.contains("points=\"64,330 327,187 590,44\""), "{svg}");
        // Missing values, and values that cannot be shown, are left out.
        assert!(svg.contains("points=\"64,286.95\""), "{svg}");
    }

    #[test]
    fn the_scale_holds_all_values() {
        assert_eq!(decades([3.0, 250.0].into_iter()), (0, 3));
        assert_eq!(decades([0.02, 0.03].into_iter()), (-2, -1));
        assert_eq!(decades([100.0].into_iter()), (2, 3));
        assert_eq!(decades(std::iter::empty()), (0, 1));
    }
}
