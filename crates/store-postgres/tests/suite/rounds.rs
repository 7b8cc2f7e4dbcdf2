//! A round claims exactly what the pure function admits.

mod model;

use proptest::prop_oneof;
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::TestRunner;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

use self::model::{Case, Ends, NOW_TICK, Permits, Queued, TEAMS, TENANTS, case, expected};
use crate::scene::{Scene, execute, number, policy};

async fn stop_clock(scene: &Scene) {
    scene
        .sql(&format!(
            "SET ROLE evenhand_owner;
             CREATE OR REPLACE FUNCTION evenhand.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
             RETURN pg_catalog.to_timestamp({NOW_TICK}.5)"
        ))
        .await;
}

/// The statements that bring a case about.
fn setup(case: &Case) -> String {
    let mut statements = Vec::new();
    let block = |first: u32, count: u32| {
        format!(
            "INSERT INTO evenhand.reservations (id, first_sequence, reserved_at, shard_key, count)
             SELECT evenhand.new_id(evenhand.clock(), {first}), {first}, evenhand.clock(), s.shard_key, {count}
             FROM evenhand.shards AS s"
        )
    };
    if case.first_sequence > 0 {
        statements.push(block(0, case.first_sequence));
    }
    statements.push(block(case.first_sequence, case.count));
    if !case.runs.is_empty() {
        statements.push(enqueue(&case.runs));
    }
    let tenants = TENANTS.iter().zip(&case.tenant_permits);
    let teams = TEAMS.iter().zip(&case.team_permits);
    for (kind, (name, permits)) in tenants
        .map(|limited| ("tenant", limited))
        .chain(teams.map(|limited| ("team", limited)))
    {
        if let Some(Permits { free, excess }) = permits {
            // Whoever holds the others is of no interest here.
            statements.push(format!(
                "INSERT INTO evenhand.limits SELECT p.pool_key, '{kind}', '{name}', {free} + 2, {excess} FROM evenhand.pools AS p;
                 INSERT INTO evenhand.permits SELECT CASE WHEN n > {free} THEN gen_random_uuid() END, p.pool_key, n, '{kind}', '{name}'
                 FROM evenhand.pools AS p, generate_series(1, {free} + 2 + {excess}) AS n"
            ));
        }
    }
    for at in &case.failed {
        let sequence = case.first_sequence + at;
        statements.push(format!(
            "SELECT evenhand.record_failed('primary-v1', {sequence})"
        ));
    }
    statements.join(";")
}

fn enqueue(runs: &[Queued]) -> String {
    let rows: Vec<String> = runs
        .iter()
        .map(|run| {
            format!(
                "('{}'::uuid, {}, {}, '{}'::evenhand.value_class, {}, '{}', '{}')",
                Uuid::from_u128(run.id),
                NOW_TICK - run.waited,
                run.cost,
                run.class,
                run.priority,
                TENANTS[run.tenant],
                TEAMS[run.team]
            )
        })
        .collect();
    format!(
        "INSERT INTO evenhand.runs (id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank,
             attempts_max, base_priority, value_class, tenant, team, kind, payload)
         SELECT v.id, v.tick, evenhand.clock(), evenhand.clock(), v.cost, 1, p.pool_key,
             evenhand.rank_of(p, v.class, v.priority), 1, v.priority, v.class, v.tenant, v.team, 'k', '1'
         FROM evenhand.pools AS p, (VALUES {}) AS v (id, tick, cost, class, priority, tenant, team)",
        rows.join(", ")
    )
}

/// What the database does, by its answer.
async fn claimed(connection: &mut PgConnection, case: &Case) -> Ends {
    let null = |number: Option<u32>| number.map_or("NULL".to_owned(), |n| n.to_string());
    let rows: Vec<(String, Vec<i64>, Option<Uuid>)> = sqlx::query_as(AssertSqlSafe(format!(
        "SELECT c.outcome, c.sequences, c.id FROM evenhand.shards AS s, LATERAL evenhand.claim_round(
             s.shard, s.digest, {}, {}, 'w', 30000, {}, {}, {}) AS c WHERE c.outcome <> 'ready'",
        case.first_sequence,
        case.count,
        case.runs_max,
        null(case.team_window),
        null(case.capacity)
    )))
    .fetch_all(connection)
    .await
    .expect("a round");
    let mut ends = Ends::default();
    for (outcome, sequences, id) in rows {
        match (&*outcome, id) {
            ("ran", Some(id)) => {
                ends.claimed.insert(sequences[0], id);
            }
            ("contended", None) => ends.contended.extend(sequences),
            other => panic!("{other:?} in the answer of a round"),
        }
    }
    ends
}

