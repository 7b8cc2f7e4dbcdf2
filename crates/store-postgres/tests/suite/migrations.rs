//! Migrations are applied once, in order, and only on top of what this build knows.

use evenhand_store_postgres::{MigrateError, migrate};
use evenhand_testkit::postgres::TestDatabase;
use futures::future::join_all;

use crate::scene::{number, wait_until};

/// Everything that a migration can make, as one number.
const OBJECTS: &str =
    "SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'evenhand'::regnamespace)
    + (SELECT count(*) FROM pg_class WHERE relnamespace = 'evenhand'::regnamespace)";

/// Advisory locks in this database. A backend gives its locks back when it notices that its client has gone.
const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_on_an_empty_database_migrate_it_once() {
    let database = TestDatabase::empty().await;
    let answers = join_all((0..6).map(async |_| migrate(&database.options()).await)).await;
    for answer in answers {
        answer.unwrap();
    }
    let mut connection = database.connect().await;
    let applied = number(
        &mut connection,
        "SELECT count(*) FROM evenhand.migrations WHERE success",
    )
    .await;
    assert_eq!(
        applied,
        number(
            &mut connection,
            "SELECT max(version) FROM evenhand.migrations"
        )
        .await
    );
    wait_until("the lock is given back", async || {
        number(&mut connection, LOCKS).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrating_again_changes_nothing() {
    let database = TestDatabase::migrated().await;
    let before = number(&mut database.connect().await, OBJECTS).await;
    migrate(&database.options()).await.unwrap();
    assert_eq!(number(&mut database.connect().await, OBJECTS).await, before);
}

/// A database whose last migration is still to be applied, doctored by `sql`, must be refused before anything happens.
async fn refusal_of(sql: &str) -> MigrateError {
    let database = TestDatabase::migrated().await;
    database
        .admin("DELETE FROM evenhand.migrations WHERE version = (SELECT max(version) FROM evenhand.migrations)")
        .await
        .unwrap();
    database.admin(sql).await.unwrap();
    let mut connection = database.connect().await;
    let rows = "SELECT count(*) FROM evenhand.migrations";
    let before = (
        number(&mut connection, rows).await,
        number(&mut connection, OBJECTS).await,
    );
    let refusal = migrate(&database.options())
        .await
        .expect_err("the migrations are refused");
    assert_eq!(
        (
            number(&mut connection, rows).await,
            number(&mut connection, OBJECTS).await
        ),
        before
    );
    wait_until("the lock is given back", async || {
        number(&mut connection, LOCKS).await == 0
    })
    .await;
    refusal
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_migration_is_refused_before_anything_is_applied() {
    let refusal =
        refusal_of("UPDATE evenhand.migrations SET checksum = '\\x00' WHERE version = 2").await;
    assert!(
        matches!(refusal, MigrateError::Edited { version: 2 }),
        "{refusal:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_migration_is_refused_before_anything_is_applied() {
    // The build no longer has what the database has on record: the same sight as a database that is ahead.
    let refusal = refusal_of(
        "INSERT INTO evenhand.migrations (version, description, success, checksum, execution_time)
         VALUES (0, 'removed from the build', true, '\\x00', 0)",
    )
    .await;
    assert!(
        matches!(refusal, MigrateError::Newer { version: 0 }),
        "{refusal:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reordered_migrations_are_refused_before_anything_is_applied() {
    let refusal = refusal_of("DELETE FROM evenhand.migrations WHERE version = 3").await;
    assert!(
        matches!(refusal, MigrateError::Missing { version: 3 }),
        "{refusal:?}"
    );
    let refusal = refusal_of(
        "UPDATE evenhand.migrations AS m SET checksum = o.checksum FROM evenhand.migrations AS o
         WHERE (m.version, o.version) IN ((3, 4), (4, 3))",
    )
    .await;
    assert!(
        matches!(refusal, MigrateError::Edited { version: 3 }),
        "{refusal:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_migration_is_refused_before_anything_is_applied() {
    let refusal = refusal_of(
        "INSERT INTO evenhand.migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'from the future', true, '\\x00', 0)",
    )
    .await;
    assert!(
        matches!(refusal, MigrateError::Newer { version: 9999 }),
        "{refusal:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_migration_is_refused() {
    let refusal =
        refusal_of("UPDATE evenhand.migrations SET success = false WHERE version = 2").await;
    assert!(
        matches!(refusal, MigrateError::Unfinished { version: 2 }),
        "{refusal:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_never_changes_the_schema() {
    let database = TestDatabase::empty().await;
    let store = database.store().await;
    let shard = "primary-v1".parse().unwrap();
    let refusal = evenhand_store::ReservationStore::cursor(&store, &shard)
        .await
        .unwrap_err();
    assert!(!refusal.is_retryable());
    assert_eq!(
        number(
            &mut database.connect().await,
            "SELECT count(*) FROM pg_namespace WHERE nspname = 'evenhand'"
        )
        .await,
        0
    );
}
