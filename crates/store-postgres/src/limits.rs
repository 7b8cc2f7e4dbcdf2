//! How many runs of a tenant or team are running at once.

use evenhand_policy::{PoolId, TeamId, TenantId};
use evenhand_store::{LimitSubject, RunLimit, RunsMax, StoreError};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::PostgresStore;
use crate::rows::{int, undecodable, unsigned};

impl PostgresStore {
    pub(crate) async fn set_limit_of(
        &self,
        pool: &PoolId,
        subject: &LimitSubject,
        runs_max: Option<RunsMax>,
    ) -> Result<(), StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/set_limit.sql"))
            .bind(pool.as_str())
            .bind(subject.kind())
            .bind(subject.name())
            .bind(runs_max.map(|runs| int(runs.get())))
            .persistent(session.is_persistent())
            .execute(session.connection()?)
            .await;
        session.end(answer).await.map(drop)
    }

    pub(crate) async fn limits_of(&self, pool: &PoolId) -> Result<Vec<RunLimit>, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/limits.sql"))
            .bind(pool.as_str())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| limit(pool, &row))
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await
    }
}

fn limit(pool: &PoolId, row: &PgRow) -> Result<RunLimit, sqlx::Error> {
    let name: &str = row.try_get("name")?;
    let subject = match row.try_get("kind")? {
        "tenant" => LimitSubject::Tenant(TenantId::try_from(name).map_err(undecodable)?),
        "team" => LimitSubject::Team(TeamId::try_from(name).map_err(undecodable)?),
        other => return Err(undecodable(format!("{other:?} is nobody to limit"))),
    };
    let runs_max =
        RunsMax::new(unsigned(row.try_get::<i32, _>("runs_max")?)?).map_err(undecodable)?;
    let running = unsigned(row.try_get::<i32, _>("running")?)?;
    Ok(RunLimit::new(pool.clone(), subject, runs_max, running))
}
