//! A day of work in memory: enqueue for everybody, let a worker loose, read who was served when.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{SchedulerShardId, TeamId, TenantId};
use evenhand_scheduler::{BoxError, JobOutcome, RunContext, Worker};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{RunQueue, SequenceOutcome};
use tokio::sync::Notify;

use crate::{Customer, Export, policy};

/// How much work a customer brings.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Demand {
    /// Who.
    pub customer: Customer,
    /// How many runs it enqueues.
    pub runs: u32,
}

impl Demand {
    /// `runs` runs of `customer`.
    pub fn new(customer: Customer, runs: u32) -> Self {
        Self { customer, runs }
    }
}

/// A selection that ran something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// The position in the shard's order.
    pub sequence: u64,
    /// The bucket whose turn it was.
    pub tenant: TenantId,
    /// The customer whose run it took.
    pub customer: TeamId,
}

/// Enqueues everything, in the order of the list, works until `exports` runs are done, and tells all turns in order.
///
/// Each export takes `time`; eight are made at once, so a few more than `exports` may be done in the end.
///
/// # Errors
///
/// Those of store and worker.
pub async fn serve(
    store: &MemoryStore,
    demands: &[Demand],
    time: Duration,
    exports: usize,
) -> Result<Vec<Turn>, BoxError> {
    for demand in demands {
        let runs = (0..demand.runs).map(|document| Export::run(&demand.customer, document));
        let runs = runs.collect::<Result<Vec<_>, _>>()?;
        store.enqueue_many(&runs).await?;
    }
    let policy = policy(SchedulerShardId::try_from("classes-v1")?)?;
    let left = Arc::new(AtomicUsize::new(exports));
    let enough = Arc::new(Notify::new());
    let stop = Arc::clone(&enough);
    let export = move |_: Export, _: RunContext| {
        let (left, enough) = (Arc::clone(&left), Arc::clone(&enough));
        async move {
            tokio::time::sleep(time).await;
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                enough.notify_one();
            }
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = Worker::builder(store.clone(), policy.clone())
        .concurrency(8)
        .on::<Export>(export);
    worker.build().run_until(stop.notified()).await?;
    turns(store, policy.shard()).await
}

async fn turns(store: &MemoryStore, shard: &SchedulerShardId) -> Result<Vec<Turn>, BoxError> {
    let mut turns = Vec::new();
    for record in store.sequences(shard, 0, u32::MAX).await? {
        if let SequenceOutcome::Ran(attempt) = record.outcome {
            let run = store.run(attempt.run).await?.ok_or("a run is gone")?;
            turns.push(Turn {
                sequence: record.sequence,
                tenant: run.spec.tenant,
                customer: run.spec.team,
            });
        }
    }
    Ok(turns)
}
