//! How an idle worker waits.

use core::time::Duration;

use std::sync::{Arc, Mutex};

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{BoxError, JobOutcome, RunContext, Worker, WorkerBuilder};
use evenhand_store::{ReadyAt, StoreErrorKind};
use tokio::time::{Instant, sleep};

use crate::store::{Fault, Task, TestStore, Wakes, policy, run_of};

const HOUR: Duration = Duration::from_hours(1);

/// When handlers began.
type Begun = Arc<Mutex<Vec<Instant>>>;

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> (WorkerBuilder<TestStore>, Begun) {
    let begun = Begun::default();
    let noted = Arc::clone(&begun);
    let handler = move |_: Task, _: RunContext| {
        noted.lock().expect("no panic").push(Instant::now());
        async { Ok::<_, BoxError>(JobOutcome::Done) }
    };
    let worker = Worker::builder(store.clone(), policy.clone()).on::<Task>(handler);
    // Nothing in the background calls the store but what a fact is about.
    (worker.lost_blocks(false).unserved_warnings(false), begun)
}

fn first(begun: &Begun) -> Instant {
    begun.lock().expect("no panic")[0]
}

#[tokio::test(start_paused = true)]
async fn scheduled_run_begins_on_time_and_without_a_busy_loop() {
    for wakes in [Wakes::Nobody, Wakes::WhenEnqueued] {
        let (store, policy) = (TestStore::new().that_wakes(wakes), policy(&[("a", 1)]));
        let started = Instant::now();
        let mut later = run_of("a", 0);
        later.ready_at = ReadyAt::After(Duration::from_secs(90));
        store.add_all(&[later]).await;
        let (worker, begun) = worker(&store, &policy);
        let worker = worker.poll_interval(HOUR).build();
        worker
            .run_until(sleep(Duration::from_mins(2)))
            .await
            .expect("ended well");
        let waited = first(&begun) - started;
        let on_time = Duration::from_secs(90)..Duration::from_millis(90_010);
        assert!(on_time.contains(&waited), "{wakes:?}: {waited:?}");
        // One that finds nobody, one in time, one after the round, and one after the run.
        assert_eq!(store.count("ready_tenants"), 4, "{wakes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn store_that_wakes_the_worker_ends_its_wait_at_once() {
    let store = TestStore::new().that_wakes(Wakes::WhenEnqueued);
    let policy = policy(&[("a", 1)]);
    let (worker, begun) = worker(&store, &policy);
    let worker = worker.poll_interval(HOUR).build();
    let enqueue = async {
        sleep(Duration::from_secs(10)).await;
        store.add("a", 1).await;
        Instant::now()
    };
    let (report, enqueued) = tokio::join!(worker.run_until(sleep(Duration::from_mins(1))), enqueue);
    assert_eq!(report.expect("ended well").completed, 1);
    assert!(first(&begun) - enqueued < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn worker_that_lost_a_race_hears_the_next_wake_up() {
    let store = TestStore::new().that_wakes(Wakes::WhenEnqueued);
    let policy = policy(&[("a", 1), ("b", 3)]);
    let begun = Begun::default();
    let replica = || {
        let noted = Arc::clone(&begun);
        let handler = move |_: Task, _: RunContext| {
            noted.lock().expect("no panic").push(Instant::now());
            async {
                sleep(Duration::from_secs(30)).await;
                Ok::<_, BoxError>(JobOutcome::Done)
            }
        };
        let replica = Worker::builder(store.clone(), policy.clone()).on::<Task>(handler);
        replica.concurrency(1).poll_interval(HOUR).build()
    };
    let replicas = [replica(), replica()];
    // Whoever is first has to ask again, and the other one serves the run meanwhile.
    store.inject("reserve", Fault::Refuse(StoreErrorKind::Unavailable), 1);
    let enqueue = async {
        let mut enqueued = Vec::new();
        for _ in 0..2 {
            sleep(Duration::from_millis(100)).await;
            store.add("a", 1).await;
            enqueued.push(Instant::now());
        }
        enqueued
    };
    let shutdown = || sleep(Duration::from_mins(1));
    let (one, two, enqueued) = tokio::join!(
        replicas[0].run_until(shutdown()),
        replicas[1].run_until(shutdown()),
        enqueue,
    );
    // Both heard the first wake-up, and one of them reserved in vain.
    let (one, two) = (one.expect("ended well"), two.expect("ended well"));
    assert!(one.blocks + two.blocks > 2, "{one:?} {two:?}");
    let begun = begun.lock().expect("no panic");
    for (begun, enqueued) in begun.iter().zip(&enqueued) {
        assert!(
            *begun - *enqueued < Duration::from_millis(10),
            "{:?}",
            *begun - *enqueued
        );
    }
    assert_eq!((one.completed, two.completed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn store_that_wakes_nobody_is_asked_once_and_polled() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let (worker, _) = worker(&store, &policy);
    let report = worker
        .build()
        .run_until(sleep(Duration::from_mins(1)))
        .await;
    report.expect("ended well");
    assert_eq!(store.count("wait_for_work"), 1);
    let looks = store.count("ready_tenants");
    assert!((40..=120).contains(&looks), "{looks} looks in a minute");
}

#[tokio::test(start_paused = true)]
async fn wait_that_fails_is_waited_out() {
    let store = TestStore::new().that_wakes(Wakes::WhenEnqueued);
    let policy = policy(&[("a", 1)]);
    store.inject(
        "wait_for_work",
        Fault::Refuse(StoreErrorKind::Unavailable),
        10,
    );
    store.inject("wait_for_work", Fault::Hang, 2);
    let (worker, _) = worker(&store, &policy);
    let report = worker
        .build()
        .run_until(sleep(Duration::from_mins(1)))
        .await;
    report.expect("ended well");
    let looks = store.count("ready_tenants");
    assert!((30..=120).contains(&looks), "{looks} looks in a minute");
    let half_to_one_and_a_half = Duration::from_millis(500)..Duration::from_millis(1_500);
    let waits = store.waits();
    assert!(
        waits
            .iter()
            .all(|longest| half_to_one_and_a_half.contains(longest)),
        "{waits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn store_that_returns_at_once_makes_no_busy_loop() {
    let store = TestStore::new().that_wakes(Wakes::AtOnce);
    let policy = policy(&[("a", 1)]);
    let (worker, _) = worker(&store, &policy);
    let report = worker
        .build()
        .run_until(sleep(Duration::from_secs(1)))
        .await;
    report.expect("ended well");
    let looks = store.count("ready_tenants");
    assert!((2..=201).contains(&looks), "{looks} looks in a second");
}

#[tokio::test(start_paused = true)]
async fn shutdown_and_the_end_of_an_own_run_cut_the_wait_short() {
    let store = TestStore::new().that_wakes(Wakes::WhenEnqueued);
    let policy = policy(&[("a", 1)]);
    store.add("a", 1).await;
    let handler = |_: Task, _: RunContext| async {
        sleep(Duration::from_secs(7)).await;
        Ok::<_, BoxError>(JobOutcome::Done)
    };
    let worker = Worker::builder(store.clone(), policy)
        .poll_interval(HOUR)
        .on::<Task>(handler)
        .build();
    let started = Instant::now();
    let report = worker.run_until(sleep(Duration::from_secs(20))).await;
    assert_eq!(report.expect("ended well").completed, 1);
    assert_eq!(started.elapsed(), Duration::from_secs(20));
    // One for the round, one when nobody else was ready, and one after the run.
    assert_eq!(store.count("ready_tenants"), 3);
}
