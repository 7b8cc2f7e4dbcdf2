//! The order's half of the contract.

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};

use super::order::Binding;
use super::{MemoryStore, State};
use crate::{
    Cursor, PolicyRegistration, Registered, Reservation, ReservationStore, ReserveRequest,
    RetentionReport, Retirement, SchedulerFairnessRetentionPolicy, ShardStanding, StoreError,
    UnservedRuns,
};

#[async_trait]
impl ReservationStore for MemoryStore {
    async fn register_policy(
        &self,
        registration: &PolicyRegistration,
    ) -> Result<Registered, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        let PolicyRegistration {
            policy,
            pool,
            scoring,
        } = registration;
        let binding = order.register(registration)?;
        if binding == Binding::Founds {
            queue.rank_anew(*clock, pool, scoring);
        }
        let created = binding != Binding::Known;
        let standing = order.shard(policy.shard())?.standing();
        let unserved = unserved_by(queue, pool, policy);
        Ok(Registered::new(created, standing, unserved, *clock))
    }

    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        Ok(self.state().order.shard(shard)?.policy().clone())
    }

    async fn standing(&self, shard: &SchedulerShardId) -> Result<ShardStanding, StoreError> {
        Ok(self.state().order.shard(shard)?.standing())
    }

    async fn active_policy(&self, pool: &PoolId) -> Result<WeightedFairnessPolicy, StoreError> {
        self.state().order.active_policy(pool)
    }

    async fn retire(
        &self,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        let State {
            clock,
            order,
            queue,
        } = &mut *self.state();
        let mut retirement = order.retire(*clock, old, new)?;
        let new = order.shard(new)?;
        retirement.unserved = unserved_by(queue, new.pool(), new.policy());
        Ok(retirement)
    }

    async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError> {
        let State { clock, order, .. } = &mut *self.state();
        order.reserve(*clock, request)
    }

    async fn cursor(&self, shard: &SchedulerShardId) -> Result<Cursor, StoreError> {
        let State { clock, order, .. } = &mut *self.state();
        Ok(Cursor::new(order.shard(shard)?.next_sequence(), *clock))
    }

    async fn reservations(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        let State { clock, order, .. } = &mut *self.state();
        Ok(order
            .shard(shard)?
            .reservations(*clock, from_sequence, limit))
    }

    async fn prune_scheduler_fairness_reservations(
        &self,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> Result<RetentionReport, StoreError> {
        let State { clock, order, .. } = &mut *self.state();
        Ok(order.prune(*clock, policy))
    }
}

/// The queued runs of the pool whose tenants the policy does not know.
fn unserved_by(
    queue: &super::Queue,
    pool: &PoolId,
    policy: &WeightedFairnessPolicy,
) -> Vec<UnservedRuns> {
    queue.unserved(|of_pool, tenant| of_pool != pool || policy.contains(tenant))
}
