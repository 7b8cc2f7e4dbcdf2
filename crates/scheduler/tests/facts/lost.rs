//! Blocks whose workers are gone.

use core::time::Duration;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{BoxError, JobOutcome, RunContext, Worker, WorkerBuilder, WorkerReport};
use evenhand_store::StoreErrorKind;
use tokio::time::sleep;

use crate::store::{Fault, Task, TestStore, policy};

async fn a_second(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    sleep(Duration::from_secs(1)).await;
    Ok(JobOutcome::Done)
}

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> WorkerBuilder<TestStore> {
    Worker::builder(store.clone(), policy.clone()).on::<Task>(a_second)
}

/// How many runs each tenant got beside workers that take every other block and die, in five minutes.
async fn shares_among_deserters(settling: bool) -> (WorkerReport, BTreeMap<String, u32>) {
    let store = TestStore::new().with_deserters();
    // The cycle is a a b a, and two permits never reach the slot of b in a block that starts with the cycle.
    let policy = policy(&[("a", 3), ("b", 1)]);
    store.add("a", 600).await;
    store.add("b", 300).await;
    let worker = worker(&store, &policy)
        .concurrency(2)
        .lost_blocks(settling)
        .build();
    let report = worker
        .run_until(sleep(Duration::from_mins(5)))
        .await
        .expect("ended well");
    let mut shares = BTreeMap::new();
    for (sequence, tenant) in store.ran(&policy).await {
        assert_eq!(&tenant, policy.tenant_for_sequence(sequence));
        *shares.entry(tenant.to_string()).or_default() += 1;
    }
    (report, shares)
}

#[tokio::test(start_paused = true)]
async fn shares_survive_workers_that_die_after_reserving() {
    let (report, shares) = shares_among_deserters(true).await;
    let (a, b) = (shares["a"], shares["b"]);
    assert!(report.blocks_settled > 50, "{report:?}");
    // One slot of four is b's. What was lost at the end has not been found yet.
    let percent = 100 * b / (a + b);
    assert!((20..=25).contains(&percent), "{shares:?}");
    assert!(report.ran > 550, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn blocks_that_nobody_settles_cost_their_tenants() {
    let (report, shares) = shares_among_deserters(false).await;
    assert_eq!(report.blocks_settled, 0);
    assert!(shares["a"] > 550 && !shares.contains_key("b"), "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn block_of_a_dropped_worker_is_settled_by_another_and_each_run_done_once() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1)]));
    store.add("a", 3).await;
    store.add("b", 3).await;
    store.inject("claim_round", Fault::Hang, 1);
    let dying = worker(&store, &policy).build();
    let cut = tokio::time::timeout(Duration::from_secs(1), dying.run_until_idle()).await;
    assert!(cut.is_err());
    assert_eq!(
        (
            store.blocks(&policy).await.len(),
            store.records(&policy).await.len()
        ),
        (1, 0)
    );

    let heir = worker(&store, &policy).build();
    let report = heir
        .run_until(sleep(Duration::from_mins(1)))
        .await
        .expect("ended well");
    assert_eq!((report.completed, report.blocks_settled), (6, 1));
    assert!(store.everything_is_on_record(&policy).await);
}

#[tokio::test(start_paused = true)]
async fn lost_block_is_settled_within_two_leases_though_nobody_is_ready() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    store.inject("claim_round", Fault::Hang, 1);
    let dying = worker(&store, &policy).build();
    let cut = tokio::time::timeout(Duration::from_secs(1), dying.run_until_idle()).await;
    assert!(cut.is_err());
    let heir = worker(&store, &policy).build();
    heir.run_until_idle().await.expect("ended well");
    let late = worker(&store, &policy).build();
    let report = late
        .run_until(sleep(Duration::from_mins(1)))
        .await
        .expect("ended well");
    assert_eq!(
        (report.blocks_settled, report.blocks, report.ran),
        (1, 0, 0)
    );
    assert!(store.everything_is_on_record(&policy).await);
}

#[tokio::test(start_paused = true)]
async fn own_block_that_was_found_before_its_claim_was_answered_is_not_run_twice() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 4).await;
    store.inject(
        "claim_round",
        Fault::Refuse(StoreErrorKind::Unavailable),
        30,
    );
    let times = Arc::new(Mutex::new(BTreeMap::<u32, u32>::new()));
    let counted = Arc::clone(&times);
    let handler = move |task: Task, _: RunContext| {
        *counted
            .lock()
            .expect("no panic")
            .entry(task.number)
            .or_default() += 1;
        async {
            sleep(Duration::from_secs(100)).await;
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = Worker::builder(store.clone(), policy.clone())
        .on::<Task>(handler)
        .build();
    let report = worker
        .run_until(sleep(Duration::from_mins(5)))
        .await
        .expect("ended well");
    assert_eq!(
        (report.ran, report.completed, report.blocks_settled),
        (4, 4, 0)
    );
    assert!(
        times
            .lock()
            .expect("no panic")
            .values()
            .all(|times| *times == 1)
    );
}

#[tokio::test(start_paused = true)]
async fn lost_blocks_are_looked_for_every_third_of_a_lease() {
    for (off, fault, expected) in [
        (false, None, 4..=12),
        (true, None, 0..=0),
        (false, Some(StoreErrorKind::Unsupported), 1..=1),
        (false, Some(StoreErrorKind::Unavailable), 4..=12),
    ] {
        let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
        if let Some(kind) = fault {
            store.inject("lost_blocks", Fault::Refuse(kind), usize::MAX);
        }
        let worker = worker(&store, &policy).lost_blocks(!off).build();
        worker
            .run_until(sleep(Duration::from_mins(1)))
            .await
            .expect("ended well");
        let passes = store.count("lost_blocks");
        assert!(expected.contains(&passes), "{passes} with {fault:?}");
    }
}
