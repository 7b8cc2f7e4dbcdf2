//! The loop that users run.

use core::convert::Infallible;
use core::fmt;
use core::future::Future;
use core::pin::pin;
use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{
    LeaseDuration, PoolScoring, ReservationStore, RunQueue, StoreError, StoreErrorKind, WorkerName,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, RetryPolicy, around};
use crate::dispatch::{DispatchOptions, Dispatcher, WorkerTenants};
use crate::execute::{ExecutionOptions, Executor};
use crate::fair::{DurableFairScheduler, SchedulerError, SchedulerOptions};
use crate::job::{Handler, Handlers, Job};
use crate::lease::LeaseKeeper;
use crate::report::WorkerReport;

/// How many expired leases one call takes back.
const RECOVER_LIMIT: u32 = 100;

/// Drains the runs of a pool's tenants, fairly, for as long as it is let.
///
/// Any number of workers, in any number of processes, may serve one shard. Each looks who is ready, and only then takes
/// sequences of the shard's order, one for every free permit; each sequence is claimed against, by whoever reserved it,
/// for the tenant that the cycle names. So idle tenants cost nothing while nobody has work, and the order is exact
/// while somebody has.
///
/// One look is good until every tenant that it found ready has answered once that nothing is left, or until a whole
/// cycle of sequences in a row has found nothing. A look that led to no claim is followed by a pause of the poll interval,
/// cut short when one of the worker's own runs ends, since that may have enqueued more.
///
/// In the background all leases are renewed in one call at a third of their duration, and expired leases of workers
/// that are gone are taken back.
///
/// On a current-thread runtime with paused time, over a `MemoryStore`, and after `fastrand::seed` a worker does exactly
/// the same in every test.
///
/// # Examples
///
/// The front page of the crate has one.
pub struct Worker<S> {
    store: Arc<S>,
    policy: WeightedFairnessPolicy,
    handlers: Handlers,
    scheduler: SchedulerOptions,
    execution: ExecutionOptions,
    concurrency: usize,
    poll_interval: Duration,
    recovery: bool,
}

/// Why a worker ended without being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The policy could not be bound to its shard; nothing was started.
    #[error(transparent)]
    Register(#[from] SchedulerError),
    /// The store refuses to say who is ready. Only [`Worker::run_until_idle`] ends with it.
    #[error("cannot look who is ready in shard {shard}")]
    Look {
        /// Whose tenants.
        shard: SchedulerShardId,
        /// What the store said.
        source: StoreError,
    },
}

impl WorkerError {
    /// What callers branch on.
    pub fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Register(error) => error.kind(),
            Self::Look { source, .. } => source.kind(),
        }
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.execution.worker)
            .field("shard", self.policy.shard())
            .field("handlers", &self.handlers)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

