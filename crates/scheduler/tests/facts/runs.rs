//! How a run ends, and what its tenant's other runs see of it.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use std::sync::{Arc, Mutex};

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{
    Backoff, BoxError, Handler, Job, JobOutcome, RunContext, Worker, WorkerReport,
};
use evenhand_store::{
    AttemptsMax, NewRun, Payload, ReadyAt, Run, RunId, RunState, RunTimeout, Timestamp,
};
use tokio::time::Instant;

use crate::store::{Task, TestStore, policy, run_of};

const MINUTE: Duration = Duration::from_mins(1);

struct Scene {
    store: TestStore,
    policy: WeightedFairnessPolicy,
}

impl Scene {
    fn new() -> Self {
        Self {
            store: TestStore::new(),
            policy: policy(&[("a", 1)]),
        }
    }

    async fn one(&self, run: NewRun) -> RunId {
        self.store.add_all(&[run]).await[0]
    }

    /// Works for this long.
    async fn work(&self, time: Duration, handler: impl Handler<Task>) -> WorkerReport {
        let worker = Worker::builder(self.store.clone(), self.policy.clone())
            .on::<Task>(handler)
            .build();
        worker
            .run_until(tokio::time::sleep(time))
            .await
            .expect("ended well")
    }
}

fn seconds_between(earlier: Timestamp, later: Timestamp) -> f64 {
    later.duration_since(earlier).as_secs_f64()
}

fn error_of(run: &Run) -> &str {
    run.last_error.as_deref().expect("an attempt failed")
}

#[tokio::test(start_paused = true)]
async fn handler_is_dropped_at_the_timeout_and_its_run_fails() {
    let scene = Scene::new();
    let mut slow = run_of("a", 0);
    slow.timeout = RunTimeout::new(Duration::from_millis(1_500)).expect("a timeout");
    slow.attempts_max = AttemptsMax::new(1).expect("an attempt");
    let id = scene.one(slow).await;
    let stopped = Arc::new(Mutex::new(None));
    let stopping = Arc::clone(&stopped);
    let handler = move |_: Task, context: RunContext| {
        let (stopping, started) = (Arc::clone(&stopping), Instant::now());
        async move {
            // What a handler spawned outlives it, but learns of its end.
            tokio::spawn(async move {
                context.cancellation().cancelled().await;
                *stopping.lock().expect("no panic") = Some(started.elapsed());
            });
            core::future::pending::<Result<JobOutcome, BoxError>>().await
        }
    };
    let report = scene.work(MINUTE, handler).await;
    assert_eq!((report.failed, report.dead), (1, 1));
    let run = scene.store.get(id).await;
    assert_eq!(
        (run.state, error_of(&run)),
        (RunState::Dead, "timed out after 1.5s")
    );
    let stopped = *stopped.lock().expect("no panic");
    assert_eq!(stopped, Some(Duration::from_millis(1_500)));
}

#[tokio::test(start_paused = true)]
async fn panic_fails_the_run_and_not_the_worker() {
    let scene = Scene::new();
    let mut bad = run_of("a", 13);
    bad.attempts_max = AttemptsMax::new(1).expect("an attempt");
    let bad = scene.one(bad).await;
    let good = scene.one(run_of("a", 14)).await;
    let handler = |task: Task, _: RunContext| async move {
        assert_ne!(task.number, 13, "unlucky");
        Ok::<_, BoxError>(JobOutcome::Done)
    };
    let report = scene.work(MINUTE, handler).await;
    assert_eq!((report.completed, report.dead), (1, 1));
    let run = scene.store.get(bad).await;
    assert!(
        error_of(&run).starts_with("the handler panicked: "),
        "{:?}",
        run.last_error
    );
    assert!(error_of(&run).contains("unlucky"));
    assert_eq!(scene.store.get(good).await.state, RunState::Done);
}

#[tokio::test(start_paused = true)]
async fn panic_before_the_first_await_fails_the_run_too() {
    let scene = Scene::new();
    let id = scene.one(run_of("a", 0)).await;
    let handler = |task: Task, _: RunContext| {
        assert!(task.number != 0, "not even a future");
        async { Ok::<_, BoxError>(JobOutcome::Done) }
    };
    let report = scene.work(Duration::from_millis(1), handler).await;
    assert_eq!((report.ran, report.failed), (1, 1));
    assert_eq!(
        error_of(&scene.store.get(id).await),
        "the handler panicked: not even a future"
    );
}

#[tokio::test(start_paused = true)]
async fn undecodable_payload_goes_to_the_dead_letter_at_once() {
    let scene = Scene::new();
    let mut odd = run_of("a", 0);
    odd.payload = Payload::new(serde_json::json!({"number": "seven"})).expect("a payload");
    let id = scene.one(odd).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let handler = move |_: Task, _: RunContext| {
        counter.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, BoxError>(JobOutcome::Done) }
    };
    let report = scene.work(MINUTE, handler).await;
    assert_eq!((report.ran, report.dead), (1, 1));
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let run = scene.store.get(id).await;
    assert_eq!((run.state, run.attempt), (RunState::Dead, 1));
    assert!(
        error_of(&run).starts_with("the payload does not decode: "),
        "{:?}",
        run.last_error
    );
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Novelty;

impl Job for Novelty {
    const KIND: &'static str = "novelty";
}

