//! Leases: kept while the handler works, and given up in time.

use core::time::Duration;

use std::sync::{Arc, Mutex};

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{BoxError, JobOutcome, RunContext, Worker, WorkerBuilder};
use evenhand_store::{LeaseDuration, RunQueue, RunState, StoreErrorKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::{Fault, Task, TestStore, policy};

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> WorkerBuilder<TestStore> {
    Worker::builder(store.clone(), policy.clone())
}

async fn for_100_seconds(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    tokio::time::sleep(Duration::from_secs(100)).await;
    Ok(JobOutcome::Done)
}

/// Notes when it began and when it was dropped, and never ends by itself at its first attempt.
#[derive(Clone, Default)]
struct Stuck {
    // From when to when.
    lives: Arc<Mutex<Vec<Lived>>>,
}

type Lived = (Instant, Option<Instant>);

struct Life(Stuck, usize);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.lives.lock().expect("no panic")[self.1].1 = Some(Instant::now());
    }
}

impl Stuck {
    fn begin(&self) -> Life {
        let mut lives = self.lives.lock().expect("no panic");
        lives.push((Instant::now(), None));
        Life(self.clone(), lives.len() - 1)
    }

    fn lasted(&self) -> Vec<Option<Duration>> {
        let lives = self.lives.lock().expect("no panic");
        lives
            .iter()
            .map(|(from, to)| to.map(|to| to - *from))
            .collect()
    }
}

impl evenhand_scheduler::Handler<Task> for Stuck {
    async fn handle(&self, _: Task, context: RunContext) -> Result<JobOutcome, BoxError> {
        let _life = self.begin();
        if context.attempt() == 1 {
            core::future::pending::<()>().await;
        }
        Ok(JobOutcome::Done)
    }
}

#[tokio::test(start_paused = true)]
async fn run_much_longer_than_its_lease_is_done_once() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    let [one, two] = [(); 2].map(|()| worker(&store, &policy).on::<Task>(for_100_seconds).build());
    let shutdown = || tokio::time::sleep(Duration::from_mins(3));
    let (one, two) = tokio::join!(one.run_until(shutdown()), two.run_until(shutdown()));
    let (one, two) = (one.expect("ended well"), two.expect("ended well"));
    assert_eq!((one.ran + two.ran, one.completed + two.completed), (1, 1));
    let run = store.get(run).await;
    assert_eq!((run.state, run.attempt), (RunState::Done, 1));
}

