//! How a worker ends when it is asked to.

use core::time::Duration;

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{BoxError, JobOutcome, RunContext, Worker, WorkerBuilder, WorkerReport};
use evenhand_store::{LeaseDuration, RunState, StoreErrorKind};
use tokio::time::{Instant, sleep};

use crate::store::{Fault, Task, TestStore, policy};

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> WorkerBuilder<TestStore> {
    Worker::builder(store.clone(), policy.clone())
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn for_5_seconds(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    sleep(seconds(5)).await;
    Ok(JobOutcome::Done)
}

async fn for_ever(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    core::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn drain_finishes_what_runs_and_takes_nothing_new() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 10).await;
    let worker = worker(&store, &policy)
        .concurrency(3)
        .on::<Task>(for_5_seconds)
        .build();
    let started = Instant::now();
    let report = worker
        .run_until(sleep(seconds(1)))
        .await
        .expect("ended well");
    assert_eq!(started.elapsed(), seconds(5));
    assert_eq!((report.ran, report.completed), (3, 3));
    assert_eq!(store.consumed(&policy).await, 3);
}

#[tokio::test(start_paused = true)]
async fn runs_that_outlast_the_grace_period_are_released_for_others_at_once() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let runs = store.add("a", 2).await;
    let stubborn = worker(&store, &policy)
        .grace(seconds(4))
        .on::<Task>(for_ever)
        .build();
    let started = Instant::now();
    let report = stubborn
        .run_until(sleep(seconds(1)))
        .await
        .expect("ended well");
    assert_eq!(started.elapsed(), seconds(5));
    assert_eq!((report.ran, report.released, report.left), (2, 2, 0));
    for run in &runs {
        let run = store.get(*run).await;
        assert_eq!((run.state, run.attempt), (RunState::Queued, 0));
        assert_eq!(run.ready_at, run.enqueued_at);
    }
    let next = worker(&store, &policy).on::<Task>(for_5_seconds).build();
    let report = next.run_until_idle().await.expect("ended well");
    assert_eq!((report.ran, report.completed), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_during_the_grace_period_of_15_seconds() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    let short = LeaseDuration::new(seconds(2)).expect("a lease");
    let stubborn = worker(&store, &policy).lease(short).on::<Task>(for_ever);
    let other = worker(&store, &policy)
        .lease(short)
        .on::<Task>(for_5_seconds)
        .build();
    let started = Instant::now();
    let stubborn = stubborn.build();
    let draining = async {
        let report = stubborn.run_until(sleep(seconds(1))).await;
        (report.expect("ended well"), started.elapsed())
    };
    let ((first, took), second) = tokio::join!(draining, async {
        sleep(seconds(1)).await;
        other
            .run_until(sleep(seconds(30)))
            .await
            .expect("ended well")
    });
    // Nobody takes the run away before its worker gives it back.
    assert_eq!(took, seconds(16));
    assert_eq!((first.released, first.lease_lost, first.left), (1, 0, 0));
    assert_eq!(second.completed, 1);
    let run = store.get(run).await;
    assert_eq!((run.state, run.attempt), (RunState::Done, 1));
}

#[tokio::test(start_paused = true)]
async fn handler_that_heeds_the_shutdown_ends_the_drain_early() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    let handler = |_: Task, context: RunContext| async move {
        context.cancellation().cancelled().await;
        Ok::<_, BoxError>(JobOutcome::Release)
    };
    let worker = worker(&store, &policy).on::<Task>(handler).build();
    let started = Instant::now();
    let report = worker
        .run_until(sleep(seconds(1)))
        .await
        .expect("ended well");
    assert_eq!(started.elapsed(), seconds(1));
    assert_eq!((report.ran, report.released), (1, 1));
    assert_eq!(store.get(run).await.attempt, 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_before_the_start_does_nothing() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    let worker = worker(&store, &policy).on::<Task>(for_5_seconds).build();
    let report = worker
        .run_until(core::future::ready(()))
        .await
        .expect("ended well");
    assert_eq!(report, WorkerReport::default());
    assert_eq!(store.count("reserve"), 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_worker_whose_store_is_away() {
    for method in ["register_policy", "ready_tenants", "reserve", "claim_round"] {
        let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
        store.add("a", 1).await;
        store.inject(
            method,
            Fault::Refuse(StoreErrorKind::Unavailable),
            usize::MAX,
        );
        let worker = worker(&store, &policy)
            .concurrency(1)
            .on::<Task>(for_5_seconds)
            .build();
        let started = Instant::now();
        let report = worker
            .run_until(sleep(seconds(60)))
            .await
            .expect("ended well");
        assert!(
            started.elapsed() <= seconds(71),
            "{method}: {:?}",
            started.elapsed()
        );
        assert_eq!(report.ran, 0, "{method}");
        assert!(store.count(method) > 10, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn drain_ends_in_time_even_if_the_store_never_answers() {
    for method in ["reserve", "claim_round", "complete"] {
        let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
        store.add("a", 1).await;
        store.inject(method, Fault::Hang, usize::MAX);
        let worker = worker(&store, &policy)
            .concurrency(1)
            .on::<Task>(for_5_seconds)
            .build();
        let started = Instant::now();
        let report = worker
            .run_until(sleep(seconds(10)))
            .await
            .expect("ended well");
        assert_eq!(started.elapsed(), seconds(10 + 15 + 10), "{method}");
        let expected = match method {
            "complete" => (1, 1, 0),
            _ => (0, 0, 1),
        };
        assert_eq!(
            (report.ran, report.left, report.sequences.unknown),
            expected,
            "{method}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn worker_that_holds_nothing_ends_at_once_even_if_the_store_never_answers() {
    for method in ["register_policy", "recover", "ready_tenants"] {
        let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
        store.inject(method, Fault::Hang, usize::MAX);
        let worker = worker(&store, &policy).on::<Task>(for_5_seconds).build();
        let started = Instant::now();
        let report = worker
            .run_until(sleep(seconds(10)))
            .await
            .expect("ended well");
        assert_eq!(started.elapsed(), seconds(10), "{method}");
        assert_eq!(report, WorkerReport::default(), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn endless_grace_period_waits_for_the_handler() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    let worker = worker(&store, &policy)
        .grace(Duration::MAX)
        .on::<Task>(for_5_seconds)
        .build();
    let report = worker
        .run_until(sleep(seconds(1)))
        .await
        .expect("ended well");
    assert_eq!(report.completed, 1);
}

#[tokio::test(start_paused = true)]
async fn run_whose_end_the_store_was_not_told_is_reported_as_left() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    store.inject(
        "complete",
        Fault::Refuse(StoreErrorKind::Unavailable),
        usize::MAX,
    );
    let worker = worker(&store, &policy).on::<Task>(for_5_seconds).build();
    let report = worker
        .run_until(sleep(seconds(7)))
        .await
        .expect("ended well");
    assert_eq!((report.ran, report.left, report.completed), (1, 1, 0));
}
