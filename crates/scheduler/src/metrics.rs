//! What a worker tells through the [`metrics`] facade. Labels are bounded: shards, pools, tenants of the policy, kinds
//! that have a handler, fixed words. The section "Watching" of the operator's manual lists what is here, and a test holds them together.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use std::collections::BTreeMap;

use evenhand_policy::{SchedulerShardId, TenantId, WeightedFairnessPolicy};
use evenhand_store::{HistoryReport, RecoveryReport, StoreHealth, UnservedRuns};
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use tokio::time::Instant;

use crate::execute::Claimed;
use crate::observe::Origin;
use crate::round::{Block, ClaimedRound};
use crate::tenant::RunEnd;

const RESERVATIONS: &str = "evenhand_reservations_total";
const BLOCK: &str = "evenhand_block_sequences";
const SEQUENCES: &str = "evenhand_sequences_total";
const CLAIMS: &str = "evenhand_claims_total";
const CALL_RETRIES: &str = "evenhand_call_retries_total";
const QUEUE_WAIT: &str = "evenhand_queue_wait_seconds";
const RUNS_RUNNING: &str = "evenhand_runs_running";
const RUNS_ENDED: &str = "evenhand_runs_ended_total";
const HANDLER: &str = "evenhand_handler_seconds";
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

/// What all kinds are told as that have no handler here.
const OTHER_KIND: &str = "other";

/// How many sequences of a block are looked through for selection gaps; longer blocks are mostly idle.
const GAP_SEQUENCES_MAX: usize = 1_024;

