//! Blocks instead of single sequences: what they cost, how long they are, and what limits them.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenhand_policy::{PoolId, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::{BoxError, Handler, JobOutcome, RunContext, Worker, WorkerBuilder};
use evenhand_store::{CostMicros, LimitSubject, RunQueue, RunsMax, SequenceOutcome};
use tokio::time::{Instant, sleep};

use crate::store::{Task, TestStore, policy, run_of};

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> WorkerBuilder<TestStore> {
    Worker::builder(store.clone(), policy.clone()).on::<Task>(ten_millis)
}

async fn ten_millis(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    sleep(Duration::from_millis(10)).await;
    Ok(JobOutcome::Done)
}

#[tokio::test(start_paused = true)]
async fn one_reservation_serves_as_many_runs_as_there_are_permits() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 64).await;
    let worker = worker(&store, &policy).concurrency(16).build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!((report.completed, report.blocks), (64, 4));
    assert_eq!(store.count("reserve"), 4);
    assert_eq!(store.count("claim_round"), 4);
    assert_eq!(store.count("claim"), 0);
    // Each round tells who is left ready; only the first look and the last, which finds nobody, are calls.
    assert_eq!(store.count("ready_tenants"), 2);
    assert_eq!(lengths(&store, &policy).await, [16; 4]);
}

/// How many sequences each reservation took.
async fn lengths(store: &TestStore, policy: &WeightedFairnessPolicy) -> Vec<u32> {
    let blocks = store.blocks(policy).await.into_iter();
    blocks.map(|block| block.count.get()).collect()
}

#[tokio::test(start_paused = true)]
async fn block_is_as_long_as_the_permits_suffice_wherever_it_starts() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 3), ("b", 1)]));
    store.add("a", 9).await;
    let worker = worker(&store, &policy).concurrency(3).build();
    let report = worker.run_until_idle().await.expect("ended well");
    // A cycle has three slots of a, and no four sequences in a row have more.
    assert_eq!(lengths(&store, &policy).await, [4; 3]);
    assert_eq!((report.sequences.ran, report.sequences.idle), (9, 3));
    assert!(store.everything_is_on_record(&policy).await);
}

/// 1,023 tenants that fill the longest cycle but for one slot, which is `busy`'s.
fn crowd() -> WeightedFairnessPolicy {
    let names: Vec<String> = (0..1_023).map(|number| format!("idle-{number}")).collect();
    let idle = names.iter().enumerate();
    let mut weights: Vec<(&str, u32)> = idle
        .map(|(number, name)| (name.as_str(), if number < 3 { 5 } else { 4 }))
        .collect();
    weights.push(("busy", 1));
    policy(&weights)
}

/// How many calls a store gets from a worker that works on this many runs of `busy`.
async fn calls_for(runs: u32, policy: &WeightedFairnessPolicy) -> usize {
    let store = TestStore::new();
    store.add("busy", runs).await;
    let worker = worker(&store, policy).concurrency(4).build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!(report.completed, u64::from(runs));
    assert_eq!(report.sequences.consumed(), store.consumed(policy).await);
    assert!(store.everything_is_on_record(policy).await);
    store.calls().len()
}

#[tokio::test(start_paused = true)]
async fn idle_tenants_cost_nothing() {
    let crowd = crowd();
    assert_eq!(
        (crowd.tenants().len(), crowd.cycle_length()),
        (1_024, 4_096)
    );
    let among_idle = calls_for(40, &crowd).await;
    let alone = calls_for(40, &policy(&[("busy", 1)])).await;
    assert_eq!(among_idle, alone);
    // Look, reservation and claim for every four runs, a completion for each, and a few to start and to end.
    assert!(among_idle <= 40 + 3 * 10 + 8, "{among_idle} calls");
}

