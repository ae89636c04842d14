//! Axes: linear and logarithmic, with ticks where a person would put them.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// How an axis runs. Logarithmic ones are for positive numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    Linear,
    /// From zero.
    Whole,
    /// Ticks at powers of two.
    Log2,
    Log10,
}

#[derive(Debug, Clone)]
pub struct ChartAxis {
    /// With its unit.
    pub label: String,
    pub scale: Scale,
}

impl ChartAxis {
    pub fn new(label: impl Into<String>, scale: Scale) -> ChartAxis {
        ChartAxis { label: label.into(), scale }
    }

    /// The axis along which all these values are seen; those that have no place on it do not count.
    pub fn over(&self, values: impl Iterator<Item = f64>) -> Coordinates {
        let places = values.map(|value| self.scale.place(value)).filter(|place| place.is_finite());
        let (low, high) = places.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let low = if self.scale == Scale::Whole { low.min(0.0) } else { low };
        let room = if high > low { 0.04 * (high - low) } else { 0.5 * high.abs().max(0.5) };
        // What is never negative has no axis below zero.
        let below = match self.scale {
            Scale::Linear if low >= 0.0 => room.min(low),
            Scale::Whole => 0.0,
            _ => room,
        };
        Coordinates { scale: self.scale, places: low - below..high + room }
    }
}

impl Scale {
    pub fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear | Scale::Whole => value,
            Scale::Log2 => value.log2(),
            Scale::Log10 => value.log10(),
        }
    }
}

/// An axis with its ends, and ticks where a person would put them.
#[derive(Clone)]
pub struct Coordinates {
    scale: Scale,
    places: std::ops::Range<f64>,
}

impl Coordinates {
    pub fn text(&self, value: f64) -> String {
        match self.scale {
            Scale::Linear | Scale::Whole => number(value, self.places.end - self.places.start),
            Scale::Log2 | Scale::Log10 => number(value, value),
        }
    }

    fn ticks(&self, most: usize) -> Vec<f64> {
        let (low, high) = (self.places.start, self.places.end);
        let whole = |low: f64, high: f64| (low.ceil() as i32..=high.floor() as i32).map(f64::from);
        let every = |ticks: Vec<f64>| {
            let step = ticks.len().div_ceil(most.max(1)).max(1);
            ticks.into_iter().step_by(step).collect()
        };
        match self.scale {
            Scale::Log2 => every(whole(low, high).map(f64::exp2).collect()),
            Scale::Log10 => {
                let digits: &[f64] = match high - low {
                    span if span > 2.0 => &[1.0],
                    span if span > 0.7 => &[1.0, 2.0, 5.0],
                    _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
                };
                let decades = whole(low.floor(), high.ceil());
                let ticks =
                    decades.flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powf(decade)));
                every(ticks.filter(|tick| self.places.contains(&tick.log10())).collect())
            }
            Scale::Linear | Scale::Whole => {
                let raw = (high - low) / most.max(1) as f64;
                let power = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0]
                    .map(|digit| digit * power)
                    .into_iter()
                    .find(|step| *step >= raw * 0.999);
                let step = step.unwrap_or(10.0 * power);
                whole(low / step, high / step).map(|at| at * step).collect()
            }
        }
    }
}

impl Ranged for Coordinates {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let place = self.scale.place(*value).clamp(self.places.start, self.places.end);
        let share = (place - self.places.start) / (self.places.end - self.places.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        self.ticks(hint.max_num_points())
    }

    fn range(&self) -> std::ops::Range<f64> {
        let value = |place: f64| match self.scale {
            Scale::Linear | Scale::Whole => place,
            Scale::Log2 => place.exp2(),
            Scale::Log10 => 10f64.powf(place),
        };
        value(self.places.start)..value(self.places.end)
    }
}

impl ValueFormatter<f64> for Coordinates {
    fn format_ext(&self, value: &f64) -> String {
        self.text(*value)
    }
}

/// A number with as many digits as tell it from its neighbours on an axis that is `span` long.
pub fn number(value: f64, span: f64) -> String {
    let decimals = if span > 0.0 { (1.3 - span.log10()).ceil().clamp(0.0, 8.0) as usize } else { 0 };
    let text = format!("{value:.decimals$}");
    let text = if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, fraction) =
        digits.split_once('.').map_or((digits, None), |(whole, part)| (whole, Some(part)));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if grouped == "0" && fraction.is_none() { "" } else { sign };
    format!("{sign}{grouped}{}", fraction.map_or_else(String::new, |part| format!(".{part}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_an_axis_needs() {
        for (value, span, text) in [
            (12_000.0, 30_000.0, "12,000"),
            (0.05, 0.3, "0.05"),
            (2.5, 4.0, "2.5"),
            (-0.0, 10.0, "0"),
            (100.0, 700.0, "100"),
            (0.0, 0.3, "0"),
        ] {
            assert_eq!(number(value, span), text);
        }
    }
}
