//! What reserves in one shard's order: requests with ids of the store's time, and their repetition.

use core::fmt;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{
    PolicyRegistration, Registered, Reservation, ReservationCount, ReservationIdMint,
    ReservationStore, ReserveRequest, SEQUENCE_MAX, ShardStanding, StoreError, StoreErrorKind,
    Timestamp, UnservedRuns,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::backoff::{RetryPolicy, retry};
use crate::lease::ClockReading;
use crate::metrics;

/// The policy could not be bound to its shard, so nothing was started.
#[derive(Debug, thiserror::Error)]
#[error("cannot bind shard {shard} to pool {pool}")]
pub struct SchedulerError {
    shard: SchedulerShardId,
    pool: PoolId,
    source: StoreError,
}

impl SchedulerError {
    /// What callers branch on: *policy conflict* says that shard or pool are bound to something else.
    pub fn kind(&self) -> StoreErrorKind {
        self.source.kind()
    }
}

/// Nothing was reserved, or nobody knows whether it was.
///
/// It carries the whole request. [`settle`](crate::DurableFairScheduler::settle) finishes it, in this process or in
/// another.
#[derive(Debug, thiserror::Error)]
#[error("cannot reserve in shard {} as {}", .request.shard, .request.id)]
pub struct TickError {
    request: Box<ReserveRequest>,
    retries: u32,
    may_have_reserved: bool,
    source: StoreError,
}

impl TickError {
    /// A request that does not belong here and was not sent.
    pub(crate) fn unsent(request: ReserveRequest, reason: &'static str) -> Self {
        Self {
            request: Box::new(request),
            retries: 0,
            may_have_reserved: false,
            source: StoreError::new(StoreErrorKind::Invalid, reason),
        }
    }

    /// What callers branch on: the kind of the last answer.
    pub fn kind(&self) -> StoreErrorKind {
        self.source.kind()
    }

    /// Whether settling the request can succeed later.
    pub fn is_retryable(&self) -> bool {
        self.source.is_retryable()
    }

    /// Whether the sequence may have been taken: at least one of the calls got no answer.
    pub fn may_have_reserved(&self) -> bool {
        self.may_have_reserved
    }

    /// The request as it was sent.
    pub fn request(&self) -> &ReserveRequest {
        &self.request
    }

    /// The request as it was sent, taken out.
    pub fn into_request(self) -> ReserveRequest {
        *self.request
    }

    /// How many times the request was repeated.
    pub fn retries(&self) -> u32 {
        self.retries
    }
}

/// A reservation that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) reservation: Reservation,
    pub(crate) reading: ClockReading,
    pub(crate) retries: u32,
}

/// The order of one shard, as one process takes part in it.
pub(crate) struct Order<S> {
    store: S,
    policy: Arc<WeightedFairnessPolicy>,
    retry: RetryPolicy,
    mint: Mutex<ReservationIdMint>,
    // The mint counts monotonic time from here.
    origin: Instant,
}

impl<S> fmt::Debug for Order<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order")
            .field("shard", self.policy.shard())
            .field("digest", &self.policy.digest())
            .finish_non_exhaustive()
    }
}

impl<S: ReservationStore> Order<S> {
    /// Binds the policy to its shard and the shard to its pool.
    pub(crate) async fn register(
        store: S,
        registration: PolicyRegistration,
        patience: RetryPolicy,
    ) -> Result<(Self, Registered), SchedulerError> {
        let forever = core::future::pending();
        let asked = retry(patience, forever, || store.register_policy(&registration)).await;
        let PolicyRegistration { policy, pool, .. } = registration;
        let registered = asked.result.map_err(|source| SchedulerError {
            shard: policy.shard().clone(),
            pool,
            source,
        })?;
        tracing::info!(
            shard = %policy.shard(),
            digest = %policy.digest(),
            created = registered.created,
            standing = ?registered.standing,
            "the policy is bound"
        );
        // What a retired policy does not know is its successor's business.
        if !matches!(registered.standing, ShardStanding::Retired { .. }) {
            warn_of_unserved(policy.shard(), &registered.unserved);
        }
        let origin = Instant::now();
        let mint = ReservationIdMint::new(registered.store_time, origin.elapsed());
        let order = Self {
            store,
            policy: Arc::new(policy),
            retry: patience,
            mint: Mutex::new(mint),
            origin,
        };
        Ok((order, registered))
    }

