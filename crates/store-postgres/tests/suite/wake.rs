//! Idle workers are woken by whoever enqueues, and cost those who enqueue nothing while nobody sleeps.

use core::time::Duration;

use evenhand_store::{
    PolicyRegistration, ReadyAt, ReservationStore, RunQueue, StoreErrorKind, WaitRequest,
};
use evenhand_store_postgres::{ConnectOptions, PostgresStore, Transport};
use sqlx::postgres::PgListener;
use tokio::time::{Instant, timeout};

use crate::scene::{Scene, execute, kind, policy, run, wait_until, worker};

/// Far longer than a test is patient: who returns earlier was woken.
const LONG: Duration = Duration::from_mins(2);
const PATIENCE: Duration = Duration::from_secs(30);

const SLEEPERS: &str = "SELECT count(*) FROM evenhand.sleepers WHERE until > now()";
const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";

fn wait(scene: &Scene, longest: Duration) -> WaitRequest {
    WaitRequest::new(scene.policy.shard().clone(), worker(), longest)
}

fn sleeping(
    scene: &Scene,
    longest: Duration,
) -> tokio::task::JoinHandle<Result<(), evenhand_store::StoreError>> {
    let (store, request) = (scene.store.clone(), wait(scene, longest));
    tokio::spawn(async move { store.wait_for_work(&request).await })
}

