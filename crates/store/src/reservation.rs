//! The durable order of a shard: requests, answers, and the trait that keeps it.

use core::num::NonZeroU32;
use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::{PolicyDigest, PoolId, SchedulerShardId, WeightedFairnessPolicy};
use jiff::Timestamp;

use crate::registration::{PolicyRegistration, Registered};
use crate::retention::{RetentionReport, SchedulerFairnessRetentionPolicy};
use crate::{ReservationId, Retirement, ShardStanding, StoreError, StoreErrorKind};

/// The last sequence of every shard, 2^63 - 1.
pub const SEQUENCE_MAX: u64 = i64::MAX.unsigned_abs();

/// How far an unknown id may be ahead of the store before it is refused as *clock skew*.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_mins(5);

/// How many consecutive sequences a reservation takes: 1 to 2^20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationCount(NonZeroU32);

/// The count is 0 or above [`ReservationCount::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reservation takes 1 to {most} sequences, not {0}", most = ReservationCount::MAX.get())]
pub struct InvalidCount(u32);

impl ReservationCount {
    /// A single sequence.
    pub const ONE: Self = Self(NonZeroU32::MIN);
    /// The longest block, 2^20 sequences.
    pub const MAX: Self = match NonZeroU32::new(1 << 20) {
        Some(count) => Self(count),
        None => Self::ONE,
    };

    /// What a round reserves at most where each of its sequences costs a claim: 64.
    pub const ROUND_BY_CLAIMS: Self = match NonZeroU32::new(64) {
        Some(count) => Self(count),
        None => Self::ONE,
    };

    /// Takes `count` sequences.
    ///
    /// # Errors
    ///
    /// When `count` is 0 or above [`MAX`](Self::MAX).
    pub fn new(count: u32) -> Result<Self, InvalidCount> {
        NonZeroU32::new(count)
            .map(Self)
            .filter(|count| *count <= Self::MAX)
            .ok_or(InvalidCount(count))
    }

    /// The number of sequences.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// Asks for the next sequences of a shard.
///
/// Keep it until it is answered: sent again, it is answered the same way, also by another process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReserveRequest {
    /// The name of the reservation.
    pub id: ReservationId,
    /// Whose order.
    pub shard: SchedulerShardId,
    /// The policy that the caller believes the shard to be bound to.
    pub digest: PolicyDigest,
    /// That policy's cycle length, compared too.
    pub cycle_length: u32,
    /// How many sequences.
    pub count: ReservationCount,
}

impl ReserveRequest {
    /// Asks for `count` sequences of the shard that `policy` names.
    pub fn new(
        policy: &WeightedFairnessPolicy,
        id: ReservationId,
        count: ReservationCount,
    ) -> Self {
        Self {
            id,
            shard: policy.shard().clone(),
            digest: policy.digest(),
            cycle_length: policy.cycle_length(),
            count,
        }
    }
}

/// One reservation: this id took `count` sequences from `first_sequence`, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reservation {
    /// The name of the reservation.
    pub id: ReservationId,
    /// The first sequence that it took.
    pub first_sequence: u64,
    /// How many it took.
    pub count: ReservationCount,
    /// When, by the store's clock; never earlier than the reservation before it.
    pub reserved_at: Timestamp,
    /// The store's clock when it answered.
    pub store_time: Timestamp,
}

impl Reservation {
    /// A reservation as a store recorded it.
    pub fn new(
        id: ReservationId,
        first_sequence: u64,
        count: ReservationCount,
        reserved_at: Timestamp,
        store_time: Timestamp,
    ) -> Self {
        Self {
            id,
            first_sequence,
            count,
            reserved_at,
            store_time,
        }
    }

    /// The sequences that it took, in order.
    pub fn sequences(&self) -> core::ops::RangeInclusive<u64> {
        let last = self
            .first_sequence
            .saturating_add(u64::from(self.count.get()) - 1);
        self.first_sequence..=last
    }
}

/// How far a shard's order has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cursor {
    /// The sequence that the next reservation starts with; `None` once the range is used up.
    pub next_sequence: Option<u64>,
    /// The store's clock.
    pub store_time: Timestamp,
}

impl Cursor {
    /// A cursor as a store reports it.
    pub fn new(next_sequence: Option<u64>, store_time: Timestamp) -> Self {
        Self {
            next_sequence,
            store_time,
        }
    }
}

