//! One worker in a process of its own, for tests of what replicas do together over time.

use core::time::Duration;

use evenhand_policy::SchedulerShardId;
use evenhand_scheduler::{BoxError, Handler, Job, JobOutcome, RunContext, Worker};
use evenhand_store::{LeaseDuration, ReservationStore as _};
use evenhand_store_postgres::{ConnectOptions, PostgresStore};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::demo::worker::end_of_input;
use crate::{Outcome, Verdict};

/// Few, because several such processes share the connections of one server.
const CONCURRENCY: usize = 4;

/// Long, so that no lease expires on a busy machine: a run that is executed twice fails the test.
const LEASE: Duration = Duration::from_secs(30);

/// Work on a pool's runs of the kind "nothing" until the standard input ends, and write each execution down.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The migrated database, with the table of executions.
    #[arg(long)]
    database_url: String,
    /// The registered shard whose policy the worker brings; it serves the active shard of that pool.
    #[arg(long)]
    shard: SchedulerShardId,
}

/// Work that is done as soon as its execution is on record.
#[derive(Debug, Serialize, Deserialize)]
struct Nothing {}

impl Job for Nothing {
    const KIND: &'static str = "nothing";
}

/// Writes down that it was called. The record is not the store's, so it shows what the store would not notice.
struct Recorder {
    executions: PgPool,
}

impl Handler<Nothing> for Recorder {
    async fn handle(&self, _: Nothing, context: RunContext) -> Result<JobOutcome, BoxError> {
        let lease = context.lease();
        sqlx::query(include_str!("serve/insert_execution.sql"))
            .bind(i64::from(std::process::id()))
            .bind(lease.run.as_uuid())
            .bind(i64::try_from(lease.fence.get())?)
            .bind(context.tenant().as_str())
            .bind(lease.shard.as_str())
            .bind(i64::try_from(lease.sequence)?)
            .execute(&self.executions)
            .await?;
        Ok(JobOutcome::Done)
    }
}

pub(crate) async fn run(args: Args) -> Outcome {
    let most = u32::try_from(CONCURRENCY)?;
    let executions = PgPoolOptions::new()
        .max_connections(most)
        .connect(&args.database_url)
        .await?;
    // One for each run, and two for looks, renewals and recovery.
    let options = ConnectOptions::parse(&args.database_url)?.connections_max(CONCURRENCY + 2);
    let store = PostgresStore::connect(options).await?;
    let policy = store.load_policy(&args.shard).await?;
    let worker = Worker::builder(store, policy)
        .concurrency(CONCURRENCY)
        .lease(LeaseDuration::new(LEASE)?)
        .poll_interval(Duration::from_millis(100))
        .on::<Nothing>(Recorder { executions })
        .build();
    worker.run_until(end_of_input()?).await?;
    Ok(Verdict::Passed)
}
