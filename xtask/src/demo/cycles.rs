//! What each tenant got in each whole cycle.

use evenhand_policy::{TenantFairnessWeight, TenantId};

use super::evidence::{Evidence, ReservedSequence, attempt_of, count};
use super::readiness::Readiness;

/// One tenant in one cycle whose sequences were all reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TenantCycle {
    pub(super) cycle: u64,
    pub(super) tenant: TenantId,
    pub(super) weight: u64,
    /// Sequences of the tenant that ran a run.
    pub(super) ran: u64,
    /// Sequences of the tenant without an outcome.
    pub(super) lost: u64,
    /// Whether the tenant had runs to claim all through the cycle.
    pub(super) is_ready: bool,
}

impl TenantCycle {
    /// Whether nothing can have kept the tenant from running its weight.
    pub(super) fn is_undisturbed(&self) -> bool {
        self.is_ready && self.lost == 0
    }
}

/// Every whole cycle, and every tenant in it.
pub(super) fn whole_cycles(evidence: &Evidence) -> Vec<Vec<TenantCycle>> {
    let readiness = Readiness::of(evidence);
    let reserved = evidence.reserved();
    let length = u64::from(evidence.order.policy.cycle_length());
    let sequences = reserved
        .keys()
        .next_back()
        .map_or(0, |last| last.saturating_add(1));
    let whole = |cycle: u64| {
        let within = reserved.range(cycle * length..(cycle + 1) * length);
        let within: Vec<(u64, ReservedSequence<'_>)> = within
            .map(|(sequence, reserved)| (*sequence, *reserved))
            .collect();
        let is_whole = u64::try_from(within.len()) == Ok(length);
        is_whole.then(|| tenants_of_cycle(evidence, &readiness, cycle, &within))
    };
    (0..sequences / length).filter_map(whole).collect()
}

fn tenants_of_cycle(
    evidence: &Evidence,
    readiness: &Readiness,
    cycle: u64,
    sequences: &[(u64, ReservedSequence<'_>)],
) -> Vec<TenantCycle> {
    let policy = &evidence.order.policy;
    let begun = sequences
        .iter()
        .map(|(_, reserved)| reserved.reserved_at)
        .min();
    let records = sequences.iter().filter_map(|(_, reserved)| reserved.record);
    let ended = records.map(|record| record.recorded_at).max();
    let of_tenant = |weighted: &TenantFairnessWeight| {
        let tenant = weighted.tenant();
        let theirs = || {
            let is_theirs = |sequence| policy.tenant_for_sequence(sequence) == tenant;
            sequences
                .iter()
                .filter(move |(sequence, _)| is_theirs(*sequence))
        };
        TenantCycle {
            cycle,
            tenant: tenant.clone(),
            weight: u64::from(weighted.weight()),
            ran: count(
                theirs().filter(|(_, reserved)| reserved.record.and_then(attempt_of).is_some()),
            ),
            lost: count(theirs().filter(|(_, reserved)| reserved.record.is_none())),
            is_ready: begun
                .zip(ended)
                .is_some_and(|(begun, ended)| readiness.holds(tenant, begun, ended)),
        }
    };
    policy.tenants().iter().map(of_tenant).collect()
}
