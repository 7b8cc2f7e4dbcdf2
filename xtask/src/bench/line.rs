//! One line of the table: a figure, what stands beside it, and whether its target is met.

use core::fmt;

use serde::Serialize;

use super::samples::Samples;
use super::server::Regime;

/// A line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) regime: Option<Regime>,
    pub(crate) figure: Figure,
    pub(crate) beside: Option<(String, Figure)>,
    pub(crate) target: Target,
    /// Why there is no figure, where there is none.
    pub(crate) not_measured: Option<String>,
}

/// A measured value: the median of its runs, where there were several.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) unit: Unit,
    pub(crate) runs: Samples,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    Millis,
    Micros,
    Bytes,
    Kibibytes,
    Mebibytes,
    RoundTrips,
    Count,
}

/// What was promised of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// Nothing: the figure is stated.
    Stated,
    /// The figure is at least this many times the one beside it.
    RatioAtLeast(f64),
    /// The figure is at most this many times the one beside it.
    RatioAtMost(f64),
    /// The figure is at least this.
    AtLeast(f64),
    /// The figure is at most this.
    AtMost(f64),
    /// The figure is below this.
    Below(f64),
}

impl Line {
    /// A figure that is stated, with nothing beside it.
    pub(crate) fn new(what: impl Into<String>, figure: Figure) -> Self {
        Self {
            what: what.into(),
            regime: None,
            figure,
            beside: None,
            target: Target::Stated,
            not_measured: None,
        }
    }

    /// What could not be measured, and why.
    pub(crate) fn not_measured(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            not_measured: Some(why.into()),
            ..Self::new(what, Figure::one(f64::NAN, Unit::Count))
        }
    }

    pub(crate) fn regime(self, regime: Regime) -> Self {
        Self {
            regime: Some(regime),
            ..self
        }
    }

    pub(crate) fn beside(self, what: impl Into<String>, figure: Figure) -> Self {
        Self {
            beside: Some((what.into(), figure)),
            ..self
        }
    }

    pub(crate) fn target(self, target: Target) -> Self {
        Self { target, ..self }
    }

    pub(crate) fn ratio(&self) -> Option<f64> {
        let (_, beside) = self.beside.as_ref()?;
        Some(self.figure.value / beside.value)
    }

    /// Whether the target is met; `None` where there is none.
    pub(crate) fn is_met(&self) -> Option<bool> {
        // A figure that is not a number meets nothing, and neither does a ratio to nothing.
        let ratio = self.ratio().unwrap_or(f64::NAN);
        match self.target {
            Target::Stated => None,
            Target::RatioAtLeast(least) => Some(ratio >= least),
            Target::RatioAtMost(most) => Some(ratio <= most),
            Target::AtLeast(least) => Some(self.figure.value >= least),
            Target::AtMost(most) => Some(self.figure.value <= most),
            Target::Below(limit) => Some(self.figure.value < limit),
        }
    }

    /// The target in words.
    pub(crate) fn target_text(&self) -> String {
        let figure = |value| Figure::one(value, self.figure.unit);
        match self.target {
            Target::Stated => String::new(),
            Target::RatioAtLeast(least) => format!("at least {least}x"),
            Target::RatioAtMost(most) => format!("at most {most}x"),
            Target::AtLeast(least) => format!("at least {}", figure(least)),
            Target::AtMost(most) => format!("at most {}", figure(most)),
            Target::Below(limit) => format!("below {}", figure(limit)),
        }
    }

    pub(crate) fn verdict(&self) -> &'static str {
        match self.is_met() {
            None => "",
            Some(true) => "met",
            Some(false) => "not met",
        }
    }
}

impl Figure {
    /// The median of several runs.
    pub(crate) fn median(runs: &Samples, unit: Unit) -> Self {
        Self {
            value: runs.median(),
            unit,
            runs: runs.clone(),
        }
    }

