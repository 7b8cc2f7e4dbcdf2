//! Records other than reservations: of one tenant, and when they are forgotten.

use evenhand_store::{
    HistoryReport, HistoryRetentionPolicy, StoreError, TenantHistory, TenantHistoryRequest,
    TenantTurn,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::PostgresStore;
use crate::rows::{int, millis, sequence_outcome, time, unsigned};

impl PostgresStore {
    pub(crate) async fn history_of_tenant(
        &self,
        request: &TenantHistoryRequest,
    ) -> Result<TenantHistory, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/tenant_history.sql"))
            .bind(request.shard.as_str())
            .bind(request.tenant.as_str())
            .bind(request.from.as_microsecond())
            .bind(request.to.as_microsecond())
            // One more than the limit shows whether it cut anything off.
            .bind(i64::from(request.limit).saturating_add(1))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                Ok(TenantTurn::new(
                    unsigned(row.try_get::<i64, _>("sequence")?)?,
                    time(row.try_get("reserved_at_us")?)?,
                    row.try_get::<Option<&str>, _>("outcome")?
                        .map(|outcome| sequence_outcome(outcome, &row))
                        .transpose()?,
                ))
            })
            .fetch_all(session.connection()?)
            .await;
        let mut turns = session.end(answer).await?;
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let more = turns.len() > limit;
        turns.truncate(limit);
        Ok(TenantHistory::new(turns, more))
    }

    pub(crate) async fn prune_records(
        &self,
        policy: HistoryRetentionPolicy,
    ) -> Result<HistoryReport, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/prune_history.sql"))
            .bind(millis(policy.evidence()))
            .bind(millis(policy.finished()))
            .bind(millis(policy.dead()))
            .bind(int(policy.batch()))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                let count = |column: &str| unsigned(row.try_get::<i32, _>(column)?);
                Ok(HistoryReport::new(
                    count("outcomes")?,
                    count("attempts")?,
                    count("finished")?,
                    count("dead")?,
                    row.try_get("more")?,
                ))
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }
}
