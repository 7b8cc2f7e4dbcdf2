//! Stores that break one promise each, to prove that the conformance suite notices.
//!
//! A [`BrokenStore`] without a [`Fault`] keeps every promise: it is as slow and as interleaved as the broken ones, so
//! whatever a fact catches, it catches because of the fault.

mod fault;
mod ledger;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    Cursor, PolicyRegistration, Registered, Reservation, ReservationStore, ReserveRequest,
    RetentionReport, Retirement, SchedulerFairnessRetentionPolicy, ShardStanding, StoreError,
    Timestamp,
};

pub use self::fault::Fault;
use self::ledger::Ledger;

/// A store that has one fault, or none.
///
/// Its order is a ledger of its own, which works in steps with pauses between them, as statements have. Runs, policies
/// and the clock are those of a [`MemoryStore`], and faults of the queue are made around it.
#[derive(Clone, Debug)]
pub struct BrokenStore {
    fault: Option<Fault>,
    memory: MemoryStore,
    ledger: Arc<Ledger>,
    notes: Arc<Mutex<Notes>>,
}

/// What faulty calls leave behind for later ones.
#[derive(Debug, Default)]
struct Notes {
    /// The policies that took the place of registered ones.
    overwritten: BTreeMap<SchedulerShardId, WeightedFairnessPolicy>,
    /// The blocks that a round was asked for, by shard and first sequence.
    rounds: BTreeSet<(SchedulerShardId, u64)>,
    /// Outcomes from before this time are gone.
    forgotten_before: Option<Timestamp>,
}

impl BrokenStore {
    /// An empty store whose clock shows `clock`.
    pub fn new(fault: Option<Fault>, clock: Timestamp) -> Self {
        let memory = MemoryStore::new(clock);
        Self {
            fault,
            ledger: Arc::new(Ledger::new(fault, memory.clone())),
            memory,
            notes: Arc::default(),
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

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
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
            let shard = policy.shard().clone();
            self.notes().overwritten.insert(shard, policy.clone());
            let (active, clock) = (ShardStanding::Active, self.memory.clock());
            return Ok(Registered::new(true, active, Vec::new(), clock));
        }
        answer
    }

    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        let overwritten = self.notes().overwritten.get(shard).cloned();
        match overwritten {
            Some(policy) => Ok(policy),
            None => self.memory.load_policy(shard).await,
        }
    }

    async fn standing(&self, shard: &SchedulerShardId) -> Result<ShardStanding, StoreError> {
        self.memory.standing(shard).await
    }

    async fn active_policy(&self, pool: &PoolId) -> Result<WeightedFairnessPolicy, StoreError> {
        self.memory.active_policy(pool).await
    }

    async fn retire(
        &self,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        self.ledger.retire(old, new).await
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
