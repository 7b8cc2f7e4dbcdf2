//! One durable order, one tenant at a time: register, tick, settle.

use core::fmt;
use core::panic::AssertUnwindSafe;

use std::sync::Arc;

use evenhand_policy::{PoolId, StarvationBound, TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    PolicyRegistration, PoolScoring, Reservation, ReservationCount, ReservationStore,
    ReserveRequest,
};
use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::backoff::RetryPolicy;
use crate::order::{Order, Reserved, SchedulerError, TickError};
use crate::tenant::{BoxError, RunReport, Selection, TenantOutcome, TenantScheduler};
use crate::text::panic_message;

/// What a scheduler binds and how patient it is; every default is right for one shard with the pool `default`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SchedulerOptions {
    /// The pool that the shard serves.
    pub pool: PoolId,
    /// How the pool's runs are ranked. The first registration of a pool decides.
    pub scoring: PoolScoring,
    /// How reservations and registration are repeated when the store does not answer.
    pub retry: RetryPolicy,
}

/// How a tick's sequence ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum TickOutcome {
    /// The tenant ran one run.
    Ran(RunReport),
    /// The tenant had no ready run.
    Idle,
    /// The tenant had ready runs, but none that could be taken.
    Contended,
    /// The tenant could not be looked at, for this reason. It costs the tenant the sequence.
    Failed(BoxError),
}

impl TickOutcome {
    /// The outcome's name in events and output.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Ran(_) => "ran",
            Self::Idle => "idle",
            Self::Contended => "contended",
            Self::Failed(_) => "failed",
        }
    }
}

/// One consumed sequence: whose it was, and how it ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Tick {
    /// The reservation of the sequence.
    pub reservation: Reservation,
    /// The tenant that the cycle names for it.
    pub tenant: TenantId,
    /// How many reservations there are at most until the tenant's next selection.
    pub bound: StarvationBound,
    /// How many times the reservation was asked for again.
    pub retries: u32,
    /// How the sequence ended.
    pub outcome: TickOutcome,
}

impl Tick {
    /// The sequence.
    pub fn sequence(&self) -> u64 {
        self.reservation.first_sequence
    }
}

/// Schedules the tenants of one policy over the durable order of its shard.
///
/// Any number of schedulers, in any number of processes, may share a shard. Each [`tick`](Self::tick) first takes the
/// next sequence of the one global order and then looks only at the tenant that this sequence names. A slot whose
/// tenant is idle is consumed and never given to another tenant, so that the order of selections, and each tenant's
/// bound, is exact whoever ticks and whatever fails.
///
/// Most people want the [`Worker`](crate::Worker), which ticks for them, only while there is something to do, and many
/// runs at a time.
///
/// # Examples
///
/// ```
/// use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
/// use evenhand_scheduler::{
///     DurableFairScheduler, Handlers, Job, JobOutcome, QueueTenantScheduler, RunContext, SchedulerOptions,
///     TickOutcome,
/// };
/// use evenhand_store::{RunQueue, memory::MemoryStore};
/// use tokio_util::sync::CancellationToken;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Ping;
///
/// impl Job for Ping {
///     const KIND: &'static str = "ping";
/// }
///
/// async fn ping(_: Ping, _: RunContext) -> Result<JobOutcome, core::convert::Infallible> {
///     Ok(JobOutcome::Done)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let (busy, idle) = (TenantId::try_from("busy")?, TenantId::try_from("idle")?);
/// let policy = WeightedFairnessPolicy::new(
///     SchedulerShardId::try_from("primary-v1")?,
///     [TenantFairnessWeight::new(busy.clone(), 1)?, TenantFairnessWeight::new(idle.clone(), 1)?],
/// )?;
/// let store = MemoryStore::new("2026-05-01T12:00:00Z".parse()?);
/// let queue = QueueTenantScheduler::new(&store, Handlers::new().on::<Ping>(ping));
/// let scheduler =
///     DurableFairScheduler::register(&store, policy, queue, SchedulerOptions::default()).await?;
/// store.enqueue(&Ping.new_run(busy.clone())?).await?;
///
/// let cancel = CancellationToken::new();
/// let first = scheduler.tick(&cancel).await?.expect("not cancelled");
/// assert_eq!((first.sequence(), &first.tenant), (0, &busy));
/// assert!(matches!(first.outcome, TickOutcome::Ran(_)));
///
/// // The next slot is the other tenant's, whether it has work or not.
/// let second = scheduler.tick(&cancel).await?.expect("not cancelled");
/// assert_eq!((second.sequence(), &second.tenant), (1, &idle));
/// assert!(matches!(second.outcome, TickOutcome::Idle));
/// # Ok(())
/// # }
/// ```
pub struct DurableFairScheduler<S, T> {
    order: Order<S>,
    tenant_scheduler: T,
}

impl<S, T> fmt::Debug for DurableFairScheduler<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableFairScheduler")
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

