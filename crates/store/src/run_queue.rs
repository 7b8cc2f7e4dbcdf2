//! The work of a shard's tenants: enqueueing, claims against sequences, leases.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId, TenantId, WeightedFairnessPolicy};
use jiff::Timestamp;

use crate::round::one_by_one;
use crate::{
    Cancellation, Controlled, Fence, HistoryReport, HistoryRetentionPolicy, LimitSubject, NewRun,
    PageSize, Reservation, ReservationCount, Round, RoundRequest, Run, RunCounts, RunFilter, RunId,
    RunLimit, RunPage, RunValueError, RunsMax, SequenceRecord, StoreError, StoreErrorKind,
    StoreHealth, TenantHistory, TenantHistoryRequest, UnservedRuns, WorkerName,
};

/// The answer to an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The run that stands for the request.
    pub run: RunId,
    /// `false` when its idempotency key had named it before.
    pub created: bool,
}

impl Enqueued {
    /// An answer of a store.
    pub fn new(run: RunId, created: bool) -> Self {
        Self { run, created }
    }
}

/// How long a claim's right lasts without a renewal: 1 second to 1 hour in whole milliseconds, 30 seconds by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseDuration(Duration);

impl LeaseDuration {
    /// The shortest lease.
    pub const MIN: Duration = Duration::from_secs(1);
    /// The longest lease.
    pub const MAX: Duration = Duration::from_hours(1);

    /// A lease of `duration`, which is cut to whole milliseconds.
    ///
    /// # Errors
    ///
    /// When it is outside [`MIN`](Self::MIN) and [`MAX`](Self::MAX).
    pub fn new(duration: Duration) -> Result<Self, RunValueError> {
        if (Self::MIN..=Self::MAX).contains(&duration) {
            let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            Ok(Self(Duration::from_millis(millis)))
        } else {
            Err(RunValueError::Lease(duration))
        }
    }

    /// The duration, in whole milliseconds.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl Default for LeaseDuration {
    fn default() -> Self {
        Self(Duration::from_secs(30))
    }
}

/// Asks for the best ready run of the tenant that a sequence names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// Whose order.
    pub shard: SchedulerShardId,
    /// A reserved sequence of it.
    pub sequence: u64,
    /// The tenant that the cycle names for the sequence. The store checks it against the registered cycle.
    pub tenant: TenantId,
    /// Who asks.
    pub worker: WorkerName,
    /// How long the lease lasts.
    pub lease: LeaseDuration,
    /// Whether a run that another worker claimed against the sequence is answered too.
    pub takes_over: bool,
}

impl ClaimRequest {
    /// A claim against `sequence` of the shard that `policy` names, for the tenant that it names.
    pub fn new(
        policy: &WeightedFairnessPolicy,
        sequence: u64,
        worker: WorkerName,
        lease: LeaseDuration,
    ) -> Self {
        Self {
            shard: policy.shard().clone(),
            sequence,
            tenant: policy.tenant_for_sequence(sequence).clone(),
            worker,
            lease,
            takes_over: false,
        }
    }

    /// The same claim, for whoever finishes the work of a worker that is gone: what that one claimed is answered to
    /// this one, under the same lease.
    #[must_use]
    pub fn taking_over(self) -> Self {
        Self {
            takes_over: true,
            ..self
        }
    }
}

/// The time-limited right to work on a run.
///
/// Until it expires nobody else claims the run. After that anybody may recover the run, and the fence is stale from
/// then on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The run.
    pub run: RunId,
    /// Whose right is the current one.
    pub fence: Fence,
    /// The shard whose sequence it was claimed against.
    pub shard: SchedulerShardId,
    /// That sequence.
    pub sequence: u64,
    /// When it ends, by the store's clock, unless renewed.
    pub expires_at: Timestamp,
}

