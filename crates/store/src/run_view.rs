//! What a store shows of runs, attempts and sequences.

use evenhand_policy::{PoolId, TenantId};
use jiff::Timestamp;

use crate::{Fence, Run, RunId, RunKind, RunState, WorkerName};

/// Which runs to list; a field that is `None` lets every run through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunFilter {
    /// Only runs of this pool.
    pub pool: Option<PoolId>,
    /// Only runs of this tenant.
    pub tenant: Option<TenantId>,
    /// Only runs of this kind.
    pub kind: Option<RunKind>,
    /// Only runs in this state; `Some(RunState::Dead)` lists the dead letter.
    pub state: Option<RunState>,
}

impl RunFilter {
    /// Whether the filter lets the run through.
    pub fn matches(&self, run: &Run) -> bool {
        self.pool.as_ref().is_none_or(|pool| *pool == run.spec.pool)
            && self
                .tenant
                .as_ref()
                .is_none_or(|tenant| *tenant == run.spec.tenant)
            && self.kind.as_ref().is_none_or(|kind| *kind == run.spec.kind)
            && self.state.is_none_or(|state| state == run.state)
    }
}

/// How many runs a page holds at most: 1 to 1,000, 100 by default. A number outside is moved to the nearer end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize(u32);

impl PageSize {
    /// The largest page.
    pub const MAX: u32 = 1_000;

    /// A page of `runs`.
    pub fn new(runs: u32) -> Self {
        Self(runs.clamp(1, Self::MAX))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for PageSize {
    fn default() -> Self {
        Self(100)
    }
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunPage {
    /// The runs, by id.
    pub runs: Vec<Run>,
    /// Pass it as `after` to get the next page; `None` when this is the last.
    pub next: Option<RunId>,
}

impl RunPage {
    /// A page of a store.
    pub fn new(runs: Vec<Run>, next: Option<RunId>) -> Self {
        Self { runs, next }
    }
}

/// How many runs one tenant of one pool has, by state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunCounts {
    /// The pool.
    pub pool: PoolId,
    /// The tenant.
    pub tenant: TenantId,
    /// Waiting, those not ready yet included.
    pub queued: u64,
    /// Under a lease.
    pub running: u64,
    /// Completed and still kept.
    pub done: u64,
    /// In the dead letter.
    pub dead: u64,
    /// Cancelled and still kept.
    pub cancelled: u64,
}

impl RunCounts {
    /// No runs of this tenant yet.
    pub fn new(pool: PoolId, tenant: TenantId) -> Self {
        Self {
            pool,
            tenant,
            queued: 0,
            running: 0,
            done: 0,
            dead: 0,
            cancelled: 0,
        }
    }
}

/// How a sequence ended. One that is not on record was lost, or is not settled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SequenceOutcome {
    /// A run was claimed against it.
    Ran(AttemptRecord),
    /// Its tenant had no ready run.
    Idle,
    /// Its tenant had ready runs that could not be claimed.
    Contended,
    /// Looking at its tenant failed.
    Failed,
}

/// A sequence and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceRecord {
    /// The sequence.
    pub sequence: u64,
    /// How it ended.
    pub outcome: SequenceOutcome,
    /// When that was recorded, by the store's clock.
    pub recorded_at: Timestamp,
}

impl SequenceRecord {
    /// A record of a store.
    pub fn new(sequence: u64, outcome: SequenceOutcome, recorded_at: Timestamp) -> Self {
        Self {
            sequence,
            outcome,
            recorded_at,
        }
    }
}

/// One attempt at a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// The run.
    pub run: RunId,
    /// Its tenant, as the run says.
    pub tenant: TenantId,
    /// The attempt's fence.
    pub fence: Fence,
    /// Who worked on it.
    pub worker: WorkerName,
    /// From when the run had been waiting.
    pub ready_at: Timestamp,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// How it ended, and when; `None` while it runs.
    pub ended: Option<(AttemptResult, Timestamp)>,
}

impl AttemptRecord {
    /// An attempt that has just been claimed.
    pub fn running(
        run: RunId,
        tenant: TenantId,
        fence: Fence,
        worker: WorkerName,
        ready_at: Timestamp,
        claimed_at: Timestamp,
    ) -> Self {
        Self {
            run,
            tenant,
            fence,
            worker,
            ready_at,
            claimed_at,
            ended: None,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptResult {
    /// The run is done.
    Completed,
    /// The attempt failed.
    Failed,
    /// The run was put back uncounted.
    Released,
    /// The lease expired and the run was recovered.
    Expired,
    /// The attempt ended, without being done, after its run was cancelled.
    Cancelled,
}

impl AttemptResult {
    /// The result's name in SQL and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }
}
