//! A store in memory, with a clock that tests move: the readable model of every store.

mod attempts;
mod order;
mod queue;
mod ready;

use core::fmt;
use core::time::Duration;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};
use jiff::Timestamp;

use self::order::Order;
use self::queue::Queue;
use crate::{
    Claim, ClaimRequest, Cursor, Enqueued, Failure, FailureOutcome, Lease, LeaseDuration, NewRun,
    PageSize, PolicyRegistration, ReadyTenants, RecoveryReport, Registered, Renewal, Reservation,
    ReservationStore, ReserveRequest, RetentionReport, Run, RunCounts, RunFilter, RunId, RunPage,
    RunQueue, SchedulerFairnessRetentionPolicy, SequenceRecord, ShardStanding, StoreError,
};

/// A store that keeps everything in memory and forgets it when its last handle is dropped.
///
/// Every promise of the contract holds, by the plainest code that keeps it: one lock around each call, and the best run
/// found by looking at all of them. So it is the model that other stores are compared with, and a store for tests. Its
/// clock stands still until somebody moves it, and the ids that it gives to runs are numbered, so that a test which
/// makes the same calls gets the same answers.
///
/// A clone is another handle on the same data, as another process would have.
///
/// # Examples
///
/// ```
/// use core::time::Duration;
/// use evenhand_store::Timestamp;
/// use evenhand_store::memory::MemoryStore;
///
/// let store = MemoryStore::new("2026-05-01T12:00:00Z".parse()?);
/// let handle = store.clone();
/// store.advance(Duration::from_secs(90));
/// assert_eq!(handle.clock().to_string(), "2026-05-01T12:01:30Z");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

struct State {
    clock: Timestamp,
    order: Order,
    queue: Queue,
}

impl MemoryStore {
    /// An empty store whose clock shows `clock`.
    pub fn new(clock: Timestamp) -> Self {
        let state = State {
            clock,
            order: Order::default(),
            queue: Queue::default(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The time that the store's clock shows.
    pub fn clock(&self) -> Timestamp {
        self.state().clock
    }

    /// Moves the clock forward, at most to the last time that a [`Timestamp`] can name.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state();
        state.clock = state.clock.saturating_add(by).unwrap_or(Timestamp::MAX);
    }

    /// Sets the clock, also back, as the clock of a server may be set.
    pub fn set_clock(&self, clock: Timestamp) {
        self.state().clock = clock;
    }

    /// Lets the shard's order begin at `next_sequence`, so that a test can reach the end of the range.
    ///
    /// A test tool, for shards that have no reservation yet. Above [`SEQUENCE_MAX`](crate::SEQUENCE_MAX) means that the
    /// range is used up.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *invalid* when the shard has a reservation.
    pub fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) -> Result<(), StoreError> {
        self.state().order.skip_to(shard, next_sequence)
    }

    /// Everything, locked. No caller awaits while it holds this, so a dropped future cannot leave it locked.
    fn state(&self) -> MutexGuard<'_, State> {
        // No step panics half-way through a change, so what a panicking thread left behind is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("clock", &self.clock())
            .finish_non_exhaustive()
    }
}

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
        let created = order.register(registration)?;
        if created {
            queue.rank_anew(*clock, &registration.pool, &registration.scoring);
        }
        Ok(Registered::new(
            created,
            ShardStanding::Active,
            Vec::new(),
            *clock,
        ))
    }

    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        Ok(self.state().order.shard(shard)?.policy().clone())
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
        let ready = queue.ready_tenants(*clock, shard.pool(), order.wait_tick(shard.pool()));
        let served = ready
            .into_iter()
            .filter(|tenant| shard.policy().contains(tenant));
        Ok(ReadyTenants::new(served.collect(), None, *clock))
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
        let pool = shard.pool();
        queue.claim(*clock, pool, &order.scoring(pool), request)
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
        order.shard(shard)?.require_reserved(sequence)?;
        queue.record_failed(*clock, shard, sequence);
        Ok(())
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
}
