//! What a worker tells through the [`metrics`] facade. Labels are bounded: shards, tenants of the policy, fixed words.

use core::time::Duration;

use std::collections::BTreeMap;

use evenhand_policy::{TenantId, WeightedFairnessPolicy};
use evenhand_store::{HistoryReport, RecoveryReport, StoreHealth, UnservedRuns};
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use tokio::time::Instant;

use crate::observe::Origin;
use crate::round::ClaimedRound;
use crate::tenant::RunEnd;

const RESERVATIONS: &str = "evenhand_reservations_total";
const BLOCK: &str = "evenhand_block_sequences";
const SEQUENCES: &str = "evenhand_sequences_total";
const CLAIMS: &str = "evenhand_claims_total";
const CALL_RETRIES: &str = "evenhand_call_retries_total";
const QUEUE_WAIT: &str = "evenhand_queue_wait_seconds";
const RUNS_RUNNING: &str = "evenhand_runs_running";
const RUNS_ENDED: &str = "evenhand_runs_ended_total";
const LEASES_RECOVERED: &str = "evenhand_leases_recovered_total";
const LOST_BLOCKS: &str = "evenhand_lost_blocks_total";
const SELECTION_BOUND: &str = "evenhand_selection_bound_sequences";
const SELECTION_GAP: &str = "evenhand_selection_gap_sequences";
const UNSERVED_SELECTIONS: &str = "evenhand_unserved_selections";
const SERVICE_LAG: &str = "evenhand_service_lag_seconds";
const QUEUE_AGE: &str = "evenhand_queue_age_seconds";
const UNSERVED_RUNS: &str = "evenhand_unserved_runs";
const PRUNED_ROWS: &str = "evenhand_pruned_rows_total";
const OLDEST_EVIDENCE: &str = "evenhand_oldest_evidence_seconds";
const OLDEST_SNAPSHOT: &str = "evenhand_oldest_snapshot_seconds";

/// How many sequences of a block are looked through for selection gaps; longer blocks are mostly idle.
const GAP_SEQUENCES_MAX: usize = 1_024;

/// Tells the recorder what each metric means.
pub(crate) fn describe() {
    describe_counter!(RESERVATIONS, "reservations that this worker made");
    describe_histogram!(BLOCK, Unit::Count, "sequences of a reservation");
    describe_counter!(SEQUENCES, "sequences by how they ended");
    describe_counter!(CLAIMS, "runs that were claimed");
    describe_counter!(CALL_RETRIES, "calls on the store that were repeated");
    describe_histogram!(
        QUEUE_WAIT,
        Unit::Seconds,
        "from ready to the reservation of the sequence that claimed"
    );
    describe_gauge!(RUNS_RUNNING, "runs that this worker works on");
    describe_counter!(RUNS_ENDED, "attempts by how they ended");
    describe_counter!(
        LEASES_RECOVERED,
        "expired leases that this worker took back"
    );
    describe_counter!(
        LOST_BLOCKS,
        "blocks of workers that are gone, settled by this one"
    );
    describe_gauge!(
        SELECTION_BOUND,
        Unit::Count,
        "the tenant's starvation bound"
    );
    describe_gauge!(
        SELECTION_GAP,
        Unit::Count,
        "the largest selection gap that this worker has seen"
    );
    describe_gauge!(
        UNSERVED_SELECTIONS,
        Unit::Count,
        "selections in a row that did not serve the tenant while it had ready runs"
    );
    describe_gauge!(
        SERVICE_LAG,
        Unit::Seconds,
        "how long the tenant has had ready runs without a claim by this worker"
    );
    describe_gauge!(
        QUEUE_AGE,
        Unit::Seconds,
        "how long the tenant's oldest ready run has waited"
    );
    describe_gauge!(
        UNSERVED_RUNS,
        Unit::Count,
        "queued runs that no active shard serves"
    );
    describe_counter!(PRUNED_ROWS, "rows that retention deleted");
    describe_gauge!(
        OLDEST_EVIDENCE,
        Unit::Seconds,
        "age of the oldest reservation on record"
    );
    describe_gauge!(
        OLDEST_SNAPSHOT,
        Unit::Seconds,
        "age of the oldest snapshot of the server"
    );
}

