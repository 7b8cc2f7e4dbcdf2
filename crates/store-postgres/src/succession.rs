//! How one shard of a pool follows another, and whose runs nobody serves.

use evenhand_policy::{PolicyDigest, PoolId, SchedulerShardId, TenantId, WeightedFairnessPolicy};
use evenhand_store::{Retirement, ShardStanding, StoreError, StoreErrorKind, UnservedRuns};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::PostgresStore;
use crate::error::corrupt;
use crate::rows::{parsed, time, undecodable, unsigned};

impl PostgresStore {
    pub(crate) async fn standing_of(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<ShardStanding, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/standing.sql"))
            .bind(shard.as_str())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| standing(&row))
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }

    pub(crate) async fn active_policy_of(
        &self,
        pool: &PoolId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/active_policy.sql"))
            .bind(pool.as_str())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                Ok((
                    parsed(&row, "shard")?,
                    row.try_get::<Vec<u8>, _>("canonical")?,
                    row.try_get::<Vec<u8>, _>("digest")?,
                ))
            })
            .fetch_one(session.connection()?)
            .await;
        let (shard, canonical, digest) = session.end(answer).await?;
        bound_policy(shard, &canonical, &digest)
    }

    pub(crate) async fn retire_in_favour_of(
        &self,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/retire.sql"))
            .bind(old.as_str())
            .bind(new.as_str())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                let old_length = row.try_get::<Option<i64>, _>("old_length")?;
                Ok(Retirement::new(
                    old.clone(),
                    new.clone(),
                    old_length.map(unsigned).transpose()?,
                    time(row.try_get("retired_at_us")?)?,
                    row.try_get("created")?,
                    unserved_in(&parsed(&row, "pool")?, &row)?,
                ))
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }

    pub(crate) async fn unserved_runs(&self) -> Result<Vec<UnservedRuns>, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/unserved.sql"))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                Ok(UnservedRuns::new(
                    parsed(&row, "pool")?,
                    parsed(&row, "tenant")?,
                    unsigned(row.try_get::<i64, _>("queued")?)?,
                ))
            })
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await
    }
}

/// The policy that a shard is bound to, read back through every check of its constructor.
pub(crate) fn bound_policy(
    shard: SchedulerShardId,
    canonical: &[u8],
    digest: &[u8],
) -> Result<WeightedFairnessPolicy, StoreError> {
    let digest = PolicyDigest::try_from(digest).map_err(corrupt)?;
    let policy = WeightedFairnessPolicy::from_canonical_bytes(shard, canonical).map_err(corrupt)?;
    if policy.digest() == digest {
        Ok(policy)
    } else {
        let shard = policy.shard();
        Err(StoreError::new(
            StoreErrorKind::Corrupt,
            format!("the policy of shard {shard} has another digest than is on record"),
        ))
    }
}

/// The columns `standing` and `successor`.
pub(crate) fn standing(row: &PgRow) -> Result<ShardStanding, sqlx::Error> {
    match row.try_get("standing")? {
        "active" => Ok(ShardStanding::Active),
        "pending" => Ok(ShardStanding::Pending),
        "retired" => Ok(ShardStanding::Retired {
            successor: parsed(row, "successor")?,
        }),
        other => Err(undecodable(format!("{other:?} is no standing of a shard"))),
    }
}

/// The columns `unserved_tenants` and `unserved_queued`.
pub(crate) fn unserved_in(pool: &PoolId, row: &PgRow) -> Result<Vec<UnservedRuns>, sqlx::Error> {
    let tenants = row.try_get::<Vec<String>, _>("unserved_tenants")?;
    let queued = row.try_get::<Vec<i64>, _>("unserved_queued")?;
    tenants
        .into_iter()
        .zip(queued)
        .map(|(tenant, queued)| {
            let tenant = TenantId::try_from(tenant).map_err(undecodable)?;
            Ok(UnservedRuns::new(pool.clone(), tenant, unsigned(queued)?))
        })
        .collect()
}
