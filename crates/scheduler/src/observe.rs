//! The one place that hears of everything a worker does: it counts, and says what people should know. How a run's attempt
//! went is told where it is made, since a tick makes attempts too.

use std::sync::{Mutex, MutexGuard, PoisonError};

use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{
    HistoryReport, RecoveryReport, RetentionReport, StoreError, StoreHealth, UnservedRuns,
};
use tokio::task::JoinError;

use crate::look::Look;
use crate::metrics;
use crate::order::TickError;
use crate::report::WorkerReport;
use crate::round::{Block, ClaimedRound};
use crate::tenant::RunReport;

/// Whose the block of a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The worker reserves it itself.
    Own,
    /// Another worker reserved it, and is gone.
    Lost,
}

/// Hears of looks, rounds, ends and passes, from the dispatcher and from the background.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    report: Mutex<WorkerReport>,
    tenants: Mutex<metrics::Tenants>,
    running: metrics::Running,
}

impl Observer {
    /// What was counted so far.
    pub(crate) fn report(&self) -> WorkerReport {
        *self.lock()
    }

    pub(crate) fn round_claimed(&self, round: &ClaimedRound, origin: Origin) {
        let (block, ran) = (&round.block, round.ran());
        tracing::debug!(
            shard = %block.shard(),
            first_sequence = block.first_sequence(),
            count = block.length(),
            ran,
            idle = round.idle(),
            contended = round.contended(),
            moved_on = round.moved_on(),
            ?origin,
            "round"
        );
        self.running.begin(ran);
        match origin {
            Origin::Own => {
                metrics::reserved(block);
                metrics::sequences_ended(round);
            }
            Origin::Lost => metrics::lost_block(block),
        }
        self.tenants().round(round, origin);
        let mut report = self.lock();
        report.ran += ran;
        match origin {
            Origin::Own => {
                report.blocks += 1;
                report.sequences.ran += ran;
                report.sequences.idle += round.idle();
                report.sequences.contended += round.contended();
                report.sequences.moved_on += round.moved_on();
            }
            Origin::Lost => report.blocks_settled += 1,
        }
    }

    pub(crate) fn round_not_reserved(&self, error: &TickError) {
        let request = error.request();
        tracing::warn!(
            shard = %request.shard,
            reservation = %request.id,
            count = request.count.get(),
            error = %error.kind(),
            retries = error.retries(),
            "no block was reserved"
        );
        if error.may_have_reserved() {
            self.block_unknown(&request.shard, (request.count.get(), Origin::Own));
        }
    }

    pub(crate) fn round_not_claimed(&self, block: &Block, origin: Origin, error: &StoreError) {
        tracing::warn!(
            shard = %block.shard(),
            first_sequence = block.first_sequence(),
            count = block.length(),
            error = %error,
            "nothing was claimed against a block; it is lost until somebody settles it"
        );
        if origin == Origin::Own {
            metrics::reserved(block);
        }
        self.block_unknown(block.shard(), (block.length(), origin));
    }

    /// Only a store that panics comes here.
    pub(crate) fn round_panicked(
        &self,
        shard: &SchedulerShardId,
        round: (u32, Origin),
        error: &JoinError,
    ) {
        tracing::error!(error = %error, "a round panicked");
        self.block_unknown(shard, round);
    }

    pub(crate) fn run_ended(&self, ended: RunReport) {
        self.running.leave(1);
        self.lock().count_end(ended.end);
    }

    /// Only a store that panics comes here.
    pub(crate) fn run_panicked(&self, error: &JoinError) {
        tracing::error!(error = %error, "a run panicked; its lease has to expire");
        self.running.leave(1);
        self.lock().left += 1;
    }

    /// The drain was ended by force, with so many runs still under way, and perhaps a round.
    pub(crate) fn drain_aborted(
        &self,
        runs: usize,
        shard: &SchedulerShardId,
        round: Option<(u32, Origin)>,
    ) {
        tracing::error!(runs, "the store does not answer; leases have to expire");
        let left = u64::try_from(runs).unwrap_or(u64::MAX);
        self.running.leave(left);
        self.lock().left += left;
        if let Some(round) = round {
            self.block_unknown(shard, round);
        }
    }

