//! What the processes of one run share: the start, so that none works while another is still connecting, and the number
//! of jobs that were run, so that all know when the queue is drained.
//!
//! The table is unlogged and each process updates its own row, so that it costs the server no flush and no waiting.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Connection as _, Executor as _};

use crate::peer::Outcome;

const START_PAUSE: Duration = Duration::from_millis(2);
const START_DEADLINE: Duration = Duration::from_mins(1);

pub(crate) async fn create(pool: &PgPool) -> Outcome<()> {
    pool.execute(
        "CREATE UNLOGGED TABLE IF NOT EXISTS bench_done (process int PRIMARY KEY, jobs bigint NOT NULL)",
    )
    .await?;
    pool.execute("TRUNCATE bench_done").await?;
    Ok(())
}

/// Waits until as many processes have joined.
pub(crate) async fn wait_for_workers(url: &str, processes: i64) -> Outcome<()> {
    let mut connection = PgConnection::connect(url).await?;
    wait(&mut connection, processes).await?;
    connection.close().await?;
    Ok(())
}

#[derive(Debug)]
pub(crate) struct Gate {
    connection: PgConnection,
    process: i32,
}

impl Gate {
    /// Joins, and waits until all others have.
    pub(crate) async fn join(url: &str, processes: i64) -> Outcome<Self> {
        let mut connection = PgConnection::connect(url).await?;
        let process = i32::try_from(std::process::id())?;
        sqlx::query("INSERT INTO bench_done VALUES ($1, 0)")
            .bind(process)
            .execute(&mut connection)
            .await?;
        wait(&mut connection, processes).await?;
        Ok(Self {
            connection,
            process,
        })
    }

    /// Says how many jobs this process has run, and answers how many all have.
    pub(crate) async fn report(&mut self, jobs: i64) -> Outcome<i64> {
        sqlx::query("UPDATE bench_done SET jobs = $2 WHERE process = $1")
            .bind(self.process)
            .bind(jobs)
            .execute(&mut self.connection)
            .await?;
        let total = sqlx::query_scalar("SELECT sum(jobs)::bigint FROM bench_done")
            .fetch_one(&mut self.connection)
            .await?;
        Ok(total)
    }
}

async fn wait(connection: &mut PgConnection, processes: i64) -> Outcome<()> {
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        let joined: i64 = sqlx::query_scalar("SELECT count(*) FROM bench_done")
            .fetch_one(&mut *connection)
            .await?;
        if joined >= processes {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("only {joined} of {processes} processes have started").into());
        }
        tokio::time::sleep(START_PAUSE).await;
    }
}
