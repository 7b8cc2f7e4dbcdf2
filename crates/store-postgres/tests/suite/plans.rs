//! What hot statements read: buffers stay flat while tables grow, and no plan depends on fresh statistics.

use evenhand_store::RunQueue;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::scene::{Scene, execute, number, policy, run};

/// The buffers that a statement touches, found ones and read ones, in its second run of a session: the first also loads
/// catalogue pages.
pub(crate) async fn buffers(connection: &mut PgConnection, sql: &str) -> u64 {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}");
    let mut touched = 0;
    for _ in 0..2 {
        execute(connection, "BEGIN").await;
        let plan: sqlx::types::Json<serde_json::Value> =
            sqlx::query_scalar(AssertSqlSafe(explain.clone()))
                .fetch_one(&mut *connection)
                .await
                .expect("a plan");
        execute(connection, "ROLLBACK").await;
        let top = &plan.0[0]["Plan"];
        touched = ["Shared Hit Blocks", "Shared Read Blocks"]
            .iter()
            .map(|key| top[*key].as_u64().expect("a count"))
            .sum();
    }
    touched
}

/// Runs of tenant `a` spread over all classes and priorities, waiting between 0 and 40 ticks, beside other tenants' runs.
async fn backlog(connection: &mut PgConnection, runs: i64) {
    execute(
        connection,
        &format!(
            "INSERT INTO evenhand.runs (id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank,
                 attempts_max, base_priority, value_class, tenant, team, kind, payload)
             SELECT gen_random_uuid(), evenhand.tick_of(evenhand.clock(), 1000) - n % 41, now(), now(), 0, 1, p.pool_key,
                    evenhand.rank_of(p, c.class, (n / 7 % 101)::int), 1, (n / 7 % 101)::int, c.class,
                    CASE WHEN n % 2 = 0 THEN 'a' ELSE 'other-' || n % 1000 END, 't', 'k', '1'
             FROM evenhand.pools AS p, generate_series(1, {runs} * 2) AS n,
             LATERAL (SELECT (enum_range(NULL::evenhand.value_class))[1 + (n / 2 % 3)::int] AS class) AS c"
        ),
    )
    .await;
}

/// Statistics as they were while the tables were empty, and no background job to mend them.
pub(crate) async fn keep_statistics_stale(connection: &mut PgConnection) {
    for table in [
        "runs",
        "reservations",
        "outcomes",
        "attempts",
        "leases",
        "limits",
        "permits",
        "shard_slots",
    ] {
        execute(
            connection,
            &format!("ALTER TABLE evenhand.{table} SET (autovacuum_enabled = off)"),
        )
        .await;
        execute(connection, &format!("ANALYZE evenhand.{table}")).await;
    }
}

const CLAIM: &str = "SELECT * FROM evenhand.claim('primary-v1', 0, 'a', 'w', 1000)";
const LOOK: &str = "SELECT * FROM evenhand.ready_tenants('primary-v1')";

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reads_about_as_much_of_100000_runs_as_of_1000() {
    let scene = Scene::start().await;
    scene.reserve(1).await;
    let mut connection = scene.database.connect().await;
    keep_statistics_stale(&mut connection).await;
    backlog(&mut connection, 1_000).await;
    let small = (
        buffers(&mut connection, CLAIM).await,
        buffers(&mut connection, LOOK).await,
    );
    backlog(&mut connection, 99_000).await;
    let stale = (
        buffers(&mut connection, CLAIM).await,
        buffers(&mut connection, LOOK).await,
    );
    execute(&mut connection, "VACUUM ANALYZE evenhand.runs").await;
    // A new session plans anew.
    let mut connection = scene.database.connect().await;
    let fresh = (
        buffers(&mut connection, CLAIM).await,
        buffers(&mut connection, LOOK).await,
    );
    println!(
        "buffers of claim and look at 1000 runs {small:?}, at 100000 {stale:?} with stale and {fresh:?} with fresh statistics"
    );
    for large in [stale, fresh] {
        assert!(large.0 <= small.0 * 2, "claim: {small:?} {large:?}");
        assert!(large.1 <= small.1 * 2, "look: {small:?} {large:?}");
    }
}

