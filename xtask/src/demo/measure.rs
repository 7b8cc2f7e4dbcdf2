//! What each tenant got, in numbers: the rows of the final table.

use core::time::Duration;
use std::collections::BTreeMap;

use evenhand_policy::{TenantFairnessWeight, TenantId};
use evenhand_store::{AttemptRecord, RunState, SequenceOutcome, Timestamp};

use super::cycles::TenantCycle;
use super::evidence::{Evidence, count};
use super::readiness::{Wait, waits};

/// One tenant's row.
#[derive(Clone, Debug)]
pub(super) struct TenantMeasures {
    pub(super) tenant: TenantId,
    pub(super) weight: u64,
    pub(super) slots: Slots,
    /// Runs that are done.
    pub(super) runs: u64,
    /// Runs in the cycles in which all tenants were ready and none lost a slot.
    pub(super) contested_runs: u64,
    /// The most sequences from one selection to the next.
    pub(super) gap_largest: u64,
    /// What the policy promises for it.
    pub(super) bound: u64,
    /// The longest time with ready runs and no successful claim.
    pub(super) service_lag: Duration,
    /// How long runs waited for their first claim.
    pub(super) wait_p50: Duration,
    pub(super) wait_p99: Duration,
}

/// A tenant's slots by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots {
    /// Reserved sequences that the cycle gives the tenant.
    pub(super) reserved: u64,
    pub(super) ran: u64,
    pub(super) idle: u64,
    pub(super) contended: u64,
    pub(super) failed: u64,
    /// Reserved, and without an outcome.
    pub(super) lost: u64,
}

impl Slots {
    /// All outcomes on record, and the lost slots.
    pub(super) fn accounted(&self) -> u64 {
        self.ran + self.idle + self.contended + self.failed + self.lost
    }
}

/// The row of every tenant of the policy.
pub(super) fn measure(evidence: &Evidence, cycles: &[Vec<TenantCycle>]) -> Vec<TenantMeasures> {
    let slots = slots(evidence);
    let waits = waits(evidence, Duration::ZERO);
    let row = |weighted: &TenantFairnessWeight| {
        let tenant = weighted.tenant();
        let bound = evidence.order.policy.starvation_bound(tenant);
        let first_waits = first_waits(evidence, tenant);
        TenantMeasures {
            tenant: tenant.clone(),
            weight: u64::from(weighted.weight()),
            slots: slots.get(tenant).copied().unwrap_or_default(),
            runs: count(
                evidence
                    .runs
                    .values()
                    .filter(|run| run.spec.tenant == *tenant && run.state == RunState::Done),
            ),
            contested_runs: contested_runs(cycles, tenant),
            gap_largest: gap_largest(evidence, tenant),
            bound: bound.map_or(0, |bound| {
                u64::from(bound.maximum_reservations_until_selection())
            }),
            service_lag: service_lag(evidence, tenant, waits.get(tenant)),
            wait_p50: percentile(&first_waits, 50),
            wait_p99: percentile(&first_waits, 99),
        }
    };
    evidence.order.policy.tenants().iter().map(row).collect()
}

/// Outcomes are counted as they stand on record, so that a wrong one does not add up.
fn slots(evidence: &Evidence) -> BTreeMap<TenantId, Slots> {
    let policy = &evidence.order.policy;
    let mut slots: BTreeMap<TenantId, Slots> = BTreeMap::new();
    for (sequence, reserved) in evidence.reserved() {
        let tenant = policy.tenant_for_sequence(sequence);
        let slots = slots.entry(tenant.clone()).or_default();
        slots.reserved += 1;
        slots.lost += u64::from(reserved.record.is_none());
    }
    for record in &evidence.order.sequences {
        let tenant = policy.tenant_for_sequence(record.sequence);
        let slots = slots.entry(tenant.clone()).or_default();
        match record.outcome {
            SequenceOutcome::Ran(_) => slots.ran += 1,
            SequenceOutcome::Idle => slots.idle += 1,
            SequenceOutcome::Contended => slots.contended += 1,
            SequenceOutcome::Failed => slots.failed += 1,
            // An outcome that this build does not know adds up to nothing.
            _ => {}
        }
    }
    slots
}

fn contested_runs(cycles: &[Vec<TenantCycle>], tenant: &TenantId) -> u64 {
    let is_contested = |cycle: &&Vec<TenantCycle>| cycle.iter().all(TenantCycle::is_undisturbed);
    let contested = cycles.iter().filter(is_contested).flatten();
    contested
        .filter(|cycle| cycle.tenant == *tenant)
        .map(|cycle| cycle.ran)
        .sum()
}

