//! `graphile_worker`, on the settings of its own page about throughput: a local queue, and completions in batches.
//!
//! The local queue is as large as in the Node library's own benchmark, because it is the faster the larger it is.

use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, Worker,
    WorkerContext, WorkerOptions, WorkerUtils,
};
use sqlx::postgres::PgPool;
use tokio_util::sync::CancellationToken;

use crate::peer::{OnJob, Outcome, Payload, Peer, Purpose, Queue};

const SCHEMA: &str = "graphile_worker";
const COMPLETE_DELAY: Duration = Duration::from_millis(5);

pub(crate) struct GraphileWorker;

impl Peer for GraphileWorker {
    const NAME: &'static str = "graphile_worker";
    const VERSION: &'static str = "0.14.1";
    const CONCURRENCY: usize = 16;
    const FETCH: usize = 500;
    const FASTEST: &'static str = "local_queue 500, complete_job_batch_delay 5 ms, concurrency 16";

    type Queue = WorkerUtils;

    async fn setup(pool: &PgPool) -> Outcome<()> {
        utils(pool).migrate().await?;
        Ok(())
    }

    async fn remaining(pool: &PgPool) -> Outcome<i64> {
        let jobs = sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs")
            .fetch_one(pool)
            .await?;
        Ok(jobs)
    }

    fn queue(pool: &PgPool) -> WorkerUtils {
        utils(pool)
    }

    async fn work(
        pool: PgPool,
        purpose: Purpose,
        on_job: OnJob,
        stop: CancellationToken,
    ) -> Outcome<()> {
        let options = WorkerOptions::default()
            .pg_pool(pool)
            .schema(SCHEMA)
            .listen_os_shutdown_signals(false)
            .add_extension(Handler(on_job))
            .define_job::<Payload>();
        let options = match purpose {
            Purpose::Drain { concurrency, fetch } => options
                .concurrency(concurrency)
                .complete_job_batch_delay(COMPLETE_DELAY)
                .local_queue(LocalQueueConfig::default().with_size(fetch)),
            // It listens by itself; without a local queue it fetches at once.
            Purpose::Idle => options.concurrency(1),
        };
        let worker: Worker = Box::pin(options.init()).await?;
        let stopping = async {
            stop.cancelled().await;
            worker.request_shutdown();
        };
        let (ended, ()) = tokio::join!(worker.run(), stopping);
        Ok(ended?)
    }
}

impl Queue for WorkerUtils {
    async fn add(&self, tenants: Vec<String>) -> Outcome<()> {
        if let [tenant] = &*tenants {
            let payload = Payload {
                tenant: tenant.clone(),
            };
            self.add_job(payload, JobSpec::default()).await?;
            return Ok(());
        }
        let job = |tenant| {
            Ok::<_, serde_json::Error>(RawJobSpec {
                identifier: Payload::IDENTIFIER.to_owned(),
                payload: serde_json::to_value(Payload { tenant })?,
                spec: JobSpec::default(),
            })
        };
        let jobs: Vec<RawJobSpec> = tenants.into_iter().map(job).collect::<Result<_, _>>()?;
        self.add_raw_jobs(&jobs).await?;
        Ok(())
    }
}

#[derive(Clone)]
struct Handler(OnJob);

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handler")
    }
}

impl TaskHandler for Payload {
    const IDENTIFIER: &'static str = "bench";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(handler) = context.get_ext::<Handler>() {
            (handler.0)(self.tenant);
        }
        Ok::<(), String>(())
    }
}

fn utils(pool: &PgPool) -> WorkerUtils {
    WorkerUtils::new(pool.clone(), SCHEMA)
}
