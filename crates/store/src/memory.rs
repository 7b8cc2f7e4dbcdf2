//! A store in memory, with a clock that tests move: the readable model of every store.

mod attempts;
mod backlog;
mod claims;
mod control;
mod history;
mod limits;
mod order;
mod queue;
mod ready;
mod reservation_store;
mod run_queue;
mod shard;
mod succession;

use core::fmt;
use core::time::Duration;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenhand_policy::SchedulerShardId;
use jiff::Timestamp;

use self::order::Order;
use self::queue::Queue;
use crate::StoreError;

/// A store that keeps everything in memory and forgets it when its last handle is dropped.
///
/// Every promise of the contract holds, by the plainest code that keeps it: one lock around each call, and the best run
/// found by looking at all of them. So it is the model that other stores are compared with, and a store for tests. Its
/// clock stands still until somebody moves it, and the ids that it gives to runs are numbered, so that a test which
/// makes the same calls gets the same answers. Of the optional methods only `wait_for_work` is missing: waiting needs a
/// clock that goes on by itself.
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
        self.state().order.shard_mut(shard)?.skip_to(next_sequence)
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
