//! A store that fails ends no worker, and nothing is done twice.

use core::time::Duration;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{BoxError, Handler, JobOutcome, RunContext, Worker, WorkerReport};
use evenhand_store::{RunState, StoreErrorKind};
use tokio_util::sync::CancellationToken;

use crate::store::{Fault, Task, TestStore, policy};

/// Counts how often each job is done, and fires when all are.
#[derive(Clone)]
struct Counting {
    done: Arc<Mutex<BTreeMap<u32, u32>>>,
    all: usize,
    finished: CancellationToken,
}

impl Handler<Task> for Counting {
    async fn handle(&self, task: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut done = self.done.lock().expect("no panic");
        *done.entry(task.number).or_default() += 1;
        if done.len() == self.all {
            self.finished.cancel();
        }
        Ok(JobOutcome::Done)
    }
}

/// Works until every run of the store was handled; how often each was, is the second answer.
async fn work_all(
    store: &TestStore,
    policy: &WeightedFairnessPolicy,
    all: usize,
) -> (WorkerReport, Vec<u32>) {
    let counting = Counting {
        done: Arc::default(),
        all,
        finished: CancellationToken::new(),
    };
    let worker = Worker::builder(store.clone(), policy.clone())
        .concurrency(4)
        .on::<Task>(counting.clone())
        .build();
    let report = worker
        .run_until(counting.finished.cancelled())
        .await
        .expect("ended well");
    let times = counting
        .done
        .lock()
        .expect("no panic")
        .values()
        .copied()
        .collect();
    (report, times)
}

#[tokio::test(start_paused = true)]
async fn every_call_may_be_refused_for_a_while() {
    for method in [
        "register_policy",
        "recover",
        "ready_tenants",
        "reserve",
        "claim_round",
        "complete",
    ] {
        let (store, policy) = (TestStore::new(), policy(&[("a", 2), ("b", 1)]));
        let runs = [store.add("a", 10).await, store.add("b", 0).await].concat();
        store.inject(method, Fault::Refuse(StoreErrorKind::Unavailable), 7);
        let (report, times) = work_all(&store, &policy, 10).await;
        assert_eq!((report.ran, report.completed), (10, 10), "{method}");
        assert_eq!(times, [1; 10], "{method}");
        for run in runs {
            assert_eq!(store.get(run).await.state, RunState::Done, "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_reply_may_be_lost_for_a_while() {
    for method in [
        "register_policy",
        "recover",
        "ready_tenants",
        "reserve",
        "claim_round",
        "complete",
    ] {
        let (store, policy) = (TestStore::new(), policy(&[("a", 2), ("b", 1)]));
        store.add("a", 10).await;
        store.inject(method, Fault::LoseReply, 7);
        let (report, times) = work_all(&store, &policy, 10).await;
        assert_eq!((report.ran, report.completed), (10, 10), "{method}");
        assert_eq!(times, [1; 10], "{method}");
        // No sequence was taken for nothing but the slots of b.
        let consumed = store.consumed(&policy).await;
        assert_eq!(report.sequences.consumed(), consumed, "{method}");
        assert_eq!(
            store.records(&policy).await.len(),
            usize::try_from(consumed).expect("few")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn block_whose_claim_is_refused_for_good_is_settled_after_a_lease() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1)]));
    store.add("a", 5).await;
    store.inject("claim_round", Fault::Refuse(StoreErrorKind::Corrupt), 2);
    let (report, times) = work_all(&store, &policy, 5).await;
    assert_eq!((report.completed, times), (5, vec![1; 5]));
    // Two blocks of eight: four permits, and every other slot is of a tenant that is ready.
    assert_eq!((report.sequences.unknown, report.blocks_settled), (16, 0));
    assert_eq!(store.records(&policy).await[0].sequence, 16);

    let later = Worker::builder(store.clone(), policy.clone()).build();
    let report = later
        .run_until(tokio::time::sleep(Duration::from_mins(1)))
        .await
        .expect("ended well");
    assert_eq!((report.blocks_settled, report.ran), (2, 0));
    assert!(store.everything_is_on_record(&policy).await);
}

#[tokio::test(start_paused = true)]
async fn shard_whose_claims_always_fail_does_not_make_the_worker_spin() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    store.inject(
        "claim_round",
        Fault::Refuse(StoreErrorKind::Corrupt),
        usize::MAX,
    );
    let counting = Counting {
        done: Arc::default(),
        all: 1,
        finished: CancellationToken::new(),
    };
    let worker = Worker::builder(store.clone(), policy.clone())
        .concurrency(1)
        .on::<Task>(counting)
        .build();
    let report = worker
        .run_until(tokio::time::sleep(Duration::from_mins(1)))
        .await;
    let unknown = report.expect("ended well").sequences.unknown;
    assert!(
        (30..=121).contains(&unknown),
        "{unknown} sequences in a minute"
    );
}

#[tokio::test(start_paused = true)]
async fn reservations_that_are_refused_for_good_do_not_end_the_worker() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 5).await;
    store.inject("reserve", Fault::Refuse(StoreErrorKind::Corrupt), 5);
    store.inject("reserve", Fault::Refuse(StoreErrorKind::Retired), 4);
    let (report, times) = work_all(&store, &policy, 5).await;
    assert_eq!((report.completed, report.sequences.unknown), (5, 0));
    assert_eq!(times, [1; 5]);
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_store_does_not_end_the_worker() {
    for method in ["reserve", "claim_round"] {
        let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
        store.add("a", 5).await;
        store.inject(method, Fault::Panic, 3);
        let (report, times) = work_all(&store, &policy, 5).await;
        assert_eq!(report.completed, 5, "{method}");
        // Three blocks of as many sequences as there are permits.
        assert_eq!(report.sequences.unknown, 12, "{method}");
        assert_eq!(times, [1; 5], "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn batch_ends_with_an_error_if_nobody_can_tell_who_is_ready() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.inject("ready_tenants", Fault::Refuse(StoreErrorKind::Corrupt), 1);
    let worker = Worker::builder(store.clone(), policy).build();
    let error = worker.run_until_idle().await.expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert_eq!(error.to_string(), "cannot look who is ready in shard shard");
}