    /// The order of another shard of the same store, whose clock is known already.
    pub(crate) fn succeeded_by(&self, policy: WeightedFairnessPolicy) -> Self
    where
        S: Clone,
    {
        Self {
            store: self.store.clone(),
            policy: Arc::new(policy),
            retry: self.retry,
            mint: Mutex::new(*self.lock_mint()),
            origin: self.origin,
        }
    }

    pub(crate) fn policy(&self) -> &Arc<WeightedFairnessPolicy> {
        &self.policy
    }

    pub(crate) fn shard(&self) -> &SchedulerShardId {
        self.policy.shard()
    }

    /// A request with a new id. Nothing is sent.
    pub(crate) fn mint_request(&self, count: ReservationCount) -> ReserveRequest {
        let id = self.lock_mint().mint(self.origin.elapsed());
        ReserveRequest::new(&self.policy, id, count)
    }

    /// Sends the request until it is answered, refused for good, repeated often enough, or `cancel` is cancelled.
    pub(crate) async fn reserve(
        &self,
        request: ReserveRequest,
        cancel: &CancellationToken,
    ) -> Result<Reserved, TickError> {
        let span = tracing::debug_span!(
            "reserve",
            shard = %request.shard,
            reservation = %request.id,
            count = request.count.get(),
            first_sequence = tracing::field::Empty,
        );
        let reserved = self.ask(request, cancel).instrument(span.clone()).await?;
        span.record("first_sequence", reserved.reservation.first_sequence);
        Ok(reserved)
    }

    async fn ask(
        &self,
        request: ReserveRequest,
        cancel: &CancellationToken,
    ) -> Result<Reserved, TickError> {
        let mut asked_at = Instant::now();
        let asked = retry(self.retry, cancel.cancelled(), || {
            asked_at = Instant::now();
            self.store.reserve(&request)
        })
        .await;
        metrics::retried("reserve", asked.retries);
        match asked.result {
            Ok(reservation) => {
                self.observe(reservation.store_time, Some(reservation.reserved_at));
                Ok(Reserved {
                    reservation,
                    reading: ClockReading::new(asked_at, reservation.store_time),
                    retries: asked.retries,
                })
            }
            Err(source) => {
                self.follow_the_clock_after(&source).await;
                Err(TickError {
                    request: Box::new(request),
                    retries: asked.retries,
                    may_have_reserved: asked.unknown,
                    source,
                })
            }
        }
    }

    /// An id that was refused for its time was minted from a stale reading: the next one should not be.
    async fn follow_the_clock_after(&self, error: &StoreError) {
        let shard = self.shard();
        let stale = matches!(
            error.kind(),
            StoreErrorKind::ClockSkew | StoreErrorKind::Expired
        );
        if !stale {
            return;
        }
        let Ok(cursor) = self.store.cursor(shard).await else {
            return;
        };
        let newest = cursor
            .next_sequence
            .map_or(SEQUENCE_MAX, |next| next.saturating_sub(1));
        let Ok(reservations) = self.store.reservations(shard, newest, 1).await else {
            return;
        };
        let reserved_at = reservations
            .first()
            .map(|reservation| reservation.reserved_at);
        self.observe(cursor.store_time, reserved_at);
    }

    /// Takes over the store's clock, or the newest row's time where the clock has stepped back behind it: ids that
    /// follow that time stay later than every id that can have been pruned.
    fn observe(&self, store_time: Timestamp, newest: Option<Timestamp>) {
        let time = newest.map_or(store_time, |newest| newest.max(store_time));
        self.lock_mint().observe(time, self.origin.elapsed());
    }

    fn lock_mint(&self) -> MutexGuard<'_, ReservationIdMint> {
        // The mint is replaced in one assignment, so a panic elsewhere cannot have left it half changed.
        self.mint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn warn_of_unserved(shard: &SchedulerShardId, unserved: &[UnservedRuns]) {
    for runs in unserved {
        tracing::warn!(
            shard = %shard,
            pool = %runs.pool,
            tenant = %runs.tenant,
            queued = runs.queued,
            "the policy does not know this tenant, whose runs wait"
        );
    }
}
