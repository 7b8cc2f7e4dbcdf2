//! How one shard of a pool follows another, and whom the active ones serve.

use evenhand_policy::{PoolId, SchedulerShardId, TenantId, WeightedFairnessPolicy};
use jiff::Timestamp;

use super::order::Order;
use super::shard::{Shard, Standing};
use crate::{Retirement, StoreError, StoreErrorKind};

impl Order {
    /// The shard that serves the pool, if any does.
    pub(super) fn active(&self, pool: &PoolId) -> Option<&Shard> {
        self.shards
            .values()
            .find(|shard| shard.pool() == pool && shard.is_active())
    }

    pub(super) fn active_policy(
        &self,
        pool: &PoolId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        let active = self.active(pool).map(|shard| shard.policy().clone());
        active.ok_or_else(|| {
            StoreError::new(StoreErrorKind::PolicyNotFound, "no shard serves the pool")
        })
    }

    /// Whether an active shard serves the tenant's runs in the pool.
    pub(super) fn serves(&self, pool: &PoolId, tenant: &TenantId) -> bool {
        self.active(pool)
            .is_some_and(|shard| shard.policy().contains(tenant))
    }

    /// Puts `new` in the place of `old`. Whom it does not serve, the caller has to tell.
    pub(super) fn retire(
        &mut self,
        clock: Timestamp,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        let conflict = |message| Err(StoreError::new(StoreErrorKind::PolicyConflict, message));
        let (old_shard, new_shard) = (self.shard(old)?, self.shard(new)?);
        let old_length = old_shard.next_sequence();
        let retirement = |at, created| {
            Retirement::new(old.clone(), new.clone(), old_length, at, created, vec![])
        };
        match &old_shard.standing {
            Standing::Retired { successor, at } if successor == new => {
                return Ok(retirement(*at, false));
            }
            Standing::Retired { .. } => return conflict("the old shard has another successor"),
            Standing::Pending => return conflict("the old shard is not active"),
            Standing::Active => {}
        }
        if old_shard.pool() != new_shard.pool() {
            return conflict("the shards serve different pools");
        }
        if new_shard.standing != Standing::Pending {
            return conflict("the new shard is not pending");
        }
        self.shard_mut(new)?.standing = Standing::Active;
        self.shard_mut(old)?.standing = Standing::Retired {
            successor: new.clone(),
            at: clock,
        };
        Ok(retirement(clock, true))
    }
}
