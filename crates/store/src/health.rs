//! What a store says of itself for people who watch it.

use core::time::Duration;

use evenhand_policy::TenantId;
use jiff::Timestamp;

/// How long a tenant's oldest ready run has waited.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// The tenant.
    pub tenant: TenantId,
    /// From when its oldest ready run has been ready.
    pub oldest_ready_at: Timestamp,
}

impl Backlog {
    /// A backlog as a store sees it.
    pub fn new(tenant: TenantId, oldest_ready_at: Timestamp) -> Self {
        Self {
            tenant,
            oldest_ready_at,
        }
    }
}

/// The state of a shard and of the server behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreHealth {
    /// The store's clock.
    pub store_time: Timestamp,
    /// When the shard's oldest reservation on record was made.
    pub oldest_reservation_at: Option<Timestamp>,
    /// The tenants of the shard's policy that have ready runs, in bytewise order.
    pub backlogs: Vec<Backlog>,
    /// For how long the oldest snapshot of the database has been held, where the store can tell: while one is held,
    /// nothing that changes can be cleaned up, and everything becomes slower.
    pub oldest_snapshot_age: Option<Duration>,
}

impl StoreHealth {
    /// A store that has nothing to say yet.
    pub fn new(store_time: Timestamp) -> Self {
        Self {
            store_time,
            oldest_reservation_at: None,
            backlogs: Vec::new(),
            oldest_snapshot_age: None,
        }
    }
}
