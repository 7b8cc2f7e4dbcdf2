//! Stores that break one promise each, to prove that the conformance suite notices.
//!
//! A [`BrokenStore`] without a [`Fault`] keeps every promise: it is as slow and as interleaved as the broken ones, so
//! whatever a fact catches, it catches because of the fault.

mod ledger;

use core::time::Duration;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    Claim, ClaimRequest, Cursor, Enqueued, Failure, FailureOutcome, Lease, LeaseDuration, NewRun,
    PageSize, PolicyRegistration, ReadyTenants, RecoveryReport, Registered, Renewal, Reservation,
    ReservationStore, ReserveRequest, RetentionReport, Run, RunCounts, RunFilter, RunId, RunPage,
    RunQueue, RunState, SchedulerFairnessRetentionPolicy, SequenceRecord, ShardStanding,
    StoreError, StoreErrorKind, Timestamp,
};

use self::ledger::Ledger;

/// One mistake that the author of a store can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// An id is looked up before the shard is locked, so that two calls with one id both find nothing.
    LookupBeforeLock,
    /// The cursor is read before the shard is locked, so that two calls get the same sequences.
    CursorBeforeLock,
    /// The mark is read before the id is looked up, so that a row pruned in between looks as if it had never been.
    MarkBeforeLookup,
    /// An id is known only as long as its reservation is the newest.
    SecondAnswer,
    /// A refused call has moved the cursor already.
    GapOnFailure,
    /// The cursor is moved in one step and the row is written in another, so that a call dropped in between leaves a gap.
    GapOnDrop,
    /// A block moves the cursor by one.
    OverlappingBlocks,
    /// A reservation is acknowledged before it is certain, and now and then it is lost.
    LostAcknowledgement,
    /// The newest reservation of a shard is pruned like any other.
    PrunesNewest,
    /// Pruning begins at the wrong end.
    PrunesNewestFirst,
    /// The mark is moved to the cutoff, although ids were minted ahead of it.
    MarksTheCutoff,
    /// The time is that of a client, which does not follow the store's clock.
    ClientClock,
    /// Another policy takes the place of the registered one.
    RegisterOverwrites,
    /// A run is completed by whoever holds any lease of it.
    CompletionWithoutFence,
    /// A completion succeeds once, and its repetition is refused.
    RepetitionRefused,
    /// The tenant of a claim is not compared with the cycle.
    AnyTenant,
    /// Runs are enqueued one by one, so that a refused call leaves some behind.
    EnqueueOneByOne,
    /// A lost lease is renewed.
    RenewsLostLeases,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 18] = [
        Self::LookupBeforeLock,
        Self::CursorBeforeLock,
        Self::MarkBeforeLookup,
        Self::SecondAnswer,
        Self::GapOnFailure,
        Self::GapOnDrop,
        Self::OverlappingBlocks,
        Self::LostAcknowledgement,
        Self::PrunesNewest,
        Self::PrunesNewestFirst,
        Self::MarksTheCutoff,
        Self::ClientClock,
        Self::RegisterOverwrites,
        Self::CompletionWithoutFence,
        Self::RepetitionRefused,
        Self::AnyTenant,
        Self::EnqueueOneByOne,
        Self::RenewsLostLeases,
    ];
}

/// A store that has one fault, or none.
///
/// Its order is a ledger of its own, which works in steps with pauses between them, as statements have. Runs, policies
/// and the clock are those of a [`MemoryStore`], and faults of the queue are made around it.
#[derive(Clone, Debug)]
pub struct BrokenStore {
    fault: Option<Fault>,
    memory: MemoryStore,
    ledger: Arc<Ledger>,
    overwritten: Arc<Mutex<BTreeMap<SchedulerShardId, WeightedFairnessPolicy>>>,
}

impl BrokenStore {
    /// An empty store whose clock shows `clock`.
    pub fn new(fault: Option<Fault>, clock: Timestamp) -> Self {
        let memory = MemoryStore::new(clock);
        Self {
            fault,
            ledger: Arc::new(Ledger::new(fault, memory.clone())),
            memory,
            overwritten: Arc::default(),
        }
    }

