//! What one selected tenant does with its sequence: the trait, and what it answers.

use core::error::Error;

use std::sync::Arc;

use async_trait::async_trait;
use evenhand_policy::{SchedulerShardId, StarvationBound, TenantId, WeightedFairnessPolicy};
use evenhand_store::{Reservation, RunId, StoreErrorKind, Timestamp};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lease::ClockReading;
use crate::order::Reserved;

/// Any error that somebody else's code answers with.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// One reserved sequence, and the tenant that the cycle names for it.
#[derive(Clone, Debug)]
pub struct Selection {
    policy: Arc<WeightedFairnessPolicy>,
    reservation: Reservation,
    sequence: u64,
    reading: ClockReading,
    takes_over: bool,
}

impl Selection {
    /// The selection that `policy` makes for a `sequence` of `reservation`.
    ///
    /// A scheduler makes its selections itself; this is for tests of a [`TenantScheduler`].
    pub fn new(
        policy: Arc<WeightedFairnessPolicy>,
        reservation: Reservation,
        sequence: u64,
    ) -> Self {
        Self {
            policy,
            reservation,
            sequence,
            reading: ClockReading::new(Instant::now(), reservation.store_time),
            takes_over: false,
        }
    }

    /// The selection of the only sequence of a reservation.
    pub(crate) fn reserved(policy: Arc<WeightedFairnessPolicy>, reserved: &Reserved) -> Self {
        Self {
            policy,
            reservation: reserved.reservation,
            sequence: reserved.reservation.first_sequence,
            reading: reserved.reading,
            takes_over: false,
        }
    }

    /// The same selection, as one that may have been begun elsewhere.
    pub(crate) fn taking_over(self) -> Self {
        Self {
            takes_over: true,
            ..self
        }
    }

    /// Whether a known request is [settled](crate::DurableFairScheduler::settle), so that what was begun for the sequence,
    /// also in a process that is gone, is to be finished.
    pub fn takes_over(&self) -> bool {
        self.takes_over
    }

    /// The policy that selected.
    pub fn policy(&self) -> &WeightedFairnessPolicy {
        &self.policy
    }

    /// Whose order the sequence belongs to.
    pub fn shard(&self) -> &SchedulerShardId {
        self.policy.shard()
    }

    /// The reservation that took the sequence.
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The position in the shard's order.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The position in the cycle.
    pub fn slot(&self) -> u32 {
        self.policy.slot_for_sequence(self.sequence)
    }

    /// The tenant whose turn it is, and nobody else's.
    pub fn tenant(&self) -> &TenantId {
        self.policy.tenant_for_sequence(self.sequence)
    }

    /// How many reservations there are at most from a selection of this tenant to its next.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "a tenant that the cycle names is in the policy, so it has a bound"
    )]
    pub fn bound(&self) -> StarvationBound {
        self.policy
            .starvation_bound(self.tenant())
            .expect("every tenant of the cycle has a bound")
    }

    /// What is known of the store's clock since the reservation.
    pub(crate) fn reading(&self) -> ClockReading {
        self.reading
    }
}

/// How a tenant used its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TenantOutcome {
    /// It ran one run.
    Ran(RunReport),
    /// It had no ready run.
    Idle,
    /// It had ready runs, but none that could be taken.
    Contended,
}

/// What became of the one run of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunReport {
    /// The run, where it is one of a [`RunQueue`](evenhand_store::RunQueue).
    pub run: Option<RunId>,
    /// How its attempt ended.
    pub end: RunEnd,
}

impl RunReport {
    /// Reports on a run of a queue that has other names for its runs.
    pub fn new(end: RunEnd) -> Self {
        Self { run: None, end }
    }

    /// Reports on a run of a [`RunQueue`](evenhand_store::RunQueue).
    pub fn of(run: RunId, end: RunEnd) -> Self {
        Self {
            run: Some(run),
            end,
        }
    }
}

/// How an attempt at a run ended, as far as the one who made it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunEnd {
    /// The run is done.
    Completed,
    /// The attempt failed; the run is ready for its next one from this time on.
    Requeued(Timestamp),
    /// The attempt failed and was the last: the run is in the dead letter.
    Dead,
    /// The run was put back and the attempt is not counted.
    Released,
    /// Somebody had cancelled the run, so it is not tried again.
    Cancelled,
    /// Another attempt owns the run, or soon will: nothing that this one says counts any more.
    LeaseLost,
    /// The store could not be told how it ended. Once the lease has expired, the run is taken up again.
    Unsettled(StoreErrorKind),
}

impl RunEnd {
    /// The end's name in metrics and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Requeued(_) => "requeued",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
            Self::LeaseLost => "lease_lost",
            Self::Unsettled(_) => "unsettled",
        }
    }
}

/// Uses a tenant's sequence: at most one run of that tenant, and of nobody else.
///
/// [`QueueTenantScheduler`](crate::QueueTenantScheduler) is the one for the queue of a store. Implement the trait for a
/// queue that is not ours; its own durable order then decides what the tenant runs, and Evenhand's decides when.
///
/// `&T`, `Box<T>` and `Arc<T>` forward the method, so `Arc<dyn TenantScheduler>` is one too.
///
/// # Examples
///
/// ```
/// use async_trait::async_trait;
/// use evenhand_scheduler::{BoxError, RunEnd, RunReport, Selection, TenantOutcome, TenantScheduler};
/// use tokio_util::sync::CancellationToken;
///
/// struct Printers(std::sync::Mutex<Vec<(String, String)>>);
///
/// #[async_trait]
/// impl TenantScheduler for Printers {
///     async fn tick(
///         &self,
///         selection: &Selection,
///         _cancel: &CancellationToken,
///     ) -> Result<TenantOutcome, BoxError> {
///         let mut pages = self.0.lock().map_err(|_| "a printer broke")?;
///         let next = pages.iter().position(|(tenant, _)| tenant == selection.tenant().as_str());
///         let Some(next) = next else {
///             return Ok(TenantOutcome::Idle);
///         };
///         println!("{}", pages.remove(next).1);
///         Ok(TenantOutcome::Ran(RunReport::new(RunEnd::Completed)))
///     }
/// }
/// ```
#[async_trait]
pub trait TenantScheduler: Send + Sync {
    /// Looks at the selected tenant and runs at most one of its runs, to its end.
    ///
    /// The sequence is consumed whatever the answer is. The same selection may be asked for again after a crash or a
    /// lost reply; claim against its sequence, so that it is used once. `cancel` asks to come to an end soon.
    ///
    /// # Errors
    ///
    /// Any error says that the tenant could not be looked at. It costs the tenant this sequence and nobody anything
    /// else.
    async fn tick(
        &self,
        selection: &Selection,
        cancel: &CancellationToken,
    ) -> Result<TenantOutcome, BoxError>;
}

macro_rules! forward {
    ($([$($life:lifetime)?] $pointer:ty),+) => {$(
        #[async_trait]
        impl<$($life,)? T: TenantScheduler + ?Sized> TenantScheduler for $pointer {
            async fn tick(
                &self,
                selection: &Selection,
                cancel: &CancellationToken,
            ) -> Result<TenantOutcome, BoxError> {
                (**self).tick(selection, cancel).await
            }
        }
    )+};
}

forward!(['a] &'a T, [] Box<T>, [] Arc<T>);