#[tokio::test(start_paused = true)]
async fn blocks_shorter_than_a_cycle_follow_each_other_without_a_pause() {
    let store = TestStore::new().with_rounds_of(8);
    let policy = policy(&[("busy", 1), ("idle", 99)]);
    store.add("busy", 3).await;
    let worker = worker(&store, &policy).concurrency(1).build();
    let started = Instant::now();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!(report.completed, 3);
    assert!(report.blocks >= 201 / 8, "{report:?}");
    assert!(
        started.elapsed() < Duration::from_millis(100),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn cycle_that_serves_nobody_is_followed_by_a_pause() {
    let store = TestStore::new().with_rounds_of(4);
    let policy = policy(&[("a", 1), ("b", 7)]);
    store.add("a", 1).await;
    limit(&store, "a", 0).await;
    let worker = worker(&store, &policy).concurrency(1).build();
    let report = worker
        .run_until(sleep(Duration::from_mins(1)))
        .await
        .expect("ended well");
    assert_eq!(report.ran, 0);
    // A cycle of eight sequences in two blocks, then a second of pause on average.
    let consumed = report.sequences.consumed();
    assert!((30 * 8..=121 * 8).contains(&consumed), "{consumed}");
    assert!(
        report.sequences.contended * 7 <= report.sequences.idle + 7,
        "{report:?}"
    );
}

async fn limit(store: &TestStore, tenant: &str, runs: u32) {
    let subject = LimitSubject::Tenant(tenant.parse().expect("a tenant"));
    let runs_max = RunsMax::new(runs).expect("a limit");
    store
        .set_limit(&PoolId::default(), &subject, Some(runs_max))
        .await
        .expect("set");
}

#[tokio::test(start_paused = true)]
async fn tenant_at_its_limit_holds_nobody_up() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1)]));
    store.add("a", 10).await;
    store.add("b", 100).await;
    limit(&store, "a", 1).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, seen) = (Arc::clone(&now), Arc::clone(&most));
    let handler = move |_: Task, context: RunContext| {
        let (running, seen) = (Arc::clone(&running), Arc::clone(&seen));
        async move {
            if context.tenant().as_str() == "a" {
                seen.fetch_max(
                    running.fetch_add(1, Ordering::Relaxed) + 1,
                    Ordering::Relaxed,
                );
                sleep(Duration::from_secs(10)).await;
                running.fetch_sub(1, Ordering::Relaxed);
            } else {
                sleep(Duration::from_secs(1)).await;
            }
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = Worker::builder(store.clone(), policy.clone())
        .concurrency(8)
        .on::<Task>(handler)
        .build();
    let report = worker
        .run_until(sleep(Duration::from_secs(25)))
        .await
        .expect("ended well");
    assert_eq!(most.load(Ordering::Relaxed), 1);
    // 7 permits for 25 seconds are enough for all of b, and the third run of a ends within the grace period.
    assert_eq!(report.completed, 103);
    assert!(report.sequences.contended > 0);
}

/// How many runs each block of this life ran, by the tenants of its runs.
async fn runs_by_block(store: &TestStore, policy: &WeightedFairnessPolicy) -> Vec<usize> {
    let mut block_of = BTreeMap::new();
    for block in store.blocks(policy).await {
        block_of.insert(block.first_sequence, 0_usize);
    }
    for record in store.records(policy).await {
        if let SequenceOutcome::Ran(_) = record.outcome {
            let (_, runs) = block_of
                .range_mut(..=record.sequence)
                .next_back()
                .expect("a block");
            *runs += 1;
        }
    }
    block_of.into_values().collect()
}

#[tokio::test(start_paused = true)]
async fn team_window_bounds_each_round_across_tenants() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1)]));
    let of_one_team = |tenant: &str, number| {
        let mut run = run_of(tenant, number);
        run.team = "team".parse().expect("a team");
        run
    };
    for number in 0..6 {
        store
            .add_all(&[of_one_team("a", number), of_one_team("b", number)])
            .await;
    }
    let worker = worker(&store, &policy)
        .concurrency(8)
        .team_window(3)
        .build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!(report.completed, 12);
    let runs = runs_by_block(&store, &policy).await;
    assert_eq!(runs.iter().max(), Some(&3), "{runs:?}");
}

#[tokio::test(start_paused = true)]
async fn capacity_bounds_what_each_round_costs() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    for number in 0..6 {
        let mut run = run_of("a", number);
        run.cost_micros = CostMicros::new(10).expect("a cost");
        store.add_all(&[run]).await;
    }
    let worker = worker(&store, &policy)
        .concurrency(8)
        .capacity_micros(25)
        .build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!(report.completed, 6);
    let runs = runs_by_block(&store, &policy).await;
    assert_eq!(runs.iter().max(), Some(&2), "{runs:?}");
}

/// Enqueues a run of another tenant while its own runs.
#[derive(Clone)]
struct Crowding(TestStore);

impl Handler<Task> for Crowding {
    async fn handle(&self, task: Task, context: RunContext) -> Result<JobOutcome, BoxError> {
        if context.tenant().as_str() == "a" {
            self.0.add_all(&[run_of("b", task.number)]).await;
        }
        sleep(Duration::from_millis(10)).await;
        Ok(JobOutcome::Done)
    }
}

#[tokio::test(start_paused = true)]
async fn tenants_that_become_ready_during_a_round_never_exceed_the_permits() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 9)]));
    store.add("a", 30).await;
    // The reservation's answer is lost once in a while, so that claims come long after looks.
    store.inject("reserve", crate::store::Fault::LoseReply, 10);
    let worker = Worker::builder(store.clone(), policy.clone())
        .concurrency(3)
        .on::<Task>(Crowding(store.clone()))
        .build();
    let report = worker.run_until_idle().await.expect("ended well");
    assert_eq!(report.completed, 60);
    let runs = runs_by_block(&store, &policy).await;
    assert!(runs.iter().all(|runs| *runs <= 3), "{runs:?}");
    let b = TenantId::try_from("b").expect("a tenant");
    assert!(
        store
            .ran(&policy)
            .await
            .iter()
            .any(|(_, tenant)| *tenant == b)
    );
}
