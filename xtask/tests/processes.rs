//! Replicas that are processes of their own share one durable order.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test reports a failure by panicking"
)]

use std::collections::BTreeSet;
use std::process::Stdio;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    NewRun, Payload, PolicyRegistration, ReservationStore as _, RunId, RunQueue as _, RunState,
};
use evenhand_store_postgres::PostgresStore;
use evenhand_testkit::postgres::TestDatabase;
use serde::Deserialize;
use tokio::process::{Child, Command};

/// What `xtask tick` prints.
#[derive(Debug, Deserialize)]
struct Tick {
    process: u32,
    sequence: u64,
    tenant: TenantId,
    outcome: String,
    run: Option<String>,
}

impl Tick {
    fn run(&self) -> RunId {
        let text = self.run.as_ref().expect("the tick ran a run");
        RunId::new(text.parse().unwrap())
    }
}

fn shard() -> SchedulerShardId {
    SchedulerShardId::try_from("processes").unwrap()
}

fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name).unwrap()
}

fn three_to_one() -> WeightedFairnessPolicy {
    let weights = [("a", 3), ("b", 1)]
        .map(|(name, weight)| TenantFairnessWeight::new(tenant(name), weight).unwrap());
    WeightedFairnessPolicy::new(shard(), weights).unwrap()
}

/// Binds the policy and gives each tenant more runs than its slots, so that the slots alone decide who runs.
async fn prepare(store: &PostgresStore) {
    let registration = PolicyRegistration::new(three_to_one());
    store.register_policy(&registration).await.unwrap();
    for name in ["a", "b"] {
        for _ in 0..8 {
            let payload = Payload::new(serde_json::json!({})).unwrap();
            let run = NewRun::new(tenant(name), "nothing".parse().unwrap(), payload);
            store.enqueue(&run).await.unwrap();
        }
    }
}

/// Starts a process that makes one tick.
fn start(database: &TestDatabase) -> Child {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["tick", "--database-url", &database.url()])
        .args(["--shard", shard().as_str()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("this build's xtask can be run")
}

async fn answer(process: Child) -> Tick {
    let output = process.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).expect("a tick prints its answer as JSON")
}

/// So many ticks, each by a process of its own and all at once, in the order of their sequences.
async fn tick_at_once(database: &TestDatabase, count: usize) -> Vec<Tick> {
    // All are started before the first is waited for.
    let processes: Vec<Child> = (0..count).map(|_| start(database)).collect();
    let mut ticks = futures::future::join_all(processes.into_iter().map(answer)).await;
    ticks.sort_by_key(|tick| tick.sequence);
    ticks
}

/// Each tick ran one run of the tenant that the cycle names for its sequence, and no other tick ran it.
async fn assert_order_and_runs(store: &PostgresStore, ticks: &[Tick]) {
    let runs: BTreeSet<String> = ticks.iter().filter_map(|tick| tick.run.clone()).collect();
    assert_eq!(
        runs.len(),
        ticks.len(),
        "every tick ran a run of its own: {ticks:?}"
    );
    let policy = three_to_one();
    for tick in ticks {
        assert_eq!(&tick.tenant, policy.tenant_for_sequence(tick.sequence));
        assert_eq!(tick.outcome, "ran", "{tick:?}");
        let run = store.run(tick.run()).await.unwrap().unwrap();
        assert_eq!(
            (&run.spec.tenant, run.state),
            (&tick.tenant, RunState::Done)
        );
    }
}

#[tokio::test]
async fn four_ticks_of_four_processes_give_a_share_of_three_to_one() {
    let database = TestDatabase::migrated().await;
    let store = database.store().await;
    prepare(&store).await;

    let ticks = tick_at_once(&database, 4).await;

    let processes: BTreeSet<u32> = ticks.iter().map(|tick| tick.process).collect();
    assert_eq!(processes.len(), 4, "{ticks:?}");
    let sequences: Vec<u64> = ticks.iter().map(|tick| tick.sequence).collect();
    assert_eq!(sequences, [0, 1, 2, 3]);
    let ran = |name: &str| {
        ticks
            .iter()
            .filter(|tick| tick.tenant == tenant(name))
            .count()
    };
    assert_eq!((ran("a"), ran("b")), (3, 1));
    assert_order_and_runs(&store, &ticks).await;
}

#[tokio::test]
async fn later_processes_go_on_where_earlier_ones_ended() {
    let database = TestDatabase::migrated().await;
    let store = database.store().await;
    prepare(&store).await;

    let mut ticks = tick_at_once(&database, 3).await;
    ticks.extend(tick_at_once(&database, 5).await);

    let sequences: Vec<u64> = ticks.iter().map(|tick| tick.sequence).collect();
    assert_eq!(sequences, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_order_and_runs(&store, &ticks).await;
}