impl Lease {
    /// A lease as a store gave it.
    pub fn new(
        run: RunId,
        fence: Fence,
        shard: SchedulerShardId,
        sequence: u64,
        expires_at: Timestamp,
    ) -> Self {
        Self {
            run,
            fence,
            shard,
            sequence,
            expires_at,
        }
    }
}

/// A run and the right to work on it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClaimedRun {
    /// The run, in state running, this attempt counted.
    pub run: Run,
    /// The right to work on it.
    pub lease: Lease,
}

impl ClaimedRun {
    /// A claim as a store made it.
    pub fn new(run: Run, lease: Lease) -> Self {
        Self { run, lease }
    }
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Claim {
    /// The sequence ran this run.
    Ran(Box<ClaimedRun>),
    /// The tenant had no ready run. The sequence is consumed.
    Idle,
    /// The tenant had ready runs, but others hold them all or a limit keeps them. The sequence is consumed.
    Contended,
}

/// The answer to a renewal of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// The lease now ends at this time of the store's clock.
    Renewed(Timestamp),
    /// The lease now ends at this time, but somebody cancelled the run: let the handler come to an end.
    StopRequested(Timestamp),
    /// The fence is stale: stop working on the run.
    Lost,
}

/// What becomes of a run whose attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// It becomes ready again after this long, unless it has used up its attempts.
    After(Duration),
    /// It is dead at once.
    GiveUp,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    error: String,
    retry: Retry,
}

impl Failure {
    /// The longest error that is kept, in bytes.
    pub const ERROR_MAX: usize = 4_096;

    /// A failure that said `error`, of which the first [`ERROR_MAX`](Self::ERROR_MAX) bytes are kept. NUL becomes U+FFFD.
    pub fn new(error: impl Into<String>, retry: Retry) -> Self {
        let mut error = error.into().replace('\0', "\u{fffd}");
        error.truncate(error.floor_char_boundary(Self::ERROR_MAX));
        Self { error, retry }
    }

    /// What the attempt said.
    pub fn error(&self) -> &str {
        &self.error
    }

    /// What becomes of the run.
    pub fn retry(&self) -> Retry {
        self.retry
    }
}

/// What became of a run whose attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureOutcome {
    /// It waits for its next attempt, and is ready from this time on.
    Requeued(Timestamp),
    /// It is in the dead letter.
    Dead,
    /// Somebody had cancelled it, so it is not tried again.
    Cancelled,
}

/// Which tenants have ready runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadyTenants {
    /// The tenants of the shard's policy that have at least one ready run, in bytewise order.
    pub tenants: Vec<TenantId>,
    /// When the next run of a tenant becomes ready that has none now, if any is queued.
    pub next_ready_at: Option<Timestamp>,
    /// The store's clock.
    pub store_time: Timestamp,
}

impl ReadyTenants {
    /// An answer of a store.
    pub fn new(
        tenants: Vec<TenantId>,
        next_ready_at: Option<Timestamp>,
        store_time: Timestamp,
    ) -> Self {
        Self {
            tenants,
            next_ready_at,
            store_time,
        }
    }
}

/// Asks to be woken when there is something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitRequest {
    /// The shard whose tenants were found idle.
    pub shard: SchedulerShardId,
    /// Who waits.
    pub worker: WorkerName,
    /// How long to wait at most.
    pub longest: Duration,
}

impl WaitRequest {
    /// Waits for a ready run of a tenant of `shard`, for `longest` at most.
    pub fn new(shard: SchedulerShardId, worker: WorkerName, longest: Duration) -> Self {
        Self {
            shard,
            worker,
            longest,
        }
    }
}

/// What one recovery pass did with runs whose leases had expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// How many wait again, from their former ready time.
    pub requeued: u32,
    /// How many had used up their attempts and are dead.
    pub dead: u32,
}

impl RecoveryReport {
    /// A report of a store.
    pub fn new(requeued: u32, dead: u32) -> Self {
        Self { requeued, dead }
    }
}

