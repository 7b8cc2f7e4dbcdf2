//! The work: an order is shipped.

use evenhand_scheduler::{BoxError, Handler, Job, JobOutcome, RunContext};
use evenhand_store_postgres::{CompletedIn, PostgresStore};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// Ships one order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ShipOrder {
    pub(crate) order: i64,
}

impl Job for ShipOrder {
    const KIND: &'static str = "order.ship";
}

/// Where orders are shipped from.
pub(crate) struct Shipping {
    pub(crate) pool: PgPool,
}

impl Handler<ShipOrder> for Shipping {
    /// Here a real service talks to the carrier, with the run's id as the key that keeps the carrier from shipping twice:
    /// a run is handled at least once. What is written to our own database is written exactly once.
    async fn handle(&self, job: ShipOrder, context: RunContext) -> Result<JobOutcome, BoxError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query(include_str!("../sql/done.sql"))
            .bind(job.order)
            .execute(&mut *transaction)
            .await?;
        let completed = PostgresStore::complete_in(&mut transaction, context.lease()).await?;
        if completed == CompletedIn::Completed {
            transaction.commit().await?;
        } else {
            // Another worker has the run by now, and nothing that this attempt says counts any more.
            transaction.rollback().await?;
        }
        Ok(JobOutcome::Done)
    }
}
