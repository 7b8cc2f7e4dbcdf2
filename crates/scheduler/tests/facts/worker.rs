//! Fair shares, looks, permits.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{BoxError, JobOutcome, RunContext, Worker, WorkerBuilder, WorkerReport};
use evenhand_store::{ReservationStore, RunQueue, SequenceOutcome, SequenceRecord, StoreErrorKind};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::{Fault, Task, TestStore, policy, run_of};

/// A handler that takes this long.
fn taking(millis: u64) -> impl AsyncTask {
    move |_: Task, _: RunContext| async move {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        Ok::<_, BoxError>(JobOutcome::Done)
    }
}

trait AsyncTask: evenhand_scheduler::Handler<Task> {}
impl<H: evenhand_scheduler::Handler<Task>> AsyncTask for H {}

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> WorkerBuilder<TestStore> {
    Worker::builder(store.clone(), policy.clone())
}

#[tokio::test(start_paused = true)]
async fn replicas_give_every_tenant_its_weight_in_every_cycle() {
    const CYCLES: u32 = 20;
    let (store, policy) = (TestStore::new(), policy(&[("a", 3), ("b", 2), ("c", 1)]));
    for (tenant, weight) in [("a", 3), ("b", 2), ("c", 1)] {
        store.add(tenant, weight * CYCLES).await;
    }
    let replica = |millis| {
        worker(&store, &policy)
            .concurrency(4)
            .on::<Task>(taking(millis))
            .build()
    };
    let replicas = [replica(3), replica(7), replica(50)];
    let reports = tokio::join!(
        replicas[0].run_until_idle(),
        replicas[1].run_until_idle(),
        replicas[2].run_until_idle(),
    );
    let reports = [reports.0, reports.1, reports.2].map(|report| report.expect("ended well"));
    assert_eq!(
        reports.iter().map(|report| report.completed).sum::<u64>(),
        120
    );
    assert!(reports.iter().all(|report| report.ran > 0), "{reports:?}");

    // As long as everybody has work, every slot of the cycle runs something of its own tenant.
    let ran = store.ran(&policy).await;
    assert_eq!(ran.len(), 120);
    for (expected, (sequence, tenant)) in (0..).zip(&ran) {
        assert_eq!(*sequence, expected);
        assert_eq!(tenant, policy.tenant_for_sequence(*sequence));
    }
    // Each sequence is accounted for by exactly one replica.
    let counted: u64 = reports
        .iter()
        .map(|report| report.sequences.consumed())
        .sum();
    assert_eq!(counted, store.consumed(&policy).await);
    assert_eq!(
        store.records(&policy).await.len(),
        usize::try_from(counted).expect("few")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_on_threads_of_their_own_keep_the_order_too() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 3), ("b", 1)]));
    // Far more than is done before the end, so that nobody is ever idle, however late a claim follows its reservation.
    store.add("a", 900).await;
    store.add("b", 300).await;
    let (enough, done) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let mut replicas = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (shutdown, enough, done) = (enough.clone(), enough.clone(), Arc::clone(&done));
        let handler = move |_: Task, _: RunContext| {
            if done.fetch_add(1, Ordering::Relaxed) == 200 {
                enough.cancel();
            }
            async { Ok::<_, BoxError>(JobOutcome::Done) }
        };
        let worker = worker(&store, &policy)
            .concurrency(8)
            .on::<Task>(handler)
            .build();
        replicas.spawn(async move { worker.run_until(shutdown.cancelled()).await });
    }
    let reports = replicas.join_all().await.into_iter();
    let completed: u64 = reports
        .map(|report| report.expect("ended well").completed)
        .sum();
    let ran = store.ran(&policy).await;
    assert!((200..600).contains(&completed), "{completed}");
    assert_eq!(u64::try_from(ran.len()), Ok(completed));
    assert_eq!(store.consumed(&policy).await, completed);
    for (expected, (sequence, tenant)) in (0..).zip(&ran) {
        assert_eq!(
            (*sequence, tenant),
            (expected, policy.tenant_for_sequence(expected))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn idle_worker_looks_but_consumes_nothing() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1)]));
    // Nobody serves this tenant here, so its run makes nobody busy.
    store.add("elsewhere", 1).await;
    let worker = worker(&store, &policy).on::<Task>(taking(1)).build();
    let a_minute = tokio::time::sleep(Duration::from_mins(1));
    let report = worker.run_until(a_minute).await.expect("ended well");
    assert_eq!(report, WorkerReport::default());
    assert_eq!(store.consumed(&policy).await, 0);
    let looks = store.count("ready_tenants");
    assert!((40..=120).contains(&looks), "{looks} looks in a minute");
}