/// A round over the block from `first` on, with further limits or without.
fn round(first: u32, count: u32, runs_max: u32, limits: &str) -> String {
    format!(
        "SELECT c.* FROM evenhand.shards AS s, evenhand.claim_round(
             s.shard, s.digest, {first}, {count}, 'w', 1000, {runs_max}, {limits}) AS c"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_reads_about_as_much_of_100000_runs_as_of_1000() {
    let scene = Scene::start().await;
    scene.reserve(1).await;
    scene.reserve(85).await;
    let rounds = [
        round(0, 1, 1, "NULL, NULL"),
        round(1, 85, 64, "NULL, NULL"),
        round(1, 85, 64, "70, 1000"),
    ];
    let measure = async |connection: &mut PgConnection| {
        let mut measured = Vec::new();
        for round in &rounds {
            measured.push(buffers(connection, round).await);
        }
        measured
    };
    let mut connection = scene.database.connect().await;
    keep_statistics_stale(&mut connection).await;
    backlog(&mut connection, 1_000).await;
    let small = measure(&mut connection).await;
    backlog(&mut connection, 99_000).await;
    let stale = measure(&mut connection).await;
    execute(&mut connection, "VACUUM ANALYZE evenhand.runs").await;
    let mut connection = scene.database.connect().await;
    let fresh = measure(&mut connection).await;
    println!(
        "buffers of rounds of 1, of 64, and of 64 with limits at 1000 runs {small:?}, at 100000 {stale:?} with stale and {fresh:?} with fresh statistics"
    );
    for large in [stale, fresh] {
        for (large, small) in large.iter().zip(&small) {
            assert!(*large <= small * 2, "{small} {large}");
        }
    }
    assert_eq!(sequential_scans(&mut connection, &rounds[1]).await, 0);
}

/// How often a permit is read or written by a statement, which is rolled back.
async fn permits_touched(connection: &mut PgConnection, sql: &str) -> i64 {
    let touched = "SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + n_tup_del)::bigint
        FROM pg_stat_xact_user_tables WHERE schemaname = 'evenhand' AND relname = 'permits'";
    counted(connection, sql, touched).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_costs_the_claims_of_other_tenants_a_look_at_who_is_limited() {
    let scene = Scene::start().await;
    scene.reserve(1).await;
    scene.reserve(85).await;
    let claims = [
        CLAIM.to_owned(),
        round(0, 1, 1, "NULL, NULL"),
        round(1, 85, 64, "NULL, NULL"),
    ];
    let mut connection = scene.database.connect().await;
    keep_statistics_stale(&mut connection).await;
    backlog(&mut connection, 1_000).await;
    let measure = async |connection: &mut PgConnection| {
        let mut measured = Vec::new();
        for claim in &claims {
            measured.push(buffers(connection, claim).await);
        }
        measured
    };
    let without = measure(&mut connection).await;
    for limits in [
        "SELECT evenhand.set_limit('default', 'tenant', name, 10000) FROM unnest('{b,c,d}'::text[]) AS name",
        "SELECT evenhand.set_limit('default', 'tenant', md5(n::text), 1) FROM generate_series(1, 2000) AS n",
    ] {
        execute(&mut connection, limits).await;
    }
    let with = measure(&mut connection).await;
    println!(
        "buffers of a claim, a round of 1 and of 64 without limits {without:?}, with {with:?}"
    );
    for (claim, runs) in claims.iter().zip([1, 1, 64]) {
        assert_eq!(permits_touched(&mut connection, claim).await, 0, "{runs}");
    }
    for (with, without) in with.iter().zip(&without) {
        assert!(*with <= without + 20, "{without} {with}");
    }
}

/// How often a statement, which is rolled back, reads a table that grows from end to end.
pub(crate) async fn sequential_scans(connection: &mut PgConnection, sql: &str) -> i64 {
    let scans = "SELECT sum(seq_scan)::bigint FROM pg_stat_xact_user_tables
        WHERE schemaname = 'evenhand'
          AND relname IN ('runs', 'reservations', 'outcomes', 'attempts', 'leases', 'permits')";
    counted(connection, sql, scans).await
}

/// By how much a statement, which is rolled back, raises a counter of its session.
async fn counted(connection: &mut PgConnection, sql: &str, counter: &str) -> i64 {
    execute(connection, "BEGIN").await;
    // Earlier statements are counted here too until the session has told them to the server.
    let before = number(connection, counter).await;
    execute(connection, sql).await;
    let after = number(connection, counter).await;
    execute(connection, "ROLLBACK").await;
    after - before
}

/// Finished runs and their attempts, from the number `first` on.
async fn history(connection: &mut PgConnection, first: i64, runs: i64) {
    let last = first + runs - 1;
    execute(
        connection,
        &format!(
            "WITH ended AS (
                 INSERT INTO evenhand.runs (id, ready_tick, ready_at, enqueued_at, finished_at, fence, cost_micros, timeout_ms,
                     pool_key, rank, attempt, attempts_max, base_priority, state, value_class, tenant, team, kind, payload)
                 SELECT gen_random_uuid(), 0, now(), now(), now(), 1, n, 1, p.pool_key, 0, 1, 1, 0, 'done', 'standard',
                        CASE WHEN n % 2 = 0 THEN 'a' ELSE 'b' END, 't', 'k', '1'
                 FROM evenhand.pools AS p, generate_series({first}, {last}) AS n
                 RETURNING id, tenant, cost_micros AS n
             )
             INSERT INTO evenhand.attempts
                 (shard_key, sequence, run_id, fence, tenant, worker, ready_at, claimed_at, ended_at, result)
             SELECT s.shard_key, e.n, e.id, 1, e.tenant, 'w', now(), now(), now(), 'completed'
             FROM evenhand.shards AS s, ended AS e"
        ),
    )
    .await;
}

