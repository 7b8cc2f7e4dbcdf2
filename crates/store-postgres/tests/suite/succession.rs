//! One shard follows another, whatever races with it or fails.

use core::time::Duration;

use evenhand_policy::{PoolId, WeightedFairnessPolicy};
use evenhand_store::{
    NewRun, PolicyRegistration, PoolScoring, ReadyAt, Reservation, ReservationStore,
    ReserveRequest, RunQueue, ShardStanding, StoreErrorKind, UnservedRuns,
};
use evenhand_store_postgres::PostgresStore;
use evenhand_testkit::postgres::{Cut, TestDatabase};
use futures::future::join_all;

use crate::scene::{Scene, kind, policy, request, run, through_proxy, wait_until};

/// A pending shard with other weights and other tenants: `a` stays, `b` goes, `c` comes.
async fn successor(scene: &Scene, shard: &str) -> WeightedFairnessPolicy {
    let policy = policy(shard, &[("a", 1), ("c", 2)]);
    register(scene, &policy, "default").await;
    policy
}

async fn register(scene: &Scene, policy: &WeightedFairnessPolicy, pool: &str) {
    let registration = PolicyRegistration::new(policy.clone()).in_pool(pool.parse().unwrap());
    scene.store.register_policy(&registration).await.unwrap();
}

fn unserved(pool: &str, tenant: &str, queued: u64) -> UnservedRuns {
    UnservedRuns::new(pool.parse().unwrap(), tenant.parse().unwrap(), queued)
}

fn retired(successor: &WeightedFairnessPolicy) -> ShardStanding {
    ShardStanding::Retired {
        successor: successor.shard().clone(),
    }
}