    /// The store behind this one; its clock is this one's.
    pub fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    /// As [`MemoryStore::skip_to`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) -> Result<(), StoreError> {
        self.memory.skip_to(shard, next_sequence)?;
        self.ledger.skip_to(shard, next_sequence);
        Ok(())
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn overwritten(&self, shard: &SchedulerShardId) -> Option<WeightedFairnessPolicy> {
        let overwritten = self
            .overwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        overwritten.get(shard).cloned()
    }
}

#[async_trait]
impl ReservationStore for BrokenStore {
    async fn register_policy(
        &self,
        registration: &PolicyRegistration,
    ) -> Result<Registered, StoreError> {
        let answer = self.memory.register_policy(registration).await;
        if self.has(Fault::RegisterOverwrites) && answer.is_err() {
            let policy = &registration.policy;
            let mut overwritten = self
                .overwritten
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            overwritten.insert(policy.shard().clone(), policy.clone());
            return Ok(Registered::new(
                true,
                ShardStanding::Active,
                Vec::new(),
                self.memory.clock(),
            ));
        }
        answer
    }

    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        match self.overwritten(shard) {
            Some(policy) => Ok(policy),
            None => self.memory.load_policy(shard).await,
        }
    }

    async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError> {
        self.ledger.reserve(request).await
    }

    async fn cursor(&self, shard: &SchedulerShardId) -> Result<Cursor, StoreError> {
        let store_time = self.memory.cursor(shard).await?.store_time;
        Ok(Cursor::new(self.ledger.next_sequence(shard), store_time))
    }

    async fn reservations(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        self.memory.cursor(shard).await?;
        Ok(self.ledger.reservations(shard, from_sequence, limit))
    }

    async fn prune_scheduler_fairness_reservations(
        &self,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> Result<RetentionReport, StoreError> {
        Ok(self.ledger.prune(policy).await)
    }
}

#[async_trait]
impl RunQueue for BrokenStore {
    async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
        if !self.has(Fault::EnqueueOneByOne) {
            return self.memory.enqueue_many(runs).await;
        }
        let mut answers = Vec::with_capacity(runs.len());
        for run in runs {
            answers.push(self.memory.enqueue(run).await?);
        }
        Ok(answers)
    }

    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
        self.memory.ready_tenants(shard).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let mut request = request.clone();
        if self.has(Fault::AnyTenant) {
            let policy = self.memory.load_policy(&request.shard).await?;
            request.tenant = policy.tenant_for_sequence(request.sequence).clone();
        }
        self.memory.claim(&request).await
    }

    async fn record_failed(
        &self,
        shard: &SchedulerShardId,
        sequence: u64,
    ) -> Result<(), StoreError> {
        self.memory.record_failed(shard, sequence).await
    }

    async fn renew(
        &self,
        leases: &[Lease],
        duration: LeaseDuration,
    ) -> Result<Vec<Renewal>, StoreError> {
        if self.has(Fault::RenewsLostLeases) {
            return Ok(vec![
                Renewal::Renewed(self.memory.clock() + duration.get());
                leases.len()
            ]);
        }
        self.memory.renew(leases, duration).await
    }

    async fn complete(&self, lease: &Lease) -> Result<(), StoreError> {
        let run = self.memory.run(lease.run).await?;
        let state = run.as_ref().map(|run| run.state);
        if self.has(Fault::RepetitionRefused) && state == Some(RunState::Done) {
            return Err(StoreError::new(
                StoreErrorKind::LeaseLost,
                "the run has ended",
            ));
        }
        let mut lease = lease.clone();
        if self.has(Fault::CompletionWithoutFence) && state == Some(RunState::Running) {
            lease.fence = run.map_or(lease.fence, |run| run.fence);
        }
        self.memory.complete(&lease).await
    }

    async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError> {
        self.memory.fail(lease, failure).await
    }

    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError> {
        self.memory.release(lease, delay).await
    }

    async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError> {
        self.memory.recover(limit).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        self.memory.run(id).await
    }

    async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<RunId>,
        size: PageSize,
    ) -> Result<RunPage, StoreError> {
        self.memory.runs(filter, after, size).await
    }

    async fn counts(&self) -> Result<Vec<RunCounts>, StoreError> {
        self.memory.counts().await
    }

    async fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<SequenceRecord>, StoreError> {
        self.memory.sequences(shard, from_sequence, limit).await
    }
}