#[tokio::test(start_paused = true)]
async fn batch_ends_with_its_last_round_and_not_with_a_pause() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    store.inject("reserve", Fault::LoseReply, 1);
    let worker = worker(&store, &policy)
        .concurrency(2)
        .on::<Task>(taking(0))
        .build();
    let started = Instant::now();
    let report = worker.run_until_idle().await.expect("ended well");
    // The block had to be asked for again; its second sequence found nothing left.
    assert_eq!((report.completed, report.sequences.idle), (1, 1));
    assert!(
        started.elapsed() < Duration::from_millis(100),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn never_more_runs_at_a_time_than_permits() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 40).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, seen) = (Arc::clone(&now), Arc::clone(&most));
    let handler = move |_: Task, _: RunContext| {
        let (running, seen) = (Arc::clone(&running), Arc::clone(&seen));
        async move {
            seen.fetch_max(
                running.fetch_add(1, Ordering::Relaxed) + 1,
                Ordering::Relaxed,
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
            running.fetch_sub(1, Ordering::Relaxed);
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = worker(&store, &policy)
        .concurrency(5)
        .on::<Task>(handler)
        .build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!(report.completed, 40);
    assert_eq!(most.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn run_that_another_run_enqueues_is_taken_at_once() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    let more = store.clone();
    let handler = move |task: Task, _: RunContext| {
        let more = more.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if task.number < 9 {
                more.add_all(&[run_of("a", task.number + 1)]).await;
            }
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = worker(&store, &policy).on::<Task>(handler).build();
    // Ten times five milliseconds; a poll interval is a second.
    let report = worker
        .run_until(tokio::time::sleep(Duration::from_millis(100)))
        .await;
    assert_eq!(report.expect("ended well").completed, 10);
}

#[tokio::test(start_paused = true)]
async fn policy_that_cannot_be_bound_ends_the_worker() {
    let store = TestStore::new();
    let bound = worker(&store, &policy(&[("a", 1)])).build();
    bound
        .run_until_idle()
        .await
        .expect("the first policy is bound");
    let other = worker(&store, &policy(&[("a", 2)])).build();
    let error = other
        .run_until(core::future::pending::<()>())
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::PolicyConflict);
}

#[test]
#[should_panic(expected = "two handlers for the kind \"task\"")]
fn second_handler_for_a_kind_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let store = TestStore::new();
    let _ = worker(&store, &policy(&[("a", 1)]))
        .on::<Task>(taking(1))
        .on::<Task>(taking(2));
}

/// Everything that a worker does to its store, and when its sequences ended.
fn one_seeded_life() -> (Vec<&'static str>, Vec<SequenceRecord>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        fastrand::seed(7);
        let (store, policy) = (TestStore::new(), policy(&[("a", 2), ("b", 1)]));
        store.add("a", 30).await;
        store.add("b", 40).await;
        let handler = |task: Task, _: RunContext| async move {
            let millis = u64::from(task.number % 7) * 400;
            tokio::time::sleep(Duration::from_millis(millis)).await;
            if task.number.is_multiple_of(3) {
                Err("now and then")
            } else {
                Ok(JobOutcome::Done)
            }
        };
        let named = "worker".parse().expect("a name");
        let worker = worker(&store, &policy)
            .name(named)
            .on::<Task>(handler)
            .build();
        worker
            .run_until(tokio::time::sleep(Duration::from_mins(5)))
            .await
            .expect("ended well");
        (store.calls(), store.records(&policy).await)
    })
}

#[test]
fn seeded_worker_on_paused_time_always_does_the_same() {
    let (calls, records) = one_seeded_life();
    assert!(
        records.len() > 70 && calls.len() > 300,
        "{} {}",
        records.len(),
        calls.len()
    );
    assert_eq!((calls, records), one_seeded_life());
}

#[tokio::test(start_paused = true)]
async fn worker_runs_the_tenant_that_the_cycle_names_and_records_the_rest_as_idle() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1), ("c", 2)]));
    store.add("c", 3).await;
    let worker = worker(&store, &policy).on::<Task>(taking(10)).build();
    worker.run_until_idle().await.expect("ended well");
    let cursor = store.cursor(policy.shard()).await.expect("registered");
    let records = store
        .sequences(policy.shard(), 0, 1_000)
        .await
        .expect("registered");
    assert_eq!(cursor.next_sequence, u64::try_from(records.len()).ok());
    for record in records {
        let named = policy.tenant_for_sequence(record.sequence);
        if let SequenceOutcome::Ran(attempt) = record.outcome {
            assert_eq!(&attempt.tenant, named);
        } else {
            assert_eq!(record.outcome, SequenceOutcome::Idle);
        }
    }
}
