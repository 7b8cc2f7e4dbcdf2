//! The durable order.

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{
    Cursor, PolicyRegistration, Registered, Reservation, ReservationCount, ReservationId,
    ReservationStore, ReserveRequest, RetentionReport, Retirement,
    SchedulerFairnessRetentionPolicy, ShardStanding, StoreError, StoreErrorKind,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::PostgresStore;
use crate::rows::{bigint, int, millis, time, undecodable, unsigned};
use crate::succession::{bound_policy, standing, unserved_in};

#[async_trait]
impl ReservationStore for PostgresStore {
    async fn register_policy(
        &self,
        registration: &PolicyRegistration,
    ) -> Result<Registered, StoreError> {
        let policy = &registration.policy;
        let Cycle {
            tenants,
            weights,
            bounds,
            positions,
        } = Cycle::of(policy)?;
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/register_policy.sql"))
            .bind(policy.shard().as_str())
            .bind(policy.digest().as_bytes().as_slice())
            .bind(policy.canonical_bytes())
            .bind(tenants)
            .bind(weights)
            .bind(bounds)
            .bind(positions)
            .bind(registration.pool.as_str())
            .bind(scoring(registration))
            .persistent(false)
            .try_map(|row: PgRow| {
                Ok(Registered::new(
                    row.try_get("created")?,
                    standing(&row)?,
                    unserved_in(&registration.pool, &row)?,
                    time(row.try_get("store_time_us")?)?,
                ))
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/load_policy.sql"))
            .bind(shard.as_str())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                Ok((
                    row.try_get::<Vec<u8>, _>("canonical")?,
                    row.try_get::<Vec<u8>, _>("digest")?,
                ))
            })
            .fetch_one(session.connection()?)
            .await;
        let (canonical, digest) = session.end(answer).await?;
        bound_policy(shard.clone(), &canonical, &digest)
    }

    async fn standing(&self, shard: &SchedulerShardId) -> Result<ShardStanding, StoreError> {
        self.standing_of(shard).await
    }

    async fn active_policy(&self, pool: &PoolId) -> Result<WeightedFairnessPolicy, StoreError> {
        self.active_policy_of(pool).await
    }

    async fn retire(
        &self,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        self.retire_in_favour_of(old, new).await
    }

    async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError> {
        self.reserve_combined(request).await
    }

    async fn cursor(&self, shard: &SchedulerShardId) -> Result<Cursor, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/cursor.sql"))
            .bind(shard.as_str())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                let next = row
                    .try_get::<Option<i64>, _>("next_sequence")?
                    .map(unsigned)
                    .transpose()?;
                Ok(Cursor::new(next, time(row.try_get("store_time_us")?)?))
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn reservations(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/reservations_from.sql"))
            .bind(shard.as_str())
            .bind(bigint(from_sequence))
            .bind(int(limit))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| reservation(&row))
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn prune_scheduler_fairness_reservations(
        &self,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> Result<RetentionReport, StoreError> {
        self.prune(policy).await
    }
}

pub(crate) fn reservation(row: &PgRow) -> Result<Reservation, sqlx::Error> {
    Ok(Reservation::new(
        ReservationId::try_from(row.try_get::<Uuid, _>("id")?).map_err(undecodable)?,
        unsigned(row.try_get::<i64, _>("first_sequence")?)?,
        ReservationCount::new(unsigned(row.try_get::<i32, _>("count")?)?).map_err(undecodable)?,
        time(row.try_get("reserved_at_us")?)?,
        time(row.try_get("store_time_us")?)?,
    ))
}

/// A compiled cycle in the columns that `evenhand.register_policy` takes.
struct Cycle {
    tenants: Vec<String>,
    weights: Vec<i32>,
    bounds: Vec<i32>,
    /// For each slot the position of its tenant, from 1.
    positions: Vec<i32>,
}

impl Cycle {
    fn of(policy: &WeightedFairnessPolicy) -> Result<Self, StoreError> {
        let tenants = policy.tenants();
        let position = |slot_tenant: &evenhand_policy::TenantId| {
            tenants
                .binary_search_by(|weighted| weighted.tenant().cmp(slot_tenant))
                .map(|index| i32::try_from(index.saturating_add(1)).unwrap_or(i32::MAX))
        };
        let positions = policy
            .cycle()
            .iter()
            .map(position)
            .collect::<Result<_, _>>()
            .map_err(|_| {
                StoreError::new(
                    StoreErrorKind::Invalid,
                    "the cycle names a tenant without a weight",
                )
            })?;
        Ok(Self {
            tenants: tenants
                .iter()
                .map(|weighted| weighted.tenant().as_str().to_owned())
                .collect(),
            weights: tenants
                .iter()
                .map(|weighted| int(weighted.weight()))
                .collect(),
            bounds: tenants
                .iter()
                .filter_map(|weighted| policy.starvation_bound(weighted.tenant()))
                .map(|bound| int(bound.maximum_reservations_until_selection()))
                .collect(),
            positions,
        })
    }
}

/// A scoring in the order that `evenhand.register_policy` takes it.
fn scoring(registration: &PolicyRegistration) -> Vec<i64> {
    let scoring = registration.scoring.scoring();
    let weights = scoring.value_weights();
    vec![
        weights.critical.into(),
        weights.standard.into(),
        weights.batch.into(),
        scoring.aging_per_tick().into(),
        scoring.max_aging_ticks().into(),
        scoring.starvation_ticks().into(),
        millis(registration.scoring.wait_tick()),
    ]
}