/// From the start of the order to the first selection, from each to the next, and as long as the next one will be at
/// least.
fn gap_largest(evidence: &Evidence, tenant: &TenantId) -> u64 {
    let policy = &evidence.order.policy;
    // Counting from 1 leaves 0 for the time before the first selection.
    let (mut selected_before, mut end, mut largest) = (0, 0, 0);
    for sequence in evidence.reserved().into_keys() {
        end = sequence + 1;
        if policy.tenant_for_sequence(sequence) == tenant {
            largest = u64::max(largest, end - selected_before);
            selected_before = end;
        }
    }
    largest.max(end + 1 - selected_before)
}

fn service_lag(evidence: &Evidence, tenant: &TenantId, waits: Option<&Vec<Wait>>) -> Duration {
    let now = evidence
        .order
        .sequences
        .iter()
        .map(|record| record.recorded_at)
        .max();
    let claims: Vec<Timestamp> = attempts_of(evidence, tenant)
        .map(|attempt| attempt.claimed_at)
        .collect();
    longest_unserved(
        waits.map_or(&[], Vec::as_slice),
        claims,
        now.unwrap_or(Timestamp::MIN),
    )
}

/// The longest time, up to `now`, within which somebody waited all along and nobody was claimed.
fn longest_unserved(waits: &[Wait], mut claims: Vec<Timestamp>, now: Timestamp) -> Duration {
    claims.sort();
    let mut longest = Duration::ZERO;
    for (from, until) in busy_periods(waits, now) {
        let mut served = from;
        let within = claims.iter().filter(|claim| (from..=until).contains(claim));
        for moment in within.copied().chain([until]) {
            longest = longest.max(between(served, moment));
            served = moment;
        }
    }
    longest
}

/// The times at which at least one run waited, as few as there are.
fn busy_periods(waits: &[Wait], now: Timestamp) -> Vec<(Timestamp, Timestamp)> {
    let ends = |wait: &Wait| wait.until.unwrap_or(now).max(wait.from);
    let mut sorted: Vec<_> = waits.iter().map(|wait| (wait.from, ends(wait))).collect();
    sorted.sort();
    let mut periods: Vec<(Timestamp, Timestamp)> = Vec::new();
    for (from, until) in sorted {
        match periods.last_mut() {
            Some((_, end)) if from <= *end => *end = until.max(*end),
            Some(_) | None => periods.push((from, until)),
        }
    }
    periods
}

fn first_waits(evidence: &Evidence, tenant: &TenantId) -> Vec<Duration> {
    let first = attempts_of(evidence, tenant).filter(|attempt| attempt.fence.get() == 1);
    let mut waits: Vec<_> = first
        .map(|attempt| between(attempt.ready_at, attempt.claimed_at))
        .collect();
    waits.sort();
    waits
}

fn attempts_of<'a>(
    evidence: &'a Evidence,
    tenant: &'a TenantId,
) -> impl Iterator<Item = &'a AttemptRecord> {
    let attempts = evidence.attempts().map(|(_, attempt)| attempt);
    attempts.filter(move |attempt| attempt.tenant == *tenant)
}

/// The smallest value that at least `percent` of the sorted values do not exceed; zero of none.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::readiness::seconds::{at, wait};

    #[test]
    fn the_lag_is_the_longest_wait_for_anybody_to_be_served() {
        let lag = |waits: &[Wait], claims: &[i64]| {
            let claims = claims.iter().copied().map(at).collect();
            longest_unserved(waits, claims, at(100)).as_secs()
        };
        assert_eq!(lag(&[], &[]), 0);
        assert_eq!(lag(&[wait(0, Some(5))], &[5]), 5);
        // Two runs wait from 0 on and are claimed at 3 and 10.
        assert_eq!(lag(&[wait(0, Some(3)), wait(0, Some(10))], &[10, 3]), 7);
        // Nobody waits between 3 and 90, so nobody lags.
        assert_eq!(lag(&[wait(0, Some(3)), wait(90, Some(92))], &[3, 92]), 3);
        // One is never claimed.
        assert_eq!(lag(&[wait(0, Some(3)), wait(0, None)], &[3]), 97);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let seconds: Vec<Duration> = (1..=200).map(Duration::from_secs).collect();
        assert_eq!(percentile(&seconds, 50), Duration::from_secs(100));
        assert_eq!(percentile(&seconds, 99), Duration::from_secs(198));
        assert_eq!(percentile(&seconds[..1], 99), Duration::from_secs(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
