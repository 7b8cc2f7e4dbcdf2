//! References and owning pointers to a store are stores.

use core::time::Duration;

use std::sync::Arc;

use async_trait::async_trait;
use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};

use crate::{
    Claim, ClaimRequest, Cursor, Enqueued, Failure, FailureOutcome, Lease, LeaseDuration, NewRun,
    PageSize, PolicyRegistration, ReadyTenants, RecoveryReport, Registered, Renewal, Reservation,
    ReservationStore, ReserveRequest, RetentionReport, Run, RunCounts, RunFilter, RunId, RunPage,
    RunQueue, SchedulerFairnessRetentionPolicy, SequenceRecord, StoreError,
};

// Default bodies are forwarded too, so that a store's own, faster one is not lost behind a pointer.
macro_rules! forward {
    ($([$($life:lifetime)?] $pointer:ty),+) => {$(
        #[async_trait]
        impl<$($life,)? T: ReservationStore + ?Sized> ReservationStore for $pointer {
            async fn register_policy(&self, registration: &PolicyRegistration) -> Result<Registered, StoreError> {
                (**self).register_policy(registration).await
            }

            async fn load_policy(&self, shard: &SchedulerShardId) -> Result<WeightedFairnessPolicy, StoreError> {
                (**self).load_policy(shard).await
            }

            async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError> {
                (**self).reserve(request).await
            }

            async fn cursor(&self, shard: &SchedulerShardId) -> Result<Cursor, StoreError> {
                (**self).cursor(shard).await
            }

            async fn reservations(
                &self,
                shard: &SchedulerShardId,
                from_sequence: u64,
                limit: u32,
            ) -> Result<Vec<Reservation>, StoreError> {
                (**self).reservations(shard, from_sequence, limit).await
            }

            async fn prune_scheduler_fairness_reservations(
                &self,
                policy: SchedulerFairnessRetentionPolicy,
            ) -> Result<RetentionReport, StoreError> {
                (**self).prune_scheduler_fairness_reservations(policy).await
            }
        }

        #[async_trait]
        impl<$($life,)? T: RunQueue + ?Sized> RunQueue for $pointer {
            async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
                (**self).enqueue_many(runs).await
            }

            async fn enqueue(&self, run: &NewRun) -> Result<Enqueued, StoreError> {
                (**self).enqueue(run).await
            }

            async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
                (**self).ready_tenants(shard).await
            }

            async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
                (**self).claim(request).await
            }

            async fn record_failed(&self, shard: &SchedulerShardId, sequence: u64) -> Result<(), StoreError> {
                (**self).record_failed(shard, sequence).await
            }

            async fn renew(&self, leases: &[Lease], duration: LeaseDuration) -> Result<Vec<Renewal>, StoreError> {
                (**self).renew(leases, duration).await
            }

            async fn complete(&self, lease: &Lease) -> Result<(), StoreError> {
                (**self).complete(lease).await
            }

            async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError> {
                (**self).fail(lease, failure).await
            }

            async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError> {
                (**self).release(lease, delay).await
            }

            async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError> {
                (**self).recover(limit).await
            }

            async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
                (**self).run(id).await
            }

            async fn runs(
                &self,
                filter: &RunFilter,
                after: Option<RunId>,
                size: PageSize,
            ) -> Result<RunPage, StoreError> {
                (**self).runs(filter, after, size).await
            }

            async fn counts(&self) -> Result<Vec<RunCounts>, StoreError> {
                (**self).counts().await
            }

            async fn sequences(
                &self,
                shard: &SchedulerShardId,
                from_sequence: u64,
                limit: u32,
            ) -> Result<Vec<SequenceRecord>, StoreError> {
                (**self).sequences(shard, from_sequence, limit).await
            }
        }
    )+};
}

forward!(['a] &'a T, [] Box<T>, [] Arc<T>);
