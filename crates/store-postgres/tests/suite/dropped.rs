//! Calls that are dropped while the server works on them: whichever it is, nothing stays locked or half done.

use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::SchedulerShardId;
use evenhand_store::{
    ClaimRequest, Failure, HistoryRetentionPolicy, Lease, LimitSubject, NewRun, PolicyRegistration,
    ReservationStore, ReserveRequest, Retry, RoundRequest, RunId, RunQueue, RunsMax,
    SchedulerFairnessRetentionPolicy, StoreError, StoreErrorKind,
};
use evenhand_store_postgres::{ConnectOptions, PostgresStore, Transport};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::{Connection as _, PgConnection};

use crate::scene::{Scene, execute, lease, policy, request, run, tenant_id, wait_until, worker};

/// What the calls are made with.
struct Given {
    successor: PolicyRegistration,
    reserve: ReserveRequest,
    claim: ClaimRequest,
    round: RoundRequest,
    failed: (SchedulerShardId, u64),
    runs: Vec<NewRun>,
    /// Of three runs that are running.
    leases: Vec<Lease>,
    queued: RunId,
}

impl Given {
    async fn set_up(scene: &Scene) -> Self {
        let mut leases = Vec::new();
        for _ in 0..5 {
            leases.push(scene.claimed("a").await.lease);
        }
        let single = scene.reserve(1).await.first_sequence;
        let failed = scene.reserve(1).await.first_sequence;
        let block = scene.reserve(8).await;
        let runs = vec![run("a"), run("b")];
        scene.store.enqueue_many(&runs).await.unwrap();
        let successor = policy("primary-v2", &[("a", 1), ("b", 1)]);
        Self {
            successor: PolicyRegistration::new(successor),
            reserve: request(&scene.policy, 1),
            claim: scene.claim_request(single),
            round: RoundRequest::new(&scene.policy, &block, worker(), lease(), 1),
            failed: (scene.policy.shard().clone(), failed),
            queued: scene.store.enqueue(&run("a")).await.unwrap().run,
            runs,
            leases,
        }
    }
}

type Call = fn(PostgresStore, Arc<Given>) -> BoxFuture<'static, Result<(), StoreError>>;

/// A call of this name, with its arguments from what is given.
macro_rules! calls {
    ($($method:ident($given:ident => $($argument:expr),*)),* $(,)?) => {
        [$((stringify!($method), |store, $given| {
            async move {
                let _ = &$given;
                store.$method($($argument),*).await.map(drop)
            }
            .boxed()
        })),*]
    };
}

const HOUR: Duration = Duration::from_hours(1);

/// Every call that changes something, in an order in which each finds something to do.
const CALLS: [(&str, Call); 19] = calls![
    register_policy(given => &given.successor),
    reserve(given => &given.reserve),
    enqueue_many(given => &given.runs),
    claim(given => &given.claim),
    claim_round(given => &given.round),
    record_failed(given => &given.failed.0, given.failed.1),
    renew(given => &given.leases, lease()),
    complete(given => &given.leases[0]),
    complete_many(given => &given.leases[3..]),
    fail(given => &given.leases[1], &Failure::new("dropped", Retry::After(HOUR))),
    release(given => &given.leases[2], Duration::ZERO),
    recover(given => 10),
    cancel(given => given.queued),
    requeue(given => given.queued),
    discard(given => given.queued),
    set_limit(given => &given.runs[0].pool, &LimitSubject::Tenant(tenant_id("a")), RunsMax::new(7).ok()),
    prune_scheduler_fairness_reservations(given => SchedulerFairnessRetentionPolicy::new(HOUR, 10).unwrap()),
    prune_history(given => HistoryRetentionPolicy::new(HOUR, HOUR, HOUR, 10).unwrap()),
    retire(given => &given.failed.0, given.successor.policy.shard()),
];

const LOCK_EVERYTHING: &str = "DO $$ BEGIN EXECUTE (
    SELECT 'LOCK TABLE ' || string_agg(format('%I.%I', t.schemaname, t.tablename), ', ')
    FROM pg_tables AS t WHERE t.schemaname = 'evenhand'); END $$";

/// The sessions of others that wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND backend_type = 'client backend' AND wait_event_type = 'Lock'";

/// The sessions of others that do something, or have a transaction open.
const OPEN: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'";

const LOCKED: &str = "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
    WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// Runs that are running without a lease, or the other way round, and attempts that differ from both.
const HALF_DONE: &str = "SELECT
    (SELECT count(*) FROM evenhand.runs AS r FULL JOIN evenhand.leases AS l ON l.run_id = r.id
     WHERE (r.state = 'running') IS DISTINCT FROM (l.run_id IS NOT NULL))
    + (SELECT count(*) FROM (SELECT * FROM evenhand.attempts WHERE ended_at IS NULL) AS a
       FULL JOIN evenhand.leases AS l ON (l.run_id, l.fence) = (a.run_id, a.fence)
       WHERE a.run_id IS NULL OR l.run_id IS NULL)";

/// Makes the call while everything is locked, drops it once it waits in the server, and lets the server go on.
async fn drop_in_the_server(
    scene: &Scene,
    holder: &mut PgConnection,
    call: BoxFuture<'static, Result<(), StoreError>>,
) {
    let mut holding = holder.begin().await.unwrap();
    execute(&mut holding, LOCK_EVERYTHING).await;
    let call = tokio::spawn(call);
    wait_until("the call waits for a lock", async || {
        scene.number(WAITING).await == 1
    })
    .await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    holding.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_can_be_dropped_and_asked_again() {
    for transport in [Transport::Direct, Transport::TransactionPooler] {
        let scene = Scene::start().await;
        let given = Arc::new(Given::set_up(&scene).await);
        let options = ConnectOptions::parse(&scene.database.url()).unwrap();
        let options = options.transport(transport).connections_max(2);
        let store = PostgresStore::connect(options).await.unwrap();
        let mut holder = scene.database.connect().await;
        for (name, call) in CALLS {
            drop_in_the_server(&scene, &mut holder, call(store.clone(), Arc::clone(&given))).await;
            wait_until("no transaction is open", async || {
                scene.number(OPEN).await == 0
            })
            .await;
            assert_eq!(scene.number(LOCKED).await, 0, "{name} left a lock");
            assert_eq!(scene.number(HALF_DONE).await, 0, "{name} is half done");
            let again = call(store.clone(), Arc::clone(&given)).await;
            match again {
                Ok(()) => {}
                // Only the first release of an attempt finds it.
                Err(error) if name == "release" => {
                    assert_eq!(error.kind(), StoreErrorKind::LeaseLost);
                }
                Err(error) => panic!("{name} again: {error}"),
            }
            assert_eq!(scene.number(HALF_DONE).await, 0, "{name} is half done");
        }
        let two_shards = "SELECT count(*) FROM evenhand.shards";
        assert_eq!(scene.number(two_shards).await, 2);
    }
}
