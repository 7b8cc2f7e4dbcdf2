//! A database of one's own on the shared server.

#![cfg(feature = "postgres")]
#![expect(clippy::expect_used, reason = "a test reports a failure by panicking")]

use core::sync::atomic::{AtomicU32, Ordering};

use evenhand_testkit::postgres::TestDatabase;
use sqlx::{Connection as _, PgConnection};
use tokio::sync::oneshot;

/// A key that no other run used on the same server.
fn fresh_key() -> String {
    format!("test of templates {:x}", fastrand::u128(..))
}

async fn make_table(url: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query("CREATE TABLE made_once (id int)")
        .execute(&mut connection)
        .await?;
    sqlx::query("INSERT INTO made_once VALUES (42)")
        .execute(&mut connection)
        .await?;
    // Left open: a clone must not wait for a client that the migration forgot.
    tokio::spawn(async move {
        drop(
            sqlx::query("SELECT pg_sleep(600)")
                .execute(&mut connection)
                .await,
        );
    });
    Ok(())
}

async fn ids(database: &TestDatabase) -> Vec<i32> {
    sqlx::query_scalar("SELECT id FROM made_once")
        .fetch_all(&mut database.connect().await)
        .await
        .expect("the table was cloned")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_is_migrated_once_and_its_clones_are_separate() {
    let key = fresh_key();
    let migrations = AtomicU32::new(0);
    let clone = || {
        TestDatabase::from_template(&key, async |url: &str| {
            migrations.fetch_add(1, Ordering::Relaxed);
            make_table(url).await
        })
    };
    let (one, two, three) = tokio::join!(clone(), clone(), clone());
    assert_eq!(migrations.load(Ordering::Relaxed), 1);

    one.admin("DELETE FROM made_once; INSERT INTO made_once VALUES (1), (2)")
        .await
        .expect("a superuser may do this");
    assert_eq!(ids(&one).await, [1, 2]);
    assert_eq!(ids(&two).await, [42]);
    assert_eq!(ids(&three).await, [42]);
}

#[tokio::test]
async fn a_template_that_was_cut_short_is_made_anew() {
    let key = fresh_key();
    let (reached, when_reached) = oneshot::channel();
    let cut_short = TestDatabase::from_template(&key, async |url: &str| {
        make_table(url).await?;
        reached.send(()).expect("the test waits for this");
        core::future::pending::<Result<(), sqlx::Error>>().await
    });
    tokio::select! {
        _ = cut_short => panic!("the migration never ends"),
        sent = when_reached => sent.expect("the migration began"),
    }

    let database = TestDatabase::from_template(&key, make_table).await;
    assert_eq!(ids(&database).await, [42]);
}

#[tokio::test]
async fn an_empty_database_is_empty_and_gone_when_dropped() {
    let database = TestDatabase::empty().await;
    let mut inside = database.connect().await;
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
            .fetch_one(&mut inside)
            .await
            .expect("the catalogue can be read");
    assert_eq!(tables, 0);

    let other = TestDatabase::empty().await;
    let name = database.name().to_owned();
    let url = database.url();
    // Somebody is still connected, which must not keep the database.
    drop(database);
    assert!(inside.ping().await.is_err());
    assert!(PgConnection::connect(&url).await.is_err());
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_database WHERE datname = $1")
        .bind(&name)
        .fetch_one(&mut other.connect().await)
        .await
        .expect("the catalogue can be read");
    assert_eq!(left, 0);
}
