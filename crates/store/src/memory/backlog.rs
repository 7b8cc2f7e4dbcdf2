//! What waits: which runs are ready, in which order, and whose they are.

use core::cmp::Reverse;
use core::time::Duration;

use std::collections::{BTreeMap, BTreeSet};

use evenhand_policy::admission::Score;
use evenhand_policy::{PoolId, TenantId};
use jiff::Timestamp;

use super::queue::{Queue, Row};
use super::ready::{tick_of, wait_ticks};
use super::shard::Shard;
use crate::{PoolScoring, ReadyTenants, RunId, RunState, UnservedRuns};

/// A ready run, in the order in which a tenant's runs are claimed: the best comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    score: Reverse<Score>,
    pub(super) ready_tick: i128,
    pub(super) run: RunId,
}

impl Queue {
    /// The ready runs of these tenants, each tenant's best first. Tenants that have none are left out.
    pub(super) fn ready_runs(
        &self,
        clock: Timestamp,
        pool: &PoolId,
        scoring: &PoolScoring,
        tenants: &BTreeSet<&TenantId>,
    ) -> BTreeMap<TenantId, Vec<Candidate>> {
        let mut ready: BTreeMap<TenantId, Vec<Candidate>> = BTreeMap::new();
        for row in self.queued(pool) {
            let spec = &row.run.spec;
            let wait_ticks = wait_ticks(clock, row.run.ready_at, scoring.wait_tick());
            if let (Some(wait_ticks), true) = (wait_ticks, tenants.contains(&spec.tenant)) {
                let of_tenant = ready.entry(spec.tenant.clone()).or_default();
                let scoring_of_run = scoring.scoring();
                let (class, priority) = (spec.value_class, spec.base_priority);
                of_tenant.push(Candidate {
                    score: Reverse(scoring_of_run.score(class, priority, wait_ticks)),
                    ready_tick: tick_of(row.run.ready_at, scoring.wait_tick()),
                    run: row.run.id,
                });
            }
        }
        for of_tenant in ready.values_mut() {
            of_tenant.sort_unstable();
        }
        ready
    }

    /// The tenants of the pool that have ready runs, and from when the oldest of them has been ready.
    pub(super) fn backlogs(
        &self,
        clock: Timestamp,
        pool: &PoolId,
        wait_tick: Duration,
    ) -> BTreeMap<TenantId, Timestamp> {
        let mut oldest: BTreeMap<TenantId, Timestamp> = BTreeMap::new();
        for row in self.queued(pool) {
            let ready_at = row.run.ready_at;
            if wait_ticks(clock, ready_at, wait_tick).is_some() {
                oldest
                    .entry(row.run.spec.tenant.clone())
                    .and_modify(|oldest| *oldest = ready_at.min(*oldest))
                    .or_insert(ready_at);
            }
        }
        oldest
    }

    /// Which tenants of the shard's policy have a ready run.
    pub(super) fn ready_tenants(
        &self,
        clock: Timestamp,
        shard: &Shard,
        wait_tick: Duration,
    ) -> ReadyTenants {
        let (pool, policy) = (shard.pool(), shard.policy());
        let backlogs = self.backlogs(clock, pool, wait_tick);
        let next_ready_at = self.next_ready_at(pool, |tenant| {
            policy.contains(tenant) && !backlogs.contains_key(tenant)
        });
        let served = backlogs
            .into_keys()
            .filter(|tenant| policy.contains(tenant));
        ReadyTenants::new(served.collect(), next_ready_at, clock)
    }

    /// When the next run becomes ready of a tenant that passes the filter.
    pub(super) fn next_ready_at(
        &self,
        pool: &PoolId,
        is_asked_for: impl Fn(&TenantId) -> bool,
    ) -> Option<Timestamp> {
        self.queued(pool)
            .filter(|row| is_asked_for(&row.run.spec.tenant))
            .map(|row| row.run.ready_at)
            .min()
    }

    /// How many runs are queued, ready or not, of tenants that nobody serves.
    pub(super) fn unserved(
        &self,
        is_served: impl Fn(&PoolId, &TenantId) -> bool,
    ) -> Vec<UnservedRuns> {
        let mut queued: BTreeMap<(&PoolId, &TenantId), u64> = BTreeMap::new();
        for Row { run, .. } in self.rows.values() {
            if run.state == RunState::Queued {
                *queued
                    .entry((&run.spec.pool, &run.spec.tenant))
                    .or_default() += 1;
            }
        }
        queued
            .into_iter()
            .filter(|((pool, tenant), _)| !is_served(pool, tenant))
            .map(|((pool, tenant), queued)| UnservedRuns::new(pool.clone(), tenant.clone(), queued))
            .collect()
    }

    fn queued(&self, pool: &PoolId) -> impl Iterator<Item = &Row> {
        self.rows.values().filter(|row| row.is_queued_in(pool))
    }
}
