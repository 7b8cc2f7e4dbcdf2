//! Pruning in the background.

use core::time::Duration;

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{
    BoxError, JobOutcome, RunContext, Worker, WorkerBuilder, WorkerRetention,
};
use evenhand_store::{
    HistoryRetentionPolicy, RunQueue, SchedulerFairnessRetentionPolicy, StoreErrorKind,
};
use tokio::time::sleep;

use crate::store::{Fault, Task, TestStore, policy};

const DAY: Duration = Duration::from_hours(24);

async fn done(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    Ok(JobOutcome::Done)
}

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> WorkerBuilder<TestStore> {
    Worker::builder(store.clone(), policy.clone()).on::<Task>(done)
}

async fn done_runs(store: &TestStore) -> usize {
    let counts = store.counts().await.expect("answered");
    let done: u64 = counts.iter().map(|counts| counts.done).sum();
    usize::try_from(done).expect("few runs")
}

#[tokio::test(start_paused = true)]
async fn each_part_is_pruned_every_minute_unless_the_store_refuses_for_good() {
    let (off, on) = (WorkerRetention::off(), WorkerRetention::default());
    for (retention, fault, expected) in [
        (on, None, 7..=21),
        (off, None, 0..=0),
        (on, Some(StoreErrorKind::Unavailable), 7..=21),
        (on, Some(StoreErrorKind::Unsupported), 1..=1),
        // What a store answers to those who have no right.
        (on, Some(StoreErrorKind::Invalid), 1..=1),
    ] {
        for method in ["prune", "prune_history"] {
            let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
            if let Some(kind) = fault {
                store.inject(method, Fault::Refuse(kind), usize::MAX);
            }
            let worker = worker(&store, &policy).retention(retention).build();
            worker
                .run_until(sleep(Duration::from_mins(10)))
                .await
                .expect("ended well");
            let passes = store.count(method);
            assert!(
                expected.contains(&passes),
                "{passes} of {method} with {fault:?}"
            );
            // Whatever becomes of one part, the other goes on.
            let other = if method == "prune" {
                "prune_history"
            } else {
                "prune"
            };
            assert_eq!(
                store.count(other) > 5,
                retention == on,
                "{method} with {fault:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pruning_keeps_up_with_inserts_of_many_batches_a_minute() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let (hour, batch) = (Duration::from_hours(1), 3);
    let reservations = SchedulerFairnessRetentionPolicy::new(hour, batch).expect("allowed");
    let history = HistoryRetentionPolicy::new(hour, hour, hour, batch).expect("allowed");
    let retention = WorkerRetention::off()
        .reservations(reservations)
        .history(history);
    let worker = worker(&store, &policy)
        .concurrency(1)
        .retention(retention)
        .build();
    let inserting = async {
        for _ in 0..120 {
            store.add("a", 10).await;
            sleep(Duration::from_mins(1)).await;
        }
    };
    let report = worker.run_until(inserting).await.expect("ended well");
    assert_eq!((report.completed, report.blocks), (1_200, 1_200));
    // What is kept is an hour of inserts, and what came between the newest two passes.
    let most = 10 * 64;
    for (kept, what) in [
        (store.blocks(&policy).await.len(), "reservations"),
        (store.records(&policy).await.len(), "outcomes"),
        (done_runs(&store).await, "done runs"),
    ] {
        assert!((10 * 59..=most).contains(&kept), "{what}: {kept}");
    }
}

#[tokio::test(start_paused = true)]
async fn pruning_keeps_up_with_a_backlog_of_many_batches() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 300).await;
    let off = WorkerRetention::off();
    let worked = worker(&store, &policy)
        .concurrency(1)
        .retention(off)
        .build();
    worked.run_until_idle().await.expect("ended well");
    assert_eq!(store.blocks(&policy).await.len(), 300);
    tokio::time::advance(8 * DAY).await;

    let batch = 10;
    let reservations = SchedulerFairnessRetentionPolicy::new(7 * DAY, batch).expect("allowed");
    let history = HistoryRetentionPolicy::new(7 * DAY, 7 * DAY, 7 * DAY, batch).expect("allowed");
    let retention = WorkerRetention::off()
        .reservations(reservations)
        .history(history);
    let pruning = worker(&store, &policy).retention(retention).build();
    pruning
        .run_until(sleep(Duration::from_mins(5)))
        .await
        .expect("ended well");
    // The newest reservation stays, and with it what belongs to it.
    assert_eq!(store.blocks(&policy).await.len(), 1);
    assert_eq!(store.records(&policy).await.len(), 1);
    let counts = store.counts().await.expect("answered");
    assert!(counts.iter().all(|counts| counts.done == 0), "{counts:?}");
}