impl<S: ReservationStore + RunQueue + 'static> Worker<S> {
    /// A worker of `store` that serves the tenants of `policy`, with every default.
    pub fn builder(store: S, policy: WeightedFairnessPolicy) -> WorkerBuilder<S> {
        WorkerBuilder {
            worker: Self {
                store: Arc::new(store),
                policy,
                handlers: Handlers::new(),
                scheduler: SchedulerOptions::default(),
                execution: ExecutionOptions {
                    // A worker has nothing better to do than to find out how its call ended.
                    retry: RetryPolicy::unlimited(),
                    ..ExecutionOptions::default()
                },
                concurrency: 16,
                poll_interval: Duration::from_secs(1),
                recovery: true,
            },
        }
    }

    /// Its name in the record of attempts.
    pub fn name(&self) -> &WorkerName {
        &self.execution.worker
    }

    /// Works until `shutdown` resolves, and then drains.
    ///
    /// From then on no new sequence is taken. Handlers are told by [`cancellation`](crate::RunContext::cancellation), and
    /// may go on for the grace period; after it they are dropped and their runs released, uncounted, for others to take
    /// at once. The future ends when all that is done, and in any case ten seconds after the grace period.
    ///
    /// # Errors
    ///
    /// [`WorkerError::Register`] when the policy cannot be bound. No error of the store ends a worker after that: calls
    /// that may be repeated are, and others cost their sequence.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops at once: handlers are dropped, nothing is released, and the leases have to expire
    /// before others can take the runs.
    pub async fn run_until<F: Future>(&self, shutdown: F) -> Result<WorkerReport, WorkerError> {
        self.run(shutdown, false).await
    }

    /// Works until a look shows nobody ready while nothing is running; for tests and for batches.
    ///
    /// Runs whose ready time has not come do not keep it, so a run that waits for its next attempt may be left.
    ///
    /// # Errors
    ///
    /// Those of [`run_until`](Self::run_until); [`WorkerError::Look`] when the store refuses for good to say who is
    /// ready.
    ///
    /// # Cancel safety
    ///
    /// As for [`run_until`](Self::run_until).
    pub async fn run_until_idle(&self) -> Result<WorkerReport, WorkerError> {
        self.run(core::future::pending::<()>(), true).await
    }

    async fn run<F: Future>(
        &self,
        shutdown: F,
        until_idle: bool,
    ) -> Result<WorkerReport, WorkerError> {
        tracing::info!(
            worker = %self.execution.worker,
            shard = %self.policy.shard(),
            concurrency = self.concurrency,
            "the worker starts"
        );
        let drain = CancellationToken::new();
        let mut work = pin!(self.work(&drain, until_idle));
        tokio::select! {
            biased;
            _ = shutdown => drain.cancel(),
            report = &mut work => return report,
        }
        work.await
    }

    async fn work(
        &self,
        drain: &CancellationToken,
        until_idle: bool,
    ) -> Result<WorkerReport, WorkerError> {
        let keeper = Arc::new(LeaseKeeper::new(self.execution.lease));
        let claims = Arc::new(Notify::new());
        let tenants = WorkerTenants {
            executor: Executor::new(
                Arc::clone(&self.store),
                self.handlers.clone(),
                self.execution.clone(),
            ),
            keeper: Arc::clone(&keeper),
            claims: Arc::clone(&claims),
        };
        let options = SchedulerOptions {
            retry: self.execution.retry,
            ..self.scheduler.clone()
        };
        let store = Arc::clone(&self.store);
        let registering =
            DurableFairScheduler::register(store, self.policy.clone(), tenants, options);
        let scheduler = tokio::select! {
            biased;
            scheduler = registering => scheduler?,
            () = drain.cancelled() => return Ok(WorkerReport::default()),
        };
        let dispatch = DispatchOptions {
            concurrency: self.concurrency,
            poll_interval: self.poll_interval,
            grace: self.execution.grace,
            until_idle,
        };
        let store = Arc::clone(&self.store);
        let dispatcher = Dispatcher::new(
            scheduler,
            store,
            Arc::clone(&keeper),
            claims,
            dispatch,
            drain.clone(),
        );
        // What a worker before this one left behind is there for the first look.
        tokio::select! {
            biased;
            () = self.recover() => {}
            () = drain.cancelled() => {}
        }
        tokio::select! {
            biased;
            never = keeper.keep(&self.store) => match never {},
            never = self.keep_recovering() => match never {},
            report = dispatcher.run() => report.map_err(|source| WorkerError::Look {
                shard: self.policy.shard().clone(),
                source,
            }),
        }
    }

    async fn keep_recovering(&self) -> Infallible {
        loop {
            let interval = self.execution.lease.get() / 3;
            tokio::time::sleep(around(interval, fastrand::u64(..))).await;
            self.recover().await;
        }
    }

    /// Takes back all expired leases there are, batch by batch.
    async fn recover(&self) {
        if !self.recovery {
            return;
        }
        loop {
            match self.store.recover(RECOVER_LIMIT).await {
                Ok(report) => {
                    let recovered = report.requeued.saturating_add(report.dead);
                    if recovered > 0 {
                        let (requeued, dead) = (report.requeued, report.dead);
                        tracing::warn!(requeued, dead, "expired leases were taken back");
                    }
                    if recovered < RECOVER_LIMIT {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %error, "expired leases could not be taken back");
                    return;
                }
            }
        }
    }
}

/// Sets a [`Worker`] up. Every default is right for handlers that take seconds.
#[derive(Debug)]
#[must_use]
pub struct WorkerBuilder<S> {
    worker: Worker<S>,
}

impl<S> WorkerBuilder<S> {
    /// The most runs that one worker works on at a time.
    pub const CONCURRENCY_MAX: usize = 4_096;

    /// Handles the jobs of type `J`.
    ///
    /// # Panics
    ///
    /// When there is a handler for this kind already.
    pub fn on<J: Job>(mut self, handler: impl Handler<J>) -> Self {
        self.worker.handlers = self.worker.handlers.on(handler);
        self
    }

    /// Works on up to this many runs at a time: 16 by default. A number outside of 1 to
    /// [`CONCURRENCY_MAX`](Self::CONCURRENCY_MAX) is moved to the nearer end.
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.worker.concurrency = runs.clamp(1, Self::CONCURRENCY_MAX);
        self
    }

    /// Serves this pool instead of the pool `default`.
    pub fn pool(mut self, pool: PoolId) -> Self {
        self.worker.scheduler.pool = pool;
        self
    }

    /// Ranks the pool's runs by this scoring. The first registration of a pool decides.
    pub fn scoring(mut self, scoring: PoolScoring) -> Self {
        self.worker.scheduler.scoring = scoring;
        self
    }

    /// Goes by this name in the record of attempts, instead of one made of host, process and a random number.
    pub fn name(mut self, name: WorkerName) -> Self {
        self.worker.execution.worker = name;
        self
    }

    /// How long a claim lasts without a renewal, and so how long a run waits whose worker is gone. 30 seconds by default.
    pub fn lease(mut self, lease: LeaseDuration) -> Self {
        self.worker.execution.lease = lease;
        self
    }

    /// How long to wait, on average, after a look that led to nothing. One second by default.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.worker.poll_interval = interval;
        self
    }

    /// How long handlers may go on after a shutdown. 15 seconds by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.worker.execution.grace = grace;
        self
    }

    /// How long a run waits after a failed attempt: from one second up to one hour by default.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.worker.execution.backoff = backoff;
        self
    }

    /// How long a run waits whose kind has no handler here. 10 seconds by default.
    pub fn unknown_kind_delay(mut self, delay: Duration) -> Self {
        self.worker.execution.unknown_kind_delay = delay;
        self
    }

    /// Whether to take back expired leases in the background. On by default; somebody has to.
    pub fn recovery(mut self, on: bool) -> Self {
        self.worker.recovery = on;
        self
    }

    /// The worker. It does nothing before it is run.
    pub fn build(self) -> Worker<S> {
        self.worker
    }
}
