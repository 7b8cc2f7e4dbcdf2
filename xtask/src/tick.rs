//! One tick of one shard in a process of its own, for tests of what replicas do together.

use core::convert::Infallible;

use evenhand_policy::SchedulerShardId;
use evenhand_scheduler::{
    DurableFairScheduler, Handlers, Job, JobOutcome, QueueTenantScheduler, RunContext,
    SchedulerOptions, TickOutcome,
};
use evenhand_store::ReservationStore as _;
use evenhand_store_postgres::{ConnectOptions, PostgresStore};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{Outcome, Verdict};

/// Make one tick, work on the run that it claims if there is one, and print as JSON what it was.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The migrated database.
    #[arg(long)]
    database_url: String,
    /// The registered shard.
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
    let options = ConnectOptions::parse(&args.database_url)?;
    let store = PostgresStore::connect(options).await?;
    let policy = store.load_policy(&args.shard).await?;
    let queue = QueueTenantScheduler::new(store.clone(), Handlers::new().on::<Nothing>(do_nothing));
    let scheduler =
        DurableFairScheduler::register(store, policy, queue, SchedulerOptions::default()).await?;
    let tick = scheduler
        .tick(&CancellationToken::new())
        .await?
        .ok_or("a tick that nobody cancelled was cancelled")?;
    let run = match &tick.outcome {
        TickOutcome::Ran(report) => report.run.map(|run| run.to_string()),
        TickOutcome::Idle | TickOutcome::Contended | TickOutcome::Failed(_) => None,
        other => return Err(format!("unknown outcome {}", other.as_str()).into()),
    };
    let answer = json!({
        "process": std::process::id(),
        "sequence": tick.sequence(),
        "tenant": tick.tenant,
        "outcome": tick.outcome.as_str(),
        "run": run,
    });
    println!("{answer}");
    Ok(Verdict::Passed)
}
