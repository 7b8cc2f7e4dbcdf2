//! What the store says of itself.

use core::time::Duration;

use evenhand_policy::{SchedulerShardId, TenantId};
use evenhand_store::{Backlog, StoreError, StoreHealth};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::PostgresStore;
use crate::rows::{time, undecodable, unsigned};

impl PostgresStore {
    pub(crate) async fn health_of(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<StoreHealth, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/health.sql"))
            .bind(shard.as_str())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| health(&row))
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }
}

fn health(row: &PgRow) -> Result<StoreHealth, sqlx::Error> {
    let mut health = StoreHealth::new(time(row.try_get("store_time_us")?)?);
    let oldest: Option<i64> = row.try_get("oldest_reservation_at_us")?;
    health.oldest_reservation_at = oldest.map(time).transpose()?;
    let tenants: Vec<String> = row.try_get("tenants")?;
    let oldest_ready: Vec<i64> = row.try_get("oldest_ready_at_us")?;
    let backlogs = tenants.into_iter().zip(oldest_ready);
    health.backlogs = backlogs
        .map(|(tenant, ready_at)| {
            let tenant = TenantId::try_from(tenant).map_err(undecodable)?;
            Ok(Backlog::new(tenant, time(ready_at)?))
        })
        .collect::<Result<_, sqlx::Error>>()?;
    let age: Option<i64> = row.try_get("oldest_snapshot_age_us")?;
    health.oldest_snapshot_age = age
        .map(|age| unsigned(age).map(Duration::from_micros))
        .transpose()?;
    Ok(health)
}
