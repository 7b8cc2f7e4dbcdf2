//! When a tenant had runs that waited, told from runs and attempts alone.
//!
//! Whether a tenant was ready must not be told from the outcomes that are then judged by it. A run waits from the time
//! at which it is ready and its enqueue is committed, until its claim; after an attempt that put it back, it waits again.
//!
//! All times are the store's clock, but a time on record was read a moment before its transaction was committed and its
//! rows were seen, and a claim looks at its tenant a moment after the time that is recorded for it. So [`Readiness`] errs
//! on the side of *not ready*, such that a tenant that it calls ready would be found ready by any claim:
//!
//! * a run that an attempt put back counts as waiting only [`SETTLING`] after the end of that attempt;
//! * a cycle lasts until [`SETTLING`] after its last outcome;
//! * more runs must wait than claims can be under way at once, since each may be holding one that it does not get.

use core::time::Duration;
use std::collections::BTreeMap;

use evenhand_policy::TenantId;
use evenhand_store::{RunState, Timestamp};

use super::evidence::Evidence;

/// Far longer than a statement takes between reading the clock and having its effect.
const SETTLING: Duration = Duration::from_secs(1);

/// A stretch of time in which one run waited; without an end it waits still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) from: Timestamp,
    pub(super) until: Option<Timestamp>,
}

/// How many runs of one tenant wait, at any time.
#[derive(Debug, Default)]
struct Waiting {
    /// From this time on, so many.
    counts: BTreeMap<Timestamp, u64>,
}

/// When each tenant was ready beyond doubt.
#[derive(Debug)]
pub(super) struct Readiness {
    by_tenant: BTreeMap<TenantId, Waiting>,
    claims_at_once: u64,
}

impl Readiness {
    pub(super) fn of(evidence: &Evidence) -> Self {
        let by_tenant = waits(evidence, SETTLING)
            .into_iter()
            .map(|(tenant, waits)| (tenant, Waiting::of(&waits)))
            .collect();
        let workers = &evidence.workers;
        Self {
            by_tenant,
            claims_at_once: u64::from(workers.started) * u64::from(workers.concurrency),
        }
    }

    /// Whether the tenant was ready at every instant from one time until well after another.
    pub(super) fn holds(&self, tenant: &TenantId, from: Timestamp, until: Timestamp) -> bool {
        let until = later(until, SETTLING);
        self.by_tenant
            .get(tenant)
            .is_some_and(|waiting| waiting.least(from, until) > self.claims_at_once)
    }
}

impl Waiting {
    fn of(waits: &[Wait]) -> Self {
        let mut changes: BTreeMap<Timestamp, (u64, u64)> = BTreeMap::new();
        for wait in waits {
            changes.entry(wait.from).or_default().0 += 1;
            if let Some(until) = wait.until {
                changes.entry(until).or_default().1 += 1;
            }
        }
        let mut count = 0;
        let counts = changes.into_iter().map(|(time, (begun, ended))| {
            count = count + begun - ended;
            (time, count)
        });
        Self {
            counts: counts.collect(),
        }
    }

    /// The least number of waiting runs between two times, both included.
    fn least(&self, from: Timestamp, until: Timestamp) -> u64 {
        let before = self.counts.range(..from).next_back();
        let before = before.map_or(0, |(_, count)| *count);
        let within = self.counts.range(from..=until).map(|(_, count)| *count);
        within.fold(before, u64::min)
    }
}

/// When the runs of each tenant waited.
///
/// A run that an attempt put back counts only from `settling` after the end of that attempt.
pub(super) fn waits(evidence: &Evidence, settling: Duration) -> BTreeMap<TenantId, Vec<Wait>> {
    let attempts = evidence.attempts_by_run();
    let mut by_tenant: BTreeMap<TenantId, Vec<Wait>> = BTreeMap::new();
    for run in evidence.runs.values() {
        let Some(expected) = evidence.expected.get(&run.id) else {
            continue;
        };
        let attempts = attempts.get(&run.id).map_or(&[][..], Vec::as_slice);
        let waits = by_tenant.entry(run.spec.tenant.clone()).or_default();
        let mut possible_from = Some(expected.committed_by);
        for attempt in attempts {
            if let Some(from) = possible_from {
                push(waits, from.max(attempt.ready_at), Some(attempt.claimed_at));
            }
            possible_from = attempt.ended.map(|(_, ended_at)| later(ended_at, settling));
        }
        if run.state == RunState::Queued
            && let Some(from) = possible_from
        {
            push(waits, from.max(run.ready_at), None);
        }
    }
    by_tenant
}

fn push(waits: &mut Vec<Wait>, from: Timestamp, until: Option<Timestamp>) {
    if until.is_none_or(|until| from < until) {
        waits.push(Wait { from, until });
    }
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// Times and waits as tests write them, in seconds from one origin.
#[cfg(test)]
pub(super) mod seconds {
    use super::*;

    pub(in super::super) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    pub(in super::super) fn wait(from: i64, until: Option<i64>) -> Wait {
        Wait {
            from: at(from),
            until: until.map(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::seconds::{at, wait};
    use super::*;

    #[test]
    fn the_least_number_of_waiting_runs_counts_both_ends() {
        let waiting = Waiting::of(&[wait(0, Some(10)), wait(2, Some(4)), wait(4, None)]);
        for (from, until, least) in [
            (0, 1, 0), // nobody waited before 0
            (1, 1, 1),
            (3, 3, 2),
            (3, 5, 2), // one ends at the moment at which another begins
            (1, 3, 1),
            (5, 9, 2),
            (5, 10, 1),
            (20, 30, 1),
        ] {
            assert_eq!(
                waiting.least(at(from), at(until)),
                least,
                "{from}..={until}"
            );
        }
        assert_eq!(Waiting::default().least(at(0), at(1)), 0);
    }

    #[test]
    fn a_tenant_is_ready_only_with_more_runs_than_claims_under_way() {
        let tenant = TenantId::try_from("a").unwrap();
        let readiness = |runs: usize| Readiness {
            by_tenant: [(tenant.clone(), Waiting::of(&vec![wait(0, Some(100)); runs]))].into(),
            claims_at_once: 3,
        };
        assert!(!readiness(3).holds(&tenant, at(10), at(20)));
        assert!(readiness(4).holds(&tenant, at(10), at(20)));
        assert!(readiness(4).holds(&tenant, at(10), at(98)));
        assert!(
            !readiness(4).holds(&tenant, at(10), at(99)),
            "the last outcome has to settle"
        );
        assert!(!readiness(4).holds(&TenantId::try_from("b").unwrap(), at(10), at(20)));
    }
}