    pub(crate) fn ended(&self) {
        let report = self.report();
        tracing::info!(
            ran = report.ran,
            completed = report.completed,
            failed = report.failed,
            released = report.released,
            lease_lost = report.lease_lost,
            left = report.left,
            "the worker ends"
        );
    }

    /// Nobody knows how these sequences ended. Those of others were counted by others.
    fn block_unknown(&self, shard: &SchedulerShardId, (length, origin): (u32, Origin)) {
        if origin == Origin::Own {
            metrics::sequences_unknown(shard, length);
            self.lock().sequences.unknown += u64::from(length);
        }
    }

    /// The shard of this policy is the first that the worker serves.
    pub(crate) fn serves(&self, policy: &WeightedFairnessPolicy) {
        self.tenants().serves(policy);
    }

    pub(crate) fn moved_over(&self, from: &WeightedFairnessPolicy, to: &WeightedFairnessPolicy) {
        metrics::Tenants::leaves(from);
        self.tenants().serves(to);
        tracing::info!(
            from = %from.shard(),
            to = %to.shard(),
            "the worker serves the active shard of its pool"
        );
    }

    /// What the store says of itself, for the gauges.
    pub(crate) fn health(&self, policy: &WeightedFairnessPolicy, health: &StoreHealth) {
        self.tenants().health(policy, health);
    }

    fn tenants(&self) -> MutexGuard<'_, metrics::Tenants> {
        // A recorder that panics may cost a number, and nothing else.
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, WorkerReport> {
        // Counts are whole after every statement.
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is said and not counted.
#[expect(
    clippy::unused_self,
    reason = "whoever reports something need not know whether it is counted"
)]
impl Observer {
    pub(crate) fn looked(&self, shard: &SchedulerShardId, look: &Look) {
        tracing::trace!(shard = %shard, ready = look.tenants(), "looked");
    }

    pub(crate) fn look_refused(&self, shard: &SchedulerShardId, error: &StoreError) {
        tracing::warn!(shard = %shard, error = %error, "nobody can tell who is ready");
    }

    pub(crate) fn draining(&self, runs: usize) {
        if runs > 0 {
            tracing::info!(runs, "draining");
        }
    }

    pub(crate) fn no_active_shard(&self, pool: &PoolId, error: &StoreError) {
        tracing::warn!(pool = %pool, error = %error, "nobody can tell which shard serves the pool");
    }

    pub(crate) fn recovered(&self, recovery: RecoveryReport) {
        metrics::recovered(recovery);
        let (requeued, dead) = (recovery.requeued, recovery.dead);
        if requeued > 0 || dead > 0 {
            tracing::warn!(requeued, dead, "expired leases were taken back");
        }
    }

    /// All runs that no active shard serves; `known` are the pools of the pass before, and
    /// `changed` says whether it is about other tenants.
    pub(crate) fn unserved(&self, unserved: &[UnservedRuns], known: &[String], changed: bool) {
        metrics::unserved(unserved, known);
        if !changed {
            return;
        }
        if unserved.is_empty() {
            tracing::info!("every queued run is served again");
        }
        for runs in unserved {
            tracing::warn!(
                pool = %runs.pool,
                tenant = %runs.tenant,
                queued = runs.queued,
                "no active shard serves this tenant, whose runs wait"
            );
        }
    }

    pub(crate) fn pruned_reservations(&self, pruned: &RetentionReport) {
        metrics::pruned_reservations(pruned.deleted);
        if pruned.deleted > 0 {
            let (deleted, cutoff) = (pruned.deleted, pruned.cutoff);
            tracing::debug!(deleted, cutoff = %cutoff, "reservations were pruned");
        }
    }

    pub(crate) fn pruned_history(&self, pruned: &HistoryReport) {
        metrics::pruned_history(pruned);
        tracing::debug!(
            outcomes = pruned.outcomes,
            attempts = pruned.attempts,
            finished = pruned.finished,
            dead = pruned.dead,
            "history was pruned"
        );
    }
}
