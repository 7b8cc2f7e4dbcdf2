//! A server of one's own: started, stopped in every way, and started again on the same data.

#![cfg(feature = "postgres")]
#![expect(clippy::expect_used, reason = "a test reports a failure by panicking")]

use core::net::Ipv4Addr;
use core::time::Duration;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Instant;

use evenhand_testkit::postgres::{Server, ServerOptions, StopMode, private_server};
use sqlx::{Connection as _, PgConnection};

async fn connect(server: &Server) -> PgConnection {
    PgConnection::connect(&server.url("postgres"))
        .await
        .expect("the server accepts connections")
}

async fn count(server: &Server) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM kept")
        .fetch_one(&mut connect(server).await)
        .await
        .expect("the table is there")
}

async fn insert(server: &Server) {
    sqlx::query("INSERT INTO kept VALUES (1)")
        .execute(&mut connect(server).await)
        .await
        .expect("the row is inserted");
}

#[tokio::test]
async fn committed_rows_survive_every_way_to_stop() {
    let mut server = private_server(ServerOptions::throwaway()).await;
    let port = server.port();
    sqlx::query("CREATE TABLE kept (id int)")
        .execute(&mut connect(&server).await)
        .await
        .expect("the table is made");

    for (rows, mode) in (1..).zip([StopMode::Smart, StopMode::Fast, StopMode::Immediate]) {
        insert(&server).await;
        server.stop(mode).await.expect("the server stops");
        assert!(server.pid().is_none());
        assert!(
            PgConnection::connect(&server.url("postgres"))
                .await
                .is_err(),
            "{mode:?}"
        );
        server.restart().await.expect("the server starts again");
        assert_eq!(count(&server).await, rows, "{mode:?}");
    }

    insert(&server).await;
    // A client that stays keeps one of the killed server's processes busy while the next server starts.
    let staying = connect(&server).await;
    server.kill_hard().expect("the server can be killed");
    server
        .restart()
        .await
        .expect("the server starts again after a kill");
    drop(staying);
    assert_eq!(count(&server).await, 4);
    assert_eq!(server.port(), port, "clients find it at the same place");
}

#[tokio::test]
async fn restarting_a_running_server_gives_a_new_process() {
    let mut server = private_server(ServerOptions::throwaway()).await;
    let before = server.pid();
    server.restart().await.expect("the server starts again");
    assert!(server.pid().is_some());
    assert_ne!(server.pid(), before);
}

#[tokio::test]
async fn a_port_that_is_taken_for_a_while_is_waited_for() {
    let mut server = private_server(ServerOptions::throwaway()).await;
    server.stop(StopMode::Fast).await.expect("the server stops");
    let squatter = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port()))
        .expect("the stopped server has left its port");
    let log = server.socket_folder().join("log");
    let leave_when_noticed = async {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !fs::read_to_string(&log).is_ok_and(|log| log.contains("could not bind")) {
            assert!(
                Instant::now() < deadline,
                "the server never met the squatter"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(squatter);
    };
    let (restarted, ()) = tokio::join!(server.restart(), leave_when_noticed);
    restarted.expect("the server starts once the port is free");
    connect(&server).await;
}

#[tokio::test]
async fn settings_reach_the_server() {
    let options = ServerOptions::new()
        .setting("commit_delay", "1000")
        .setting("commit_delay", "7");
    let server = private_server(options).await;
    let mut connection = connect(&server).await;
    for (sql, expected) in [
        ("SHOW commit_delay", "7"),
        ("SHOW max_connections", "200"),
        ("SHOW fsync", "on"),
        ("SHOW server_encoding", "UTF8"),
        ("SHOW listen_addresses", "127.0.0.1"),
    ] {
        let value: String = sqlx::query_scalar(sql)
            .fetch_one(&mut connection)
            .await
            .expect("it can be shown");
        assert_eq!(value, expected, "{sql}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_its_log() {
    let server = private_server(ServerOptions::throwaway()).await;
    let options = ServerOptions::new().setting("shared_buffers", "many");
    let error = Server::start(server.installation(), options)
        .await
        .expect_err("the setting is wrong")
        .to_string();
    assert!(error.contains("shared_buffers"), "{error}");
}

#[tokio::test]
async fn dropping_a_server_ends_it_and_removes_its_folder() {
    let server = private_server(ServerOptions::throwaway()).await;
    let (url, folder) = (server.url("postgres"), server.socket_folder());
    assert!(folder.join(format!(".s.PGSQL.{}", server.port())).exists());
    assert!(
        folder.as_os_str().len() < 85,
        "the path of the socket must stay short"
    );
    drop(server);
    assert!(!Path::new(&folder).exists());
    assert!(PgConnection::connect(&url).await.is_err());
}
