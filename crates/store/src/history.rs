//! What became of one tenant's turns, and how long such records are kept.

use core::time::Duration;

use evenhand_policy::{SchedulerShardId, TenantId};
use jiff::Timestamp;

use crate::{InvalidRetention, SchedulerFairnessRetentionPolicy, SequenceOutcome};

/// Asks for a tenant's turns in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantHistoryRequest {
    /// Whose order.
    pub shard: SchedulerShardId,
    /// Whose turns.
    pub tenant: TenantId,
    /// Only sequences that were reserved at or after this time.
    pub from: Timestamp,
    /// Only sequences that were reserved before this time.
    pub to: Timestamp,
    /// At most so many, from the earliest on.
    pub limit: u32,
}

impl TenantHistoryRequest {
    /// The turns of `tenant` from `from` up to `to`, at most `limit`.
    pub fn new(
        shard: SchedulerShardId,
        tenant: TenantId,
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Self {
        Self {
            shard,
            tenant,
            from,
            to,
            limit,
        }
    }
}

/// One turn of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantTurn {
    /// The sequence.
    pub sequence: u64,
    /// When it was reserved.
    pub reserved_at: Timestamp,
    /// How it ended; `None` while it is not settled, or when it was lost.
    pub outcome: Option<SequenceOutcome>,
}

impl TenantTurn {
    /// A turn as a store recorded it.
    pub fn new(sequence: u64, reserved_at: Timestamp, outcome: Option<SequenceOutcome>) -> Self {
        Self {
            sequence,
            reserved_at,
            outcome,
        }
    }
}

/// A tenant's turns in a period: the answer to "why did this tenant wait?".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantHistory {
    /// The turns, in order.
    pub turns: Vec<TenantTurn>,
    /// Whether the limit cut the list off: ask again from the last turn's time on.
    pub more: bool,
}

impl TenantHistory {
    /// A history of a store.
    pub fn new(turns: Vec<TenantTurn>, more: bool) -> Self {
        Self { turns, more }
    }

    /// The turns, counted by how they ended.
    pub fn summary(&self) -> TenantHistorySummary {
        let mut summary = TenantHistorySummary::default();
        let mut served_before = None;
        for turn in &self.turns {
            match &turn.outcome {
                Some(SequenceOutcome::Ran(_)) => {
                    summary.ran += 1;
                    served_before = None;
                    continue;
                }
                Some(SequenceOutcome::Idle) => summary.idle += 1,
                Some(SequenceOutcome::Contended) => summary.contended += 1,
                Some(SequenceOutcome::Failed) => summary.failed += 1,
                None => summary.unsettled += 1,
            }
            let streak = served_before.map_or(1, |turns: u64| turns + 1);
            served_before = Some(streak);
            summary.not_serving_longest = summary.not_serving_longest.max(streak);
        }
        summary
    }
}

/// How many of a tenant's turns ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantHistorySummary {
    /// A run was claimed.
    pub ran: u64,
    /// It had no ready run.
    pub idle: u64,
    /// It had ready runs, but was limited, or others held them.
    pub contended: u64,
    /// It could not be looked at.
    pub failed: u64,
    /// Not settled yet, or lost.
    pub unsettled: u64,
    /// The most turns in a row that did not serve it.
    pub not_serving_longest: u64,
}

/// How long records other than reservations are kept, and how many rows of each kind one pass may delete.
///
/// Outcomes and attempts go only after the reservation that they belong to, so that a sequence never runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRetentionPolicy {
    evidence: Duration,
    finished: Duration,
    dead: Duration,
    batch: u32,
}

impl HistoryRetentionPolicy {
    /// Keeps outcomes and attempts for `evidence`, done and cancelled runs for `finished`, dead runs for `dead`, and
    /// deletes at most `batch` rows of each a pass.
    ///
    /// # Errors
    ///
    /// When a window or the batch is outside the bounds of [`SchedulerFairnessRetentionPolicy`].
    pub fn new(
        evidence: Duration,
        finished: Duration,
        dead: Duration,
        batch: u32,
    ) -> Result<Self, InvalidRetention> {
        for window in [evidence, finished, dead] {
            SchedulerFairnessRetentionPolicy::new(window, batch)?;
        }
        Ok(Self {
            evidence,
            finished,
            dead,
            batch,
        })
    }

    /// How long outcomes and attempts are kept.
    pub fn evidence(&self) -> Duration {
        self.evidence
    }

    /// How long done and cancelled runs are kept.
    pub fn finished(&self) -> Duration {
        self.finished
    }

    /// How long dead runs are kept.
    pub fn dead(&self) -> Duration {
        self.dead
    }

    /// How many rows of each kind one pass may delete.
    pub fn batch(&self) -> u32 {
        self.batch
    }
}

impl Default for HistoryRetentionPolicy {
    /// Evidence and finished runs for 7 days, dead runs for 30, in batches of 1,000.
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self {
            evidence: 7 * DAY,
            finished: 7 * DAY,
            dead: 30 * DAY,
            batch: 1_000,
        }
    }
}

/// What one pruning pass deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryReport {
    /// Records of outcomes, one for consecutive sequences.
    pub outcomes: u32,
    /// Attempts.
    pub attempts: u32,
    /// Done and cancelled runs.
    pub finished: u32,
    /// Dead runs.
    pub dead: u32,
    /// Whether another pass has work.
    pub more: bool,
}

impl HistoryReport {
    /// A report of a store.
    pub fn new(outcomes: u32, attempts: u32, finished: u32, dead: u32, more: bool) -> Self {
        Self {
            outcomes,
            attempts,
            finished,
            dead,
            more,
        }
    }
}