/// Reserves until the shard is retired, and returns what was answered.
async fn reserve_until_retired(
    store: PostgresStore,
    policy: WeightedFairnessPolicy,
) -> Vec<(ReserveRequest, Reservation)> {
    let mut answered = Vec::new();
    loop {
        let request = request(&policy, 1 + u32::try_from(answered.len() % 3).unwrap());
        match store.reserve(&request).await {
            Ok(answer) => answered.push((request, answer)),
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Retired, "{error:?}");
                return answered;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_reserved_behind_the_length_at_which_a_shard_was_retired() {
    let scene = Scene::start().await;
    let new = successor(&scene, "primary-v2").await;
    let reservers: Vec<_> = (0..16)
        .map(|_| {
            let (store, policy) = (scene.store.clone(), scene.policy.clone());
            tokio::spawn(reserve_until_retired(store, policy))
        })
        .collect();
    wait_until("all are at it", async || {
        let reserved = "SELECT count(*) FROM evenhand.reservations";
        scene.number(reserved).await > 100
    })
    .await;
    let retirement = scene
        .store
        .retire(scene.policy.shard(), new.shard())
        .await
        .unwrap();
    let answered: Vec<_> = join_all(reservers)
        .await
        .into_iter()
        .flat_map(|answered| answered.unwrap())
        .collect();

    let mut taken: Vec<u64> = answered
        .iter()
        .flat_map(|(_, answer)| answer.sequences())
        .collect();
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..retirement.old_length.unwrap()));
    let newest = answered.iter().map(|(_, answer)| answer.reserved_at).max();
    assert!(Some(retirement.retired_at) >= newest);
    for (request, answer) in answered.iter().step_by(10) {
        let again = scene.store.reserve(request).await.unwrap();
        assert_eq!(again.first_sequence, answer.first_sequence);
        assert_eq!(again.reserved_at, answer.reserved_at);
    }
    let first = scene.store.reserve(&request(&new, 3)).await.unwrap();
    assert_eq!(first.first_sequence, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_successors_at_once_one_wins_and_the_other_is_a_policy_conflict() {
    let scene = Scene::start().await;
    for round in 0..10 {
        let pool = format!("pool-{round}");
        let [old, left, right] = ["old", "left", "right"]
            .map(|name| policy(&format!("{name}-{round}"), &[("a", 1), ("b", 1)]));
        for policy in [&old, &left, &right] {
            register(&scene, policy, &pool).await;
        }
        let (to_left, to_right) = tokio::join!(
            scene.store.retire(old.shard(), left.shard()),
            scene.store.retire(old.shard(), right.shard()),
        );
        let (winner, loser, refused) = match (to_left, to_right) {
            (Ok(retirement), refused @ Err(_)) if retirement.created => (left, right, refused),
            (refused @ Err(_), Ok(retirement)) if retirement.created => (right, left, refused),
            both => panic!("not one and only one won: {both:?}"),
        };
        assert_eq!(kind(refused), StoreErrorKind::PolicyConflict);
        for (shard, standing) in [
            (&old, retired(&winner)),
            (&winner, ShardStanding::Active),
            (&loser, ShardStanding::Pending),
        ] {
            assert_eq!(scene.store.standing(shard.shard()).await.unwrap(), standing);
        }
        let pool: PoolId = pool.parse().unwrap();
        let active = scene.store.active_policy(&pool).await.unwrap();
        assert_eq!(active.shard(), winner.shard());
        assert_eq!(active.digest(), winner.digest());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_retirement_from_many_connections_is_made_once() {
    let scene = Scene::start().await;
    let new = successor(&scene, "primary-v2").await;
    scene.reserve(5).await;
    let answers = join_all((0..12).map(|_| scene.store.retire(scene.policy.shard(), new.shard())));
    let answers: Vec<_> = answers.await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1);
    for answer in &answers {
        assert_eq!(answer.old_length, Some(5));
        assert_eq!(answer.retired_at, answers[0].retired_at);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retirement_whose_reply_was_lost_is_answered_the_same_again() {
    let scene = Scene::start().await;
    let new = successor(&scene, "primary-v2").await;
    scene.reserve(7).await;
    let (proxy, store) = through_proxy(&scene).await;
    proxy.cut(Cut::reply().matching("evenhand.retire("));
    let lost = store.retire(scene.policy.shard(), new.shard()).await;
    assert_eq!(kind(lost), StoreErrorKind::OutcomeUnknown);
    proxy.stop_cutting();
    let standing = scene.store.standing(scene.policy.shard()).await.unwrap();
    assert_eq!(standing, retired(&new));
    let retired_at = scene
        .number("SELECT evenhand.micros(retired_at) FROM evenhand.retirements")
        .await;
    let again = store
        .retire(scene.policy.shard(), new.shard())
        .await
        .unwrap();
    assert!(!again.created);
    assert_eq!(again.old_length, Some(7));
    assert_eq!(again.retired_at.as_microsecond(), retired_at);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_active_shard_takes_new_ids_and_tells_who_is_ready() {
    let scene = Scene::start().await;
    let new = successor(&scene, "primary-v2").await;
    let known = scene.request(2);
    let answer = scene.store.reserve(&known).await.unwrap();
    let (reserved, looked) = (
        scene.store.reserve(&request(&new, 1)).await,
        scene.store.ready_tenants(new.shard()).await,
    );
    assert_eq!(kind(reserved), StoreErrorKind::Pending);
    assert_eq!(kind(looked), StoreErrorKind::Pending);

    scene
        .store
        .retire(scene.policy.shard(), new.shard())
        .await
        .unwrap();
    let (reserved, looked) = (
        scene.store.reserve(&scene.request(1)).await,
        scene.store.ready_tenants(scene.policy.shard()).await,
    );
    assert_eq!(kind(reserved), StoreErrorKind::Retired);
    assert_eq!(kind(looked), StoreErrorKind::Retired);
    let again = scene.store.reserve(&known).await.unwrap();
    assert_eq!(again.first_sequence, answer.first_sequence);
    let rows = "SELECT count(*) FROM evenhand.reservations";
    assert_eq!(scene.number(rows).await, 1);
    scene.store.ready_tenants(new.shard()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_follow_is_refused_and_changes_nothing() {
    let scene = Scene::start().await;
    let (old, new) = (scene.policy.clone(), successor(&scene, "primary-v2").await);
    let further = successor(&scene, "primary-v3").await;
    let elsewhere = policy("elsewhere-v1", &[("a", 1)]);
    register(&scene, &elsewhere, "elsewhere").await;
    let unknown = policy("unknown-v1", &[("a", 1)]);
    for (from, to, expected) in [
        (&unknown, &new, StoreErrorKind::PolicyNotFound),
        (&old, &unknown, StoreErrorKind::PolicyNotFound),
        (&old, &elsewhere, StoreErrorKind::PolicyConflict),
        (&old, &old, StoreErrorKind::PolicyConflict),
        (&new, &further, StoreErrorKind::PolicyConflict),
        (&new, &old, StoreErrorKind::PolicyConflict),
    ] {
        let refused = scene.store.retire(from.shard(), to.shard()).await;
        assert_eq!(kind(refused), expected, "{} {}", from.shard(), to.shard());
    }
    let slower = PoolScoring::new(
        evenhand_policy::admission::Scoring::default(),
        Duration::from_secs(7),
    );
    let rescored =
        PolicyRegistration::new(policy("primary-v4", &[("a", 1)])).scored_by(slower.unwrap());
    let refused = scene.store.register_policy(&rescored).await;
    assert_eq!(kind(refused), StoreErrorKind::PolicyConflict);
    assert_eq!(
        scene
            .number("SELECT count(*) FROM evenhand.retirements")
            .await,
        0
    );
    scene.reserve(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_nobody_serves_are_told_before_and_after() {
    let scene = Scene::start().await;
    let elsewhere = |tenant: &str| -> NewRun {
        let mut run = run(tenant);
        run.pool = "elsewhere".parse().unwrap();
        run
    };
    let runs = ["a", "b", "b", "c", "d"].map(run);
    scene.store.enqueue_many(&runs).await.unwrap();
    scene.store.enqueue(&elsewhere("a")).await.unwrap();
    assert_eq!(
        scene.store.unserved().await.unwrap(),
        [
            unserved("default", "c", 1),
            unserved("default", "d", 1),
            unserved("elsewhere", "a", 1),
        ]
    );

    let policy = policy("primary-v2", &[("a", 1), ("c", 2)]);
    let registration = PolicyRegistration::new(policy.clone());
    let expected = [unserved("default", "b", 2), unserved("default", "d", 1)];
    for created in [true, false] {
        let registered = scene.store.register_policy(&registration).await.unwrap();
        assert_eq!(registered.created, created);
        assert_eq!(registered.standing, ShardStanding::Pending);
        assert_eq!(registered.unserved, expected);
    }
    let retirement = scene
        .store
        .retire(scene.policy.shard(), policy.shard())
        .await
        .unwrap();
    assert_eq!(retirement.unserved, expected);
    let unserved_now = scene.store.unserved().await.unwrap();
    assert_eq!(unserved_now[..2], expected);
    assert_eq!(unserved_now[2..], [unserved("elsewhere", "a", 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_ready_time_is_when_a_tenant_without_ready_runs_gets_one() {
    let scene = Scene::start().await;
    let in_seconds = |tenant: &str, seconds: u64| -> NewRun {
        let mut run = run(tenant);
        run.ready_at = ReadyAt::After(Duration::from_secs(seconds));
        run
    };
    // `a` has a ready run, so that its next one does not matter; nobody serves `c`.
    let runs = [
        run("a"),
        in_seconds("a", 20),
        in_seconds("b", 90),
        in_seconds("c", 30),
    ];
    scene.store.enqueue_many(&runs).await.unwrap();
    let look = scene
        .store
        .ready_tenants(scene.policy.shard())
        .await
        .unwrap();
    assert_eq!(look.tenants, ["a".parse().unwrap()]);
    let next = look.next_ready_at.unwrap();
    // At the beginning of the wait tick behind the time that was asked for.
    let wait = next.duration_since(look.store_time).as_millis();
    assert!((80_000..=91_000).contains(&wait), "{wait}");

    scene.database.move_clock(91_000_000).await;
    let look = scene
        .store
        .ready_tenants(scene.policy.shard())
        .await
        .unwrap();
    assert!(look.store_time >= next);
    assert_eq!(
        look.tenants,
        ["a", "b"].map(|tenant| tenant.parse().unwrap())
    );
    assert_eq!(look.next_ready_at, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hand_can_undo_a_retirement() {
    let scene = Scene::start().await;
    let new = successor(&scene, "primary-v2").await;
    let promote = "UPDATE evenhand.marks SET standing = 'active' WHERE standing <> 'active'";
    assert_eq!(scene.refusal(promote).await, "EV012");
    scene
        .store
        .retire(scene.policy.shard(), new.shard())
        .await
        .unwrap();
    for sql in [
        promote,
        "UPDATE evenhand.retirements SET old_length = 7",
        "DELETE FROM evenhand.retirements",
        "TRUNCATE evenhand.retirements",
        "UPDATE evenhand.shards SET founds_pool = true",
        // Nobody is retired twice, and nobody follows twice.
        "INSERT INTO evenhand.marks SELECT 1, NULL, -1, 0, 'active'",
    ] {
        let replica = format!("SET session_replication_role = replica; {sql}");
        assert_eq!(scene.refusal(sql).await, "EV012", "{sql}");
        assert_eq!(scene.refusal(&replica).await, "EV012", "{sql}");
    }
    let again = "INSERT INTO evenhand.retirements SELECT old_shard_key, new_shard_key + 1, retired_at FROM evenhand.retirements";
    assert_eq!(scene.refusal(again).await, "23505");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_of_an_older_schema_is_active_after_the_upgrade() {
    let database = TestDatabase::empty().await;
    let mut files: Vec<_> =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
    files.sort();
    let file_name = |path: &std::path::Path| path.file_name().unwrap().to_owned();
    let (older, upgrade): (Vec<_>, Vec<_>) = files
        .iter()
        .filter(|path| *file_name(path) < *"0011")
        .partition(|path| *file_name(path) < *"0010");
    assert_eq!((older.len(), upgrade.len()), (9, 1));

    let as_owner = |sql: &str| format!("SET ROLE evenhand_owner; {sql}");
    let bootstrap = include_str!("../../sql/bootstrap.sql");
    database.admin(bootstrap).await.unwrap();
    for path in older {
        let sql = std::fs::read_to_string(path).unwrap();
        database.admin(&as_owner(&sql)).await.unwrap();
    }
    let register = "SELECT evenhand.register_policy('x',
        sha256('evenhand/policy/v1'::bytea || '\\x00'::bytea || 'bytes'::bytea), 'bytes', '{p,q}', '{2,1}', '{2,3}',
        '{1,2,1}', 'default', '{1000,300,100,40,10,12,1000}');
        SELECT evenhand.reserve('x', evenhand.new_id(evenhand.clock(), 0), s.digest, 3, 64) FROM evenhand.shards AS s";
    database.admin(register).await.unwrap();
    let sql = std::fs::read_to_string(upgrade[0]).unwrap();
    database.admin(&as_owner(&sql)).await.unwrap();

    let store = database.store().await;
    let shard = "x".parse().unwrap();
    assert_eq!(store.standing(&shard).await.unwrap(), ShardStanding::Active);
    assert_eq!(store.cursor(&shard).await.unwrap().next_sequence, Some(64));
    let reserve = "SELECT evenhand.reserve('x', evenhand.new_id(evenhand.clock(), 0), s.digest, 3, 1) FROM evenhand.shards AS s";
    database.admin(reserve).await.unwrap();
    assert_eq!(store.cursor(&shard).await.unwrap().next_sequence, Some(65));
}
