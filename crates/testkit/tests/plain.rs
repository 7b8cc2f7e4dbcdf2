//! The conformance suite over a store that implements nothing but what it must: the default bodies keep every promise.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    Claim, ClaimRequest, Cursor, Enqueued, Failure, FailureOutcome, Lease, LeaseDuration, NewRun,
    PageSize, PolicyRegistration, ReadyTenants, RecoveryReport, Registered, Renewal, Reservation,
    ReservationStore, ReserveRequest, RetentionReport, Run, RunCounts, RunFilter, RunId, RunPage,
    RunQueue, SchedulerFairnessRetentionPolicy, SequenceRecord, StoreError, StoreErrorKind,
    Timestamp,
};
use evenhand_testkit::conformance::StoreUnderTest;

/// A store without any optional method.
#[derive(Clone)]
struct Plain(MemoryStore);

#[async_trait]
impl ReservationStore for Plain {
    async fn register_policy(
        &self,
        registration: &PolicyRegistration,
    ) -> Result<Registered, StoreError> {
        let active = self.0.active_policy(&registration.pool).await;
        if active.is_ok_and(|active| active.shard() != registration.policy.shard()) {
            return Err(StoreError::new(
                StoreErrorKind::PolicyConflict,
                "another shard serves the pool, and shards are never retired",
            ));
        }
        self.0.register_policy(registration).await
    }

    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        self.0.load_policy(shard).await
    }

    async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError> {
        self.0.reserve(request).await
    }

    async fn cursor(&self, shard: &SchedulerShardId) -> Result<Cursor, StoreError> {
        self.0.cursor(shard).await
    }

    async fn reservations(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        self.0.reservations(shard, from_sequence, limit).await
    }

    async fn prune_scheduler_fairness_reservations(
        &self,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> Result<RetentionReport, StoreError> {
        self.0.prune_scheduler_fairness_reservations(policy).await
    }
}

#[async_trait]
impl RunQueue for Plain {
    async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
        self.0.enqueue_many(runs).await
    }

    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
        self.0.ready_tenants(shard).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        // As a call over a network does, it lets others act first.
        tokio::task::yield_now().await;
        self.0.claim(request).await
    }

    async fn record_failed(
        &self,
        shard: &SchedulerShardId,
        sequence: u64,
    ) -> Result<(), StoreError> {
        self.0.record_failed(shard, sequence).await
    }

    async fn renew(
        &self,
        leases: &[Lease],
        duration: LeaseDuration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.0.renew(leases, duration).await
    }

    async fn complete(&self, lease: &Lease) -> Result<(), StoreError> {
        self.0.complete(lease).await
    }

    async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError> {
        self.0.fail(lease, failure).await
    }

    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError> {
        self.0.release(lease, delay).await
    }

    async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError> {
        self.0.recover(limit).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        self.0.run(id).await
    }

    async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<RunId>,
        size: PageSize,
    ) -> Result<RunPage, StoreError> {
        self.0.runs(filter, after, size).await
    }

    async fn counts(&self) -> Result<Vec<RunCounts>, StoreError> {
        self.0.counts().await
    }

    async fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<SequenceRecord>, StoreError> {
        self.0.sequences(shard, from_sequence, limit).await
    }
}

struct PlainUnderTest(Plain);

#[async_trait]
impl StoreUnderTest for PlainUnderTest {
    type Store = Plain;

    async fn start() -> Self {
        let clock = Timestamp::from_second(1_777_636_800).unwrap();
        Self(Plain(MemoryStore::new(clock)))
    }

    async fn open(&self) -> Plain {
        self.0.clone()
    }

    async fn advance_clock(&self, by: Duration) {
        self.0.0.advance(by);
    }

    async fn set_clock_back(&self, by: Duration) {
        let memory = &self.0.0;
        memory.set_clock(memory.clock() - by);
    }

    async fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) {
        self.0.0.skip_to(shard, next_sequence).unwrap();
    }
}

evenhand_testkit::conformance_suite!(PlainUnderTest);
