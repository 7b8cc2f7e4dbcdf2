//! Which shard of a pool is the active one, and how one follows another.

use evenhand_policy::{PoolId, SchedulerShardId, TenantId};
use jiff::Timestamp;

/// Where a shard is in its life. A pool has one active shard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardStanding {
    /// It serves its pool.
    Active,
    /// It waits for the active shard of its pool to be retired in its favour. Until then nothing can be reserved in it.
    Pending,
    /// It serves nothing any more. What it reserved and claimed stays on record.
    Retired {
        /// The shard that took its place.
        successor: SchedulerShardId,
    },
}

/// Queued runs of one tenant that a shard, or all active shards, do not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnservedRuns {
    /// The pool.
    pub pool: PoolId,
    /// The tenant that the policy does not know.
    pub tenant: TenantId,
    /// How many of its runs are queued, those not ready yet included.
    pub queued: u64,
}

impl UnservedRuns {
    /// A count of a store.
    pub fn new(pool: PoolId, tenant: TenantId, queued: u64) -> Self {
        Self {
            pool,
            tenant,
            queued,
        }
    }
}

/// The change from one shard of a pool to the next, made once and for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retirement {
    /// The shard that was active before.
    pub old: SchedulerShardId,
    /// The shard that has been active since.
    pub new: SchedulerShardId,
    /// How many sequences the old order has; `None` when its range was used up.
    pub old_length: Option<u64>,
    /// When it happened, by the store's clock.
    pub retired_at: Timestamp,
    /// Whether this call made the change; `false` when it had been made before.
    pub created: bool,
    /// Queued runs of tenants that the new policy does not know.
    pub unserved: Vec<UnservedRuns>,
}

impl Retirement {
    /// A retirement as a store recorded it.
    pub fn new(
        old: SchedulerShardId,
        new: SchedulerShardId,
        old_length: Option<u64>,
        retired_at: Timestamp,
        created: bool,
        unserved: Vec<UnservedRuns>,
    ) -> Self {
        Self {
            old,
            new,
            old_length,
            retired_at,
            created,
            unserved,
        }
    }
}
