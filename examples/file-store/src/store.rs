//! The store: a handle that does each call in one blocking step.

use core::fmt;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use evenhand_policy::SchedulerShardId;
use evenhand_store::memory::MemoryStore;
use evenhand_store::{StoreError, StoreErrorKind, Timestamp};

use crate::entry::Change;
use crate::journal::{Journal, unavailable};
use crate::order::SkipTo;
use crate::replica::{Clock, Replica};

/// A store that keeps everything in one journal file.
///
/// Any number of handles, in any number of processes of one machine, may be open on one file. A clone shares the handle
/// of its original.
///
/// # Examples
///
/// ```
/// use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
/// use evenhand_store::{PolicyRegistration, ReservationCount, ReservationId, ReservationStore, ReserveRequest, Timestamp};
/// use file_store::FileStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn core::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("orders.journal");
/// let policy = WeightedFairnessPolicy::new(
///     SchedulerShardId::try_from("primary-v1")?,
///     [TenantFairnessWeight::new(TenantId::try_from("tenant-a")?, 1)?],
/// )?;
/// let store = FileStore::open(&path)?;
/// store.register_policy(&PolicyRegistration::new(policy.clone())).await?;
/// let request = ReserveRequest::new(&policy, ReservationId::mint(Timestamp::now()), ReservationCount::ONE);
/// assert_eq!(store.reserve(&request).await?.first_sequence, 0);
///
/// // Another handle, such as another process has, knows the id and gives the same answer.
/// let other = FileStore::open(&path)?;
/// assert_eq!(other.reserve(&request).await?.first_sequence, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FileStore {
    replica: Arc<Mutex<Replica>>,
}

impl FileStore {
    /// Opens the journal at `path`, or begins one, and reads it.
    ///
    /// # Errors
    ///
    /// *Unavailable* when the file cannot be opened or read; *corrupt* when it is no journal of this store.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with_clock(path, Timestamp::now)
    }

    /// Opens a journal whose calls are decided at the times that `clock` shows, for tests.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_with_clock(
        path: impl AsRef<Path>,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let clock: Clock = Arc::new(clock);
        let journal = Journal::open(path.as_ref()).map_err(unavailable)?;
        let mut replica = Replica::new(journal, clock);
        replica.look(|_| Ok(()))?;
        Ok(Self {
            replica: Arc::new(Mutex::new(replica)),
        })
    }

    /// Lets the shard's order begin at `next_sequence`. A test tool, as [`MemoryStore::skip_to`] is.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *invalid* when the shard has a reservation.
    pub async fn skip_to(
        &self,
        shard: &SchedulerShardId,
        next_sequence: u64,
    ) -> Result<(), StoreError> {
        let shard = shard.clone();
        self.change(SkipTo {
            shard,
            next_sequence,
        })
        .await
    }

    pub(crate) async fn change<C: Change>(&self, change: C) -> Result<C::Answer, StoreError> {
        self.in_one_step(|replica| replica.change(change)).await
    }

    pub(crate) async fn look<A: Send + 'static>(
        &self,
        look: impl FnOnce(&MemoryStore) -> Result<A, StoreError> + Send + 'static,
    ) -> Result<A, StoreError> {
        self.in_one_step(|replica| replica.look(look)).await
    }

    /// Dropping the future does not end the step, so there is nothing that it could leave half done.
    async fn in_one_step<A: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Replica) -> Result<A, StoreError> + Send + 'static,
    ) -> Result<A, StoreError> {
        let replica = Arc::clone(&self.replica);
        let stepped = tokio::task::spawn_blocking(move || step(&mut lock(&replica)));
        stepped.await.unwrap_or_else(|panic| {
            let message = "the step did not come to its end";
            Err(StoreError::new(StoreErrorKind::OutcomeUnknown, message).with_source(panic))
        })
    }
}

/// The replica, locked; built anew if somebody panicked while the machine may have been ahead of the journal.
fn lock(replica: &Mutex<Replica>) -> MutexGuard<'_, Replica> {
    replica.lock().unwrap_or_else(|poisoned| {
        let mut guard = poisoned.into_inner();
        replica.clear_poison();
        guard.forget();
        guard
    })
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").finish_non_exhaustive()
    }
}
