//! The queue's half of the contract.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId};

use super::{MemoryStore, State};
use crate::{
    Backlog, Cancellation, Claim, ClaimRequest, Controlled, Enqueued, Failure, FailureOutcome,
    HistoryReport, HistoryRetentionPolicy, Lease, LeaseDuration, LimitSubject, NewRun, PageSize,
    ReadyTenants, RecoveryReport, Renewal, Reservation, ReservationCount, Round, RoundRequest, Run,
    RunCounts, RunFilter, RunId, RunLimit, RunPage, RunQueue, RunsMax, SequenceRecord, StoreError,
    StoreHealth, TenantHistory, TenantHistoryRequest, UnservedRuns,
};

#[async_trait]
impl RunQueue for MemoryStore {
    async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        queue.enqueue_many(*clock, runs, |pool| order.wait_tick(pool))
    }

    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        let shard = order.shard(shard)?;
        shard.require_active()?;
        Ok(queue.ready_tenants(*clock, shard, order.wait_tick(shard.pool())))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        let shard = order.shard(&request.shard)?;
        shard.require_tenant(request.sequence, &request.tenant)?;
        shard.require_reserved(request.sequence)?;
        queue.claim(*clock, shard, &order.scoring(shard.pool()), request)
    }

    fn round_length_max(&self) -> ReservationCount {
        ReservationCount::MAX
    }

    async fn claim_round(&self, request: &RoundRequest) -> Result<Round, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        let shard = order.shard(request.shard())?;
        shard.require_block(request)?;
        let round = queue.claim_round(*clock, shard, &order.scoring(shard.pool()), request)?;
        if shard.require_active().is_err() {
            return Ok(round);
        }
        let ready = queue.ready_tenants(*clock, shard, order.wait_tick(shard.pool()));
        Ok(round.with_ready(ready))
    }

    async fn lost_blocks(
        &self,
        shard: &SchedulerShardId,
        older_than: Duration,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        Ok(queue.lost_blocks(*clock, order.shard(shard)?, older_than, limit))
    }

    async fn record_failed(
        &self,
        shard: &SchedulerShardId,
        sequence: u64,
    ) -> Result<(), StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        let shard = order.shard(shard)?;
        shard.require_reserved(sequence)?;
        queue.record_failed(*clock, shard, sequence)
    }

    async fn renew(
        &self,
        leases: &[Lease],
        duration: LeaseDuration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let State { clock, queue, .. } = &mut *self.state();
        Ok(leases
            .iter()
            .map(|lease| queue.renew(*clock, lease, duration))
            .collect())
    }

    async fn complete(&self, lease: &Lease) -> Result<(), StoreError> {
        let State { clock, queue, .. } = &mut *self.state();
        queue.complete(*clock, lease)
    }

    async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        queue.fail(*clock, lease, failure, |pool| order.wait_tick(pool))
    }

    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        queue.release(*clock, lease, delay, |pool| order.wait_tick(pool))
    }

    async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError> {
        let State { clock, queue, .. } = &mut *self.state();
        Ok(queue.recover(*clock, limit))
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        Ok(self.state().queue.run(id))
    }

    async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<RunId>,
        size: PageSize,
    ) -> Result<RunPage, StoreError> {
        Ok(self.state().queue.page(filter, after, size))
    }

    async fn counts(&self) -> Result<Vec<RunCounts>, StoreError> {
        Ok(self.state().queue.counts())
    }

    async fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<SequenceRecord>, StoreError> {
        let State { order, queue, .. } = &mut *self.state();
        order.shard(shard)?;
        Ok(queue.sequences(shard, from_sequence, limit))
    }

    async fn tenant_history(
        &self,
        request: &TenantHistoryRequest,
    ) -> Result<TenantHistory, StoreError> {
        let State { order, queue, .. } = &mut *self.state();
        queue.tenant_history(order.shard(&request.shard)?, request)
    }

    async fn cancel(&self, id: RunId) -> Result<Cancellation, StoreError> {
        let State { clock, queue, .. } = &mut *self.state();
        Ok(queue.cancel(*clock, id))
    }

    async fn requeue(&self, id: RunId) -> Result<Controlled, StoreError> {
        let State { clock, queue, .. } = &mut *self.state();
        Ok(queue.requeue(*clock, id))
    }

    async fn discard(&self, id: RunId) -> Result<Controlled, StoreError> {
        Ok(self.state().queue.discard(id))
    }

    async fn set_limit(
        &self,
        pool: &PoolId,
        subject: &LimitSubject,
        runs_max: Option<RunsMax>,
    ) -> Result<(), StoreError> {
        self.state().queue.set_limit(pool, subject, runs_max);
        Ok(())
    }

    async fn limits(&self, pool: &PoolId) -> Result<Vec<RunLimit>, StoreError> {
        Ok(self.state().queue.limits(pool))
    }

    async fn unserved(&self) -> Result<Vec<UnservedRuns>, StoreError> {
        let State { order, queue, .. } = &mut *self.state();
        Ok(queue.unserved(|pool, tenant| order.serves(pool, tenant)))
    }

    async fn prune_history(
        &self,
        policy: HistoryRetentionPolicy,
    ) -> Result<HistoryReport, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        Ok(queue.prune(*clock, &policy, |shard| order.oldest_covered(shard)))
    }

    async fn health(&self, shard: &SchedulerShardId) -> Result<StoreHealth, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        let shard = order.shard(shard)?;
        let pool = shard.pool();
        let mut health = StoreHealth::new(*clock);
        health.oldest_reservation_at = shard.on_record().next().map(|oldest| oldest.reserved_at);
        health.backlogs = queue
            .backlogs(*clock, pool, order.wait_tick(pool))
            .into_iter()
            .filter(|(tenant, _)| shard.policy().contains(tenant))
            .map(|(tenant, oldest_ready_at)| Backlog::new(tenant, oldest_ready_at))
            .collect();
        Ok(health)
    }
}