    /// A single value.
    pub(crate) fn one(value: f64, unit: Unit) -> Self {
        Self {
            value,
            unit,
            runs: Samples::default(),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&readable(self.value))?;
        f.write_str(match self.unit {
            Unit::PerSecond => "/s",
            Unit::Millis => " ms",
            Unit::Micros => " µs",
            Unit::Bytes => " B",
            Unit::Kibibytes => " KiB",
            Unit::Mebibytes => " MiB",
            Unit::RoundTrips => " round trips",
            Unit::Count => "",
        })
    }
}

/// Three digits that count, thousands apart, no zeros at the end.
pub(crate) fn readable(value: f64) -> String {
    let digits = match value.abs() {
        small if small < 0.1 => 4,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        middle if middle < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    grouped(&text)
}

fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        let left = digits.len() - at;
        if left.is_multiple_of(3) && text.ends_with(|last: char| last.is_ascii_digit()) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(value: f64, beside: f64, target: Target) -> Line {
        Line::new("it", Figure::one(value, Unit::PerSecond))
            .beside("other", Figure::one(beside, Unit::PerSecond))
            .target(target)
    }

    #[test]
    fn values_are_cut_to_what_counts() {
        for (value, expected) in [
            (0.0, "0"),
            (0.012_345, "0.0123"),
            (0.5, "0.5"),
            (2.345, "2.35"),
            (23.456, "23.5"),
            (234.5, "234"),
            (1_234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1_234.0, "-1,234"),
            (-234.0, "-234"),
        ] {
            assert_eq!(readable(value), expected);
        }
        assert_eq!(Figure::one(1_500.0, Unit::PerSecond).to_string(), "1,500/s");
        assert_eq!(Figure::one(f64::NAN, Unit::Millis).to_string(), "NaN ms");
    }

    #[test]
    fn a_target_is_met_at_its_limit_unless_it_says_below() {
        assert_eq!(
            line(5.0, 10.0, Target::RatioAtLeast(0.5)).is_met(),
            Some(true)
        );
        assert_eq!(
            line(4.9, 10.0, Target::RatioAtLeast(0.5)).is_met(),
            Some(false)
        );
        assert_eq!(
            line(20.0, 10.0, Target::RatioAtMost(2.0)).is_met(),
            Some(true)
        );
        assert_eq!(
            line(20.1, 10.0, Target::RatioAtMost(2.0)).is_met(),
            Some(false)
        );
        assert_eq!(line(3.0, 1.0, Target::AtLeast(3.0)).is_met(), Some(true));
        assert_eq!(line(3.0, 1.0, Target::AtMost(3.0)).is_met(), Some(true));
        assert_eq!(line(3.0, 1.0, Target::Below(3.0)).is_met(), Some(false));
        assert_eq!(line(3.0, 1.0, Target::Stated).is_met(), None);
    }

    #[test]
    fn what_was_not_measured_meets_no_target() {
        for target in [
            Target::RatioAtLeast(0.0),
            Target::RatioAtMost(9.0),
            Target::AtLeast(0.0),
            Target::AtMost(9.0),
            Target::Below(9.0),
        ] {
            assert_eq!(
                line(f64::NAN, 1.0, target).is_met(),
                Some(false),
                "{target:?}"
            );
        }
        let alone = Line::new("it", Figure::one(1.0, Unit::Count));
        assert_eq!(
            alone.target(Target::RatioAtLeast(0.0)).is_met(),
            Some(false)
        );
    }

    #[test]
    fn the_ratio_is_that_of_the_medians() {
        let runs = |values: [f64; 3]| Figure::median(&values.into_iter().collect(), Unit::Millis);
        let line = Line::new("it", runs([1.0, 9.0, 3.0])).beside("other", runs([4.0, 6.0, 90.0]));
        assert_eq!(
            line.ratio().map(|ratio| ratio.to_string()),
            Some("0.5".to_owned())
        );
    }
}
