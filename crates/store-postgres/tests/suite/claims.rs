//! The claim takes exactly the run that the pure order puts first.

use evenhand_store::{Claim, LimitSubject, NewRun, RunQueue, RunsMax, SequenceOutcome};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

use crate::scene::{Scene, execute, number, ran, run, wait_until};

/// Random backlogs around tick 1000, each that of a tenant of its own: 0 to 60 runs that became ready, or will, in up to
/// 30 ticks, and few different priorities, so that there are ties.
async fn fill(connection: &mut PgConnection, backlogs: i32) {
    execute(
        connection,
        &format!(
            "SELECT setseed(0.5);
             CREATE TABLE public.backlogs AS
             SELECT 'tenant-' || n AS tenant, floor(random() * 60)::int AS runs, 1 + floor(random() * 29)::int AS ticks,
                    1 + floor(random() * 20)::int AS most
             FROM generate_series(1, {backlogs}) AS n;
             INSERT INTO evenhand.runs (id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank,
                 attempts_max, base_priority, value_class, tenant, team, kind, payload)
             SELECT gen_random_uuid(), 1001 - floor(random() * b.ticks)::int, now(), now(), n, 1, p.pool_key,
                    evenhand.rank_of(p, v.class, v.priority), 1, v.priority, v.class, b.tenant, 'a', 'k', '1'
             FROM evenhand.pools AS p, public.backlogs AS b, generate_series(1, b.runs) AS n,
             LATERAL (SELECT (enum_range(NULL::evenhand.value_class))[1 + floor(random() * 3)::int + 0 * n] AS class,
                             (floor(random() * 3) * 50)::int + 0 * n AS priority) AS v;
             ANALYZE evenhand.runs"
        ),
    )
    .await;
}

/// In how many backlogs something is ready at tick 1000, and in how many the walk finds other runs than reading and
/// scoring every run, or finds them in another order, or with another score.
async fn compare(connection: &mut PgConnection) -> (i64, i64) {
    sqlx::query_as(
        "WITH naive AS (
             SELECT s.tenant, s.id, s.score,
                    row_number() OVER (PARTITION BY s.tenant ORDER BY s.score DESC, s.ready_tick, s.id) AS place
             FROM (
                 SELECT r.*, r.rank + least(1000 - r.ready_tick, p.max_aging_ticks) * p.aging_per_tick
                     + CASE WHEN 1000 - r.ready_tick >= p.starvation_ticks THEN 10000 ELSE 0 END AS score
                 FROM evenhand.runs AS r CROSS JOIN evenhand.pools AS p WHERE r.ready_tick <= 1000
             ) AS s
         ), scored AS (
             SELECT b.tenant, array_agg((n.id, n.score) ORDER BY n.place) AS runs
             FROM public.backlogs AS b JOIN naive AS n ON n.tenant = b.tenant AND n.place <= b.most GROUP BY b.tenant
         ), found AS (
             SELECT (SELECT array_agg((t.id, t.score) ORDER BY t.place)
                     FROM evenhand.pools AS p, LATERAL evenhand.top_runs(p, b.tenant, 1000, b.most) WITH ORDINALITY
                         AS t (id, rank, ready_tick, score, team, cost_micros, place)) AS walked,
                    s.runs AS scored
             FROM public.backlogs AS b LEFT JOIN scored AS s ON s.tenant = b.tenant
         )
         SELECT count(*) FILTER (WHERE f.scored IS NOT NULL), count(*) FILTER (WHERE f.walked IS DISTINCT FROM f.scored)
         FROM found AS f",
    )
    .fetch_one(connection)
    .await
    .expect("both orders")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk_finds_what_scoring_every_run_finds() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    fill(&mut connection, 2_500).await;
    // The default; no aging at all; aging up to the very tick of starvation; starvation at once; slow and fast aging.
    for (aging, max_aging, starvation) in [
        (40, 10, 12),
        (0, 10, 12),
        (0, 4_000_000_000_i64, 4_000_000_000_i64),
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
        let (ready, different) = compare(&mut connection).await;
        assert!(ready > 2_000, "only {ready} backlogs had a ready run");
        assert_eq!(
            different, 0,
            "aging {aging}, {max_aging} ticks, starvation {starvation}"
        );
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

/// Runs of `a` that are ready since one moment, with this many different priorities.
fn ready_together(runs: u32, priorities: u32) -> Vec<NewRun> {
    (0..runs)
        .map(|n| {
            let mut run = run("a");
            run.base_priority = (n % priorities).try_into().expect("a priority");
            run
        })
        .collect()
}

/// The best of them, from the one in this place on.
fn best(place: u32, count: u32) -> String {
    format!(
        "SELECT r.id FROM evenhand.runs AS r WHERE r.state = 'queued'
         ORDER BY r.rank DESC, r.ready_tick, r.id OFFSET {place} LIMIT {count}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_the_next_best_behind_64_that_others_hold_and_looks_no_further() {
    // Runs of one rank, of several, and in a pool in which a team is limited are found in three ways.
    for (priorities, a_team_is_limited) in [(1, false), (50, false), (50, true)] {
        let scene = Scene::start().await;
        let runs = ready_together(80, priorities);
        scene.store.enqueue_many(&runs).await.unwrap();
        if a_team_is_limited {
            let another = LimitSubject::Team("another".parse().unwrap());
            let limit = scene
                .store
                .set_limit(&runs[0].pool, &another, RunsMax::new(1).ok());
            limit.await.unwrap();
        }
        for (held, is_reached) in [(64, true), (65, false), (70, false)] {
            let case = format!("{held} held, {priorities} priorities, {a_team_is_limited}");
            let next_best: Uuid = sqlx::query_scalar(AssertSqlSafe(best(held, 1)))
                .fetch_one(&mut scene.database.connect().await)
                .await
                .unwrap();
            let mut holder = scene.database.connect().await;
            let mut holding = holder.begin().await.unwrap();
            execute(&mut holding, &(best(0, held) + " FOR NO KEY UPDATE")).await;
            let sequence = scene.sequence_of("a").await;
            let claim = scene.claim(sequence).await;
            holding.rollback().await.unwrap();
            let records = scene
                .store
                .sequences(scene.policy.shard(), sequence, 1)
                .await;
            let outcome = &records.unwrap()[0].outcome;
            if is_reached {
                let claimed = ran(claim);
                assert_eq!(claimed.run.id.as_uuid(), next_best, "{case}");
                scene.store.complete(&claimed.lease).await.unwrap();
            } else {
                assert_eq!(claim, Claim::Contended, "{case}");
                assert_eq!(*outcome, SequenceOutcome::Contended, "{case}");
            }
        }
    }
}
