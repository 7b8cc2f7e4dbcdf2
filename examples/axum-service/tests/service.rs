//! Orders over real HTTP, with a real database.
#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use core::net::SocketAddr;
use core::time::Duration;

use std::process::Stdio;

use evenhand_scheduler::{BoxError, WorkerReport};
use evenhand_store::{RunCounts, RunQueue as _};
use evenhand_testkit::postgres::TestDatabase;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The service, in this process, on a database and a port of its own.
struct Scene {
    database: TestDatabase,
    address: SocketAddr,
    stop: CancellationToken,
    service: JoinHandle<Result<WorkerReport, BoxError>>,
}

impl Scene {
    async fn start() -> Self {
        let database = TestDatabase::migrated().await;
        axum_service::migrate(&database.url())
            .await
            .expect("migrations");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, url) = (CancellationToken::new(), database.url());
        let shutdown = stop.clone().cancelled_owned();
        let service =
            tokio::spawn(async move { axum_service::serve(&url, listener, shutdown).await });
        Self {
            database,
            address,
            stop,
            service,
        }
    }

    async fn post(&self, order: &Value) -> Response {
        send(self.address, "POST", "/orders", &order.to_string()).await
    }

    async fn get(&self, path: &str) -> Response {
        send(self.address, "GET", path, "").await
    }

    /// Waits until the handler has marked the order as done.
    async fn wait_until_done(&self, id: &Value) {
        wait_until("the order is done", async || {
            self.get(&format!("/orders/{id}")).await.body["state"] == "done"
        })
        .await;
    }

    /// How many runs there are, of whatever tenant and in whatever state.
    async fn runs(&self) -> u64 {
        let total = |runs: &RunCounts| runs.queued + runs.running + runs.done + runs.dead;
        let counts = self.database.store().await.counts().await;
        counts.expect("the counts").iter().map(total).sum()
    }

    async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.database.connect().await;
        let number = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
        number.fetch_one(&mut connection).await.expect("a number")
    }

    async fn stop(self) -> WorkerReport {
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(30), self.service).await;
        ended
            .expect("it ends")
            .expect("no panic")
            .expect("no error")
    }
}

#[derive(Debug)]
struct Response {
    status: u16,
    /// What of it is JSON.
    body: Value,
}

/// As much of an HTTP client as this test needs: one request on one connection.
async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> Response {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream
        .write_all(request.as_bytes())
        .await
        .expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status").parse();
    Response {
        status: status.expect("a number"),
        body: serde_json::from_str(body).unwrap_or_default(),
    }
}

async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < deadline, "it never happened that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn order(shop: &str, item: &str, quantity: i64) -> Value {
    json!({ "shop": shop, "item": item, "quantity": quantity })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_placed_and_shipped() {
    let scene = Scene::start().await;
    assert_eq!(scene.get("/healthz").await.status, 200);
    let placed = scene.post(&order("north", "book", 2)).await;
    assert_eq!(placed.status, 201, "{placed:?}");
    scene.wait_until_done(&placed.body["id"]).await;
    assert_eq!(
        scene
            .number("SELECT available::bigint FROM stock WHERE item = 'book'")
            .await,
        98
    );
    assert_eq!(scene.get("/orders/12345").await.status, 404);
    let address = scene.address;
    let report = scene.stop().await;
    assert_eq!((report.completed, report.left), (1, 0));
    TcpStream::connect(address)
        .await
        .expect_err("nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_rolled_back_enqueues_nothing() {
    let scene = Scene::start().await;
    for (order, status) in [
        // The transaction has enqueued its run when it finds that the stock is not enough.
        (order("north", "lamp", 6), 409),
        (order("north", "lamp", 0), 409),
        (order("north", "unicorn", 1), 422),
        (order("nowhere", "lamp", 1), 422),
        (json!({ "shop": "north" }), 422),
    ] {
        assert_eq!(scene.post(&order).await.status, status, "{order}");
    }
    assert_eq!(scene.runs().await, 0);
    assert_eq!(scene.number("SELECT count(*) FROM orders").await, 0);
    let placed = scene.post(&order("south", "lamp", 5)).await;
    scene.wait_until_done(&placed.body["id"]).await;
    assert_eq!(scene.runs().await, 1);
    assert_eq!(scene.stop().await.completed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_being_answered_is_answered_during_the_shutdown() {
    let scene = Scene::start().await;
    scene.get("/healthz").await;
    // Somebody else holds the stock, so that the order waits in the middle of its transaction.
    let mut connection = scene.database.connect().await;
    let mut holding = connection.begin().await.unwrap();
    holding
        .execute("SELECT FROM stock FOR UPDATE")
        .await
        .unwrap();
    let address = scene.address;
    let placing = tokio::spawn(async move {
        send(
            address,
            "POST",
            "/orders",
            &order("north", "book", 1).to_string(),
        )
        .await
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND datname = current_database()";
    wait_until("the order waits", async || scene.number(waiting).await == 1).await;
    scene.stop.cancel();
    wait_until("nobody listens", async || {
        TcpStream::connect(address).await.is_err()
    })
    .await;
    holding.rollback().await.unwrap();
    assert_eq!(placing.await.unwrap().status, 201);
    // The run is in the database, for whichever worker comes next.
    assert_eq!(scene.runs().await, 1);
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serving_does_not_migrate() {
    let database = TestDatabase::empty().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = axum_service::serve(&database.url(), listener, core::future::pending()).await;
    served.expect_err("there is no schema to work on");
    let mut connection = database.connect().await;
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'evenhand'";
    let schemas: i64 = sqlx::query_scalar(schemas)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(schemas, 0);
    // Told to, it does; and a second time there is nothing left to do.
    axum_service::migrate(&database.url()).await.unwrap();
    axum_service::migrate(&database.url()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_the_program_in_good_order() {
    let database = TestDatabase::migrated().await;
    axum_service::migrate(&database.url()).await.unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_axum-service"))
        .arg("serve")
        .env("DATABASE_URL", database.url())
        .env("LISTEN", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let url = lines
        .next_line()
        .await
        .unwrap()
        .expect("it says where it listens");
    let address = url.strip_prefix("http://").unwrap().parse().unwrap();
    let placed = send(
        address,
        "POST",
        "/orders",
        &order("north", "book", 1).to_string(),
    )
    .await;
    assert_eq!(placed.status, 201);
    let path = format!("/orders/{}", placed.body["id"]);
    wait_until("the order is done", async || {
        send(address, "GET", &path, "").await.body["state"] == "done"
    })
    .await;
    let pid = Pid::from_raw(program.id().unwrap().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), program.wait()).await;
    assert!(ended.expect("it ends").unwrap().success());
    let summary = lines.next_line().await.unwrap();
    assert_eq!(summary.as_deref(), Some("1 orders shipped, 0 left"));
}
