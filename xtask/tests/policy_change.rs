//! Weights change under load, with worker processes that move over by themselves.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test reports a failure by panicking"
)]

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use evenhand_policy::{
    SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy, transition_bounds,
};
use evenhand_store::{
    NewRun, PageSize, Payload, PolicyRegistration, Registered, ReservationStore as _, RunFilter,
    RunQueue as _, RunState, ShardStanding, UnservedRuns,
};
use evenhand_store_postgres::PostgresStore;
use evenhand_testkit::postgres::TestDatabase;
use sqlx::{FromRow, PgConnection};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(90);

/// How many runs are executed under each of the two policies before the test goes on.
const ENOUGH: i64 = 1_000;

/// The load keeps at least so many runs of each tenant queued.
const BACKLOG: u64 = 200;

const TENANTS: [&str; 4] = ["a", "b", "c", "d"];

fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name).unwrap()
}

fn policy(shard: &str, weights: &[(&str, u32)]) -> WeightedFairnessPolicy {
    let weights = weights
        .iter()
        .map(|(name, weight)| TenantFairnessWeight::new(tenant(name), *weight).unwrap());
    WeightedFairnessPolicy::new(SchedulerShardId::try_from(shard).unwrap(), weights).unwrap()
}

async fn register(store: &PostgresStore, policy: &WeightedFairnessPolicy) -> Registered {
    let registration = PolicyRegistration::new(policy.clone());
    store.register_policy(&registration).await.unwrap()
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

/// Ends the processes by the end of their input, and sees them end well.
async fn stop(workers: Vec<Child>) {
    for mut worker in workers {
        drop(worker.stdin.take());
        let ended = timeout(DEADLINE, worker.wait()).await;
        assert!(ended.expect("it ends in time").unwrap().success());
    }
}

async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "it never happened that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Enqueues runs of all tenants, whoever is served, until it is stopped.
struct Load {
    stop: CancellationToken,
    enqueued: JoinHandle<BTreeMap<String, u64>>,
}

impl Load {
    fn start(store: PostgresStore) -> Self {
        let stop = CancellationToken::new();
        let enqueued = tokio::spawn(enqueue_until(store, stop.clone()));
        Self { stop, enqueued }
    }

    /// How many runs of each tenant it has enqueued.
    async fn stop(self) -> BTreeMap<String, u64> {
        self.stop.cancel();
        self.enqueued.await.unwrap()
    }
}

async fn enqueue_until(store: PostgresStore, stop: CancellationToken) -> BTreeMap<String, u64> {
    let payload = Payload::new(serde_json::json!({})).unwrap();
    let mut enqueued = BTreeMap::new();
    while !stop.is_cancelled() {
        let queued: BTreeMap<String, u64> = store
            .counts()
            .await
            .unwrap()
            .into_iter()
            .map(|counts| (counts.tenant.to_string(), counts.queued))
            .collect();
        for name in TENANTS {
            if queued.get(name).is_none_or(|queued| *queued < BACKLOG) {
                let run = NewRun::new(tenant(name), "nothing".parse().unwrap(), payload.clone());
                let created = store.enqueue_many(&vec![run; 200]).await.unwrap();
                *enqueued.entry(name.to_owned()).or_default() +=
                    u64::try_from(created.len()).unwrap();
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    enqueued
}

/// Waits until so many processes have executed runs that were claimed in the shard's order, and enough of them.
async fn wait_for_executions(
    connection: &mut PgConnection,
    policy: &WeightedFairnessPolicy,
    processes: usize,
) {
    let what = format!("{processes} processes execute enough in {}", policy.shard());
    let processes = i64::try_from(processes).unwrap();
    wait_until(&what, async || {
        let executed: (i64, i64) = sqlx::query_as(include_str!("../src/serve/executed_in.sql"))
            .bind(policy.shard().as_str())
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        executed.0 == processes && executed.1 >= ENOUGH
    })
    .await;
}

/// What a handler wrote down when it was called.
#[derive(Debug, FromRow)]
struct Execution {
    run_id: Uuid,
    fence: i64,
    tenant: String,
    shard: String,
    sequence: i64,
}

/// No run and no sequence was executed twice, each by its first claim, in the place of its tenant. Answers which runs.
async fn runs_executed_once(
    connection: &mut PgConnection,
    orders: &BTreeMap<&str, Vec<&TenantId>>,
) -> BTreeSet<Uuid> {
    let executions: Vec<Execution> = sqlx::query_as(include_str!("../src/serve/executions.sql"))
        .fetch_all(connection)
        .await
        .unwrap();
    let (mut runs, mut sequences) = (BTreeSet::new(), BTreeSet::new());
    for execution in &executions {
        assert_eq!(execution.fence, 1, "a later claim: {execution:?}");
        assert!(runs.insert(execution.run_id), "again: {execution:?}");
        let sequence = (execution.shard.as_str(), execution.sequence);
        assert!(sequences.insert(sequence), "again: {execution:?}");
        let order = &orders[execution.shard.as_str()];
        let selected = order[usize::try_from(execution.sequence).unwrap()];
        assert_eq!(selected.as_str(), execution.tenant, "{execution:?}");
    }
    runs
}

/// The runs that are done according to the store.
async fn runs_done(store: &PostgresStore) -> BTreeSet<Uuid> {
    let mut filter = RunFilter::default();
    filter.state = Some(RunState::Done);
    let (mut after, mut done) = (None, BTreeSet::new());
    loop {
        let page = store
            .runs(&filter, after, PageSize::new(PageSize::MAX))
            .await
            .unwrap();
        done.extend(page.runs.iter().map(|run| run.id.as_uuid()));
        after = page.next;
        if after.is_none() {
            return done;
        }
    }
}

/// Whom the reservations on record selected, one after the other; they are contiguous from 0.
async fn selections<'a>(
    store: &PostgresStore,
    policy: &'a WeightedFairnessPolicy,
) -> Vec<&'a TenantId> {
    let (mut next, mut selected) = (0, Vec::new());
    loop {
        let page = store
            .reservations(policy.shard(), next, 1_000)
            .await
            .unwrap();
        if page.is_empty() {
            return selected;
        }
        for reservation in page {
            assert_eq!(reservation.first_sequence, next);
            selected.extend(
                reservation
                    .sequences()
                    .map(|sequence| policy.tenant_for_sequence(sequence)),
            );
            next = reservation.sequences().end() + 1;
        }
    }
}

/// How many sequences lie from the tenant's last selection in the old order to its first in the new, that included.
fn gap(old: &[&TenantId], new: &[&TenantId], tenant: &TenantId) -> usize {
    let is_it = |selected: &&TenantId| *selected == tenant;
    let since_last = old.iter().rev().position(is_it).expect("the old one did");
    let until_first = new.iter().position(is_it).expect("the new one did");
    since_last + until_first + 1
}

/// Runs of served tenants are done and those of `c` done or queued, as many as were enqueued; `c` is told as unserved.
async fn assert_nothing_is_lost(store: &PostgresStore, enqueued: &BTreeMap<String, u64>) {
    let counts = store.counts().await.unwrap();
    assert_eq!(counts.len(), TENANTS.len());
    for counts in counts {
        let name = counts.tenant.as_str();
        let settled = counts.done + counts.queued;
        assert_eq!(settled, enqueued[name], "{counts:?}");
        assert_eq!(counts.queued > 0, name == "c", "{counts:?}");
        let others = (counts.running, counts.dead, counts.cancelled);
        assert_eq!(others, (0, 0, 0), "{counts:?}");
        if name == "c" {
            let unserved = store.unserved().await.unwrap();
            assert_eq!(queued_by_tenant(&unserved), [("c", counts.queued)]);
        }
    }
}

fn queued_by_tenant(unserved: &[UnservedRuns]) -> Vec<(&str, u64)> {
    unserved
        .iter()
        .map(|runs| (runs.tenant.as_str(), runs.queued))
        .collect()
}

/// `c` alone is told as not served by the new policy.
fn assert_names_c(unserved: &[UnservedRuns]) {
    let [("c", 1..)] = queued_by_tenant(unserved)[..] else {
        panic!("queued runs of c alone, not {unserved:?}");
    };
}

fn assert_gaps_are_bounded(
    (old, in_old): (&WeightedFairnessPolicy, &[&TenantId]),
    (new, in_new): (&WeightedFairnessPolicy, &[&TenantId]),
) {
    let mut judged = Vec::new();
    for (tenant, bound) in transition_bounds(old, new) {
        let gap = gap(in_old, in_new, tenant);
        let computed = bound.maximum_reservations_until_selection();
        println!(
            "tenant {tenant}: gap across the change {gap}, bound {computed}, sum of both bounds {}",
            bound.sum_of_bounds()
        );
        assert!(gap <= usize::try_from(computed).unwrap());
        judged.push(tenant.as_str());
    }
    assert_eq!(judged, ["a", "b"], "who is in both policies");
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_change_under_load_and_nothing_is_lost_or_repeated() {
    let database = TestDatabase::migrated().await;
    database
        .admin(include_str!("../src/serve/create_executions.sql"))
        .await
        .unwrap();
    let mut connection = database.connect().await;
    let store = database.store().await;
    let old = policy("v1", &[("a", 3), ("b", 1), ("c", 1)]);
    let new = policy("v2", &[("a", 1), ("b", 2), ("d", 1)]);
    assert_eq!(register(&store, &old).await.standing, ShardStanding::Active);

    let load = Load::start(store.clone());
    let mut workers: Vec<Child> = (0..3).map(|_| start(&database, &old)).collect();
    wait_for_executions(&mut connection, &old, 3).await;

    // The new deployment comes up beside the old one, and serves the old order until that is retired.
    let pending = register(&store, &new).await;
    assert_eq!(pending.standing, ShardStanding::Pending);
    assert_names_c(&pending.unserved);
    workers.extend((0..3).map(|_| start(&database, &new)));
    wait_for_executions(&mut connection, &old, 6).await;

    let retirement = store.retire(old.shard(), new.shard()).await.unwrap();
    assert_names_c(&retirement.unserved);
    wait_for_executions(&mut connection, &new, 6).await;

    let enqueued = load.stop().await;
    wait_until("all served runs are done", async || {
        let counts = store.counts().await.unwrap();
        let mut served = counts.iter().filter(|counts| counts.tenant != tenant("c"));
        served.all(|counts| counts.done == enqueued[counts.tenant.as_str()])
    })
    .await;
    stop(workers).await;

    assert_nothing_is_lost(&store, &enqueued).await;
    let (in_old, in_new) = (
        selections(&store, &old).await,
        selections(&store, &new).await,
    );
    let old_length = u64::try_from(in_old.len()).unwrap();
    assert_eq!(retirement.old_length, Some(old_length));
    let orders = [("v1", in_old.clone()), ("v2", in_new.clone())].into();
    let executed = runs_executed_once(&mut connection, &orders).await;
    assert_eq!(executed, runs_done(&store).await);
    println!(
        "{} runs executed, {} of {} enqueued ones of c left; the orders have {} and {} sequences",
        executed.len(),
        store.unserved().await.unwrap()[0].queued,
        enqueued["c"],
        in_old.len(),
        in_new.len()
    );
    assert_gaps_are_bounded((&old, &in_old), (&new, &in_new));
}