/// Keeps the runs. The crate's front page lists what every store promises.
///
/// Within a tenant the best run is the one with the highest score of the pool's scoring, where a run's wait is counted
/// in whole wait ticks; ties go to the earlier ready tick, then to the smaller run id.
///
/// `&T`, `Box<T>` and `Arc<T>` forward every method, so `Arc<dyn RunQueue>` is a queue too.
///
/// # Cancel safety
///
/// Every method: dropping the future at any point leaves no lock, no open transaction and no half-made change behind.
#[async_trait]
pub trait RunQueue: Send + Sync {
    /// Enqueues runs, all or none, and answers in their order.
    ///
    /// Any tenant of any pool is accepted; whether a shard serves it is not asked.
    ///
    /// # Errors
    ///
    /// *Run conflict* when a key names a run with other content; nothing is enqueued then. *Outcome unknown* is settled
    /// by enqueueing again if every run has a key.
    async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError>;

    /// Enqueues one run.
    ///
    /// # Errors
    ///
    /// Those of [`enqueue_many`](Self::enqueue_many).
    async fn enqueue(&self, run: &NewRun) -> Result<Enqueued, StoreError> {
        let answers = self.enqueue_many(core::slice::from_ref(run)).await?;
        answers.into_iter().next().ok_or_else(|| {
            StoreError::new(StoreErrorKind::Corrupt, "the store answered for no run")
        })
    }

    /// Looks which tenants of the shard's policy have a ready run. Consumes and writes nothing.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *retired* or *pending* when the shard does not serve its pool, so that whoever looks learns to
    /// move over or to wait.
    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError>;

    /// Claims the best ready run of the sequence's tenant, under a lease, and records how the sequence ended.
    ///
    /// Asked again for the same sequence, it answers the same: to the same worker, or to one that
    /// [takes over](ClaimRequest::taking_over), the same run, fence and lease while the lease lives; *idle* or *contended*
    /// as before. So a sequence can be settled by any worker, and no run is given to two that know nothing of each other.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *retired* when the sequence's end is not on record; *invalid* when the sequence is not
    /// reserved, when the cycle names another tenant for it, or when its failure is on record; *lease lost* when the run
    /// that it claimed has ended or moved on since, or is another worker's that is not taken over.
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError>;

    /// The longest block that is worth reserving for one [`claim_round`](Self::claim_round): 64 sequences where each of
    /// them costs a claim.
    fn round_length_max(&self) -> ReservationCount {
        ReservationCount::ROUND_BY_CLAIMS
    }

    /// Claims against all sequences of one reservation in order, and records how each of them ended.
    ///
    /// The answer is as if each sequence had been claimed against by itself at one moment, except that at most
    /// `runs_max` runs are claimed, and none that the limits of the round defer. Among the ready runs of the block's
    /// tenants the choice is that of [`admit_within`](evenhand_policy::admission::admit_within): each tenant's window and
    /// forced allowance are the number of slots that the block gave it, as far as runs and permits suffice; its
    /// candidates are its best 64 runs beyond that window. A tenant's admitted runs take its sequences in the order of
    /// their scores. Its further sequences are *contended* while it has a ready run left, and *idle* otherwise.
    ///
    /// Asked again, it answers the same, also for sequences that were claimed against singly: runs that the same worker
    /// claimed, while their leases live, are claimed still; all others have *moved on*. So a block whose worker is gone
    /// can be settled by any other, and no run is given to two. What is ready afterwards may be told along.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *retired* when any sequence is left to be settled; *invalid* when there is no such
    /// reservation, or when the shard is bound to another policy. A store that claims one sequence at a time, which is
    /// what the default body does, answers *unsupported* for limits of a round, and only sees whether the sequences are
    /// reserved.
    async fn claim_round(&self, request: &RoundRequest) -> Result<Round, StoreError> {
        one_by_one(self, request).await
    }

