//! The worker that users run, over PostgreSQL, while there is nothing to do.
#![cfg(feature = "postgres")]
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use core::time::Duration;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::{BoxError, Job, JobOutcome, RunContext, Worker};
use evenhand_store::{
    LeaseDuration, NewRun, PolicyRegistration, ReadyAt, ReservationStore as _, RunQueue as _,
};
use evenhand_testkit::postgres::TestDatabase;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

#[derive(Serialize, Deserialize)]
struct Task {}

impl Job for Task {
    const KIND: &'static str = "task";
}

fn tenant(name: &str) -> TenantId {
    name.try_into().expect("a tenant")
}

fn task(tenant_name: &str) -> NewRun {
    Task {}.new_run(tenant(tenant_name)).expect("a run")
}

fn policy() -> WeightedFairnessPolicy {
    let weights = ["a", "b"].map(|name| TenantFairnessWeight::new(tenant(name), 1).unwrap());
    let shard = SchedulerShardId::try_from("primary-v1").unwrap();
    WeightedFairnessPolicy::new(shard, weights).unwrap()
}

/// Everything in the database but who sleeps: each row with where it is and who wrote it, and how far sequences are.
const WRITTEN: &str = "
    SELECT string_agg(t.kept, ' ' ORDER BY t.kept)
    FROM (
        SELECT c.relname || ' ' || coalesce((xpath('/row/rows/text()', query_to_xml(format(
                   'SELECT md5(string_agg(ROW(t.ctid, t.xmin, t.*)::text, '';'' ORDER BY t.ctid)) AS rows
                    FROM evenhand.%I AS t', c.relname), true, true, '')))[1]::text, 'none') AS kept
        FROM pg_class AS c
        WHERE c.relnamespace = 'evenhand'::regnamespace AND c.relkind IN ('r', 'p') AND c.relname <> 'sleepers'
        UNION ALL
        SELECT s.sequencename || ' ' || coalesce(s.last_value::text, 'none')
        FROM pg_sequences AS s
        WHERE s.schemaname = 'evenhand' AND s.sequencename NOT IN ('sleepers_sleeper_seq', 'asleep_until')
    ) AS t";

async fn written(connection: &mut PgConnection) -> String {
    let written = sqlx::query_scalar(WRITTEN).fetch_one(connection).await;
    written.expect("what is in the database")
}

/// How often anybody has fallen asleep: after each look that found nothing.
const SLEEPS: &str =
    "SELECT coalesce(pg_sequence_last_value('evenhand.sleepers_sleeper_seq'), 0)::bigint";

/// Asks again until the statement's number is at least this one.
async fn wait_for(connection: &mut PgConnection, sql: &'static str, least: i64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let number: i64 = sqlx::query_scalar(sql)
            .fetch_one(&mut *connection)
            .await
            .expect("a number");
        if number >= least {
            return;
        }
        assert!(Instant::now() < deadline, "{number} of {least}: {sql}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_with_nothing_to_do_consumes_no_sequence_and_writes_nothing() {
    let database = TestDatabase::migrated().await;
    let store = database.store().await;
    let handler = |_: Task, _: RunContext| async { Ok::<_, BoxError>(JobOutcome::Done) };
    // Short, so that looks and duties come often.
    let lease = LeaseDuration::new(Duration::from_secs(1)).unwrap();
    let worker = Worker::builder(store.clone(), policy())
        .on::<Task>(handler)
        .lease(lease)
        .poll_interval(Duration::from_millis(50))
        .build();
    let registration = PolicyRegistration::new(policy());
    store.register_policy(&registration).await.unwrap();
    // Work of nobody whom it serves, and work for later, is nothing to do either.
    let mut later = task("a");
    later.ready_at = ReadyAt::After(Duration::from_hours(1));
    store
        .enqueue_many(&[later, task("stranger")])
        .await
        .unwrap();

    let mut connection = database.connect().await;
    let before = written(&mut connection).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let working = tokio::spawn(async move { worker.run_until(stopped).await });
    wait_for(&mut connection, SLEEPS, 30).await;
    assert_eq!(written(&mut connection).await, before);

    // The same worker, and what it writes once there is something to do.
    store.enqueue(&task("a")).await.unwrap();
    let done = "SELECT count(*) FROM evenhand.runs WHERE state = 'done'";
    wait_for(&mut connection, done, 1).await;
    let after = written(&mut connection).await;
    for table in ["reservations", "outcomes", "attempts", "runs"] {
        let rows = |written: &str| {
            let rows = written.split_once(&format!("{table} ")).expect("a table").1;
            rows.split(' ').next().map(str::to_owned)
        };
        assert_ne!(rows(&before), rows(&after), "{table}");
    }
    drop(stop);
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.completed, report.blocks), (1, 1));
}
