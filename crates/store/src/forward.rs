//! References and owning pointers to a store are stores.

use core::time::Duration;

use std::sync::Arc;

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};

use crate::{
    Cancellation, Claim, ClaimRequest, Controlled, Cursor, Enqueued, Failure, FailureOutcome,
    HistoryReport, HistoryRetentionPolicy, Lease, LeaseDuration, LimitSubject, NewRun, PageSize,
    PolicyRegistration, ReadyTenants, RecoveryReport, Registered, Renewal, Reservation,
    ReservationCount, ReservationStore, ReserveRequest, RetentionReport, Retirement, Round,
    RoundRequest, Run, RunCounts, RunFilter, RunId, RunLimit, RunPage, RunQueue, RunsMax,
    SchedulerFairnessRetentionPolicy, SequenceRecord, ShardStanding, StoreError, StoreHealth,
    TenantHistory, TenantHistoryRequest, UnservedRuns, WaitRequest,
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

            async fn standing(&self, shard: &SchedulerShardId) -> Result<ShardStanding, StoreError> {
                (**self).standing(shard).await
            }

            async fn active_policy(&self, pool: &PoolId) -> Result<WeightedFairnessPolicy, StoreError> {
                (**self).active_policy(pool).await
            }

            async fn retire(
                &self,
                old: &SchedulerShardId,
                new: &SchedulerShardId,
            ) -> Result<Retirement, StoreError> {
                (**self).retire(old, new).await
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

            async fn complete_many(
                &self,
                leases: &[Lease],
            ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
                (**self).complete_many(leases).await
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

            fn round_length_max(&self) -> ReservationCount {
                (**self).round_length_max()
            }

            async fn claim_round(&self, request: &RoundRequest) -> Result<Round, StoreError> {
                (**self).claim_round(request).await
            }

            async fn lost_blocks(
                &self,
                shard: &SchedulerShardId,
                older_than: Duration,
                limit: u32,
            ) -> Result<Vec<Reservation>, StoreError> {
                (**self).lost_blocks(shard, older_than, limit).await
            }

            async fn wait_for_work(&self, request: &WaitRequest) -> Result<(), StoreError> {
                (**self).wait_for_work(request).await
            }

            async fn tenant_history(
                &self,
                request: &TenantHistoryRequest,
            ) -> Result<TenantHistory, StoreError> {
                (**self).tenant_history(request).await
            }

            async fn cancel(&self, id: RunId) -> Result<Cancellation, StoreError> {
                (**self).cancel(id).await
            }

            async fn requeue(&self, id: RunId) -> Result<Controlled, StoreError> {
                (**self).requeue(id).await
            }

            async fn discard(&self, id: RunId) -> Result<Controlled, StoreError> {
                (**self).discard(id).await
            }

            async fn set_limit(
                &self,
                pool: &PoolId,
                subject: &LimitSubject,
                runs_max: Option<RunsMax>,
            ) -> Result<(), StoreError> {
                (**self).set_limit(pool, subject, runs_max).await
            }

            async fn limits(&self, pool: &PoolId) -> Result<Vec<RunLimit>, StoreError> {
                (**self).limits(pool).await
            }

            async fn unserved(&self) -> Result<Vec<UnservedRuns>, StoreError> {
                (**self).unserved().await
            }

            async fn prune_history(
                &self,
                policy: HistoryRetentionPolicy,
            ) -> Result<HistoryReport, StoreError> {
                (**self).prune_history(policy).await
            }

            async fn health(&self, shard: &SchedulerShardId) -> Result<StoreHealth, StoreError> {
                (**self).health(shard).await
            }
        }
    )+};
}

forward!(['a] &'a T, [] Box<T>, [] Arc<T>);
