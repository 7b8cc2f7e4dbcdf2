//! The claim takes exactly the run that the pure order puts first.

use evenhand_store::{Claim, RunQueue, SequenceOutcome};
use proptest::strategy::{Strategy as _, ValueTree as _};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::scene::{Scene, execute, number, ran, run, wait_until};

/// Fills the queue of tenant `a` with random runs around the present tick.
async fn fill(connection: &mut PgConnection, seed: i32, runs: i32, ticks: i32) {
    execute(connection, "DELETE FROM evenhand.runs").await;
    execute(connection, &format!("SELECT setseed({seed} / 1000000.0)")).await;
    execute(
        connection,
        &format!(
            "INSERT INTO evenhand.runs (id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank,
                 attempts_max, base_priority, value_class, tenant, team, kind, payload)
             SELECT gen_random_uuid(), 1000 - floor(random() * {ticks})::int + 1, now(), now(), 0, 1, p.pool_key,
                    evenhand.rank_of(p, v.class, v.priority), 1, v.priority, v.class, 'a', 'a', 'k', '1'
             FROM evenhand.pools AS p, generate_series(1, {runs}) AS n,
             LATERAL (SELECT (enum_range(NULL::evenhand.value_class))[1 + floor(random() * 3)::int + 0 * n] AS class,
                             (floor(random() * 3) * 50)::int + 0 * n AS priority) AS v"
        ),
    )
    .await;
}

/// What the claim walks to, and what reading and scoring every run gives, at tick 1000.
async fn both(connection: &mut PgConnection, skipped: i32) -> (Option<String>, Option<String>) {
    sqlx::query_as(AssertSqlSafe(format!(
        "WITH skip AS (
             SELECT coalesce(array_agg(s.id), '{{}}') AS ids
             FROM (SELECT r.id FROM evenhand.runs AS r ORDER BY r.rank DESC, r.id LIMIT {skipped}) AS s
         )
         SELECT (SELECT b.id::text FROM evenhand.pools AS p, skip,
                     LATERAL evenhand.best_run(p, 'a', 1000, skip.ids) AS b),
                (SELECT r.id::text FROM evenhand.runs AS r, evenhand.pools AS p, skip
                 WHERE r.ready_tick <= 1000 AND r.id <> ALL (skip.ids)
                 ORDER BY r.rank + least(1000 - r.ready_tick, p.max_aging_ticks) * p.aging_per_tick
                     + CASE WHEN 1000 - r.ready_tick >= p.starvation_ticks THEN 10000 ELSE 0 END DESC,
                     r.ready_tick, r.id LIMIT 1)"
    )))
    .fetch_one(connection)
    .await
    .expect("both orders")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk_finds_what_scoring_every_run_finds() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    let mut found = 0;
    let cases = (0..1_000_000, 0..40, 1..30, 0..4);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..1_500 {
        let (seed, runs, ticks, skipped) = cases.new_tree(&mut runner).expect("a case").current();
        fill(&mut connection, seed, runs, ticks).await;
        let (walk, naive) = both(&mut connection, skipped).await;
        assert_eq!(
            walk, naive,
            "seed {seed}, {runs} runs, {ticks} ticks, {skipped} skipped"
        );
        found += u32::from(naive.is_some());
    }
    assert!(found > 1_000, "only {found} backlogs had a ready run");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk_is_exact_with_other_scorings_too() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    // No aging at all; aging up to the very tick of starvation; starvation at once.
    for (aging, max_aging, starvation) in [
        (0, 10, 12),
        (40, 12, 12),
        (7, 0, 0),
        (500, 1, 20),
        (3, 20, 25),
    ] {
        execute(
            &mut connection,
            &format!(
                "UPDATE evenhand.pools SET aging_per_tick = {aging}, max_aging_ticks = {max_aging}, starvation_ticks = {starvation}"
            ),
        )
        .await;
        for seed in 0..60 {
            fill(&mut connection, seed, 30, 28).await;
            let (walk, naive) = both(&mut connection, seed % 3).await;
            assert_eq!(
                walk, naive,
                "aging {aging}, {max_aging} ticks, starvation {starvation}, seed {seed}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_counts_as_claimed_from_when_it_was_locked() {
    let scene = Scene::start().await;
    // A first claim on this connection also compiles the function, which looks at the table.
    scene.reserve(2).await;
    assert_eq!(scene.claim(0).await, Claim::Idle);
    scene.store.enqueue(&run("a")).await.unwrap();
    // Holds the claim up after it has read the clock to see who is ready.
    let mut holder = scene.database.connect().await;
    let mut holding = holder.begin().await.unwrap();
    execute(
        &mut holding,
        "LOCK TABLE evenhand.runs IN ACCESS EXCLUSIVE MODE",
    )
    .await;
    let claiming = async { ran(scene.claim(1).await) };
    let letting_go = async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'evenhand.runs'::regclass";
        wait_until("the claim waits", async || scene.number(waiting).await == 1).await;
        let now = number(&mut holding, "SELECT evenhand.micros(evenhand.clock())").await;
        holding.rollback().await.unwrap();
        now
    };
    let (_, let_go_at) = tokio::join!(claiming, letting_go);
    let records = scene
        .store
        .sequences(scene.policy.shard(), 1, 1)
        .await
        .unwrap();
    let SequenceOutcome::Ran(attempt) = &records[0].outcome else {
        panic!("the claim is not on record: {records:?}")
    };
    assert!(attempt.claimed_at.as_microsecond() >= let_go_at);
}
