//! One shard follows another, and the workers move over.

use core::time::Duration;

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{
    BoxError, DurableFairScheduler, Handlers, JobOutcome, QueueTenantScheduler, RunContext,
    SchedulerOptions, Worker, WorkerBuilder,
};
use evenhand_store::{
    PolicyRegistration, ReservationStore, RunState, SequenceOutcome, StoreErrorKind,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::store::{Fault, Task, TestStore, policy_of};

async fn a_second(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    sleep(Duration::from_secs(1)).await;
    Ok(JobOutcome::Done)
}

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> WorkerBuilder<TestStore> {
    Worker::builder(store.clone(), policy.clone()).on::<Task>(a_second)
}

fn policies() -> [WeightedFairnessPolicy; 2] {
    [
        policy_of("v1", &[("a", 3), ("b", 1)]),
        policy_of("v2", &[("a", 1), ("b", 3)]),
    ]
}

async fn register(store: &TestStore, policy: &WeightedFairnessPolicy) {
    let registration = PolicyRegistration::new(policy.clone());
    store
        .register_policy(&registration)
        .await
        .expect("registered");
}

async fn retire(store: &TestStore, [old, new]: &[WeightedFairnessPolicy; 2]) {
    store
        .retire(old.shard(), new.shard())
        .await
        .expect("retired");
}

#[tokio::test(start_paused = true)]
async fn old_and_new_deployment_move_over_together_and_do_each_run_once() {
    let (store, policies) = (TestStore::new(), policies());
    let runs = [store.add("a", 200).await, store.add("b", 200).await].concat();
    register(&store, &policies[0]).await;
    let [old, new] =
        [0, 1].map(|version| worker(&store, &policies[version]).concurrency(4).build());
    let change = async {
        sleep(Duration::from_millis(10_500)).await;
        let before = store.consumed(&policies[0]).await;
        retire(&store, &policies).await;
        before
    };
    let (old, new, before) = tokio::join!(
        old.run_until(sleep(Duration::from_mins(2))),
        new.run_until(sleep(Duration::from_mins(2))),
        change,
    );
    let (old, new) = (old.expect("ended well"), new.expect("ended well"));
    assert_eq!(
        (old.completed + new.completed, old.ran + new.ran),
        (400, 400)
    );
    assert!(
        old.completed > 100 && new.completed > 100,
        "{old:?} {new:?}"
    );
    for run in runs {
        let run = store.get(run).await;
        assert_eq!((run.state, run.attempt), (RunState::Done, 1));
    }
    // The old order ended where it stood, and the new one began at its beginning.
    assert!(before > 0);
    assert_eq!(store.consumed(&policies[0]).await, before);
    for policy in &policies {
        assert!(store.everything_is_on_record(policy).await);
        let first_cycle = store.records(policy).await.into_iter().take(4);
        assert!(first_cycle.into_iter().all(|record| {
            matches!(record.outcome, SequenceOutcome::Ran(attempt)
                if attempt.tenant == *policy.tenant_for_sequence(record.sequence))
        }));
    }
    let consumed = old.sequences.consumed() + new.sequences.consumed();
    assert_eq!(consumed, before + store.consumed(&policies[1]).await);
}

#[tokio::test(start_paused = true)]
async fn pending_deployment_serves_the_active_shard() {
    let (store, [old, new]) = (TestStore::new(), policies());
    register(&store, &old).await;
    store.add("a", 5).await;
    let report = worker(&store, &new)
        .build()
        .run_until_idle()
        .await
        .expect("ended well");
    assert_eq!(report.completed, 5);
    assert!(store.consumed(&old).await > 0);
    assert_eq!(store.consumed(&new).await, 0);
}

#[tokio::test(start_paused = true)]
async fn old_deployment_that_starts_late_serves_the_successor() {
    let (store, policies) = (TestStore::new(), policies());
    for policy in &policies {
        register(&store, policy).await;
    }
    retire(&store, &policies).await;
    store.add("b", 5).await;
    let report = worker(&store, &policies[0])
        .build()
        .run_until_idle()
        .await
        .expect("ended well");
    assert_eq!(report.completed, 5);
    assert_eq!(store.consumed(&policies[0]).await, 0);
    assert!(store.consumed(&policies[1]).await > 0);
}

#[tokio::test(start_paused = true)]
async fn idle_worker_moves_over_and_its_runs_under_way_go_on() {
    let (store, policies) = (TestStore::new(), policies());
    for policy in &policies {
        register(&store, policy).await;
    }
    let long = store.add("a", 1).await[0];
    let handler = |task: Task, _: RunContext| async move {
        sleep(Duration::from_secs(if task.number == 0 { 60 } else { 1 })).await;
        Ok::<_, BoxError>(JobOutcome::Done)
    };
    let worker = Worker::builder(store.clone(), policies[0].clone())
        .on::<Task>(handler)
        .build();
    let change = async {
        sleep(Duration::from_secs(5)).await;
        retire(&store, &policies).await;
        sleep(Duration::from_secs(5)).await;
        let next = store.add_all(&[crate::store::run_of("b", 1)]).await[0];
        sleep(Duration::from_secs(5)).await;
        assert_eq!(store.get(next).await.state, RunState::Done);
        assert_eq!(store.get(long).await.state, RunState::Running);
    };
    let (report, ()) = tokio::join!(worker.run_until(sleep(Duration::from_mins(2))), change);
    assert_eq!(report.expect("ended well").completed, 2);
    assert_eq!(store.get(long).await.attempt, 1);
    assert_eq!(store.ran(&policies[1]).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn worker_without_an_active_shard_asks_again_now_and_then() {
    let (store, [old, new]) = (TestStore::new(), policies());
    register(&store, &old).await;
    store.add("a", 5).await;
    store.inject(
        "active_policy",
        Fault::Refuse(StoreErrorKind::PolicyNotFound),
        30,
    );
    let worker = worker(&store, &new).build();
    let started = Instant::now();
    let report = worker
        .run_until(sleep(Duration::from_mins(1)))
        .await
        .expect("ended well");
    assert_eq!(report.completed, 5);
    assert!(started.elapsed() >= Duration::from_mins(1));
    // One question a second on average, and none after the answer.
    assert_eq!(store.count("active_policy"), 31);
    assert_eq!(store.consumed(&new).await, 0);
}

#[tokio::test(start_paused = true)]
async fn shard_that_is_retired_while_its_round_is_under_way_loses_nothing() {
    for method in ["ready_tenants", "reserve", "claim_round"] {
        let (store, policies) = (TestStore::new(), policies());
        for policy in &policies {
            register(&store, policy).await;
        }
        store.add("a", 5).await;
        store.inject(method, Fault::Refuse(StoreErrorKind::Unavailable), 5);
        let worker = worker(&store, &policies[0]).build();
        let change = async {
            // While the call is repeated, for the first time after a few milliseconds.
            while store.count(method) == 0 {
                tokio::task::yield_now().await;
            }
            retire(&store, &policies).await;
        };
        let (report, ()) = tokio::join!(worker.run_until_idle(), change);
        assert_eq!(report.expect("ended well").completed, 5, "{method}");
        assert_eq!(store.ran(&policies[1]).await.len(), 5, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn runs_that_nobody_serves_are_counted_each_minute_and_after_a_change() {
    for (on, fault, expected) in [
        (true, None, 7..=21),
        (false, None, 0..=0),
        (true, Some(StoreErrorKind::Unsupported), 1..=1),
        (true, Some(StoreErrorKind::Unavailable), 7..=21),
    ] {
        let (store, policies) = (TestStore::new(), policies());
        if let Some(kind) = fault {
            store.inject("unserved", Fault::Refuse(kind), usize::MAX);
        }
        let worker = worker(&store, &policies[0]).unserved_warnings(on).build();
        worker
            .run_until(sleep(Duration::from_mins(10)))
            .await
            .expect("ended well");
        let passes = store.count("unserved");
        assert!(expected.contains(&passes), "{passes} with {fault:?}");
    }
    let (store, policies) = (TestStore::new(), policies());
    for policy in &policies {
        register(&store, policy).await;
    }
    let worker = worker(&store, &policies[0]).build();
    let change = async {
        sleep(Duration::from_secs(5)).await;
        retire(&store, &policies).await;
    };
    let (report, ()) = tokio::join!(worker.run_until(sleep(Duration::from_secs(10))), change);
    report.expect("ended well");
    assert_eq!(store.count("unserved"), 1);
}

#[tokio::test(start_paused = true)]
async fn tick_of_a_shard_that_is_not_active_says_so() {
    let (store, policies) = (TestStore::new(), policies());
    register(&store, &policies[0]).await;
    let tick = async || {
        let queue = QueueTenantScheduler::new(store.clone(), Handlers::new());
        let policy = policies[1].clone();
        let scheduler =
            DurableFairScheduler::register(&store, policy, queue, SchedulerOptions::default())
                .await
                .expect("registered");
        let ticked = scheduler.tick(&CancellationToken::new()).await;
        ticked.map(drop).map_err(|error| error.kind())
    };
    assert_eq!(tick().await, Err(StoreErrorKind::Pending));
    retire(&store, &policies).await;
    assert_eq!(tick().await, Ok(()));
}