async fn asleep(scene: &Scene, number: i64) {
    wait_until("they sleep and listen", async || {
        scene.number(SLEEPERS).await == number && scene.number(LISTENERS).await > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sleepers_are_woken_by_the_commit_of_an_enqueue_and_leave_no_row() {
    let scene = Scene::start().await;
    let sleepers = [sleeping(&scene, LONG), sleeping(&scene, LONG)];
    asleep(&scene, 2).await;
    let mut other = scene.database.connect().await;
    execute(&mut other, "BEGIN").await;
    PostgresStore::enqueue_in(&mut other, &run("a"))
        .await
        .unwrap();
    assert!(sleepers.iter().all(|sleeper| !sleeper.is_finished()));
    execute(&mut other, "COMMIT").await;
    for sleeper in sleepers {
        timeout(PATIENCE, sleeper)
            .await
            .expect("woken")
            .unwrap()
            .unwrap();
    }
    assert_eq!(
        scene.number("SELECT count(*) FROM evenhand.sleepers").await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_that_was_under_way_when_the_sleeper_lay_down_wakes_it() {
    let scene = Scene::start().await;
    let mut early = scene.database.connect().await;
    execute(&mut early, "BEGIN").await;
    PostgresStore::enqueue_in(&mut early, &run("a"))
        .await
        .unwrap();
    let sleeper = sleeping(&scene, LONG);
    asleep(&scene, 1).await;
    execute(&mut early, "COMMIT").await;
    timeout(PATIENCE, sleeper)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_notified_while_nobody_of_the_pool_sleeps() {
    let scene = Scene::start().await;
    let mut listener = PgListener::connect(&scene.database.url()).await.unwrap();
    let channel =
        "SELECT evenhand.wake_channel(pool_key) FROM evenhand.pools WHERE pool = 'default'";
    let elsewhere = PolicyRegistration::new(policy("elsewhere-v1", &[("a", 1)]));
    let elsewhere = elsewhere.in_pool("elsewhere".try_into().unwrap());
    scene.store.register_policy(&elsewhere).await.unwrap();
    let mut owner = scene.database.connect().await;
    let channel: String = sqlx::query_scalar(channel)
        .fetch_one(&mut owner)
        .await
        .unwrap();
    listener.listen(&channel).await.unwrap();
    execute(
        &mut owner,
        "SELECT evenhand.fall_asleep('elsewhere-v1', 'w', 60000)",
    )
    .await;
    scene.store.enqueue(&run("a")).await.unwrap();
    // What is notified afterwards comes first, so nothing came before it.
    execute(&mut owner, &format!("NOTIFY {channel}, 'end'")).await;
    let heard = timeout(PATIENCE, listener.recv())
        .await
        .expect("a notification")
        .unwrap();
    assert_eq!(heard.payload(), "end");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lies_down_beside_a_ready_run_gets_up_at_once() {
    let scene = Scene::start().await;
    scene.store.enqueue(&run("a")).await.unwrap();
    let request = wait(&scene, LONG);
    timeout(PATIENCE, scene.store.wait_for_work(&request))
        .await
        .expect("it does not sleep")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_run_wakes_its_sleeper_when_it_is_ready() {
    let scene = Scene::start().await;
    let mut later = run("a");
    later.ready_at = ReadyAt::After(Duration::from_millis(200));
    scene.store.enqueue(&later).await.unwrap();
    let request = wait(&scene, LONG);
    timeout(PATIENCE, scene.store.wait_for_work(&request))
        .await
        .expect("woken by the clock")
        .unwrap();
    let ready = scene
        .store
        .ready_tenants(scene.policy.shard())
        .await
        .unwrap();
    assert_eq!(ready.tenants.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeper_gets_up_after_its_longest_wait() {
    let scene = Scene::start().await;
    let before = Instant::now();
    let request = wait(&scene, Duration::from_millis(300));
    timeout(PATIENCE, scene.store.wait_for_work(&request))
        .await
        .expect("an end")
        .unwrap();
    assert!(before.elapsed() >= Duration::from_millis(300));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_may_be_asked_for_without_end() {
    let scene = Scene::start().await;
    let sleeper = sleeping(&scene, Duration::MAX);
    asleep(&scene, 1).await;
    scene.store.enqueue(&run("a")).await.unwrap();
    timeout(PATIENCE, sleeper)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_was_killed_comes_back() {
    let scene = Scene::start().await;
    let first = sleeping(&scene, LONG);
    asleep(&scene, 1).await;
    scene
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
        .await;
    // It may have missed something, so it gets up to look.
    timeout(PATIENCE, first)
        .await
        .expect("an end")
        .unwrap()
        .unwrap();
    wait_until("it listens again", async || {
        scene.number(LISTENERS).await > 0
    })
    .await;
    let second = sleeping(&scene, LONG);
    asleep(&scene, 1).await;
    scene.store.enqueue(&run("a")).await.unwrap();
    timeout(PATIENCE, second)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_sleep_leaves_a_row_that_ends_by_itself() {
    let scene = Scene::start().await;
    let sleeper = sleeping(&scene, Duration::from_millis(500));
    wait_until("it sleeps", async || scene.number(SLEEPERS).await == 1).await;
    sleeper.abort();
    wait_until("its row is over", async || {
        scene.number(SLEEPERS).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_who_sleeps_has_to_be_told_where_to_listen() {
    let scene = Scene::start().await;
    let url = scene.database.url();
    let pooled = || {
        ConnectOptions::parse(&url)
            .unwrap()
            .transport(Transport::TransactionPooler)
    };
    let deaf = PostgresStore::connect(pooled()).await.unwrap();
    let request = wait(&scene, LONG);
    assert_eq!(
        kind(deaf.wait_for_work(&request).await),
        StoreErrorKind::Unsupported
    );
    let hearing = PostgresStore::connect(pooled().listen_on(&url).unwrap())
        .await
        .unwrap();
    let sleeper = tokio::spawn(async move { hearing.wait_for_work(&request).await });
    asleep(&scene, 1).await;
    scene.store.enqueue(&run("a")).await.unwrap();
    timeout(PATIENCE, sleeper)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
}

/// The second until which the store believes that somebody sleeps.
const ASLEEP_UNTIL: &str =
    "SELECT coalesce(pg_sequence_last_value('evenhand.asleep_until'), 0)::bigint";

#[tokio::test(flavor = "multi_thread")]
async fn who_gets_up_first_leaves_the_others_to_be_woken() {
    let scene = Scene::start().await;
    let long = sleeping(&scene, LONG);
    asleep(&scene, 1).await;
    let until = scene.number(ASLEEP_UNTIL).await;
    let short = sleeping(&scene, Duration::from_millis(100));
    timeout(PATIENCE, short)
        .await
        .expect("an end")
        .unwrap()
        .unwrap();
    assert_eq!(scene.number(SLEEPERS).await, 1);
    assert_eq!(scene.number(ASLEEP_UNTIL).await, until);
    scene.store.enqueue(&run("a")).await.unwrap();
    timeout(PATIENCE, long)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
    assert_eq!(scene.number(ASLEEP_UNTIL).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_that_began_within_another_one_outlasts_it() {
    let scene = Scene::start().await;
    let short = sleeping(&scene, Duration::from_millis(500));
    asleep(&scene, 1).await;
    let before = scene.number(ASLEEP_UNTIL).await;
    let long = sleeping(&scene, LONG);
    asleep(&scene, 2).await;
    assert!(scene.number(ASLEEP_UNTIL).await > before);
    timeout(PATIENCE, short)
        .await
        .expect("an end")
        .unwrap()
        .unwrap();
    scene
        .store
        .enqueue_many(&[run("a"), run("a")])
        .await
        .unwrap();
    timeout(PATIENCE, long)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeatable_read_that_enqueued_before_wakes_who_lay_down_since() {
    let scene = Scene::start().await;
    let mut early = scene.database.connect().await;
    execute(&mut early, "BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    execute(&mut early, "SELECT evenhand.enqueue_run('a', 'test')").await;
    let sleeper = sleeping(&scene, LONG);
    asleep(&scene, 1).await;
    execute(&mut early, "COMMIT").await;
    timeout(PATIENCE, sleeper)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
}
