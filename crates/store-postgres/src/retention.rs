//! Pruning.

use evenhand_store::{RetentionReport, SchedulerFairnessRetentionPolicy, StoreError};
use sqlx::Row as _;

use crate::PostgresStore;
use crate::rows::{int, millis, time, unsigned};

impl PostgresStore {
    pub(crate) async fn prune(
        &self,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> Result<RetentionReport, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/prune_reservations.sql"))
            .bind(millis(policy.window()))
            .bind(int(policy.batch()))
            .persistent(session.is_persistent())
            .try_map(|row: sqlx::postgres::PgRow| {
                Ok(RetentionReport::new(
                    time(row.try_get("cutoff_us")?)?,
                    unsigned(row.try_get::<i32, _>("deleted")?)?,
                    row.try_get("more")?,
                ))
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }
}
