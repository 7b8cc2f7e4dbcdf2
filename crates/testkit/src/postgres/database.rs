use core::error::Error;
use core::fmt::Display;
use core::time::Duration;
use std::path::Path;
use std::thread;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::binaries::Installation;
use super::server::{Server, ServerError, ServerOptions};
use super::template;
use super::url::with_database;

/// Names the folder of binaries of the major that tests run on; set by `cargo xtask test`.
pub const SERVER_VARIABLE: &str = "EVENHAND_TEST_POSTGRES";

/// The superuser's URL of the database `postgres` on the server that tests share; set by `cargo xtask test`.
pub const SERVER_URL_VARIABLE: &str = "EVENHAND_TEST_POSTGRES_URL";

const NO_SERVER: &str =
    "no PostgreSQL server to test on: run \"cargo xtask test\", which finds one and starts it";

/// A test that is over must not wait for ever for its database to go; the server's end removes what is left.
const DROP_DEADLINE: Duration = Duration::from_secs(20);

/// The server that all tests of one `cargo test` share.
///
/// ```no_run
/// # use evenhand_testkit::postgres::{FindOptions, Major, TestServer, find};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let installation = find(Major::try_from(17)?, &FindOptions::new("target/postgres")).await?;
/// let server = TestServer::start(&installation).await?;
/// tokio::process::Command::new("cargo").arg("test").envs(server.env()).status().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestServer {
    server: Server,
}

impl TestServer {
    /// Starts a shared server; its data is not flushed to the disk, because nobody needs it afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`Server::start`].
    ///
    /// # Cancel safety
    ///
    /// As [`Server::start`].
    pub async fn start(installation: &Installation) -> Result<Self, ServerError> {
        let options = ServerOptions::throwaway().setting("max_connections", "400");
        Ok(Self {
            server: Server::start(installation, options).await?,
        })
    }

    /// The environment variables by which the tests of a child process find this server.
    pub fn env(&self) -> [(&'static str, String); 2] {
        let bin = self.server.installation().bin().display().to_string();
        [
            (SERVER_VARIABLE, bin),
            (SERVER_URL_VARIABLE, self.server.url("postgres")),
        ]
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }
}

/// Starts a server that one test has for itself, to crash it or to set it up in a special way.
///
/// # Panics
///
/// If the tests were not given a server, or it does not start.
///
/// # Cancel safety
///
/// As [`Server::start`].
pub async fn private_server(options: ServerOptions) -> Server {
    let bin = variable(SERVER_VARIABLE);
    let installation = or_panic("use", Installation::of_folder(Path::new(&bin)).await);
    or_panic("start", Server::start(&installation, options).await)
}

/// A database that one test has for itself, on the server that all tests share.
///
/// Dropping it drops the database, with whatever is still connected to it.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    server_url: String,
}

impl TestDatabase {
    /// Makes an empty database.
    ///
    /// # Panics
    ///
    /// If the tests were not given a server, or it refuses.
    ///
    /// # Cancel safety
    ///
    /// A database may be left behind until the server ends.
    pub async fn empty() -> Self {
        let server_url = variable(SERVER_URL_VARIABLE);
        let name = fresh_name();
        or_panic(
            "create a database on",
            template::create_empty(&server_url, &name).await,
        );
        Self { name, server_url }
    }

    /// Makes a copy of the database that `migrate` leaves behind, which is much faster than to migrate each time.
    ///
    /// The first caller on a server makes the template `key`, all others wait for it, in whichever process they are.
    /// So `key` must tell apart all that `migrate` can do. `migrate` is given the URL of an empty database.
    ///
    /// # Panics
    ///
    /// If the tests were not given a server, or it refuses, or `migrate` fails.
    ///
    /// # Cancel safety
    ///
    /// A database may be left behind until the server ends; a template that was cut short is made anew.
    pub async fn from_template<E: Display>(
        key: &str,
        migrate: impl AsyncFnOnce(&str) -> Result<(), E>,
    ) -> Self {
        let server_url = variable(SERVER_URL_VARIABLE);
        let name = fresh_name();
        let template = or_panic(
            "make the template of databases on",
            template::ensure(&server_url, key, migrate).await,
        );
        or_panic(
            "clone a database on",
            template.clone_to(&server_url, &name).await,
        );
        Self { name, server_url }
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The superuser's URL of this database.
    pub fn url(&self) -> String {
        with_database(&self.server_url, &self.name)
    }

    /// Connects to this database as the superuser.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub async fn connect(&self) -> PgConnection {
        or_panic("connect to", PgConnection::connect(&self.url()).await)
    }

    /// Runs `sql`, which may be several statements, as the superuser on a connection of its own.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn admin(&self, sql: &str) -> Result<(), sqlx::Error> {
        let mut connection = PgConnection::connect(&self.url()).await?;
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await?;
        connection.close().await
    }
}

impl Drop for TestDatabase {
    /// Waits for the database to be gone: a test process that ended first would leave it, and the disk fills up.
    fn drop(&mut self) {
        let name = self.name.clone();
        let server_url = self.server_url.clone();
        // The test's own runtime is busy running this very function, so the work needs another.
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let work = template::drop_database(&server_url, &name);
                tokio::time::timeout(DROP_DEADLINE, work).await??;
                Ok::<_, Box<dyn Error + Send + Sync>>(())
            })
        });
        match dropping.join() {
            Ok(Ok(())) => {}
            // Not worth failing a test for: the server's end removes it.
            Ok(Err(error)) => eprintln!("cannot drop the database {}: {error}", self.name),
            Err(_) => eprintln!(
                "cannot drop the database {}: the thread panicked",
                self.name
            ),
        }
    }
}

fn variable(name: &str) -> String {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => value,
        _ => panic!("{NO_SERVER}"),
    }
}

fn fresh_name() -> String {
    format!(
        "evenhand_test_{}_{:016x}",
        std::process::id(),
        fastrand::u64(..)
    )
}

pub(super) fn or_panic<T, E: Error>(action: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| {
        let mut text = format!("cannot {action} the PostgreSQL server of the tests: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        panic!("{text}")
    })
}
