//! The tenant scheduler over a store's own queue.

use core::ops::ControlFlow;

use async_trait::async_trait;
use evenhand_store::RunQueue;
use tokio_util::sync::CancellationToken;

use crate::execute::{ExecutionOptions, Executor};
use crate::job::Handlers;
use crate::lease::LeaseKeeper;
use crate::tenant::{BoxError, Selection, TenantOutcome, TenantScheduler};

/// Claims the best ready run of the selected tenant and works on it to its end, before the tick answers.
///
/// The lease is renewed for as long as the handler runs. A handler that blocks its thread blocks the renewal too: let
/// it use `tokio::task::spawn_blocking`.
///
/// # Examples
///
/// ```
/// use evenhand_scheduler::{ExecutionOptions, Handlers, QueueTenantScheduler};
/// use evenhand_store::{LeaseDuration, memory::MemoryStore};
///
/// let mut options = ExecutionOptions::default();
/// options.lease = LeaseDuration::new(core::time::Duration::from_secs(10))?;
/// let queue = QueueTenantScheduler::new(MemoryStore::new("2026-05-01T12:00:00Z".parse()?), Handlers::new()).with_options(options);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct QueueTenantScheduler<Q> {
    executor: Executor<Q>,
}

impl<Q: RunQueue> QueueTenantScheduler<Q> {
    /// Works on the runs of `queue` with these handlers and the default options.
    pub fn new(queue: Q, handlers: Handlers) -> Self {
        Self {
            executor: Executor::new(queue, handlers, ExecutionOptions::default()),
        }
    }

    /// The same scheduler with other options.
    #[must_use]
    pub fn with_options(mut self, options: ExecutionOptions) -> Self {
        self.executor = self.executor.with_options(options);
        self
    }
}

#[async_trait]
impl<Q: RunQueue> TenantScheduler for QueueTenantScheduler<Q> {
    /// After a cancellation the handler may go on for the grace period; then its run is released.
    async fn tick(
        &self,
        selection: &Selection,
        cancel: &CancellationToken,
    ) -> Result<TenantOutcome, BoxError> {
        let claimed = match self.executor.claim(selection, cancel).await? {
            ControlFlow::Continue(claimed) => claimed,
            ControlFlow::Break(outcome) => return Ok(outcome),
        };
        let keeper = LeaseKeeper::new(self.executor.lease_duration());
        tokio::select! {
            biased;
            report = self.executor.execute(claimed, &keeper, cancel) => Ok(TenantOutcome::Ran(report)),
            never = keeper.keep(self.executor.queue()) => match never {},
        }
    }
}
