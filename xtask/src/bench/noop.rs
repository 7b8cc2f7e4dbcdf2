//! Runs that are done as soon as somebody takes them, and workers that take them.

use core::convert::Infallible;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use evenhand_policy::TenantId;
use evenhand_scheduler::{Job, JobOutcome, RunContext, Worker, WorkerBuilder};
use evenhand_store::{NewRun, RunQueue as _};
use evenhand_store_postgres::PostgresStore;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::Result;
use super::samples::number;
use super::scene::Shard;

/// How many runs one call enqueues.
const BATCH: usize = 1_000;

/// Work that is done at once.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Nothing {}

impl Job for Nothing {
    const KIND: &'static str = "bench.nothing";
}

/// A run of `tenant` in the shard's pool.
pub(crate) fn new_run(shard: &Shard, tenant: &TenantId) -> Result<NewRun> {
    let mut run = Nothing {}.new_run(tenant.clone())?;
    run.pool = shard.policy.shard().as_str().parse()?;
    Ok(run)
}

/// Enqueues `runs` runs of `tenant`.
pub(crate) async fn enqueue(shard: &Shard, tenant: &TenantId, runs: usize) -> Result<()> {
    let run = new_run(shard, tenant)?;
    for first in (0..runs).step_by(BATCH) {
        let batch = vec![run.clone(); BATCH.min(runs - first)];
        shard.store.enqueue_many(&batch).await?;
    }
    Ok(())
}

/// Counts runs as they are handled.
#[derive(Debug, Default)]
pub(crate) struct Handled {
    runs: AtomicU64,
    more: Notify,
}

impl Handled {
    pub(crate) fn count(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Resolves once this many runs were handled.
    pub(crate) async fn reached(&self, runs: u64) {
        loop {
            let more = self.more.notified();
            if self.count() >= runs {
                return;
            }
            more.await;
        }
    }

    fn one_more(&self) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.more.notify_waiters();
    }
}

/// A worker of the shard that does nothing with each run but to note that it has started.
pub(crate) fn worker(
    shard: &Shard,
    note: impl Fn(&RunContext) + Send + Sync + 'static,
) -> Result<WorkerBuilder<PostgresStore>> {
    let handler = move |_: Nothing, context: RunContext| {
        note(&context);
        core::future::ready(Ok::<_, Infallible>(JobOutcome::Done))
    };
    Ok(Worker::builder(shard.store.clone(), shard.policy.clone())
        .pool(shard.policy.shard().as_str().parse()?)
        .on::<Nothing>(handler))
}

/// The same, counting.
pub(crate) fn counting_worker(
    shard: &Shard,
    handled: &Arc<Handled>,
) -> Result<WorkerBuilder<PostgresStore>> {
    let handled = Arc::clone(handled);
    worker(shard, move |_| handled.one_more())
}

/// What a worker got done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drained {
    pub(crate) runs: u64,
    elapsed: Duration,
}

impl Drained {
    pub(crate) fn per_second(self) -> f64 {
        number(self.runs) / self.elapsed.as_secs_f64()
    }
}

/// Lets one worker work until `runs` are handled or `longest` has passed.
pub(crate) async fn drain(
    shard: &Shard,
    concurrency: usize,
    runs: u64,
    longest: Duration,
) -> Result<Drained> {
    let handled = Arc::new(Handled::default());
    let worker = counting_worker(shard, &handled)?
        .concurrency(concurrency)
        .build();
    let start = Instant::now();
    let mut drained = Drained {
        runs: 0,
        elapsed: Duration::ZERO,
    };
    // The worker's own drain comes after the measurement.
    let end = async {
        let _ = tokio::time::timeout(longest, handled.reached(runs)).await;
        drained = Drained {
            runs: handled.count(),
            elapsed: start.elapsed(),
        };
    };
    worker.run_until(end).await?;
    Ok(drained)
}