/// Completes the runs that a tenant has running; with other fences when the leases are to be lost.
async fn completion(connection: &mut PgConnection, tenant: &str, fences_ahead: i64) -> String {
    let lists: [String; 3] = sqlx::query_as(AssertSqlSafe(format!(
        "SELECT quote_literal(array_agg(l.run_id)), quote_literal(array_agg(l.fence + {fences_ahead})),
                quote_literal(array_agg(l.sequence))
         FROM evenhand.leases AS l JOIN evenhand.runs AS r ON r.id = l.run_id WHERE r.tenant = '{tenant}'"
    )))
    .fetch_one(connection)
    .await
    .map(|(runs, fences, sequences)| [runs, fences, sequences])
    .expect("the leases");
    let [runs, fences, sequences] = lists;
    format!(
        "SELECT evenhand.complete_many(
             {runs}, {fences}, array_fill('primary-v1'::text, ARRAY[cardinality({runs}::uuid[])]), {sequences})"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn completing_64_runs_reads_about_as_much_beside_100000_ended_ones_as_beside_1000() {
    const BEYOND: i64 = 1_000_000;
    let scene = Scene::with(policy("primary-v1", &[("a", 1), ("b", 1)])).await;
    let mut connection = scene.database.connect().await;
    keep_statistics_stale(&mut connection).await;
    history(&mut connection, BEYOND, 1_000).await;
    let limit = "SELECT evenhand.set_limit('default', 'tenant', 'b', 10000)";
    execute(&mut connection, limit).await;
    let runs: Vec<_> = (0..128).map(|n| run(["a", "b"][n % 2])).collect();
    scene.store.enqueue_many(&runs).await.unwrap();
    scene.reserve(128).await;
    execute(&mut connection, &round(0, 128, 128, "NULL, NULL")).await;
    let completions = [
        completion(&mut connection, "a", 0).await,
        completion(&mut connection, "b", 0).await,
        completion(&mut connection, "a", 1).await,
    ];
    let measure = async |connection: &mut PgConnection| {
        let mut measured = Vec::new();
        for completion in &completions {
            measured.push(buffers(connection, completion).await);
            assert_eq!(sequential_scans(connection, completion).await, 0);
        }
        measured
    };
    let small = measure(&mut connection).await;
    history(&mut connection, BEYOND + 1_000, 99_000).await;
    let stale = measure(&mut connection).await;
    execute(
        &mut connection,
        "VACUUM ANALYZE evenhand.runs, evenhand.attempts, evenhand.leases",
    )
    .await;
    let mut connection = scene.database.connect().await;
    let fresh = measure(&mut connection).await;
    println!(
        "buffers of completing 64 runs, 64 with permits, and 64 lost ones beside 1000 ended ones {small:?}, beside 100000 {stale:?} with stale and {fresh:?} with fresh statistics"
    );
    for large in [stale, fresh] {
        for (large, small) in large.iter().zip(&small) {
            assert!(*large <= small * 2, "{small} {large}");
        }
    }
    // What was measured is what completes them.
    for (completion, completed) in completions.iter().rev().zip([0, 64, 64]) {
        let answers = format!("SELECT count(*) FILTER (WHERE a) FROM unnest(({completion})) AS a");
        assert_eq!(number(&mut connection, &answers).await, completed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_over_262144_sequences_with_one_busy_tenant_of_1024_reads_little() {
    let names: Vec<String> = (0..1_024).map(|n| format!("t{n:04}")).collect();
    let tenants: Vec<(&str, u32)> = names.iter().map(|name| (&**name, 4)).collect();
    let scene = Scene::with(policy("primary-v1", &tenants)).await;
    scene.reserve(1 << 18).await;
    let runs = vec![run("t0700"); 300];
    scene.store.enqueue_many(&runs).await.unwrap();
    let mut connection = scene.database.connect().await;
    let small = buffers(&mut connection, &round(0, 1 << 18, 16, "NULL, NULL")).await;
    let large = buffers(&mut connection, &round(0, 1 << 18, 300, "NULL, NULL")).await;
    println!("buffers of a round of 16 runs {small}, of 256 runs {large}");
    assert!(small < 16 * 30 + 200, "{small}");
    assert!(large < 256 * 30 + 200, "{large}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_tenants_cost_a_short_round_one_look_each_and_a_longer_one_nothing() {
    let names: Vec<String> = (0..1_024).map(|n| format!("t{n:04}")).collect();
    let tenants: Vec<(&str, u32)> = names.iter().map(|name| (&**name, 4)).collect();
    let scene = Scene::with(policy("primary-v1", &tenants)).await;
    scene
        .store
        .enqueue_many(&vec![run("t0700"); 20])
        .await
        .unwrap();
    let mut connection = scene.database.connect().await;
    // A single run is wanted of each block, as when a worker has one permit free.
    for (count, at_most) in [
        (4_096, 300),
        (1_000, 300),
        (256, 256 * 6 + 200),
        (64, 64 * 6 + 200),
    ] {
        let first = u32::try_from(scene.reserve(count).await.first_sequence).unwrap();
        let round = round(first, count, 1, "NULL, NULL");
        let read = buffers(&mut connection, &round).await;
        println!("buffers of a round of one run over {count} sequences {read}");
        assert!(read < at_most, "{count}: {read}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_for_lost_blocks_reads_nothing_twice() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    keep_statistics_stale(&mut connection).await;
    let many = |count: u32| {
        format!(
            "DO $$ DECLARE v_first bigint; BEGIN FOR n IN 1 .. {count} LOOP
                 SELECT r.first_sequence INTO v_first FROM evenhand.shards AS s, evenhand.reserve(
                     s.shard, evenhand.new_id(evenhand.clock(), 0), s.digest, s.cycle_length, 4) AS r;
                 PERFORM c.outcome FROM evenhand.shards AS s, evenhand.claim_round(
                     s.shard, s.digest, v_first, 4, 'w', 1000, 4, NULL, NULL) AS c;
             END LOOP; END $$"
        )
    };
    let lost = "SELECT * FROM evenhand.lost_blocks('primary-v1', 0, 10)";
    execute(&mut connection, &many(50)).await;
    execute(&mut connection, lost).await;
    let small = buffers(&mut connection, lost).await;
    execute(&mut connection, &many(5_000)).await;
    let first = buffers(&mut connection, lost).await;
    execute(&mut connection, lost).await;
    execute(&mut connection, &many(50)).await;
    let large = buffers(&mut connection, lost).await;
    println!("buffers of a look at 50 blocks {small}, at 5000 {first}, at 50 more {large}");
    assert!(large <= small * 2 + 20, "{small} {large}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_served_is_told_without_reading_who_is() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    keep_statistics_stale(&mut connection).await;
    let leave_one_other = "DELETE FROM evenhand.runs WHERE tenant <> 'a' AND tenant <> 'other-1'";
    let unserved = "SELECT * FROM evenhand.unserved()";
    backlog(&mut connection, 1_000).await;
    execute(&mut connection, leave_one_other).await;
    let small = buffers(&mut connection, unserved).await;
    execute(
        &mut connection,
        "INSERT INTO evenhand.runs SELECT gen_random_uuid(), r.ready_tick, r.ready_at, r.enqueued_at, r.finished_at, r.fence,
             r.cost_micros, r.timeout_ms, r.pool_key, r.rank, r.attempt, r.attempts_max, r.base_priority, r.state,
             r.value_class, r.tenant, r.team, r.kind, NULL, NULL, r.payload
         FROM evenhand.runs AS r, generate_series(1, 100) WHERE r.tenant = 'a'",
    )
    .await;
    let stale = buffers(&mut connection, unserved).await;
    execute(&mut connection, "VACUUM ANALYZE evenhand.runs").await;
    let mut connection = scene.database.connect().await;
    let fresh = buffers(&mut connection, unserved).await;
    println!(
        "buffers of unserved beside 1000 served runs {small}, beside 100000 {stale} with stale and {fresh} with fresh statistics"
    );
    assert!(stale <= small * 2, "{small} {stale}");
    assert!(fresh <= small * 2, "{small} {fresh}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_reads_as_much_after_50000_as_after_none() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    keep_statistics_stale(&mut connection).await;
    let reserve = "SELECT * FROM evenhand.shards AS s, evenhand.reserve(
        s.shard, evenhand.new_id(evenhand.clock(), 0), s.digest, s.cycle_length, 1) WHERE s.shard = 'primary-v1'";
    execute(&mut connection, reserve).await;
    let small = buffers(&mut connection, reserve).await;
    let many = format!(
        "DO $$ BEGIN FOR n IN 1 .. 50000 LOOP PERFORM * FROM ({reserve}) AS r; END LOOP; END $$"
    );
    execute(&mut connection, &many).await;
    let large = buffers(&mut connection, reserve).await;
    println!("buffers of a reservation after 1: {small}, after 50000: {large}");
    assert!(large <= small * 2, "{small} {large}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pruning_a_batch_reads_no_more_of_a_long_history() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    keep_statistics_stale(&mut connection).await;
    let reserve = "SELECT s.shard FROM evenhand.shards AS s, evenhand.reserve(
        s.shard, evenhand.new_id(evenhand.clock(), 0), s.digest, s.cycle_length, 1)";
    let many = |count: u32| {
        format!(
            "DO $$ BEGIN FOR n IN 1 .. {count} LOOP PERFORM * FROM ({reserve}) AS r; END LOOP; END $$"
        )
    };
    execute(&mut connection, &many(2_000)).await;
    scene.database.move_clock(3_600_000_001).await;
    let prune = "SELECT * FROM evenhand.prune_reservations(3600000, 500)";
    let small = buffers(&mut connection, prune).await;
    scene.database.move_clock(-3_600_000_001).await;
    execute(&mut connection, &many(40_000)).await;
    scene.database.move_clock(3_600_000_001).await;
    let large = buffers(&mut connection, prune).await;
    println!("buffers of pruning 500 of 2000 reservations: {small}, of 42000: {large}");
    assert!(large <= small * 2, "{small} {large}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_function_that_callers_use_allows_index_scans_only() {
    let scene = Scene::start().await;
    // These four read everything, or nothing that grows.
    let others = scene
        .number(
            "SELECT count(*) FROM pg_proc AS p WHERE p.pronamespace = 'evenhand'::regnamespace AND p.prosecdef
             AND p.proname NOT IN ('register_policy', 'runs', 'counts', 'wake_sleepers')
             AND NOT coalesce(p.proconfig, '{}') @> ARRAY['enable_seqscan=off', 'enable_sort=off', 'jit=off']",
        )
        .await;
    assert_eq!(others, 0);
}