/// Tells the recorder what each metric means.
pub(crate) fn describe() {
    describe_counter!(
        RESERVATIONS,
        Unit::Count,
        "reservations that this worker made"
    );
    describe_histogram!(BLOCK, Unit::Count, "sequences of a reservation");
    describe_counter!(SEQUENCES, Unit::Count, "sequences by how they ended");
    describe_counter!(CLAIMS, Unit::Count, "runs that were claimed");
    describe_counter!(
        CALL_RETRIES,
        Unit::Count,
        "calls on the store that were repeated"
    );
    describe_histogram!(
        QUEUE_WAIT,
        Unit::Seconds,
        "from ready to the reservation of the sequence that claimed"
    );
    describe_gauge!(RUNS_RUNNING, Unit::Count, "runs that this worker works on");
    describe_counter!(RUNS_ENDED, Unit::Count, "attempts by how they ended");
    describe_histogram!(
        HANDLER,
        Unit::Seconds,
        "how long handlers worked on one attempt"
    );
    describe_counter!(
        LEASES_RECOVERED,
        Unit::Count,
        "expired leases that this worker took back"
    );
    describe_counter!(
        LOST_BLOCKS,
        Unit::Count,
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
    describe_counter!(PRUNED_ROWS, Unit::Count, "rows that retention deleted");
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

/// The runs that one worker works on. What is left when it is dropped is worked on no longer.
#[derive(Debug, Default)]
pub(crate) struct Running(AtomicU64);

impl Running {
    pub(crate) fn begin(&self, runs: u64) {
        self.0.fetch_add(runs, Ordering::Relaxed);
        gauge!(RUNS_RUNNING).increment(float(runs));
    }

    pub(crate) fn leave(&self, runs: u64) {
        self.0.fetch_sub(runs, Ordering::Relaxed);
        gauge!(RUNS_RUNNING).decrement(float(runs));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let left = core::mem::take(self.0.get_mut());
        if left > 0 {
            gauge!(RUNS_RUNNING).decrement(float(left));
        }
    }
}

/// What has to be remembered between two rounds to tell of the tenants of the shard that is served.
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
    /// The shard of this policy is served from now on. Nothing but the claims of the shard before counts any more.
    pub(crate) fn serves(&mut self, policy: &WeightedFairnessPolicy) {
        let before = core::mem::take(self).by_tenant;
        for weighted in policy.tenants() {
            let tenant = weighted.tenant();
            let served_at = before.get(tenant).and_then(|known| known.served_at);
            entry(&mut self.by_tenant, tenant).served_at = served_at;
            set(UNSERVED_SELECTIONS, policy, tenant, 0.0);
            if let Some(bound) = policy.starvation_bound(tenant) {
                let bound = f64::from(bound.maximum_reservations_until_selection());
                set(SELECTION_BOUND, policy, tenant, bound);
            }
        }
    }

    /// The shard of this policy is served no longer, so nobody waits for it.
    pub(crate) fn leaves(policy: &WeightedFairnessPolicy) {
        for weighted in policy.tenants() {
            for name in [UNSERVED_SELECTIONS, SERVICE_LAG, QUEUE_AGE] {
                set(name, policy, weighted.tenant(), 0.0);
            }
        }
        gauge!(OLDEST_EVIDENCE, "shard" => shard(policy.shard())).set(0.0);
    }

    /// A round has claimed. Blocks of others are no part of this worker's own sequence of selections.
    pub(crate) fn round(&mut self, round: &ClaimedRound, origin: Origin) {
        if origin == Origin::Own {
            self.select(round);
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
            counter!(CLAIMS, "shard" => shard(policy.shard()), "tenant" => name()).increment(1);
            histogram!(QUEUE_WAIT, "tenant" => name()).record(waited.as_secs_f64());
            entry(&mut self.by_tenant, tenant).served_at = Some(now);
        }
        let ran = round.runs.iter().map(Claimed::sequence);
        let served = ran.chain(round.moved_on.iter().copied());
        let contended = round.contended.iter().copied();
        let mut ends: Vec<(u64, bool)> = served
            .map(|sequence| (sequence, true))
            .chain(contended.map(|sequence| (sequence, false)))
            .collect();
        ends.sort_unstable();
        let mut changed = BTreeMap::new();
        for (sequence, served) in ends {
            let tenant = policy.tenant_for_sequence(sequence);
            let known = entry(&mut self.by_tenant, tenant);
            if !served {
                known.not_served += 1;
            } else if core::mem::take(&mut known.not_served) == 0 {
                continue;
            }
            changed.insert(tenant, known.not_served);
        }
        for (tenant, not_served) in changed {
            set(UNSERVED_SELECTIONS, policy, tenant, float(not_served));
        }
    }

    /// What the store says of itself. Tenants that have nothing ready have no age and no lag.
    pub(crate) fn health(&self, policy: &WeightedFairnessPolicy, health: &StoreHealth) {
        let age = |since| {
            let age = health.store_time.duration_since(since);
            Duration::try_from(age).unwrap_or(Duration::ZERO)
        };
        let backlogs = health.backlogs.iter();
        let ready_since: BTreeMap<_, _> = backlogs
            .map(|backlog| (&backlog.tenant, backlog.oldest_ready_at))
            .collect();
        for weighted in policy.tenants() {
            let tenant = weighted.tenant();
            let oldest = ready_since.get(tenant).copied();
            let waited = oldest.map_or(Duration::ZERO, age);
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
        let evidence = health.oldest_reservation_at.map_or(Duration::ZERO, age);
        gauge!(OLDEST_EVIDENCE, "shard" => shard(policy.shard())).set(evidence.as_secs_f64());
        // An age that is hidden now must not look like the one that was told before.
        let snapshot = health.oldest_snapshot_age;
        gauge!(OLDEST_SNAPSHOT).set(snapshot.map_or(f64::NAN, |age| age.as_secs_f64()));
    }
}

/// This worker made a reservation.
pub(crate) fn reserved(block: &Block) {
    counter!(RESERVATIONS, "shard" => shard(block.shard())).increment(1);
    histogram!(BLOCK, "shard" => shard(block.shard())).record(f64::from(block.length()));
}

/// The sequences of one of its own blocks have ended.
pub(crate) fn sequences_ended(round: &ClaimedRound) {
    for (outcome, sequences) in [
        ("ran", round.ran()),
        ("idle", round.idle()),
        ("contended", round.contended()),
        ("moved_on", round.moved_on()),
    ] {
        if sequences > 0 {
            let shard = shard(round.block.shard());
            counter!(SEQUENCES, "shard" => shard, "outcome" => outcome).increment(sequences);
        }
    }
}

/// It cannot tell how so many sequences of its own ended.
pub(crate) fn sequences_unknown(of: &SchedulerShardId, sequences: u32) {
    counter!(SEQUENCES, "shard" => shard(of), "outcome" => "unknown")
        .increment(u64::from(sequences));
}

/// It settled somebody else's block.
pub(crate) fn lost_block(block: &Block) {
    counter!(LOST_BLOCKS, "shard" => shard(block.shard())).increment(1);
}

pub(crate) fn retried(call: &'static str, retries: u32) {
    if retries > 0 {
        counter!(CALL_RETRIES, "call" => call).increment(u64::from(retries));
    }
}

/// The handler of this kind, if there is one, worked on an attempt for so long.
pub(crate) fn handled(kind: Option<&'static str>, outcome: &'static str, time: Duration) {
    if let Some(kind) = kind {
        histogram!(HANDLER, "kind" => kind, "outcome" => outcome).record(time.as_secs_f64());
    }
}

/// An attempt at a run has ended. Whoever enqueues may name any kind, so those without a handler are told as one.
pub(crate) fn run_ended(kind: Option<&'static str>, end: RunEnd) {
    counter!(RUNS_ENDED, "kind" => kind.unwrap_or(OTHER_KIND), "end" => end.as_str()).increment(1);
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
    gauge!(name, "shard" => shard(policy.shard()), "tenant" => tenant.as_str().to_owned())
        .set(value);
}

fn shard(id: &SchedulerShardId) -> String {
    id.as_str().to_owned()
}

/// A gauge holds a float; counts beyond 2^32 are shown as 2^32.
fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
