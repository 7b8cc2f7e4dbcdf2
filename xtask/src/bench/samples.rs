//! Measured values, and what is said about them.

use core::time::Duration;

use serde::Serialize;

/// Values of one thing, as they were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.0
    }

    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The largest value; not a number when there is none.
    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The value in the middle, or the mean of the two there; not a number when there is none.
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let upper = sorted.get(sorted.len() / 2).copied();
        let lower = sorted.get(sorted.len().saturating_sub(1) / 2).copied();
        upper
            .zip(lower)
            .map_or(f64::NAN, |(a, b)| f64::midpoint(a, b))
    }

    /// The smallest value that at least `percent` of all values do not exceed (the nearest rank).
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let sorted = self.sorted();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    /// The values of all, one after the other.
    pub(crate) fn concat(all: &[Self]) -> Self {
        Self(all.iter().flat_map(|samples| samples.0.clone()).collect())
    }

    /// The last half, in which whatever builds up shows.
    pub(crate) fn last_half(&self) -> Self {
        Self(self.0[self.0.len() / 2..].to_vec())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Extend<f64> for Samples {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        self.0.extend(values);
    }
}

/// A count as a number to divide by; counts here stay far below where that loses anything.
pub(crate) fn number<N: TryInto<u32>>(count: N) -> f64 {
    count.try_into().map_or(f64::NAN, f64::from)
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        values.iter().copied().collect()
    }

    #[test]
    fn the_median_does_not_depend_on_the_order_and_ignores_one_outlier() {
        assert_eq!(
            samples(&[9.0, 1.0, 1_000.0, 3.0, 4.0]).median().to_string(),
            "4"
        );
        assert_eq!(samples(&[4.0, 1.0]).median().to_string(), "2.5");
        assert!(samples(&[]).median().is_nan());
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Samples = (1..=100).rev().map(f64::from).collect();
        for percent in [1, 50, 99, 100] {
            assert_eq!(hundred.percentile(percent).to_string(), percent.to_string());
        }
        assert_eq!(samples(&[7.0]).percentile(0).to_string(), "7");
        assert_eq!(samples(&[7.0, 8.0]).percentile(99).to_string(), "8");
        assert!(samples(&[]).percentile(50).is_nan());
    }

    #[test]
    fn samples_of_several_turns_are_taken_together() {
        let turns = [samples(&[1.0, 3.0]), samples(&[]), samples(&[2.0])];
        assert_eq!(Samples::concat(&turns), samples(&[1.0, 3.0, 2.0]));
    }

    #[test]
    fn the_last_half_of_an_odd_number_holds_the_middle() {
        assert_eq!(samples(&[1.0, 2.0, 3.0]).last_half(), samples(&[2.0, 3.0]));
        assert_eq!(samples(&[]).last_half(), samples(&[]));
    }

    #[test]
    fn the_largest_of_nothing_is_not_a_number() {
        assert_eq!(samples(&[1.0, 3.0, 2.0]).max().to_string(), "3");
        assert!(samples(&[]).max().is_nan());
    }
}
