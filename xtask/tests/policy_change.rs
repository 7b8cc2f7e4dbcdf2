//! Weights change under load, with three worker processes that move over by themselves.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test reports a failure by panicking"
)]

use core::time::Duration;
use std::process::Stdio;

use evenhand_policy::{
    SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy, transition_bounds,
};
use evenhand_store::{
    NewRun, PageSize, Payload, PolicyRegistration, ReservationStore as _, RunFilter, RunQueue as _,
    RunState, ShardStanding,
};
use evenhand_store_postgres::PostgresStore;
use evenhand_testkit::postgres::TestDatabase;
use tokio::process::{Child, Command};
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(90);

fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name).unwrap()
}

fn policy(shard: &str, weights: &[(&str, u32)]) -> WeightedFairnessPolicy {
    let weights = weights
        .iter()
        .map(|(name, weight)| TenantFairnessWeight::new(tenant(name), *weight).unwrap());
    WeightedFairnessPolicy::new(SchedulerShardId::try_from(shard).unwrap(), weights).unwrap()
}

fn start(database: &TestDatabase, policy: &WeightedFairnessPolicy) -> Child {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["serve", "--database-url", &database.url()])
        .args(["--shard", policy.shard().as_str()])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("this build's xtask can be run")
}

async fn enqueue(store: &PostgresStore, name: &str, number: usize) {
    let payload = Payload::new(serde_json::json!({})).unwrap();
    let run = NewRun::new(tenant(name), "nothing".parse().unwrap(), payload);
    store.enqueue_many(&vec![run; number]).await.unwrap();
}

/// How many runs of these tenants are not done.
async fn left(store: &PostgresStore, names: &[&str]) -> u64 {
    let counts = store.counts().await.unwrap();
    let of_them = counts
        .iter()
        .filter(|counts| names.contains(&counts.tenant.as_str()));
    of_them
        .map(|counts| counts.queued + counts.running + counts.dead + counts.cancelled)
        .sum()
}

async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "it never happened that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Every run was executed once: its first claim completed it.
async fn assert_each_run_ran_once(store: &PostgresStore, expected: usize) {
    let mut filter = RunFilter::default();
    filter.state = Some(RunState::Done);
    let (mut after, mut done) = (None, 0);
    loop {
        let page = store
            .runs(&filter, after, PageSize::new(1_000))
            .await
            .unwrap();
        for run in &page.runs {
            assert_eq!((run.attempt, run.fence.get()), (1, 1), "{run:?}");
        }
        done += page.runs.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(done, expected);
}

/// How many sequences the shard's order has, all of them contiguous from 0.
async fn contiguous(store: &PostgresStore, policy: &WeightedFairnessPolicy) -> u64 {
    let mut next = 0;
    loop {
        let page = store
            .reservations(policy.shard(), next, 1_000)
            .await
            .unwrap();
        if page.is_empty() {
            return next;
        }
        for reservation in page {
            assert_eq!(reservation.first_sequence, next);
            next = reservation.sequences().end() + 1;
        }
    }
}

/// How many sequences lie from the tenant's last selection in the old order to its first in the new, that one included.
fn gap(
    old: &WeightedFairnessPolicy,
    old_length: u64,
    new: &WeightedFairnessPolicy,
    tenant: &TenantId,
) -> u64 {
    let since_last = (0..old_length)
        .rev()
        .take_while(|sequence| old.tenant_for_sequence(*sequence) != tenant)
        .count();
    let until_first = new.next_slot_of(tenant, 0).expect("it is in both");
    u64::try_from(since_last).unwrap() + u64::from(until_first) + 1
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_change_under_load_and_nothing_is_lost_or_repeated() {
    let database = TestDatabase::migrated().await;
    let store = database.store().await;
    let old = policy("v1", &[("a", 3), ("b", 1), ("c", 1)]);
    let new = policy("v2", &[("a", 1), ("b", 2), ("d", 1)]);
    store
        .register_policy(&PolicyRegistration::new(old.clone()))
        .await
        .unwrap();
    for name in ["a", "b", "c", "d"] {
        enqueue(&store, name, 400).await;
    }
    let pending = store
        .register_policy(&PolicyRegistration::new(new.clone()))
        .await
        .unwrap();
    assert_eq!(pending.standing, ShardStanding::Pending);
    let unserved = |runs: &[evenhand_store::UnservedRuns]| -> Vec<(String, u64)> {
        runs.iter()
            .map(|runs| (runs.tenant.to_string(), runs.queued))
            .collect()
    };
    assert_eq!(unserved(&pending.unserved), [("c".to_owned(), 400)]);

    // Two of the old deployment, and one of the new that has to wait.
    let mut workers = [&old, &old, &new].map(|policy| start(&database, policy));
    wait_until("half of a's runs are done", async || {
        left(&store, &["a"]).await <= 200
    })
    .await;
    for name in ["a", "b"] {
        enqueue(&store, name, 200).await;
    }
    let retirement = store.retire(old.shard(), new.shard()).await.unwrap();
    for name in ["a", "b", "d"] {
        enqueue(&store, name, 100).await;
    }
    enqueue(&store, "c", 20).await;
    wait_until("all served runs are done", async || {
        left(&store, &["a", "b", "d"]).await == 0
    })
    .await;
    for worker in &mut workers {
        drop(worker.stdin.take());
        assert!(worker.wait().await.unwrap().success());
    }

    let unserved_now = store.unserved().await.unwrap();
    let left_of_c = left(&store, &["c"]).await;
    assert!(left_of_c >= 20);
    assert_eq!(unserved(&unserved_now), [("c".to_owned(), left_of_c)]);
    let done_of_c = 420 - usize::try_from(left_of_c).unwrap();
    assert_each_run_ran_once(&store, 700 + 700 + 500 + done_of_c).await;
    let old_length = contiguous(&store, &old).await;
    assert_eq!(retirement.old_length, Some(old_length));
    assert!(contiguous(&store, &new).await > u64::from(new.cycle_length()));
    for (tenant, bound) in transition_bounds(&old, &new) {
        let gap = gap(&old, old_length, &new, tenant);
        let computed = bound.maximum_reservations_until_selection();
        println!(
            "tenant {tenant}: gap across the change {gap}, bound {computed}, sum of both bounds {}",
            bound.sum_of_bounds()
        );
        assert!(gap <= u64::from(computed));
    }
}
