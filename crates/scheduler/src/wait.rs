//! How an idle worker waits: woken by the store where that can be, by the clock otherwise.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::SchedulerShardId;
use evenhand_store::{RunQueue, StoreErrorKind, WaitRequest, WorkerName};
use tokio::time::{Instant, sleep_until, timeout_at};

/// No two looks of an idle worker are closer together, whatever the store says.
const SHORTEST: Duration = Duration::from_millis(5);

/// A poll interval beyond this is taken for "never".
const LONGEST: Duration = Duration::from_hours(24);

/// How much longer than asked for a store may take to return.
const SLACK: Duration = Duration::from_secs(5);

/// Waits for work.
#[derive(Debug)]
pub(crate) struct Waiter<S> {
    store: Arc<S>,
    worker: WorkerName,
    store_wakes: AtomicBool,
}

impl<S: RunQueue> Waiter<S> {
    pub(crate) fn new(store: Arc<S>, worker: WorkerName) -> Self {
        Self {
            store,
            worker,
            store_wakes: AtomicBool::new(true),
        }
    }

    /// Waits until the store says that there may be work for the shard's tenants, for `longest` at most.
    pub(crate) async fn wait(&self, shard: SchedulerShardId, longest: Duration) {
        let longest = longest.clamp(SHORTEST, LONGEST);
        let started = Instant::now();
        if self.store_wakes.load(Ordering::Relaxed) {
            let request = WaitRequest::new(shard, self.worker.clone(), longest);
            let over = started + longest + SLACK;
            match timeout_at(over, self.store.wait_for_work(&request)).await {
                Ok(Ok(())) | Err(_) => return sleep_until(started + SHORTEST).await,
                Ok(Err(error)) if error.kind() == StoreErrorKind::Unsupported => {
                    self.store_wakes.store(false, Ordering::Relaxed);
                }
                // The next look says more.
                Ok(Err(error)) => {
                    tracing::debug!(error = %error, "the store does not wake anybody");
                }
            }
        }
        sleep_until(started + longest).await;
    }
}
