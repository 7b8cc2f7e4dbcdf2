//! One worker in a process of its own, for tests of what replicas do together over time.

use core::convert::Infallible;
use core::time::Duration;

use evenhand_policy::SchedulerShardId;
use evenhand_scheduler::{Job, JobOutcome, RunContext, Worker};
use evenhand_store::{LeaseDuration, ReservationStore as _};
use evenhand_store_postgres::{ConnectOptions, PostgresStore};
use serde::{Deserialize, Serialize};

use crate::demo::worker::end_of_input;
use crate::{Outcome, Verdict};

/// Short, so that the blocks that a change of policy cuts off do not matter for long.
const LEASE: Duration = Duration::from_secs(3);

/// Work on a pool's runs of the kind "nothing" until the standard input ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The migrated database.
    #[arg(long)]
    database_url: String,
    /// The registered shard whose policy the worker brings; it serves the active shard of that pool.
    #[arg(long)]
    shard: SchedulerShardId,
}

/// Work that is done as soon as somebody takes it.
#[derive(Debug, Serialize, Deserialize)]
struct Nothing {}

impl Job for Nothing {
    const KIND: &'static str = "nothing";
}

async fn do_nothing(_: Nothing, _: RunContext) -> Result<JobOutcome, Infallible> {
    Ok(JobOutcome::Done)
}

pub(crate) async fn run(args: Args) -> Outcome {
    let options = ConnectOptions::parse(&args.database_url)?.connections_max(8);
    let store = PostgresStore::connect(options).await?;
    let policy = store.load_policy(&args.shard).await?;
    let worker = Worker::builder(store, policy)
        .concurrency(8)
        .lease(LeaseDuration::new(LEASE)?)
        .poll_interval(Duration::from_millis(100))
        .on::<Nothing>(do_nothing)
        .build();
    worker.run_until(end_of_input()?).await?;
    Ok(Verdict::Passed)
}
