//! Pruning in the background, in batches that keep up with what is written.

use core::convert::Infallible;
use core::time::Duration;

use evenhand_store::{
    HistoryRetentionPolicy, ReservationStore, RunQueue, SchedulerFairnessRetentionPolicy,
    StoreError, StoreErrorKind,
};

use crate::backoff::around;
use crate::observe::Observer;

/// How long, on average, a worker waits between two passes when nothing is left to prune.
const INTERVAL: Duration = Duration::from_mins(1);

/// What a worker prunes in the background. Reservations, outcomes, attempts and finished runs are kept for 7 days by
/// default, dead runs for 30.
///
/// Every worker of a store may prune, with the same windows: what one has deleted is not there for the others. A store
/// that refuses to prune, because it does not offer it or because the worker has no right to, is asked once.
///
/// # Examples
///
/// ```
/// use core::time::Duration;
/// use evenhand_scheduler::WorkerRetention;
/// use evenhand_store::SchedulerFairnessRetentionPolicy;
///
/// let day = SchedulerFairnessRetentionPolicy::new(Duration::from_hours(24), 10_000)?;
/// let retention = WorkerRetention::default().reservations(day);
/// assert_ne!(retention, WorkerRetention::off());
/// # Ok::<(), evenhand_store::InvalidRetention>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRetention {
    reservations: Option<SchedulerFairnessRetentionPolicy>,
    history: Option<HistoryRetentionPolicy>,
}

impl WorkerRetention {
    /// Prunes nothing: somebody else does, or everything is kept.
    pub const fn off() -> Self {
        Self {
            reservations: None,
            history: None,
        }
    }

    /// The same, and reservations are pruned by this policy.
    #[must_use]
    pub const fn reservations(mut self, policy: SchedulerFairnessRetentionPolicy) -> Self {
        self.reservations = Some(policy);
        self
    }

    /// The same, and outcomes, attempts and ended runs are pruned by this policy.
    #[must_use]
    pub const fn history(mut self, policy: HistoryRetentionPolicy) -> Self {
        self.history = Some(policy);
        self
    }

    pub(crate) async fn keep_pruning_reservations(
        self,
        store: &impl ReservationStore,
        observer: &Observer,
    ) -> Infallible {
        let Some(policy) = self.reservations else {
            return core::future::pending().await;
        };
        let mut after = After::Pass;
        loop {
            after.wait().await;
            let pruned = store.prune_scheduler_fairness_reservations(policy).await;
            after = After::of("reservations", pruned, |pruned| {
                observer.pruned_reservations(pruned);
                pruned.more && pruned.deleted > 0
            });
        }
    }

    pub(crate) async fn keep_pruning_history(
        self,
        store: &impl RunQueue,
        observer: &Observer,
    ) -> Infallible {
        let Some(policy) = self.history else {
            return core::future::pending().await;
        };
        let mut after = After::Pass;
        loop {
            after.wait().await;
            let pruned = store.prune_history(policy).await;
            after = After::of("history", pruned, |pruned| {
                observer.pruned_history(pruned);
                let deleted = [
                    pruned.outcomes,
                    pruned.attempts,
                    pruned.finished,
                    pruned.dead,
                ];
                pruned.more && deleted.iter().any(|rows| *rows > 0)
            });
        }
    }
}

impl Default for WorkerRetention {
    #[expect(
        clippy::expect_used,
        reason = "the constants are within the bounds, as a test of every default worker shows"
    )]
    fn default() -> Self {
        let week = Duration::from_hours(7 * 24);
        let reservations = SchedulerFairnessRetentionPolicy::new(week, 1_000);
        Self {
            reservations: Some(reservations.expect("a week and a thousand rows are allowed")),
            history: Some(HistoryRetentionPolicy::default()),
        }
    }
}

/// What comes after a pass.
enum After {
    /// Another batch.
    Batch,
    /// Another pass, some time later.
    Pass,
    /// Nothing any more.
    Nothing,
}

impl After {
    /// `keeps_on` says whether a batch was deleted and more is left. What nobody could delete may be held by somebody
    /// else, who prunes it.
    fn of<T>(what: &str, pruned: Result<T, StoreError>, keeps_on: impl FnOnce(&T) -> bool) -> Self {
        match pruned {
            Ok(pruned) if keeps_on(&pruned) => Self::Batch,
            Ok(_) => Self::Pass,
            Err(error) if is_final(error.kind()) => {
                tracing::warn!(error = %error, "{what} cannot be pruned from here");
                Self::Nothing
            }
            Err(error) => {
                tracing::warn!(error = %error, "{what} could not be pruned");
                Self::Pass
            }
        }
    }

    async fn wait(self) {
        match self {
            // Others have a turn between two batches.
            Self::Batch => tokio::task::yield_now().await,
            Self::Pass => tokio::time::sleep(around(INTERVAL, fastrand::u64(..))).await,
            Self::Nothing => core::future::pending().await,
        }
    }
}

/// Whether asking again is pointless: the store does not offer it, or refuses it to this worker.
fn is_final(kind: StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::Unsupported | StoreErrorKind::Invalid)
}
