//! Runs that are done: handed in together, and what their permits are waited for.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use evenhand_scheduler::{BoxError, JobOutcome, RunContext, Worker, WorkerReport};
use tokio::time::{Instant, sleep};

use crate::store::{Fault, Task, TestStore, policy};

/// Drains 64 runs with 16 permits, each in so many milliseconds.
async fn drain(store: &TestStore, millis: u64) -> WorkerReport {
    store.add("a", 64).await;
    let handler = move |_: Task, _: RunContext| async move {
        sleep(Duration::from_millis(millis)).await;
        Ok::<_, BoxError>(JobOutcome::Done)
    };
    let worker = Worker::builder(store.clone(), policy(&[("a", 1)]))
        .concurrency(16)
        .on::<Task>(handler);
    let ran = worker.build().run_until_idle().await;
    ran.expect("ended well")
}

#[tokio::test(start_paused = true)]
async fn runs_that_end_at_once_are_completed_together() {
    let store = TestStore::new();
    let report = drain(&store, 10).await;
    assert_eq!((report.completed, report.blocks), (64, 4));
    assert_eq!(store.completed(), [16; 4]);
}

#[tokio::test(start_paused = true)]
async fn round_is_not_made_for_the_run_that_ended_first_while_others_are_handed_in() {
    let store = TestStore::new();
    store.add("a", 64).await;
    let begun = AtomicUsize::new(0);
    // One of each round is a little faster, and the others end while it is being completed.
    let handler = move |_: Task, _: RunContext| {
        let is_fast = begun.fetch_add(1, Ordering::Relaxed).is_multiple_of(16);
        async move {
            sleep(Duration::from_millis(if is_fast { 10 } else { 12 })).await;
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    store.inject("complete", Fault::Late(Duration::from_millis(4)), 64);
    let worker = Worker::builder(store.clone(), policy(&[("a", 1)]))
        .concurrency(16)
        .on::<Task>(handler);
    let report = worker.build().run_until_idle().await.expect("ended well");
    assert_eq!((report.completed, report.blocks), (64, 4));
    assert_eq!(store.completed(), [1, 15, 1, 15, 1, 15, 1, 15]);
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_alone_is_completed_at_once() {
    let store = TestStore::new();
    store.add("a", 1).await;
    let started = Instant::now();
    let worker = Worker::builder(store.clone(), policy(&[("a", 1)]))
        .on::<Task>(async |_: Task, _: RunContext| Ok::<_, BoxError>(JobOutcome::Done));
    let report = worker.build().run_until_idle().await.expect("ended well");
    assert_eq!(report.completed, 1);
    assert_eq!(store.completed(), [1]);
    assert!(started.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn completion_that_is_never_answered_holds_others_up_for_a_second_only() {
    let store = TestStore::new();
    store.add("a", 9).await;
    store.inject("complete", Fault::Hang, 1);
    let handled = AtomicUsize::new(0);
    let handler = move |_: Task, _: RunContext| {
        let before = handled.fetch_add(1, Ordering::Relaxed);
        let millis = u64::try_from(before + 1).unwrap_or(u64::MAX) * 10;
        async move {
            sleep(Duration::from_millis(millis)).await;
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = Worker::builder(store.clone(), policy(&[("a", 1)]))
        .concurrency(3)
        .on::<Task>(handler)
        .build();
    let ran = worker.run_until(sleep(Duration::from_secs(3))).await;
    let report = ran.expect("ended well");
    assert_eq!((report.completed, report.left), (8, 1));
}

#[tokio::test(start_paused = true)]
async fn look_that_comes_with_a_round_spares_the_next_unless_it_is_old() {
    // Every round has a look, and the last one finds nobody. What comes with the last round finds nobody either, and is
    // not believed: its runs may have enqueued others.
    for (tells, millis, looks) in [(false, 10, 5), (true, 10, 2), (true, 30, 5)] {
        let mut store = TestStore::new();
        if !tells {
            store = store.that_tells_no_looks();
        }
        let report = drain(&store, millis).await;
        assert_eq!((report.completed, report.blocks), (64, 4));
        assert_eq!(store.count("ready_tenants"), looks, "{tells} {millis}");
    }
}
