//! The runs: the trait, each method a change or a look.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::SchedulerShardId;
use evenhand_store::{
    Claim, ClaimRequest, Enqueued, Failure, FailureOutcome, Lease, LeaseDuration, NewRun, PageSize,
    ReadyTenants, RecoveryReport, Renewal, Reservation, ReservationCount, Round, RoundRequest, Run,
    RunCounts, RunFilter, RunId, RunPage, RunQueue, SequenceRecord, StoreError, UnservedRuns,
};

use crate::FileStore;
use crate::attempts::{self, Complete, Fail, RecordFailed, Recover, Release, Renew};
use crate::entry::at_once;
use crate::runs::Enqueue;

#[async_trait]
impl RunQueue for FileStore {
    async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
        self.change(Enqueue::of(runs)?).await
    }

    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
        let shard = shard.clone();
        self.look(move |machine| at_once(machine.ready_tenants(&shard)))
            .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        self.change(attempts::Claim::from(request)).await
    }

    fn round_length_max(&self) -> ReservationCount {
        ReservationCount::MAX
    }

    async fn claim_round(&self, request: &RoundRequest) -> Result<Round, StoreError> {
        self.change(attempts::ClaimRound::from(request)).await
    }

    async fn lost_blocks(
        &self,
        shard: &SchedulerShardId,
        older_than: Duration,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        let shard = shard.clone();
        self.look(move |machine| at_once(machine.lost_blocks(&shard, older_than, limit)))
            .await
    }

    async fn record_failed(
        &self,
        shard: &SchedulerShardId,
        sequence: u64,
    ) -> Result<(), StoreError> {
        let shard = shard.clone();
        self.change(RecordFailed { shard, sequence }).await
    }

    async fn renew(
        &self,
        leases: &[Lease],
        duration: LeaseDuration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let leases = leases.iter().map(attempts::Lease::from).collect();
        let duration = duration.get();
        self.change(Renew { leases, duration }).await
    }

    async fn complete(&self, lease: &Lease) -> Result<(), StoreError> {
        let lease = lease.into();
        self.change(Complete { lease }).await
    }

    async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError> {
        self.change(Fail::of(lease, failure)?).await
    }

    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError> {
        let lease = lease.into();
        self.change(Release { lease, delay }).await
    }

    async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError> {
        self.change(Recover { limit }).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        self.look(move |machine| at_once(machine.run(id))).await
    }

    async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<RunId>,
        size: PageSize,
    ) -> Result<RunPage, StoreError> {
        let filter = filter.clone();
        self.look(move |machine| at_once(machine.runs(&filter, after, size)))
            .await
    }

    async fn counts(&self) -> Result<Vec<RunCounts>, StoreError> {
        self.look(|machine| at_once(machine.counts())).await
    }

    async fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<SequenceRecord>, StoreError> {
        let shard = shard.clone();
        self.look(move |machine| at_once(machine.sequences(&shard, from_sequence, limit)))
            .await
    }

    async fn unserved(&self) -> Result<Vec<UnservedRuns>, StoreError> {
        self.look(|machine| at_once(machine.unserved())).await
    }
}
