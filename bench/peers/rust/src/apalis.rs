//! apalis-postgres: batches, no second lock of jobs that were fetched, and polls for a full queue, notifications for an
//! idle one.

use std::time::Duration;

use apalis::prelude::{
    BackendExt as _, BoxDynError, Data, TaskBuilder, WorkerBuilder, WorkerBuilderExt as _,
};
use apalis_postgres::{Config, PgTask, PostgresStorage, queries};
use sqlx::postgres::PgPool;
use tokio_util::sync::CancellationToken;

use crate::peer::{OnJob, Outcome, Payload, Peer, Purpose, Queue};

const QUEUE: &str = "bench";
/// A fetch that finds nothing is not tried again before the next poll.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Beside notifications, as in the crate's own example: a job that comes before the listener would wait for ever.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Apalis;

impl Peer for Apalis {
    const NAME: &'static str = "apalis-postgres";
    const VERSION: &'static str = "1.0.0";
    const CONCURRENCY: usize = 4;
    const FETCH: usize = 500;
    const FASTEST: &'static str = "batch_size 500, lock_tasks off, concurrency 4";

    type Queue = Tasks;

    async fn setup(pool: &PgPool) -> Outcome<()> {
        PostgresStorage::setup(pool).await?;
        Ok(())
    }

    async fn remaining(pool: &PgPool) -> Outcome<i64> {
        let jobs = sqlx::query_scalar(
            "SELECT count(*) FROM apalis.jobs WHERE status IN ('Pending', 'Queued', 'Running')",
        )
        .fetch_one(pool)
        .await?;
        Ok(jobs)
    }

    fn queue(pool: &PgPool) -> Tasks {
        Tasks(pool.clone())
    }

    async fn work(
        pool: PgPool,
        purpose: Purpose,
        on_job: OnJob,
        stop: CancellationToken,
    ) -> Outcome<()> {
        let name = format!("worker-{}", std::process::id());
        let config = Config::default().queue(QUEUE).lock_tasks(false);
        let storage = PostgresStorage::<Payload>::new(&pool);
        let stopped = async move {
            stop.cancelled().await;
            Ok::<(), std::io::Error>(())
        };
        match purpose {
            Purpose::Drain { concurrency, fetch } => {
                let config = config.batch_size(fetch);
                let backend = storage.with_config(config);
                WorkerBuilder::new(name)
                    .backend(backend.poll_with_interval(POLL_INTERVAL))
                    .data(Handler(on_job))
                    .concurrency(concurrency)
                    .build(handle)
                    .run_until(stopped)
                    .await?;
            }
            Purpose::Idle => {
                let backend = storage.with_config(config.batch_size(1));
                WorkerBuilder::new(name)
                    .backend(backend.with_pubsub().poll_with_interval(IDLE_POLL_INTERVAL))
                    .data(Handler(on_job))
                    .concurrency(1)
                    .build(handle)
                    .run_until(stopped)
                    .await?;
            }
        }
        Ok(())
    }
}

pub(crate) struct Tasks(PgPool);

impl Queue for Tasks {
    async fn add(&self, tenants: Vec<String>) -> Outcome<()> {
        let task = |tenant| {
            let payload = serde_json::to_vec(&Payload { tenant })?;
            Ok::<PgTask, serde_json::Error>(TaskBuilder::new(payload).build())
        };
        let tasks = tenants.into_iter().map(task).collect::<Result<_, _>>()?;
        let mut connection = self.0.acquire().await?;
        queries::push_tasks(&mut *connection, QUEUE, tasks).await?;
        Ok(())
    }
}

#[derive(Clone)]
struct Handler(OnJob);

async fn handle(payload: Payload, handler: Data<Handler>) -> Result<(), BoxDynError> {
    let Handler(on_job) = &*handler;
    on_job(payload.tenant);
    Ok(())
}
