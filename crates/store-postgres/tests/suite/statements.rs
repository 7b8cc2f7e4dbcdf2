//! Every statement of the library is one that this server can plan.

use evenhand_testkit::postgres::TestDatabase;
use sqlx::{AssertSqlSafe, Executor as _, SqlSafeStr as _};

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_can_be_prepared() {
    let database = TestDatabase::migrated().await;
    let mut connection = database.connect().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    let mut prepared = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let sql = std::fs::read_to_string(&path).unwrap();
        let is_script = ["bootstrap.sql", "begin_read_committed.sql"]
            .iter()
            .any(|name| path.ends_with(name));
        if !is_script {
            connection
                .prepare(AssertSqlSafe(sql).into_sql_str())
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            prepared += 1;
        }
    }
    assert!(prepared > 20, "only {prepared} statements");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_function_body_refers_to_what_exists() {
    let database = TestDatabase::migrated().await;
    let mut connection = database.connect().await;
    // A PL/pgSQL body is only looked at when it runs; this compiles each one.
    let functions: Vec<String> = sqlx::query_scalar(
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
         WHERE p.pronamespace = 'evenhand'::regnamespace AND l.lanname = 'plpgsql' ORDER BY 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert!(functions.len() > 25);
    for function in functions {
        sqlx::query("SELECT plpgsql_validator($1::text::regprocedure)")
            .bind(&function)
            .execute(&mut connection)
            .await
            .unwrap_or_else(|error| panic!("{function}: {error}"));
    }
}