#[tokio::test(start_paused = true)]
async fn all_leases_of_a_worker_are_renewed_in_one_call() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 7).await;
    let worker = worker(&store, &policy).on::<Task>(for_100_seconds).build();
    worker.run_until_idle().await.expect("ended well");
    // Every ten seconds, from the first claim to the last completion.
    let renewed = store.renewed();
    assert!((9..=10).contains(&renewed.len()), "{renewed:?}");
    assert!(
        renewed[..9].iter().all(|leases| *leases == 7),
        "{renewed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn lease_that_cannot_be_renewed_stops_its_handler_before_it_ends() {
    for fault in [
        Fault::Refuse(StoreErrorKind::Unavailable),
        Fault::LoseReply,
        Fault::Hang,
    ] {
        let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
        let run = store.add("a", 1).await[0];
        store.inject("renew", fault, usize::MAX);
        let stuck = Stuck::default();
        let worker = worker(&store, &policy).on::<Task>(stuck.clone()).build();
        let mend = async {
            tokio::time::sleep(Duration::from_secs(28)).await;
            store.mend();
            tokio::time::sleep(Duration::from_mins(2)).await;
        };
        let report = worker.run_until(mend).await.expect("ended well");
        let lasted = stuck.lasted();
        let first = lasted[0].expect("it was dropped");
        assert!(
            first > Duration::from_secs(20),
            "{fault:?}: it was given up after {first:?}"
        );
        assert!(
            first < Duration::from_secs(30),
            "{fault:?}: it outlived its lease: {first:?}"
        );
        // The store never heard of the first attempt's end, so its lease expired, and the second one did it.
        assert_eq!((report.lease_lost, report.completed), (1, 1), "{fault:?}");
        assert_eq!(store.get(run).await.attempt, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn some_refused_renewals_are_survived() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    store.inject("renew", Fault::Hang, 1);
    let worker = worker(&store, &policy).on::<Task>(for_100_seconds).build();
    let idle = async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        store.inject("renew", Fault::Refuse(StoreErrorKind::Unavailable), 3);
        core::future::pending::<()>().await;
    };
    let report = tokio::select! {
        report = worker.run_until_idle() => report.expect("ended well"),
        () = idle => unreachable!(),
    };
    assert_eq!((report.completed, report.lease_lost), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn lost_lease_stops_the_handler_and_changes_nothing() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    let thief = store.clone();
    let handler = move |_: Task, context: RunContext| {
        let thief = thief.clone();
        async move {
            if context.fence().get() == 1 {
                // Somebody else puts the run back for an hour, as an operator might.
                thief
                    .release(context.lease(), Duration::from_hours(1))
                    .await?;
                core::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = worker(&store, &policy).on::<Task>(handler).build();
    let started = Instant::now();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!((report.ran, report.lease_lost), (1, 1));
    assert!(
        started.elapsed() < Duration::from_secs(12),
        "a renewal is due every ten seconds"
    );
    let run = store.get(run).await;
    assert_eq!(
        (run.state, run.attempt, run.last_error),
        (RunState::Queued, 0, None)
    );
}

#[tokio::test(start_paused = true)]
async fn stale_completion_is_reported_as_a_lost_lease() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    let thief = store.clone();
    let handler = move |_: Task, context: RunContext| {
        let thief = thief.clone();
        async move {
            thief
                .release(context.lease(), Duration::from_hours(1))
                .await?;
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = worker(&store, &policy).on::<Task>(handler).build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!((report.ran, report.lease_lost, report.completed), (1, 1, 0));
    assert_eq!(store.get(run).await.state, RunState::Queued);
}

#[tokio::test(start_paused = true)]
async fn run_that_its_handler_completed_itself_is_completed_once() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    let own = store.clone();
    let handler = move |_: Task, context: RunContext| {
        let own = own.clone();
        async move {
            own.complete(context.lease()).await?;
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = worker(&store, &policy).on::<Task>(handler).build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!((report.ran, report.completed), (1, 1));
    assert_eq!(store.get(run).await.state, RunState::Done);
}

#[tokio::test(start_paused = true)]
async fn dropped_worker_stops_at_once_and_its_runs_are_recovered() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    let stuck = Stuck::default();
    let first = worker(&store, &policy).on::<Task>(stuck.clone()).build();
    let cut = tokio::time::timeout(Duration::from_secs(5), first.run_until_idle()).await;
    assert!(cut.is_err());
    // The aborted task is dropped by the runtime as soon as it gets a turn.
    tokio::task::yield_now().await;
    assert!(stuck.lasted()[0].is_some(), "the handler still runs");
    assert_eq!(store.get(run).await.state, RunState::Running);

    let started = Instant::now();
    let done = CancellationToken::new();
    let finished = done.clone();
    let handler = move |_: Task, context: RunContext| {
        assert_eq!(context.attempt(), 2);
        finished.cancel();
        async { Ok::<_, BoxError>(JobOutcome::Done) }
    };
    let second = worker(&store, &policy).on::<Task>(handler).build();
    let report = second
        .run_until(done.cancelled())
        .await
        .expect("ended well");
    assert_eq!(report.completed, 1);
    // 25 seconds of lease are left, and the next look for expired ones comes within 15 seconds.
    let waited = started.elapsed();
    assert!(
        waited > Duration::from_secs(25) && waited < Duration::from_secs(45),
        "{waited:?}"
    );
    assert_eq!(store.get(run).await.state, RunState::Done);
}

#[tokio::test(start_paused = true)]
async fn worker_recovers_what_has_expired_before_its_first_look() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    let first = worker(&store, &policy).on::<Task>(Stuck::default()).build();
    let cut = tokio::time::timeout(Duration::from_secs(5), first.run_until_idle()).await;
    assert!(cut.is_err());
    tokio::time::advance(Duration::from_secs(40)).await;

    let left = worker(&store, &policy)
        .on::<Task>(Stuck::default())
        .recovery(false)
        .build();
    assert_eq!(left.run_until_idle().await.expect("ended well").ran, 0);
    let taken = worker(&store, &policy).on::<Task>(Stuck::default()).build();
    assert_eq!(
        taken.run_until_idle().await.expect("ended well").completed,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn short_lease_is_kept_as_well() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 3).await;
    let second = LeaseDuration::new(Duration::from_secs(1)).expect("a lease");
    let worker = worker(&store, &policy)
        .lease(second)
        .on::<Task>(for_100_seconds)
        .build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!((report.ran, report.completed), (3, 3));
}