/// What the database has on record, one row a sequence, and a permit for each run that needs one.
async fn recorded(connection: &mut PgConnection, case: &Case) -> Ends {
    let rows: Vec<(i64, String, Option<Uuid>)> = sqlx::query_as(AssertSqlSafe(format!(
        "SELECT s.sequence, s.outcome, s.run_id FROM evenhand.sequences('primary-v1', {}, 1000) AS s",
        case.first_sequence
    )))
    .fetch_all(&mut *connection)
    .await
    .expect("records");
    assert_eq!(rows.len(), usize::try_from(case.count).unwrap());
    let mut ends = Ends::default();
    for (sequence, outcome, id) in rows {
        match (&*outcome, id) {
            ("ran", Some(id)) => {
                ends.claimed.insert(sequence, id);
            }
            ("contended", None) => {
                ends.contended.insert(sequence);
            }
            ("idle" | "failed", None) => {}
            other => panic!("{other:?} on record"),
        }
    }
    let rows = "SELECT count(*) FROM evenhand.outcomes WHERE failed IS NULL";
    let gaps = "SELECT count(*) FROM evenhand.shards AS s,
                LATERAL evenhand.gaps(s.shard_key, -1, (SELECT max(first_sequence + count) FROM evenhand.outcomes) - 1)";
    if case.failed.is_empty() {
        assert_eq!(number(connection, rows).await, 1, "one row a block");
    }
    if case.first_sequence == 0 {
        assert_eq!(number(connection, gaps).await, 0);
    }
    let wrong_permits = "SELECT count(*) FROM evenhand.leases AS l JOIN evenhand.runs AS r ON r.id = l.run_id
        FULL JOIN evenhand.limits AS m ON m.name IN (r.tenant, r.team)
        WHERE r.id IS NOT NULL AND m.name IS NOT NULL AND NOT EXISTS (
            SELECT FROM evenhand.permits AS p WHERE p.kind = m.kind AND p.name = m.name AND p.run_id = r.id
            AND p.ordinal = CASE m.kind WHEN 'tenant' THEN l.tenant_permit ELSE l.team_permit END)";
    assert_eq!(number(connection, wrong_permits).await, 0);
    ends
}

/// Brings `cases` cases about, and compares what the database does with what the pure function says.
async fn compare(
    weights: [(&str, u32); 4],
    counts: impl Strategy<Value = u32> + Clone,
    cases: u32,
) -> (usize, usize, usize) {
    let scene = Scene::with(policy("primary-v1", &weights)).await;
    stop_clock(&scene).await;
    let mut connection = scene.database.connect().await;
    let mut runner = TestRunner::deterministic();
    let (mut claims, mut contentions, mut limited) = (0, 0, 0);
    for number in 0..cases {
        let case = case(counts.clone()).new_tree(&mut runner);
        let case = case.expect("a case").current();
        let mut transaction = connection.begin().await.expect("a transaction");
        execute(&mut transaction, &setup(&case)).await;
        let expected = expected(&case, &scene.policy);
        claims += expected.claimed.len();
        contentions += expected.contended.len();
        limited += usize::from(case.team_window.is_some() && !expected.claimed.is_empty());
        let mut got = claimed(&mut transaction, &case).await;
        assert_eq!(claimed(&mut transaction, &case).await, got, "asked again");
        for at in &case.failed {
            let sequence = i64::from(case.first_sequence + at);
            assert!(got.contended.remove(&sequence), "what failed is contended");
        }
        assert_eq!(got, expected, "case {number}: {case:#?}");
        assert_eq!(
            recorded(&mut transaction, &case).await,
            expected,
            "on record"
        );
        transaction.rollback().await.expect("a rollback");
    }
    println!(
        "{claims} runs claimed, {contentions} sequences contended, {limited} rounds with a team window"
    );
    (claims, contentions, limited)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_claims_what_the_pure_function_admits() {
    let weights = [("a", 3), ("b", 1), ("c", 2), ("d", 2)];
    let counts = prop_oneof![2 => 1_u32..9, 3 => 1_u32..60];
    let (claims, contentions, limited) = compare(weights, counts, 2_000).await;
    assert!(claims > 5_000 && contentions > 10_000 && limited > 300);
}

/// Blocks beyond 256 sequences are looked at by tenant, and not by slot: shorter than the cycle, and longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_over_a_long_block_does_so_too() {
    let weights = [("a", 150), ("b", 40), ("c", 11), ("d", 200)];
    let (claims, contentions, limited) = compare(weights, 250_u32..700, 400).await;
    assert!(claims > 1_000 && contentions > 10_000 && limited > 60);
}