#[tokio::test(start_paused = true)]
async fn unknown_kind_waits_uncounted_for_a_worker_that_knows_it() {
    let scene = Scene::new();
    let new = Novelty
        .new_run("a".parse().expect("a tenant"))
        .expect("a run");
    let id = scene.one(new).await;
    let old = |_: Task, _: RunContext| async { Ok::<_, BoxError>(JobOutcome::Done) };
    let report = scene.work(Duration::from_secs(3), old).await;
    assert_eq!((report.ran, report.released), (1, 1));
    let run = scene.store.get(id).await;
    assert_eq!(
        (run.state, run.attempt, run.last_error),
        (RunState::Queued, 0, None)
    );
    let delay = seconds_between(run.enqueued_at, run.ready_at);
    assert!((10.0..=11.0).contains(&delay), "{delay}");

    let newer = |_: Novelty, _: RunContext| async { Ok::<_, BoxError>(JobOutcome::Done) };
    let worker = Worker::builder(scene.store.clone(), scene.policy.clone()).on::<Novelty>(newer);
    let report = worker
        .build()
        .run_until(tokio::time::sleep(MINUTE))
        .await
        .expect("ended well");
    assert_eq!(report.completed, 1);
    assert_eq!(scene.store.get(id).await.attempt, 1);
}

#[derive(Debug, thiserror::Error)]
#[error("cannot print")]
struct Jammed(#[source] std::io::Error);

#[tokio::test(start_paused = true)]
async fn failed_attempts_wait_longer_and_longer_and_end_in_the_dead_letter() {
    let scene = Scene::new();
    let mut doomed = run_of("a", 0);
    doomed.attempts_max = AttemptsMax::new(4).expect("attempts");
    let id = scene.one(doomed).await;
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&attempts);
    let handler = move |_: Task, context: RunContext| {
        log.lock()
            .expect("no panic")
            .push((context.attempt(), context.fence().get()));
        async { Err::<JobOutcome, _>(Jammed(std::io::Error::other("no paper"))) }
    };
    let report = scene.work(MINUTE, handler).await;
    assert_eq!((report.ran, report.failed, report.dead), (4, 4, 1));
    assert_eq!(
        *attempts.lock().expect("no panic"),
        [(1, 1), (2, 2), (3, 3), (4, 4)]
    );
    let run = scene.store.get(id).await;
    assert_eq!(
        (run.state, error_of(&run)),
        (RunState::Dead, "cannot print: no paper")
    );
}

#[tokio::test(start_paused = true)]
async fn run_that_fails_once_succeeds_at_its_next_attempt() {
    let scene = Scene::new();
    let id = scene.one(run_of("a", 0)).await;
    let handler = |_: Task, context: RunContext| async move {
        if context.attempt() == 1 {
            Err("not yet")
        } else {
            Ok(JobOutcome::Done)
        }
    };
    let report = scene.work(MINUTE, handler).await;
    assert_eq!((report.ran, report.failed, report.completed), (2, 1, 1));
    let run = scene.store.get(id).await;
    assert_eq!((run.state, run.attempt), (RunState::Done, 2));
    let waited = seconds_between(run.enqueued_at, run.ready_at);
    assert!(
        (0.0..=2.0).contains(&waited),
        "{waited} is above the backoff and a wait tick"
    );
}

#[tokio::test(start_paused = true)]
async fn handler_decides_when_to_try_again_and_when_to_give_up() {
    let scene = Scene::new();
    let later = scene.one(run_of("a", 1)).await;
    let never = scene.one(run_of("a", 2)).await;
    let handler = |task: Task, _: RunContext| async move {
        Ok::<_, BoxError>(match task.number {
            1 => JobOutcome::RetryAfter(Duration::from_secs(1_000)),
            _ => JobOutcome::GiveUp("no such customer".into()),
        })
    };
    let report = scene.work(MINUTE, handler).await;
    assert_eq!((report.failed, report.dead), (2, 1));
    let later = scene.store.get(later).await;
    assert_eq!((later.state, later.attempt), (RunState::Queued, 1));
    let waits = seconds_between(later.enqueued_at, later.ready_at);
    assert!((1_000.0..=1_001.0).contains(&waits), "{waits}");
    let never = scene.store.get(never).await;
    assert_eq!(
        (never.state, error_of(&never)),
        (RunState::Dead, "no such customer")
    );
}

#[tokio::test(start_paused = true)]
async fn run_that_its_handler_keeps_releasing_does_not_spin() {
    let scene = Scene::new();
    let id = scene.one(run_of("a", 0)).await;
    let handler = |_: Task, _: RunContext| async { Ok::<_, BoxError>(JobOutcome::Release) };
    let report = scene.work(MINUTE, handler).await;
    assert!((10..=60).contains(&report.released), "{report:?}");
    assert_eq!(scene.store.get(id).await.attempt, 0);
}

#[tokio::test(start_paused = true)]
async fn run_is_not_started_before_its_ready_time() {
    let scene = Scene::new();
    let mut later = run_of("a", 0);
    later.ready_at = ReadyAt::After(Duration::from_secs(30));
    let id = scene.one(later).await;
    let handler = |_: Task, _: RunContext| async { Ok::<_, BoxError>(JobOutcome::Done) };
    let report = scene.work(Duration::from_secs(29), handler).await;
    assert_eq!(report, WorkerReport::default());
    let report = scene.work(Duration::from_secs(5), handler).await;
    assert_eq!(report.completed, 1);
    assert_eq!(scene.store.get(id).await.state, RunState::Done);
}

#[tokio::test(start_paused = true)]
async fn backoff_is_the_workers_to_choose() {
    let scene = Scene::new();
    let id = scene.one(run_of("a", 0)).await;
    let handler = |_: Task, _: RunContext| async { Err::<JobOutcome, _>("always") };
    let never = Backoff::new(Duration::ZERO, Duration::ZERO);
    let worker = Worker::builder(scene.store.clone(), scene.policy.clone())
        .on::<Task>(handler)
        .backoff(never)
        .build();
    // Without a delay all twenty attempts are ready at once.
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!((report.failed, report.dead), (20, 1));
    assert_eq!(scene.store.get(id).await.state, RunState::Dead);
}