    /// The reservations of the shard, oldest first and at most `limit`, that were made more than `older_than` ago and
    /// have a sequence whose end is not on record: their workers are gone. Settle each with
    /// [`claim_round`](Self::claim_round).
    ///
    /// A retired shard has none: what was lost in it stays so. Neither has a pending one.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *unsupported*.
    async fn lost_blocks(
        &self,
        shard: &SchedulerShardId,
        older_than: Duration,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        let _ = (shard, older_than, limit);
        Err(unsupported("this store does not look for lost blocks"))
    }

    /// Waits until a run of one of the shard's tenants may have become ready, or until the longest wait is over. It may
    /// return early for no reason: look again.
    ///
    /// # Errors
    ///
    /// *Unsupported* where nobody is woken: wait by other means, and then look. *Policy not found*, *unavailable*.
    async fn wait_for_work(&self, request: &WaitRequest) -> Result<(), StoreError> {
        let _ = request;
        Err(unsupported("this store wakes nobody"))
    }

    /// Records that looking at the sequence's tenant failed, so that nothing will be claimed against it.
    ///
    /// A sequence that already has an outcome keeps it, and the call succeeds.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *invalid* when the sequence is not reserved; *retired* when its end is not on record.
    async fn record_failed(
        &self,
        shard: &SchedulerShardId,
        sequence: u64,
    ) -> Result<(), StoreError>;

    /// Renews leases, and answers in their order.
    ///
    /// A lease that has expired is still renewed as long as nobody has recovered its run.
    ///
    /// # Errors
    ///
    /// *Unavailable*, *outcome unknown*.
    async fn renew(
        &self,
        leases: &[Lease],
        duration: LeaseDuration,
    ) -> Result<Vec<Renewal>, StoreError>;

    /// Ends a run as done.
    ///
    /// # Errors
    ///
    /// *Lease lost* when the fence is stale or its attempt ended otherwise; nothing is changed then.
    async fn complete(&self, lease: &Lease) -> Result<(), StoreError>;

    /// Ends runs as done, each as [`complete`](Self::complete) would, and answers in the order of the leases.
    ///
    /// A lease that is refused fails nobody else. A store may answer *unavailable* for a run that somebody else holds at
    /// this moment, instead of letting all the others wait for it.
    ///
    /// # Errors
    ///
    /// *Unavailable*, *outcome unknown*: of none of the leases is it known what became of it, and all may be asked for
    /// again.
    async fn complete_many(
        &self,
        leases: &[Lease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            answers.push(self.complete(lease).await);
        }
        Ok(answers)
    }

    /// Ends an attempt as failed: the run waits for its next attempt, or is dead when it gave up or has none left.
    ///
    /// Repeated with the same fence it answers as the first time.
    ///
    /// # Errors
    ///
    /// *Lease lost* when the fence is stale or its attempt ended otherwise; nothing is changed then.
    async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError>;

    /// Puts a run back as if it had not been claimed: the attempt is not counted, the fence stays used. A run that was
    /// cancelled meanwhile is cancelled now.
    ///
    /// With a `delay` of zero it keeps its ready time, otherwise it is ready again after the delay.
    ///
    /// # Errors
    ///
    /// *Lease lost* when the fence is stale or its attempt ended otherwise; nothing is changed then.
    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError>;

    /// Takes at most `limit` runs back whose leases have expired. They compete again by their former ready time; those
    /// without attempts left are dead, and those that were cancelled meanwhile are cancelled.
    ///
    /// # Errors
    ///
    /// *Unavailable*, *outcome unknown*.
    async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError>;

    /// One run, or `None` when there is no such run (any more).
    ///
    /// # Errors
    ///
    /// *Unavailable*; *corrupt* when its row is no run.
    async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError>;

