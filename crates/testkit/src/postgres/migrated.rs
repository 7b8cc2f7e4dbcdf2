//! Databases with the schema of this build, stores on them, and a clock that tests move.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::SchedulerShardId;
use evenhand_store_postgres::{ConnectOptions, PostgresStore};
use sqlx::{AssertSqlSafe, Executor as _};

use super::database::{TestDatabase, or_panic};
use crate::conformance::StoreUnderTest;

impl TestDatabase {
    /// Makes a database with the schema of this build.
    ///
    /// # Panics
    ///
    /// If the tests were not given a server, or it refuses.
    ///
    /// # Cancel safety
    ///
    /// As [`TestDatabase::from_template`].
    pub async fn migrated() -> Self {
        // One shared server serves the tests of one build only, so the key need not name the schema.
        Self::from_template("migrated", async |url| {
            let options = or_panic("read the URL of", ConnectOptions::parse(url));
            evenhand_store_postgres::migrate(&options).await
        })
        .await
    }

    /// Options of a store on this database.
    ///
    /// # Panics
    ///
    /// If the URL of the server that the tests were given is none.
    pub fn options(&self) -> ConnectOptions {
        or_panic("read the URL of", ConnectOptions::parse(&self.url()))
    }

    /// A store on this database, with connections of its own.
    ///
    /// # Panics
    ///
    /// If no connection can be made.
    pub async fn store(&self) -> PostgresStore {
        or_panic("connect to", PostgresStore::connect(self.options()).await)
    }

    /// Moves the clock of the schema, for every connection at once; `micros` may be negative.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub async fn move_clock(&self, micros: i64) {
        let sql = format!(
            "SET ROLE evenhand_owner;
             CREATE TABLE IF NOT EXISTS evenhand.test_clock (micros bigint NOT NULL);
             INSERT INTO evenhand.test_clock SELECT 0 WHERE NOT EXISTS (SELECT FROM evenhand.test_clock);
             UPDATE evenhand.test_clock SET micros = micros + {micros};
             CREATE OR REPLACE FUNCTION evenhand.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
             RETURN pg_catalog.clock_timestamp()
                 + (SELECT t.micros FROM evenhand.test_clock AS t) * interval '1 microsecond';
             RESET ROLE"
        );
        or_panic("move the clock of", self.admin(&sql).await);
    }
}

/// [`PostgresStore`] for the conformance suite: a database per fact.
#[derive(Debug)]
pub struct PostgresUnderTest(TestDatabase);

#[async_trait]
impl StoreUnderTest for PostgresUnderTest {
    type Store = PostgresStore;

    async fn start() -> Self {
        Self(TestDatabase::migrated().await)
    }

    async fn open(&self) -> PostgresStore {
        self.0.store().await
    }

    async fn advance_clock(&self, by: Duration) {
        self.0.move_clock(micros(by)).await;
    }

    async fn set_clock_back(&self, by: Duration) {
        self.0.move_clock(-micros(by)).await;
    }

    async fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) {
        let mut connection = self.0.connect().await;
        // The guard of the order is off for this one row, which ends where the order is to go on.
        let sql = format!(
            "ALTER TABLE evenhand.reservations DISABLE TRIGGER reservations_continue_the_order;
             INSERT INTO evenhand.reservations (id, first_sequence, reserved_at, shard_key, count)
             SELECT evenhand.new_id(evenhand.clock(), 0), {}, evenhand.clock(), s.shard_key, 1
             FROM evenhand.shards AS s WHERE s.shard = '{shard}';
             ALTER TABLE evenhand.reservations ENABLE ALWAYS TRIGGER reservations_continue_the_order",
            next_sequence - 1
        );
        or_panic("skip on", connection.execute(AssertSqlSafe(sql)).await);
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
