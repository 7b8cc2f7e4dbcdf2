//! The loop that users run.

use core::fmt;
use core::future::Future;
use core::pin::pin;
use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{
    PolicyRegistration, PoolScoring, ReservationStore, RoundLimits, RunQueue, ShardStanding,
    StoreError, StoreErrorKind, WorkerName,
};
use tokio_util::sync::CancellationToken;

use crate::background::{Background, Duties};
use crate::backoff::RetryPolicy;
use crate::builder::WorkerBuilder;
use crate::dispatch::{Crew, DispatchOptions, Dispatcher};
use crate::execute::{ExecutionOptions, Executor};
use crate::job::Handlers;
use crate::lease::LeaseKeeper;
use crate::lost::LostBlocks;
use crate::metrics;
use crate::observe::Observer;
use crate::order::{Order, SchedulerError};
use crate::report::WorkerReport;
use crate::round::Rounds;
use crate::serving::Serving;
use crate::settle::{Completions, Settler};
use crate::wait::Waiter;

/// Drains the runs of a pool's tenants, fairly, for as long as it is let.
///
/// Any number of workers, in any number of processes, may serve one pool. Each looks who is ready, and only then makes a
/// round: it reserves a block of sequences of the shard's order, as long as its free permits are sure to suffice for
/// the slots of whoever is ready, and then claims runs against all of them in one call, each for the tenant that the
/// cycle names. So idle tenants cost nothing while nobody has work, and order and evidence are as if every slot had been
/// taken by itself while somebody has.
///
/// One round is under way at a time, and each has a look of its own. When nobody is ready, the worker waits until the
/// store wakes it, until the next scheduled run becomes ready, or for the poll interval, whichever is first. When a whole
/// cycle of sequences in a row has served nobody although somebody is ready, because of a limit for example, it pauses
/// for a poll interval. Either is cut short when one of the
/// worker's own runs ends, since that may have enqueued more.
///
/// In the background all leases are renewed in one call at a third of their duration; expired leases of workers that
/// are gone are taken back; blocks that such workers reserved and did not claim against are settled, within this
/// worker's permits and for the tenants whose slots they are; old records are pruned; and runs that no active shard
/// serves are warned about.
///
/// # Changes of policy
///
/// The worker registers its policy, and serves whichever shard of the pool is active: its own, that one's successor if
/// its own is retired, or that one's predecessor as long as its own is pending. When the shard that it serves is
/// retired, it moves over by itself. Runs under way go on.
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
    pub(crate) handlers: Handlers,
    pub(crate) pool: PoolId,
    pub(crate) scoring: PoolScoring,
    pub(crate) execution: ExecutionOptions,
    pub(crate) concurrency: u32,
    pub(crate) limits: RoundLimits,
    pub(crate) poll_interval: Duration,
    pub(crate) duties: Duties,
}

/// Why a worker ended without being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The policy could not be bound to its shard; nothing was started.
    #[error(transparent)]
    Register(#[from] SchedulerError),
    /// The store refuses to say who is ready, or which shard is active. Only [`Worker::run_until_idle`] ends with it.
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
        WorkerBuilder::new(Self {
            store: Arc::new(store),
            policy,
            handlers: Handlers::new(),
            pool: PoolId::default(),
            scoring: PoolScoring::default(),
            execution: ExecutionOptions {
                // A worker has nothing better to do than to find out how its call ended.
                retry: RetryPolicy::unlimited(),
                ..ExecutionOptions::default()
            },
            concurrency: 16,
            limits: RoundLimits::default(),
            poll_interval: Duration::from_secs(1),
            duties: Duties::default(),
        })
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
    /// that may be repeated are, and others cost a block, which is settled as lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops at once: handlers are dropped, nothing is released, and the leases have to expire
    /// before others can take the runs. A block that was just reserved is lost, and settled by others.
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
        let registering = self.register();
        let serving = tokio::select! {
            biased;
            serving = registering => serving?,
            () = drain.cancelled() => return Ok(WorkerReport::default()),
        };
        metrics::describe();
        let observer = Arc::new(Observer::default());
        observer.serves(serving.order().policy());
        let lost = Arc::new(LostBlocks::default());
        let background = Background {
            store: Arc::clone(&self.store),
            lease: self.execution.lease.get(),
            duties: self.duties,
            served: serving.served(),
            lost: Arc::clone(&lost),
            observer: Arc::clone(&observer),
        };
        let (crew, settler) = self.crew();
        let crew = Arc::new(crew);
        let (keeper, options) = (Arc::clone(&crew.keeper), self.dispatch(until_idle));
        let (observing, drained) = (Arc::clone(&observer), drain.clone());
        let dispatcher = Dispatcher::new(crew, settler, serving, lost, observing, options, drained);
        // What a worker before this one left behind is there for the first look.
        tokio::select! {
            biased;
            () = background.recover() => {}
            () = drain.cancelled() => {}
        }
        let dispatched = tokio::select! {
            biased;
            never = keeper.keep(&self.store) => match never {},
            never = background.run() => match never {},
            dispatched = dispatcher.run() => dispatched,
        };
        observer.ended();
        let report = observer.report();
        dispatched
            .map(|()| report)
            .map_err(|source| WorkerError::Look {
                shard: self.policy.shard().clone(),
                source,
            })
    }

    async fn register(&self) -> Result<Serving<S>, SchedulerError> {
        let registration = PolicyRegistration::new(self.policy.clone())
            .in_pool(self.pool.clone())
            .scored_by(self.scoring.clone());
        let store = Arc::clone(&self.store);
        let (order, registered) =
            Order::register(store, registration, self.execution.retry).await?;
        let active = registered.standing == ShardStanding::Active;
        Ok(Serving::new(order, active))
    }

    fn crew(&self) -> (Crew<S>, Settler) {
        let (store, worker) = (Arc::clone(&self.store), self.execution.worker.clone());
        let executor = Executor::new(
            Arc::clone(&store),
            self.handlers.clone(),
            self.execution.clone(),
        );
        let (completions, settler) = Completions::new();
        let crew = Crew {
            executor: executor.with_completions(completions.clone()),
            completions,
            keeper: Arc::new(LeaseKeeper::new(self.execution.lease)),
            rounds: Rounds {
                store: Arc::clone(&store),
                worker: worker.clone(),
                lease: self.execution.lease,
                limits: self.limits,
                retry: self.execution.retry,
            },
            waiter: Waiter::new(Arc::clone(&store), worker),
            store,
        };
        (crew, settler)
    }

    fn dispatch(&self, until_idle: bool) -> DispatchOptions {
        DispatchOptions {
            pool: self.pool.clone(),
            concurrency: self.concurrency,
            poll_interval: self.poll_interval,
            grace: self.execution.grace,
            until_idle,
        }
    }
}
