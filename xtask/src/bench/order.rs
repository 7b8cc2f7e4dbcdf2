//! The order in which runs were started: how fast, in which shares, and who waited for whom.

use std::collections::BTreeMap;

use super::child::Start;
use super::samples::number;

/// From the first start to the last.
pub(crate) fn runs_per_second(starts: &[Start]) -> f64 {
    let ends = starts.first().zip(starts.last());
    ends.map_or(f64::NAN, |(first, last)| {
        number(starts.len()) / (number(last.micros - first.micros) / 1e6)
    })
}

/// The tenants in the order in which their runs were started.
pub(crate) fn tenants(starts: &[Start]) -> impl Iterator<Item = &str> {
    starts.iter().map(|start| start.tenant.as_str())
}

/// How many runs came before the first run of the small tenant that was the last to have one.
pub(crate) fn before_the_last_first<'a>(
    tenants: impl Iterator<Item = &'a str>,
    large: &str,
) -> f64 {
    let mut first = BTreeMap::new();
    for (before, tenant) in tenants.enumerate() {
        first.entry(tenant).or_insert(before);
    }
    first.remove(large);
    first.into_values().max().map_or(f64::NAN, number)
}

/// How many runs came before the last run of any small tenant.
pub(crate) fn before_the_last<'a>(tenants: impl Iterator<Item = &'a str>, large: &str) -> f64 {
    let small = tenants.enumerate().filter(|(_, tenant)| *tenant != large);
    small.last().map_or(f64::NAN, |(before, _)| number(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: [&str; 7] = ["large", "a", "large", "b", "a", "b", "large"];

    fn start(micros: u64, tenant: &str) -> Start {
        Start {
            micros,
            tenant: tenant.to_owned(),
        }
    }

    #[test]
    fn the_last_first_is_that_of_the_small_tenant_that_waited_longest() {
        let before = before_the_last_first(ORDER.into_iter(), "large");
        assert_eq!(before.to_string(), "3");
        assert!(before_the_last_first(["large"].into_iter(), "large").is_nan());
    }

    #[test]
    fn the_last_is_that_of_any_small_tenant() {
        let before = before_the_last(ORDER.into_iter(), "large");
        assert_eq!(before.to_string(), "5");
        assert!(before_the_last(["large"].into_iter(), "large").is_nan());
    }

    #[test]
    fn the_rate_is_from_the_first_start_to_the_last() {
        let starts = [1_000_000, 1_500_000, 3_000_000].map(|micros| start(micros, "a"));
        assert_eq!(runs_per_second(&starts).to_string(), "1.5");
        assert!(runs_per_second(&[]).is_nan());
    }

    #[test]
    fn tenants_come_in_the_order_of_their_starts() {
        let starts = [start(1, "b"), start(2, "a"), start(3, "b")];
        assert!(tenants(&starts).eq(["b", "a", "b"]));
    }
}
