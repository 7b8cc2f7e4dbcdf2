//! The age of the oldest snapshot: the true one, or none.

use core::time::Duration;

use evenhand_store::{PolicyRegistration, ReservationStore, RunQueue};
use evenhand_store_postgres::{ConnectOptions, PostgresStore, migrate};
use evenhand_testkit::postgres::{ServerOptions, private_server};
use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

use crate::scene::{execute, policy, wait_until};

/// Makes transaction ids go on, so that a snapshot that is held falls behind.
async fn go_on(connection: &mut PgConnection) {
    for _ in 0..3 {
        execute(connection, "SELECT pg_current_xact_id()").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_snapshot_is_told_to_those_who_may_see_it_and_to_nobody_wrongly() {
    // On a server of its own, because what the roles of a server may see is one for all its databases.
    let options = ServerOptions::throwaway().setting("max_prepared_transactions", "2");
    let server = private_server(options).await;
    let url = server.url("postgres");
    let options = ConnectOptions::parse(&url).unwrap();
    migrate(&options).await.unwrap();
    let store = PostgresStore::connect(options).await.unwrap();
    let policy = policy("primary-v1", &[("a", 1)]);
    store
        .register_policy(&PolicyRegistration::new(policy.clone()))
        .await
        .unwrap();
    let age = async || {
        store
            .health(policy.shard())
            .await
            .unwrap()
            .oldest_snapshot_age
    };
    let mut other = PgConnection::connect(&url).await.unwrap();
    wait_until("nobody holds a snapshot", async || {
        age().await == Some(Duration::ZERO)
    })
    .await;

    let mut holder = PgConnection::connect(&url).await.unwrap();
    let before_opened = Instant::now();
    execute(&mut holder, "BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    execute(&mut holder, "SELECT 1").await;
    let opened = Instant::now();
    go_on(&mut other).await;
    assert_eq!(
        age().await,
        None,
        "since when it is held is hidden from the owner"
    );
    execute(&mut other, "GRANT pg_read_all_stats TO evenhand_owner").await;
    // Never younger than it is, nor older: told twice, so that no other moment passes for the one at which it opened.
    let mut first = None;
    wait_until("the snapshot is older", async || {
        let youngest = opened.elapsed();
        let told = age().await.unwrap();
        let oldest = before_opened.elapsed();
        assert!(
            youngest <= told && told <= oldest,
            "{youngest:?} {told:?} {oldest:?}"
        );
        told > *first.get_or_insert(told) + Duration::from_millis(50)
    })
    .await;
    execute(&mut holder, "ROLLBACK").await;
    wait_until("nobody holds a snapshot", async || {
        age().await == Some(Duration::ZERO)
    })
    .await;

    execute(&mut holder, "BEGIN").await;
    execute(&mut holder, "SELECT pg_current_xact_id()").await;
    execute(&mut holder, "PREPARE TRANSACTION 'kept'").await;
    go_on(&mut other).await;
    wait_until("the prepared transaction is told", async || {
        age().await > Some(Duration::ZERO)
    })
    .await;
    execute(&mut holder, "ROLLBACK PREPARED 'kept'").await;
}