/// What has to be remembered between two rounds to tell of tenants.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    by_tenant: BTreeMap<TenantId, Tenant>,
    /// The sequence that continues the newest own block, as long as all of that block was looked through.
    continues_at: Option<u64>,
}

#[derive(Debug, Default)]
struct Tenant {
    selected_at: Option<u64>,
    gap_largest: u64,
    not_served: u64,
    served_at: Option<Instant>,
}

impl Tenants {
    /// A round has claimed. Blocks of others are no part of this worker's own sequence of selections.
    pub(crate) fn round(&mut self, round: &ClaimedRound, origin: Origin) {
        let policy = round.block.policy();
        let shard = policy.shard();
        let label = || shard.as_str().to_owned();
        match origin {
            Origin::Own => {
                counter!(RESERVATIONS, "shard" => label()).increment(1);
                histogram!(BLOCK, "shard" => label()).record(f64::from(round.block.length()));
                for (outcome, sequences) in [
                    ("ran", round.ran()),
                    ("idle", round.idle()),
                    ("contended", round.contended),
                    ("moved_on", round.moved_on),
                ] {
                    if sequences > 0 {
                        counter!(SEQUENCES, "shard" => label(), "outcome" => outcome)
                            .increment(sequences);
                    }
                }
                self.select(round);
            }
            Origin::Lost => counter!(LOST_BLOCKS, "shard" => label()).increment(1),
        }
        self.serve(round);
    }

    /// Notes how far apart the selections of each tenant are.
    fn select(&mut self, round: &ClaimedRound) {
        let policy = round.block.policy();
        let sequences = round.block.sequences();
        if self.continues_at != Some(*sequences.start()) {
            for tenant in self.by_tenant.values_mut() {
                tenant.selected_at = None;
            }
        }
        let (first, next) = (*sequences.start(), sequences.end().saturating_add(1));
        for sequence in sequences.take(GAP_SEQUENCES_MAX) {
            let selected = policy.tenant_for_sequence(sequence);
            let tenant = entry(&mut self.by_tenant, selected);
            let gap = tenant.selected_at.map_or(0, |before| sequence - before);
            tenant.selected_at = Some(sequence);
            if gap > tenant.gap_largest {
                tenant.gap_largest = gap;
                set(SELECTION_GAP, policy, selected, float(gap));
            }
        }
        let looked_through =
            usize::try_from(next - first).is_ok_and(|all| all <= GAP_SEQUENCES_MAX);
        self.continues_at = looked_through.then_some(next);
    }

    /// Notes whom the round has served, and who was ready and was not.
    fn serve(&mut self, round: &ClaimedRound) {
        let policy = round.block.policy();
        let now = Instant::now();
        for claimed in &round.runs {
            let run = claimed.run();
            let tenant = &run.spec.tenant;
            let waited = round.block.store_time().duration_since(run.ready_at);
            let waited = Duration::try_from(waited).unwrap_or(Duration::ZERO);
            let name = || tenant.as_str().to_owned();
            let shard = policy.shard().as_str().to_owned();
            counter!(CLAIMS, "shard" => shard, "tenant" => name()).increment(1);
            histogram!(QUEUE_WAIT, "tenant" => name()).record(waited.as_secs_f64());
            let known = entry(&mut self.by_tenant, tenant);
            known.served_at = Some(now);
            if core::mem::take(&mut known.not_served) > 0 {
                set(UNSERVED_SELECTIONS, policy, tenant, 0.0);
            }
        }
        for sequence in &round.contended_sequences {
            let tenant = policy.tenant_for_sequence(*sequence);
            let known = entry(&mut self.by_tenant, tenant);
            known.not_served += 1;
            let streak = float(known.not_served);
            set(UNSERVED_SELECTIONS, policy, tenant, streak);
        }
        gauge!(RUNS_RUNNING).increment(float(round.ran()));
    }

