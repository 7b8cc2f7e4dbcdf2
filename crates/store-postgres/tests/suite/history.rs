//! Records other than reservations: who may delete them, and what it costs to read and to forget them.

use core::time::Duration;

use evenhand_store::{
    HistoryReport, HistoryRetentionPolicy, ReservationStore, RunQueue,
    SchedulerFairnessRetentionPolicy,
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::plans::{keep_statistics_stale, sequential_scans};
use crate::scene::{Scene, execute, number, policy, run};

const HOUR: i64 = 3_600_000_000;

async fn prune_reservations(scene: &Scene) {
    let policy = SchedulerFairnessRetentionPolicy::new(Duration::from_hours(1), 10_000).unwrap();
    let pruned = scene.store.prune_scheduler_fairness_reservations(policy);
    assert!(!pruned.await.unwrap().more);
}

async fn prune(scene: &Scene) -> HistoryReport {
    let hour = Duration::from_hours(1);
    let policy = HistoryRetentionPolicy::new(hour, hour, hour, 100).unwrap();
    scene.store.prune_history(policy).await.unwrap()
}

/// As the owner, with ordinary triggers switched off, as a replication apply worker runs.
fn as_replica(sql: &str) -> String {
    format!("SET session_replication_role = replica; {sql}")
}

async fn assert_refused(scene: &Scene, statements: &[&str]) {
    for sql in statements {
        assert_eq!(scene.refusal(sql).await, "EV012", "{sql}");
        assert_eq!(scene.refusal(&as_replica(sql)).await, "EV012", "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_young_or_covered_by_a_reservation_cannot_be_deleted() {
    let scene = Scene::start().await;
    let claimed = scene.claimed("a").await;
    scene.store.complete(&claimed.lease).await.unwrap();
    scene.reserve(1).await;
    let deletions = [
        "DELETE FROM evenhand.outcomes",
        "DELETE FROM evenhand.attempts",
    ];
    assert_refused(&scene, &["TRUNCATE evenhand.attempts"]).await;
    assert_refused(&scene, &deletions).await;
    scene.database.move_clock(HOUR + 1).await;
    assert_refused(&scene, &deletions).await;
    // An older record of an order goes with its reservation, and so it may go once that has gone.
    prune_reservations(&scene).await;
    for sql in deletions {
        scene.sql(sql).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_has_not_ended_holds_up_nobody_and_is_found_when_it_has() {
    let scene = Scene::start().await;
    let long = scene.claimed("a").await;
    let short = scene.claimed("a").await;
    scene.store.complete(&short.lease).await.unwrap();
    scene.reserve(1).await;
    scene.database.move_clock(HOUR + 1).await;
    prune_reservations(&scene).await;
    assert_eq!(
        scene.refusal("DELETE FROM evenhand.attempts").await,
        "EV012"
    );
    let report = prune(&scene).await;
    assert_eq!(
        (report.outcomes, report.attempts, report.more),
        (2, 1, false)
    );
    scene.store.complete(&long.lease).await.unwrap();
    assert_eq!(prune(&scene).await.attempts, 0, "it has just ended");
    scene.database.move_clock(HOUR + 1).await;
    assert_eq!(prune(&scene).await.attempts, 1);
}

/// The buffers that a statement touches, which stays done.
async fn buffers(connection: &mut PgConnection, sql: &str) -> u64 {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}");
    let plan: sqlx::types::Json<serde_json::Value> = sqlx::query_scalar(AssertSqlSafe(explain))
        .fetch_one(connection)
        .await
        .unwrap();
    let top = &plan.0[0]["Plan"];
    ["Shared Hit Blocks", "Shared Read Blocks"]
        .iter()
        .map(|key| top[*key].as_u64().unwrap())
        .sum()
}

/// Outcomes and attempts of the first 20000 sequences and as many done runs, all two hours old; their reservation is
/// pruned.
async fn long_history(scene: &Scene) {
    scene.reserve(20_000).await;
    scene.reserve(1).await;
    scene.database.move_clock(HOUR + 1).await;
    prune_reservations(scene).await;
    scene
        .sql(
            "INSERT INTO evenhand.outcomes (shard_key, first_sequence, count, recorded_at, ran)
             SELECT 1, n, 1, now() - interval '2 hours', '{0}' FROM generate_series(0, 19999) AS n;
             INSERT INTO evenhand.attempts (shard_key, sequence, run_id, fence, tenant, worker, ready_at, claimed_at,
                 ended_at, result)
             SELECT 1, n, gen_random_uuid(), 1, 'a', 'w', now(), now() - interval '2 hours', now() - interval '2 hours',
                 'completed' FROM generate_series(0, 19999) AS n;
             INSERT INTO evenhand.runs (id, state, finished_at, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms,
                 pool_key, rank, attempts_max, base_priority, value_class, tenant, team, kind, payload)
             SELECT gen_random_uuid(), 'done', now() - interval '3 hours' + n * interval '1 ms', 1, now(), now(), 0, 1, 1,
                 0, 1, 0, 'batch', 'a', 'a', 'k', '1' FROM generate_series(0, 19999) AS n",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_batch_of_a_long_history_costs_no_more_than_the_first_while_a_snapshot_is_held() {
    let scene = Scene::start().await;
    keep_statistics_stale(&mut scene.database.connect().await).await;
    long_history(&scene).await;
    let mut holder = scene.database.connect().await;
    let mut holding = holder.begin().await.unwrap();
    execute(
        &mut holding,
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    )
    .await;
    number(&mut holding, "SELECT count(*) FROM evenhand.runs").await;
    let mut connection = scene.database.connect().await;
    let pass = "SELECT * FROM evenhand.prune_history(3600000, 3600000, 3600000, 500)";
    // The first of a session also loads catalogue pages.
    execute(&mut connection, pass).await;
    let first = buffers(&mut connection, pass).await;
    assert_eq!(sequential_scans(&mut connection, pass).await, 0);
    for _ in 0..37 {
        execute(&mut connection, pass).await;
    }
    assert_eq!(sequential_scans(&mut connection, pass).await, 0);
    let last = buffers(&mut connection, pass).await;
    let left =
        "SELECT (SELECT count(*) FROM evenhand.outcomes) + (SELECT count(*) FROM evenhand.attempts)
        + (SELECT count(*) FROM evenhand.runs)";
    assert_eq!(number(&mut connection, left).await, 0);
    println!("buffers of deleting 500 of each at first {first}, at last {last}");
    assert!(last <= first * 2, "{first} {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_turns_of_a_rare_tenant_are_found_without_reading_those_of_others() {
    let scene = Scene::with(policy("primary-v1", &[("busy", 1_000), ("rare", 1)])).await;
    let mut connection = scene.database.connect().await;
    let single = "DO $$ BEGIN FOR n IN 1 .. 3003 LOOP
        PERFORM r.first_sequence FROM evenhand.shards AS s, evenhand.reserve(
            s.shard, evenhand.new_id(evenhand.clock(), 0), s.digest, s.cycle_length, 1) AS r;
        END LOOP; END $$";
    let history = |limit: u32| {
        format!(
            "SELECT * FROM evenhand.tenant_history('primary-v1', 'rare', 0, 9000000000000000, {limit})"
        )
    };
    execute(&mut connection, single).await;
    buffers(&mut connection, &history(3)).await;
    let short = buffers(&mut connection, &history(3)).await;
    for _ in 0..9 {
        execute(&mut connection, single).await;
    }
    let long = buffers(&mut connection, &history(3)).await;
    let whole = buffers(&mut connection, &history(1_000)).await;
    println!("buffers of 3 turns of {short} and {long}, of 30 turns {whole}");
    assert!(long <= short * 2, "{short} {long}");
    assert!(whole <= long * 10, "{long} {whole}");
    let turns = "SELECT count(*) FROM evenhand.tenant_history('primary-v1', 'rare', 0, 9000000000000000, 1000)";
    assert_eq!(number(&mut connection, turns).await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueued_run_that_nobody_claimed_is_never_pruned() {
    let scene = Scene::start().await;
    scene.store.enqueue(&run("a")).await.unwrap();
    scene.database.move_clock(400 * 24 * HOUR).await;
    let report = prune(&scene).await;
    assert_eq!((report.finished, report.dead), (0, 0));
    assert_eq!(scene.number("SELECT count(*) FROM evenhand.runs").await, 1);
}