    /// Runs that fit the filter, by id, one page at a time.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<RunId>,
        size: PageSize,
    ) -> Result<RunPage, StoreError>;

    /// How many runs each tenant of each pool has, by state. Reads every run; meant for people, not for loops.
    ///
    /// # Errors
    ///
    /// *Unavailable*.
    async fn counts(&self) -> Result<Vec<RunCounts>, StoreError>;

    /// How the shard's sequences from `from_sequence` on ended, in order, at most `limit`.
    ///
    /// A sequence without a record was not looked at yet, or was lost.
    ///
    /// # Errors
    ///
    /// *Policy not found*.
    async fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<SequenceRecord>, StoreError>;

    /// A tenant's turns in a period, and how each ended: the answer to "why did this tenant wait?".
    ///
    /// # Errors
    ///
    /// *Policy not found*; *invalid* when the shard's policy does not know the tenant; *unsupported*.
    async fn tenant_history(
        &self,
        request: &TenantHistoryRequest,
    ) -> Result<TenantHistory, StoreError> {
        let _ = request;
        Err(unsupported("this store keeps no history by tenant"))
    }

    /// Cancels a run: at once if it is queued, as soon as its worker can be told if it is running.
    ///
    /// # Errors
    ///
    /// *Unsupported*, *unavailable*, *outcome unknown*.
    async fn cancel(&self, id: RunId) -> Result<Cancellation, StoreError> {
        let _ = id;
        Err(unsupported("this store cancels no runs"))
    }

    /// Queues a dead or cancelled run again, ready at once, with all its attempts. Its fence goes on growing.
    ///
    /// # Errors
    ///
    /// *Unsupported*, *unavailable*, *outcome unknown*.
    async fn requeue(&self, id: RunId) -> Result<Controlled, StoreError> {
        let _ = id;
        Err(unsupported("this store queues no runs again"))
    }

    /// Deletes a dead or cancelled run, and with it the hold on its idempotency key.
    ///
    /// # Errors
    ///
    /// *Unsupported*, *unavailable*, *outcome unknown*.
    async fn discard(&self, id: RunId) -> Result<Controlled, StoreError> {
        let _ = id;
        Err(unsupported("this store discards no runs"))
    }

    /// Limits how many runs of a tenant or team of the pool are running at once, across all workers; `None` lifts the
    /// limit. Runs over a lowered limit go on, and nothing is claimed until they are below it.
    ///
    /// # Errors
    ///
    /// *Unsupported*, *unavailable*, *outcome unknown*.
    async fn set_limit(
        &self,
        pool: &PoolId,
        subject: &LimitSubject,
        runs_max: Option<RunsMax>,
    ) -> Result<(), StoreError> {
        let _ = (pool, subject, runs_max);
        Err(unsupported("this store limits nobody"))
    }

    /// The limits of a pool, tenants before teams, each by name.
    ///
    /// # Errors
    ///
    /// *Unavailable*.
    async fn limits(&self, pool: &PoolId) -> Result<Vec<RunLimit>, StoreError> {
        let _ = pool;
        Ok(Vec::new())
    }

    /// Queued runs that no active shard serves: their pool has none, or its policy does not know their tenant.
    ///
    /// # Errors
    ///
    /// *Unsupported*, *unavailable*.
    async fn unserved(&self) -> Result<Vec<UnservedRuns>, StoreError> {
        Err(unsupported("this store does not tell who is not served"))
    }

    /// Deletes one batch of outcomes, attempts and ended runs that are older than their windows.
    ///
    /// An outcome or attempt whose reservation is still on record stays, and so does an attempt that has not ended. Call
    /// again while the report says that more is left.
    ///
    /// # Errors
    ///
    /// *Unsupported*, *unavailable*, *outcome unknown*.
    async fn prune_history(
        &self,
        policy: HistoryRetentionPolicy,
    ) -> Result<HistoryReport, StoreError> {
        let _ = policy;
        Err(unsupported("this store keeps everything"))
    }

    /// What to watch: backlogs, evidence, and the server behind the store.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *unsupported*.
    async fn health(&self, shard: &SchedulerShardId) -> Result<StoreHealth, StoreError> {
        let _ = shard;
        Err(unsupported("this store does not tell how it is"))
    }
}

fn unsupported(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unsupported, message)
}