    /// What the store says of itself. Tenants that have nothing ready have no age and no lag.
    pub(crate) fn health(&self, policy: &WeightedFairnessPolicy, health: &StoreHealth) {
        let age = |since| {
            let age = health.store_time.duration_since(since);
            Duration::try_from(age).unwrap_or(Duration::ZERO)
        };
        for weighted in policy.tenants() {
            let tenant = weighted.tenant();
            let backlog = health
                .backlogs
                .iter()
                .find(|backlog| backlog.tenant == *tenant);
            let waited = backlog.map_or(Duration::ZERO, |backlog| age(backlog.oldest_ready_at));
            let served_at = self.by_tenant.get(tenant).and_then(|known| known.served_at);
            let since_served = served_at.map_or(waited, |at| at.elapsed());
            set(QUEUE_AGE, policy, tenant, waited.as_secs_f64());
            set(
                SERVICE_LAG,
                policy,
                tenant,
                waited.min(since_served).as_secs_f64(),
            );
        }
        let shard = policy.shard().as_str().to_owned();
        let evidence = health.oldest_reservation_at.map_or(Duration::ZERO, age);
        gauge!(OLDEST_EVIDENCE, "shard" => shard).set(evidence.as_secs_f64());
        if let Some(age) = health.oldest_snapshot_age {
            gauge!(OLDEST_SNAPSHOT).set(age.as_secs_f64());
        }
    }
}

/// A worker serves this policy from now on.
pub(crate) fn served(policy: &WeightedFairnessPolicy) {
    for weighted in policy.tenants() {
        if let Some(bound) = policy.starvation_bound(weighted.tenant()) {
            let bound = f64::from(bound.maximum_reservations_until_selection());
            set(SELECTION_BOUND, policy, weighted.tenant(), bound);
        }
    }
}

pub(crate) fn sequences_unknown(shard: &str, sequences: u64) {
    counter!(SEQUENCES, "shard" => shard.to_owned(), "outcome" => "unknown").increment(sequences);
}

pub(crate) fn retried(call: &'static str, retries: u32) {
    if retries > 0 {
        counter!(CALL_RETRIES, "call" => call).increment(u64::from(retries));
    }
}

pub(crate) fn run_ended(end: RunEnd) {
    runs_left(1);
    counter!(RUNS_ENDED, "end" => end.as_str()).increment(1);
}

/// So many runs are worked on no longer.
pub(crate) fn runs_left(runs: u64) {
    gauge!(RUNS_RUNNING).decrement(float(runs));
}

pub(crate) fn recovered(recovery: RecoveryReport) {
    for (outcome, runs) in [("requeued", recovery.requeued), ("dead", recovery.dead)] {
        if runs > 0 {
            counter!(LEASES_RECOVERED, "outcome" => outcome).increment(u64::from(runs));
        }
    }
}

/// A pool that has no such runs any more is told of once more, by `known`, the pools of the pass before.
pub(crate) fn unserved(unserved: &[UnservedRuns], known: &[String]) {
    let mut pools: BTreeMap<&str, u64> = known.iter().map(|pool| (pool.as_str(), 0)).collect();
    for runs in unserved {
        *pools.entry(runs.pool.as_str()).or_default() += runs.queued;
    }
    for (pool, queued) in pools {
        gauge!(UNSERVED_RUNS, "pool" => pool.to_owned()).set(float(queued));
    }
}

pub(crate) fn pruned_reservations(rows: u32) {
    pruned("reservations", rows);
}

pub(crate) fn pruned_history(report: &HistoryReport) {
    pruned("outcomes", report.outcomes);
    pruned("attempts", report.attempts);
    pruned("finished", report.finished);
    pruned("dead", report.dead);
}

fn pruned(what: &'static str, rows: u32) {
    if rows > 0 {
        counter!(PRUNED_ROWS, "what" => what).increment(u64::from(rows));
    }
}

fn entry<'a>(tenants: &'a mut BTreeMap<TenantId, Tenant>, tenant: &TenantId) -> &'a mut Tenant {
    // An id is shared, so cloning it copies no text.
    tenants.entry(tenant.clone()).or_default()
}

fn set(name: &'static str, policy: &WeightedFairnessPolicy, tenant: &TenantId, value: f64) {
    let shard = policy.shard().as_str().to_owned();
    gauge!(name, "shard" => shard, "tenant" => tenant.as_str().to_owned()).set(value);
}

/// A gauge holds a float; counts beyond 2^32 are shown as 2^32.
fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