/// Keeps the durable order of shards. The crate's front page lists what every store promises.
///
/// `&T`, `Box<T>` and `Arc<T>` forward every method, so `Arc<dyn ReservationStore>` is a store too.
///
/// # Cancel safety
///
/// Every method: dropping the future at any point leaves no lock, no open transaction and no half-made change behind.
/// Whether the change was made is then unknown until the same request is sent again.
#[async_trait]
pub trait ReservationStore: Send + Sync {
    /// Binds a policy to its shard and the shard to its pool, for ever.
    ///
    /// The first shard of a pool is active at once. A later one is *pending* until [`retire`](Self::retire) puts it in
    /// the place of the active one; a store that cannot retire refuses it instead.
    ///
    /// # Errors
    ///
    /// *Policy conflict* when the shard is bound to another policy or pool, or when the pool was registered with another
    /// scoring. Nothing is changed then.
    async fn register_policy(
        &self,
        registration: &PolicyRegistration,
    ) -> Result<Registered, StoreError>;

    /// The policy that the shard is bound to, read back through every check of its constructor.
    ///
    /// # Errors
    ///
    /// *Policy not found*; *corrupt* when what is on record is no policy, or another one than its digest says.
    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError>;

    /// Where the shard is in its life.
    ///
    /// # Errors
    ///
    /// *Policy not found*. A store that cannot [`retire`](Self::retire) calls every registered shard active.
    async fn standing(&self, shard: &SchedulerShardId) -> Result<ShardStanding, StoreError> {
        self.load_policy(shard).await?;
        Ok(ShardStanding::Active)
    }

    /// The policy of the pool's active shard.
    ///
    /// # Errors
    ///
    /// *Policy not found* when the pool has none; *corrupt*; *unsupported* where shards are never retired.
    async fn active_policy(&self, pool: &PoolId) -> Result<WeightedFairnessPolicy, StoreError> {
        let _ = pool;
        Err(unsupported("shards are never retired in this store"))
    }

    /// Puts the pending shard `new` in the place of the active shard `old` of the same pool, once and for ever.
    ///
    /// From then on new ids and claims on `old` are refused as *retired*; ids that it knows and sequences that were
    /// claimed before are answered as ever. The order of `new` begins at sequence 0. Asked again, it answers the same.
    ///
    /// # Errors
    ///
    /// *Policy not found* when either shard is not registered; *policy conflict* when they serve different pools, when
    /// `old` is not active and was not retired in favour of `new`, or when `new` is not pending; *unsupported*. Nothing
    /// is changed then.
    async fn retire(
        &self,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        let _ = (old, new);
        Err(unsupported("shards are never retired in this store"))
    }

    /// Takes the next sequences of the shard; the same id always returns the same ones.
    ///
    /// The order inside the call is part of the contract: lock the shard, look up the id, read the mark, read the
    /// cursor. Any other order answers wrongly while somebody prunes or repeats an id.
    ///
    /// # Errors
    ///
    /// *Policy not found*, *policy conflict* (another digest or cycle length than registered), *reservation conflict*
    /// (the id is known with another count or under another shard), *expired*, *clock skew*, *sequence exhausted*,
    /// *retired*, *pending*, *corrupt*, *unavailable*. All consume nothing. *Outcome unknown* may have consumed the sequences: send
    /// the same request again.
    async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError>;

    /// Where the shard's order stands, and the store's clock.
    ///
    /// # Errors
    ///
    /// *Policy not found*, *corrupt*.
    async fn cursor(&self, shard: &SchedulerShardId) -> Result<Cursor, StoreError>;

    /// The shard's reservations that end at or after `from_sequence`, in order, at most `limit`.
    ///
    /// # Errors
    ///
    /// *Policy not found*.
    async fn reservations(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError>;

    /// Deletes one batch of reservations older than the window, over all shards, oldest first.
    ///
    /// Never the newest reservation of a shard, never one that somebody else holds. Call again while the report says
    /// that more is left.
    ///
    /// # Errors
    ///
    /// *Unavailable*, *outcome unknown*; both may be called again as they are.
    async fn prune_scheduler_fairness_reservations(
        &self,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> Result<RetentionReport, StoreError>;
}

fn unsupported(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unsupported, message)
}
