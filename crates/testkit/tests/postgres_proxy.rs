//! The proxy between client and server: what it counts, and what it cuts.

#![cfg(feature = "postgres")]
#![expect(clippy::expect_used, reason = "a test reports a failure by panicking")]

use core::time::Duration;
use std::time::Instant;

use evenhand_testkit::postgres::{Cut, Direction, Proxy, TestDatabase};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};

const INSERT: &str = "INSERT INTO kept VALUES ($1)";

/// A database with an empty table `kept`, and a proxy in front of it.
async fn set_up() -> (TestDatabase, Proxy) {
    let database = TestDatabase::empty().await;
    database
        .admin("CREATE TABLE kept (id int)")
        .await
        .expect("the table is made");
    let proxy = Proxy::start(&database.url())
        .await
        .expect("the proxy starts");
    (database, proxy)
}

async fn connect(proxy: &Proxy) -> PgConnection {
    PgConnection::connect(proxy.url())
        .await
        .expect("the proxy lets clients in")
}

async fn insert(connection: &mut PgConnection, id: i32) -> Result<(), sqlx::Error> {
    sqlx::query(INSERT)
        .bind(id)
        .execute(connection)
        .await
        .map(drop)
}

async fn kept(database: &TestDatabase) -> Vec<i32> {
    sqlx::query_scalar("SELECT id FROM kept ORDER BY id")
        .fetch_all(&mut database.connect().await)
        .await
        .expect("the table can be read")
}

#[tokio::test]
async fn a_warm_prepared_statement_is_one_round_trip() {
    let (_database, proxy) = set_up().await;
    let mut connection = connect(&proxy).await;
    insert(&mut connection, 1)
        .await
        .expect("the row is inserted");
    let cold = proxy.counts();
    assert_eq!((cold.parse, cold.round_trips), (1, 2), "prepare, then run");

    proxy.reset_counts();
    insert(&mut connection, 2)
        .await
        .expect("the row is inserted");
    let warm = proxy.counts();
    assert_eq!(
        (warm.parse, warm.bind, warm.execute, warm.sync, warm.query),
        (0, 1, 1, 1, 0)
    );
    assert_eq!((warm.statements(), warm.round_trips), (1, 1));
}

#[tokio::test]
async fn a_transaction_of_three_statements_is_three_round_trips() {
    let (_database, proxy) = set_up().await;
    let mut connection = connect(&proxy).await;
    insert(&mut connection, 1)
        .await
        .expect("the row is inserted");

    proxy.reset_counts();
    let mut transaction = connection.begin().await.expect("it begins");
    insert(&mut transaction, 2)
        .await
        .expect("the row is inserted");
    transaction.commit().await.expect("it commits");
    let counts = proxy.counts();
    assert_eq!((counts.query, counts.execute), (2, 1));
    assert_eq!((counts.statements(), counts.round_trips), (3, 3));
}

#[tokio::test]
async fn a_cut_reply_loses_the_answer_and_keeps_the_row() {
    let (database, proxy) = set_up().await;
    let mut connection = connect(&proxy).await;
    insert(&mut connection, 1)
        .await
        .expect("the row is inserted");

    proxy.cut_next_reply();
    insert(&mut connection, 2)
        .await
        .expect_err("the reply is cut");
    // The commit came before the cut, so the row is there at once.
    assert_eq!(kept(&database).await, [1, 2]);
    assert_eq!(proxy.cuts_made(), 1);

    assert!(connection.ping().await.is_err(), "the connection is gone");
    let mut again = connect(&proxy).await;
    insert(&mut again, 3)
        .await
        .expect("the cut was for one reply");
    assert_eq!(kept(&database).await, [1, 2, 3]);
}

#[tokio::test]
async fn a_cut_reply_to_a_statement_that_was_never_prepared_keeps_the_row_too() {
    let (database, proxy) = set_up().await;
    let mut connection = connect(&proxy).await;
    proxy.cut_next_reply();
    insert(&mut connection, 1)
        .await
        .expect_err("the reply is cut");
    assert_eq!(kept(&database).await, [1], "preparing is not running");
    assert_eq!(proxy.cuts_made(), 1);
}

#[tokio::test]
async fn a_cut_request_never_arrives() {
    let (database, proxy) = set_up().await;
    let mut connection = connect(&proxy).await;
    insert(&mut connection, 1)
        .await
        .expect("the row is inserted");

    proxy.cut(Cut::request());
    insert(&mut connection, 2)
        .await
        .expect_err("the request is cut");
    assert_eq!(kept(&database).await, [1]);
    assert_eq!(proxy.cuts_made(), 1);
}

#[tokio::test]
async fn only_requests_that_run_the_named_statement_are_cut() {
    let (database, proxy) = set_up().await;
    let mut connection = connect(&proxy).await;
    // Prepared under a name before the cut is armed: from now on the wire carries the name alone.
    insert(&mut connection, 1)
        .await
        .expect("the row is inserted");
    proxy.cut(Cut::reply().every(2).matching("INTO kept"));
    for id in 2..=5 {
        connection.ping().await.expect("other requests pass");
        if insert(&mut connection, id).await.is_err() {
            connection = connect(&proxy).await;
        }
    }
    assert_eq!(proxy.cuts_made(), 2);
    assert_eq!(kept(&database).await, [1, 2, 3, 4, 5]);

    proxy.stop_cutting();
    insert(&mut connection, 6)
        .await
        .expect("nothing is cut any more");
    insert(&mut connection, 7)
        .await
        .expect("nothing is cut any more");
}

#[tokio::test]
async fn a_cut_commit_is_a_commit_whose_acknowledgement_is_lost() {
    let (database, proxy) = set_up().await;
    let mut connection = connect(&proxy).await;
    proxy.cut(Cut::reply().matching("COMMIT"));
    let mut transaction = connection.begin().await.expect("it begins");
    insert(&mut transaction, 1)
        .await
        .expect("the row is inserted");
    transaction.commit().await.expect_err("the reply is cut");
    assert_eq!(kept(&database).await, [1]);
}

#[tokio::test]
async fn large_messages_pass_unchanged() {
    let (database, proxy) = set_up().await;
    let options: PgConnectOptions = proxy.url().parse().expect("the proxy's URL is one");
    let mut connection = options
        .application_name("through the proxy")
        .connect()
        .await
        .expect("it connects");
    let sent = "even".repeat(1_000_000);
    let received: String = sqlx::query_scalar("SELECT $1 || current_database()")
        .bind(&sent)
        .fetch_one(&mut connection)
        .await
        .expect("it is echoed");
    assert_eq!(received.len(), sent.len() + database.name().len());
    assert!(received.starts_with(&sent));
}

#[tokio::test]
async fn a_delay_holds_up_both_ways() {
    let (_database, proxy) = set_up().await;
    let mut connection = connect(&proxy).await;
    insert(&mut connection, 1)
        .await
        .expect("the row is inserted");
    let delay = Duration::from_millis(30);
    proxy.set_delay(Direction::ToServer, delay);
    proxy.set_delay(Direction::ToClient, delay);
    let start = Instant::now();
    insert(&mut connection, 2)
        .await
        .expect("the row is inserted");
    assert!(start.elapsed() >= 2 * delay);
}

#[tokio::test]
async fn dropping_the_proxy_drops_its_connections() {
    let (database, proxy) = set_up().await;
    let mut through = connect(&proxy).await;
    let mut direct = database.connect().await;
    let url = proxy.url().to_owned();
    drop(proxy);
    assert!(through.ping().await.is_err());
    assert!(PgConnection::connect(&url).await.is_err());
    direct.ping().await.expect("the server is still there");
}
