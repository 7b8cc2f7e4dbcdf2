//! Server and worker, side by side: how they start and how they stop.

use core::future::Future;
use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::{BoxError, Worker, WorkerReport};
use evenhand_store_postgres::{ConnectOptions, PostgresStore};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor as _, PgPool};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::http::{Shared, router};
use crate::shipping::{ShipOrder, Shipping};

/// How long requests and handlers may go on after a shutdown.
const GRACE: Duration = Duration::from_secs(15);

/// Brings the database to the schema of this build: Evenhand's tables and the service's own.
///
/// # Errors
///
/// When the database cannot be reached, or when it has migrations that this build does not know or knows otherwise.
pub async fn migrate(url: &str) -> Result<(), BoxError> {
    evenhand_store_postgres::migrate(&ConnectOptions::parse(url)?).await?;
    connect(url)
        .await?
        .execute(include_str!("../sql/schema.sql"))
        .await?;
    Ok(())
}

/// Serves HTTP on `listener` and works on orders, until `shutdown` resolves; then comes to an end in good order, and tells
/// what the worker did.
///
/// # Errors
///
/// When the database cannot be reached or was not migrated, or when the shard is bound to another policy than this
/// build's.
///
/// # Cancel safety
///
/// Dropping the future stops at once. Handlers are dropped, and their runs are taken up again when their leases expire.
pub async fn serve(
    url: &str,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<WorkerReport, BoxError> {
    let store = PostgresStore::connect(ConnectOptions::parse(url)?).await?;
    let pool = connect(url).await?;
    let policy = policy()?;
    let worker = Worker::builder(store, policy.clone())
        .concurrency(8)
        .grace(GRACE)
        .on::<ShipOrder>(Shipping { pool: pool.clone() })
        .build();
    let router = router(Shared {
        pool,
        policy: Arc::new(policy),
    });

    let stop = CancellationToken::new();
    let asked = async {
        tokio::select! {
            () = shutdown => stop.cancel(),
            () = stop.cancelled() => {}
        }
    };
    let serving = async {
        let server =
            axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let served = until_grace_is_over(server.into_future(), &stop).await;
        stop.cancel();
        served
    };
    let working = async {
        let report = worker.run_until(stop.cancelled()).await;
        // A worker that could not start leaves nothing to serve for.
        stop.cancel();
        report
    };
    let ((), served, report) = tokio::join!(asked, serving, working);
    served?;
    Ok(report?)
}

/// A client that does not read its answer must not keep the process from ending.
async fn until_grace_is_over(
    server: impl Future<Output = std::io::Result<()>>,
    stop: &CancellationToken,
) -> std::io::Result<()> {
    let grace_is_over = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = server => served,
        () = grace_is_over => Ok(()),
    }
}

/// The service's own connections. The store has others, which are set up for what it needs.
async fn connect(url: &str) -> Result<PgPool, sqlx::Error> {
    let options = PgPoolOptions::new().max_connections(8);
    // A client that hangs up drops its request's future, and a timeout drops a handler's. If that happens in the middle
    // of `begin`, the connection would go back to the pool inside of a transaction, and what the next user of it writes
    // would be lost.
    let options = options.after_release(|connection, _| {
        Box::pin(async move { connection.execute("ROLLBACK").await.map(|_| true) })
    });
    options.connect(url).await
}

/// Two turns for `north`, one for `south`. Other weights are another policy, and need another shard.
fn policy() -> Result<WeightedFairnessPolicy, BoxError> {
    let weights = [("north", 2), ("south", 1)].map(|(shop, weight)| {
        let shop = TenantId::try_from(shop)?;
        Ok::<_, BoxError>(TenantFairnessWeight::new(shop, weight)?)
    });
    let weights = weights.into_iter().collect::<Result<Vec<_>, _>>()?;
    let shard = SchedulerShardId::try_from("orders-v1")?;
    Ok(WeightedFairnessPolicy::new(shard, weights)?)
}
