//! The one private server of a run, its two regimes, and a fresh database for whatever needs one.

use core::str::FromStr as _;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use evenhand_store_postgres::{ConnectOptions, PostgresStore, migrate};
use evenhand_testkit::postgres::{Installation, Server, ServerOptions};
use serde::Serialize;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use super::Result;
use super::peers::Peers;
use crate::progress::Progress;

/// Beyond PostgreSQL's defaults: memory for the larger tables, no checkpoint that falls into one run of two, and room for the
/// connections of a peer beside ours.
pub(super) const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "1h"),
    ("max_connections", "200"),
];

/// The migrated database that all others are copies of.
const TEMPLATE: &str = "evenhand_bench";

const DRAIN_DEADLINE: Duration = Duration::from_mins(3);

const RELOAD_DEADLINE: Duration = Duration::from_secs(10);

/// How long a flush takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Regime {
    /// As long as this machine's disk needs.
    #[serde(rename = "native")]
    Native,
    /// A millisecond longer, as on a cloud disk.
    #[serde(rename = "1 ms")]
    OneMillisecond,
}

impl Regime {
    pub(crate) const BOTH: [Self; 2] = [Self::Native, Self::OneMillisecond];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::OneMillisecond => "1 ms",
        }
    }
}

/// The server, and how thorough to be.
pub(crate) struct Bench {
    server: Server,
    quick: bool,
    progress: Progress,
    peers: Peers,
    databases: Mutex<Vec<String>>,
}

/// A database of the server.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    name: String,
    url: String,
}

impl Bench {
    pub(super) async fn start(
        installation: &Installation,
        quick: bool,
        progress: Progress,
        peers: Peers,
    ) -> Result<Self> {
        let options = SETTINGS
            .into_iter()
            .fold(ServerOptions::new(), |options, (name, value)| {
                options.setting(name, value)
            })
            .setting("commit_siblings", "0");
        let server = Server::start(installation, options).await?;
        let bench = Self {
            server,
            quick,
            progress,
            peers,
            databases: Mutex::default(),
        };
        bench.run(format!("CREATE DATABASE {TEMPLATE}")).await?;
        migrate(&ConnectOptions::parse(&bench.server.url(TEMPLATE))?).await?;
        Ok(bench)
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// What a quick run takes, or what a full one does.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Says what is being done.
    pub(crate) fn say(&self, step: &str) {
        self.progress.step(&format!("  {step}"));
    }

    /// Lets flushes take this long from now on, in every session.
    pub(crate) async fn set(&self, regime: Regime) -> Result<()> {
        let (set, delay) = match regime {
            Regime::Native => ("ALTER SYSTEM SET commit_delay = 0", "0"),
            Regime::OneMillisecond => ("ALTER SYSTEM SET commit_delay = 1000", "1000"),
        };
        self.run(set.to_owned()).await?;
        self.run("SELECT pg_reload_conf()".to_owned()).await?;
        let deadline = Instant::now() + RELOAD_DEADLINE;
        // A session that is new shows what the server has read, and by then all others were told.
        while self.commit_delay().await? != delay {
            if Instant::now() > deadline {
                return Err("the server does not read its settings again".into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// A new database with nothing but Evenhand's schema in it.
    pub(crate) async fn database(&self, name: &str) -> Result<Database> {
        self.copy(TEMPLATE, name).await
    }

    /// A copy of a database that nobody is connected to.
    pub(crate) async fn copy_of(&self, database: &Database, name: &str) -> Result<Database> {
        self.copy(&database.name, name).await
    }

    /// A new database with nothing in it, which outlives the row, for others to be copies of.
    pub(crate) async fn template(&self, name: &str) -> Result<Database> {
        self.run(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            .await?;
        self.run(format!("CREATE DATABASE {name}")).await?;
        Ok(Database {
            name: name.to_owned(),
            url: self.server.url(name),
        })
    }

    /// Drops one database before its row ends.
    pub(crate) async fn drop_database(&self, database: Database) -> Result<()> {
        let Database { name, .. } = database;
        self.made().retain(|made| *made != name);
        self.run(format!("DROP DATABASE {name} WITH (FORCE)")).await
    }

    /// Drops what rows left, so that no background work for it disturbs the next one.
    pub(super) async fn drop_databases(&self) -> Result<()> {
        let made = core::mem::take(&mut *self.made());
        for name in made {
            self.run(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
                .await?;
        }
        Ok(())
    }

    async fn copy(&self, template: &str, name: &str) -> Result<Database> {
        self.made().push(name.to_owned());
        self.run(format!("CREATE DATABASE {name} TEMPLATE {template}"))
            .await?;
        Ok(Database {
            name: name.to_owned(),
            url: self.server.url(name),
        })
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.databases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn commit_delay(&self) -> Result<String> {
        let mut connection = connect(&self.server.url("postgres")).await?;
        let delay = sqlx::query_scalar("SELECT current_setting('commit_delay')")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(delay)
    }

    /// Runs a statement about databases or the server, which take no parameters. The names in it are ours.
    async fn run(&self, statement: String) -> Result<()> {
        let mut connection = connect(&self.server.url("postgres")).await?;
        sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        Ok(())
    }
}

impl Database {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A connection of the superuser.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        connect(&self.url).await
    }

    /// A store with up to this many connections.
    pub(crate) async fn store(&self, connections: usize) -> Result<PostgresStore> {
        let options = ConnectOptions::parse(&self.url)?.connections_max(connections);
        Ok(PostgresStore::connect(options).await?)
    }

    /// Runs a file of statements.
    pub(crate) async fn run(&self, statements: &'static str) -> Result<()> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql(statements).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }

    /// Waits until no run is queued or running.
    pub(crate) async fn wait_until_drained(&self) -> Result<()> {
        let deadline = Instant::now() + DRAIN_DEADLINE;
        while self.number(include_str!("sql/runs_left.sql")).await? > 0.0 {
            if Instant::now() > deadline {
                return Err(format!("the runs were not drained in {DRAIN_DEADLINE:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// The texts that a statement answers.
    pub(crate) async fn texts(&self, statement: &'static str) -> Result<Vec<String>> {
        let mut connection = self.connect().await?;
        let texts = sqlx::query_scalar(statement)
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        Ok(texts)
    }

    /// The one number that a statement answers.
    pub(crate) async fn number(&self, statement: &'static str) -> Result<f64> {
        let mut connection = self.connect().await?;
        let number = sqlx::query_scalar(statement)
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(number)
    }
}

pub(crate) async fn connect(url: &str) -> Result<PgConnection> {
    let options = PgConnectOptions::from_str(url)?.disable_statement_logging();
    Ok(options.connect().await?)
}
