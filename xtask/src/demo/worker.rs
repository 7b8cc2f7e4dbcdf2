//! One replica of the demo, in a process of its own.

use core::error::Error;
use core::time::Duration;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;

use evenhand_policy::SchedulerShardId;
use evenhand_scheduler::{BoxError, Handler, JobOutcome, RunContext, Worker};
use evenhand_store::{Lease, LeaseDuration, ReservationStore as _, WorkerName};
use evenhand_store_postgres::{CompletedIn, ConnectOptions, PostgresStore};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::oneshot;

use super::checksum::Checksum;
use super::database::connect;
use crate::{Outcome, Verdict, cargo};

/// Passes the database's URL, which may hold a password, where other users of the machine cannot read it.
pub(super) const URL_VARIABLE: &str = "EVENHAND_DEMO_DATABASE_URL";

/// Short, so that what a killed worker held is soon taken up by others.
const LEASE: Duration = Duration::from_secs(3);

/// Long enough for any handler of the demo to end.
const GRACE: Duration = Duration::from_secs(5);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Work on the demo's runs until the standard input ends. `cargo xtask demo` starts it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How the record of attempts names this worker.
    #[arg(long)]
    name: WorkerName,
    /// The registered shard to serve.
    #[arg(long)]
    shard: SchedulerShardId,
    /// How many runs it works on at a time.
    #[arg(long)]
    concurrency: usize,
    /// The migrated database.
    #[arg(long, env = URL_VARIABLE, hide_env_values = true)]
    database_url: String,
}

pub(crate) async fn run(args: Args) -> Outcome {
    // A claim, a reservation or a completion for each run, and one for looks, renewals and recovery.
    let options = ConnectOptions::parse(&args.database_url)?.connections_max(args.concurrency + 2);
    let store = PostgresStore::connect(options).await?;
    let policy = store.load_policy(&args.shard).await?;
    let worker = Worker::builder(store, policy)
        .name(args.name)
        .concurrency(args.concurrency)
        .lease(LeaseDuration::new(LEASE)?)
        .grace(GRACE)
        .poll_interval(POLL_INTERVAL)
        .on::<Checksum>(Checksums::new(args.database_url))
        .build();
    worker.run_until(end_of_input()?).await?;
    Ok(Verdict::Passed)
}

/// Resolves when the process at the other end closes our standard input, or is gone.
///
/// A thread of its own reads it: the runtime would wait for a reader of its own before it ends.
pub(crate) fn end_of_input() -> Result<impl Future<Output = ()>, Box<dyn Error>> {
    let (open, ended) = oneshot::channel::<()>();
    thread::Builder::new()
        .name("input".to_owned())
        .spawn(move || {
            // An input that cannot be read has ended too.
            drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
            drop(open);
        })?;
    Ok(async move { drop(ended.await) })
}

/// Computes a checksum and writes it down in the transaction that completes the run.
///
/// Runs are handled at least once. Because result and completion are one transaction, and the completion needs the
/// current fence, each result is written exactly once all the same.
struct Checksums {
    url: String,
    idle: Mutex<Vec<PgConnection>>,
}

impl Handler<Checksum> for Checksums {
    async fn handle(&self, job: Checksum, context: RunContext) -> Result<JobOutcome, BoxError> {
        // Off the runtime's threads, which have leases to renew.
        let computing = tokio::task::spawn_blocking(move || job.compute(&cargo::workspace()));
        let digest = computing.await??;
        match self.write_down(context.lease(), &digest).await? {
            CompletedIn::Completed => Ok(JobOutcome::Done),
            // The worker is told the same when it reports this, and leaves the run to the attempt that owns it now.
            CompletedIn::LeaseLost | _ => {
                Err("the lease was lost, and the result rolled back".into())
            }
        }
    }
}

impl Checksums {
    fn new(url: String) -> Self {
        Self {
            url,
            idle: Mutex::default(),
        }
    }

    async fn write_down(&self, lease: &Lease, digest: &str) -> Result<CompletedIn, BoxError> {
        let mut connection = self.take().await?;
        let mut transaction = connection.begin().await?;
        // First the completion: it locks the run, and tells a stale attempt before it writes anything.
        let completed = PostgresStore::complete_in(&mut transaction, lease).await?;
        if completed == CompletedIn::Completed {
            sqlx::query(include_str!("sql/insert_result.sql"))
                .bind(lease.run.as_uuid())
                .bind(i64::try_from(lease.fence.get())?)
                .bind(digest)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        self.put_back(connection);
        Ok(completed)
    }

    async fn take(&self) -> Result<PgConnection, sqlx::Error> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        match idle {
            Some(connection) => Ok(connection),
            None => connect(&self.url).await,
        }
    }

    /// Only after the end of its transaction was answered: a connection that is dropped before is closed with it.
    fn put_back(&self, connection: PgConnection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(connection);
    }
}