impl<S: ReservationStore, T: TenantScheduler> DurableFairScheduler<S, T> {
    /// Binds the policy to its shard and the shard to its pool, before anything can be claimed.
    ///
    /// # Errors
    ///
    /// Of kind *policy conflict* when the shard is bound to another policy or pool, or when the pool is ranked by another
    /// scoring; *corrupt*; *unavailable* or *outcome unknown* when the store did not answer for as long as the options
    /// say. Registering again is always safe.
    ///
    /// A shard that is not the active one of its pool is bound all the same; ticks then answer *pending* or *retired*.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the policy registered, which is what the next call wants anyway.
    pub async fn register(
        store: S,
        policy: WeightedFairnessPolicy,
        tenant_scheduler: T,
        options: SchedulerOptions,
    ) -> Result<Self, SchedulerError> {
        let registration = PolicyRegistration::new(policy)
            .in_pool(options.pool)
            .scored_by(options.scoring);
        let (order, _) = Order::register(store, registration, options.retry).await?;
        Ok(Self {
            order,
            tenant_scheduler,
        })
    }

    /// The policy that is bound to the shard.
    pub fn policy(&self) -> &WeightedFairnessPolicy {
        self.order.policy()
    }

    /// Takes the next sequence and looks at its tenant: at most one run, to its end.
    ///
    /// `None` says that `cancel` was cancelled, and that no sequence was consumed.
    ///
    /// # Errors
    ///
    /// When no sequence was reserved, or when nobody knows whether one was: after the retries that the options allow,
    /// or when `cancel` ended them. The error carries the request for [`settle`](Self::settle). A tenant that could not
    /// be looked at is no error, but [`TickOutcome::Failed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a sequence consumed without an outcome, and a run under a lease that has to
    /// expire. Cancel `cancel` instead, or write the id down first: see [`mint_request`](Self::mint_request).
    pub async fn tick(&self, cancel: &CancellationToken) -> Result<Option<Tick>, TickError> {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        let reserved = self.order.reserve(self.mint_request(), cancel).await?;
        let selection = self.selection(&reserved);
        Ok(Some(self.finish(selection, reserved.retries, cancel).await))
    }

    /// A request with a new id, for callers who write the id down before they [`settle`](Self::settle) it.
    ///
    /// Minting consumes nothing. The id alone is enough to make the request again:
    /// `ReserveRequest::new(policy, id, ReservationCount::ONE)`.
    pub fn mint_request(&self) -> ReserveRequest {
        self.order.mint_request(ReservationCount::ONE)
    }

    /// Finishes a tick whose request is known, also one of another process that is gone.
    ///
    /// The same id always means the same sequence, so its tenant is looked at again. In a queue of ours that cannot run
    /// a second run: a claim that was made answers with the same run while its lease lives, and that run is
    /// [taken over](Selection::takes_over). So settle only what nobody else is still at work on.
    ///
    /// `None` says that `cancel` was cancelled, and that nothing was sent.
    ///
    /// # Errors
    ///
    /// Those of [`tick`](Self::tick); of kind *invalid* when the request is for another shard or for more than one
    /// sequence; *expired* when too much time has passed to tell whether the id was used.
    ///
    /// # Cancel safety
    ///
    /// As for [`tick`](Self::tick); settling again is always right.
    pub async fn settle(
        &self,
        request: ReserveRequest,
        cancel: &CancellationToken,
    ) -> Result<Option<Tick>, TickError> {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        let fits = request.shard == *self.order.shard() && request.count == ReservationCount::ONE;
        if !fits {
            let reason = "the request is not for one sequence of this scheduler's shard";
            return Err(TickError::unsent(request, reason));
        }
        let reserved = self.order.reserve(request, cancel).await?;
        let selection = self.selection(&reserved).taking_over();
        Ok(Some(self.finish(selection, reserved.retries, cancel).await))
    }

    fn selection(&self, reserved: &Reserved) -> Selection {
        Selection::reserved(Arc::clone(self.order.policy()), reserved)
    }

    async fn finish(&self, selection: Selection, retries: u32, cancel: &CancellationToken) -> Tick {
        let outcome = self.tick_tenant(&selection, cancel).await;
        tracing::debug!(
            shard = %selection.shard(),
            sequence = selection.sequence(),
            tenant = %selection.tenant(),
            outcome = outcome.as_str(),
            retries,
            "tick"
        );
        Tick {
            reservation: *selection.reservation(),
            tenant: selection.tenant().clone(),
            bound: selection.bound(),
            retries,
            outcome,
        }
    }

    /// What goes wrong for one tenant, be it a panic, is that tenant's outcome and nobody else's.
    async fn tick_tenant(&self, selection: &Selection, cancel: &CancellationToken) -> TickOutcome {
        let tick = self.tenant_scheduler.tick(selection, cancel);
        let error = match AssertUnwindSafe(tick).catch_unwind().await {
            Ok(Ok(TenantOutcome::Ran(report))) => return TickOutcome::Ran(report),
            Ok(Ok(TenantOutcome::Idle)) => return TickOutcome::Idle,
            Ok(Ok(TenantOutcome::Contended)) => return TickOutcome::Contended,
            Ok(Err(error)) => error,
            Err(panic) => format!("the tenant's tick panicked: {}", panic_message(&*panic)).into(),
        };
        tracing::warn!(
            shard = %selection.shard(),
            sequence = selection.sequence(),
            tenant = %selection.tenant(),
            error = &*error,
            "the tenant could not be looked at; its sequence is consumed"
        );
        TickOutcome::Failed(error)
    }
}
