//! What the schema refuses, whoever asks.

use evenhand_store::{ReservationStore, StoreErrorKind};

use crate::scene::{Scene, kind};

/// As the owner, with ordinary triggers switched off, as a replication apply worker runs.
fn as_replica(sql: &str) -> String {
    format!("SET session_replication_role = replica; {sql}")
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_cannot_be_changed() {
    let scene = Scene::start().await;
    scene.reserve(1).await;
    scene.claim(0).await;
    for sql in [
        "UPDATE evenhand.reservations SET count = 2",
        "TRUNCATE evenhand.reservations",
        "UPDATE evenhand.outcomes SET count = 2",
        "TRUNCATE evenhand.outcomes",
        "UPDATE evenhand.shards SET cycle_length = 5",
        "DELETE FROM evenhand.shard_slots",
        "UPDATE evenhand.shard_tenants SET weight = 7",
        "DELETE FROM evenhand.marks",
        "TRUNCATE evenhand.marks",
    ] {
        assert_eq!(scene.refusal(sql).await, "EV012", "{sql}");
        assert_eq!(scene.refusal(&as_replica(sql)).await, "EV012", "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_does_not_continue_the_order_cannot_be_inserted() {
    let scene = Scene::start().await;
    scene.reserve(64).await;
    // Behind a gap, inside the block before, and at its start.
    for first in [65, 10, 0] {
        let sql = format!(
            "INSERT INTO evenhand.reservations (id, first_sequence, reserved_at, shard_key, count)
             SELECT evenhand.new_id(evenhand.clock(), 0), {first}, evenhand.clock(), shard_key, 1 FROM evenhand.shards"
        );
        assert_eq!(scene.refusal(&sql).await, "EV012", "{first}");
        assert_eq!(scene.refusal(&as_replica(&sql)).await, "EV012", "{first}");
    }
    assert_eq!(scene.reserve(1).await.first_sequence, 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_several_rows_continues_the_order() {
    let scene = Scene::start().await;
    scene.reserve(64).await;
    let insert = |rows: &str| {
        format!(
            "INSERT INTO evenhand.reservations (id, first_sequence, reserved_at, shard_key, count)
             SELECT evenhand.new_id(t.now, n), first, t.now - n * back * interval '1 s', shard_key, count
             FROM evenhand.shards, (SELECT evenhand.clock() AS now OFFSET 0) AS t,
                  (VALUES {rows}) AS v (n, first, back, count) ORDER BY n"
        )
    };
    // Behind a gap, at the start of the row before, inside it, and at the sequence behind none.
    for rows in [
        "(1, 64, 0, 2), (2, 67, 0, 1)",
        "(1, 64, 0, 2), (2, 64, 0, 1)",
        "(1, 64, 0, 2), (2, 65, 0, 1)",
        "(1, 64, 0, 2), (2, 66, 0, 0)",
        "(1, 64, 0, 2), (2, 66, 0, 1), (3, 66, 0, 1)",
        "(1, 64, 0, 2), (2, -1, 0, 1)",
    ] {
        assert_eq!(scene.refusal(&insert(rows)).await, "EV012", "{rows}");
        let as_replica = as_replica(&insert(rows));
        assert_eq!(scene.refusal(&as_replica).await, "EV012", "{rows}");
    }
    // The second is said to be older than the first.
    scene
        .sql(&insert(
            "(1, 64, 0, 2), (2, 66, 1, 1), (3, NULL, 0, 5), (4, 72, 0, 1)",
        ))
        .await;
    assert_eq!(scene.reserve(1).await.first_sequence, 73);
    let backwards = "SELECT count(*) FROM (
        SELECT reserved_at < lag(reserved_at) OVER (ORDER BY first_sequence) AS earlier FROM evenhand.reservations
    ) AS r WHERE earlier";
    assert_eq!(scene.number(backwards).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_time_and_place_is_inserted_only_under_a_new_id() {
    let scene = Scene::start().await;
    let known = scene.reserve(2).await;
    let insert = |id: &str| {
        format!(
            "INSERT INTO evenhand.reservations (id, shard_key, count) SELECT {id}, shard_key, 1 FROM evenhand.shards"
        )
    };
    for id in [
        format!("'{}'", known.id.as_uuid()),
        // Ahead of the clock, and of another version.
        "evenhand.new_id(evenhand.clock() + interval '1 h', 0)".to_owned(),
        "gen_random_uuid()".to_owned(),
    ] {
        scene.sql(&insert(&id)).await;
    }
    let kept = "SELECT count(*) FROM evenhand.reservations";
    assert_eq!(scene.number(kept).await, 1);
    scene
        .sql(&insert("evenhand.new_id(evenhand.clock(), 0)"))
        .await;
    assert_eq!(scene.reserve(1).await.first_sequence, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_of_no_sequence_or_of_too_many_cannot_be_inserted() {
    let scene = Scene::start().await;
    for taken in ["no", "some"] {
        for count in ["0", "-1", "1048577", "NULL"] {
            let sql = format!(
                "INSERT INTO evenhand.reservations (id, reserved_at, shard_key, count)
                 SELECT evenhand.new_id(evenhand.clock(), 0), evenhand.clock(), shard_key, {count} FROM evenhand.shards"
            );
            let code = if count == "NULL" { "23502" } else { "EV012" };
            assert_eq!(scene.refusal(&sql).await, code, "{count} after {taken}");
            assert_eq!(
                scene.refusal(&as_replica(&sql)).await,
                code,
                "{count} after {taken}"
            );
        }
        scene.reserve(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn young_and_newest_reservations_cannot_be_deleted() {
    let scene = Scene::start().await;
    scene.reserve(1).await;
    scene.reserve(1).await;
    let oldest = "DELETE FROM evenhand.reservations WHERE first_sequence = 0";
    assert_eq!(scene.refusal(oldest).await, "EV012");
    scene.database.move_clock(3_600_000_000).await;
    let newest = "DELETE FROM evenhand.reservations WHERE first_sequence = 1";
    assert_eq!(scene.refusal(newest).await, "EV012");
    assert_eq!(
        scene
            .refusal(&as_replica("DELETE FROM evenhand.reservations"))
            .await,
        "EV012"
    );
    scene.sql(oldest).await;
    assert_eq!(
        scene
            .number("SELECT pruned_through FROM evenhand.marks")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_lost_its_newest_rows_is_corrupt_and_never_starts_again() {
    let scene = Scene::start().await;
    for _ in 0..3 {
        scene.reserve(2).await;
    }
    scene.database.move_clock(3_600_000_000).await;
    scene
        .sql("DELETE FROM evenhand.reservations WHERE first_sequence < 4")
        .await;
    // What a restored backup or a superuser can do, and no function of the schema.
    scene
        .sql(
            "ALTER TABLE evenhand.reservations DISABLE TRIGGER USER;
             DELETE FROM evenhand.reservations;
             ALTER TABLE evenhand.reservations ENABLE TRIGGER USER",
        )
        .await;
    assert_eq!(
        kind(scene.store.reserve(&scene.request(1)).await),
        StoreErrorKind::Corrupt
    );
    assert_eq!(
        kind(scene.store.cursor(scene.policy.shard()).await),
        StoreErrorKind::Corrupt
    );
    assert_eq!(
        scene
            .number("SELECT count(*) FROM evenhand.reservations")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_was_tampered_with_is_corrupt() {
    let scene = Scene::start().await;
    scene
        .sql(
            "ALTER TABLE evenhand.shards DISABLE TRIGGER USER;
             UPDATE evenhand.shards SET canonical = replace(encode(canonical, 'escape'), '\"weight\":3', '\"weight\":2')::bytea",
        )
        .await;
    assert_eq!(
        kind(scene.store.load_policy(scene.policy.shard()).await),
        StoreErrorKind::Corrupt
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_with_another_digest_or_a_wrong_cycle_is_refused() {
    let scene = Scene::start().await;
    let register = |digest: &str, cycle: &str| {
        format!(
            "SELECT evenhand.register_policy('x', {digest}, 'bytes', '{{p,q}}', '{{2,1}}', '{{2,3}}', '{cycle}', 'pool-x',
             '{{1000,300,100,40,10,12,1000}}')"
        )
    };
    let digest = "sha256('evenhand/policy/v1'::bytea || '\\x00'::bytea || 'bytes'::bytea)";
    assert_eq!(
        scene.refusal(&register("sha256('bytes')", "{1,2,1}")).await,
        "EV012"
    );
    assert_eq!(scene.refusal(&register(digest, "{1,2,2}")).await, "EV012");
    scene.sql(&register(digest, "{1,2,1}")).await;
}
