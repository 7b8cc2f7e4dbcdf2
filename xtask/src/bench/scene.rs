//! Shards to measure on, and callers that reserve in them.

use core::time::Duration;
use std::time::Instant;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    PolicyRegistration, PoolScoring, Reservation, ReservationCount, ReservationIdMint,
    ReservationStore as _, ReserveRequest,
};
use evenhand_store_postgres::PostgresStore;
use tokio::task::JoinSet;

use super::Result;
use super::samples::{Samples, millis, number};

/// A registered policy, whose pool has the shard's name, and a store to reach it by.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) store: PostgresStore,
    pub(crate) policy: WeightedFairnessPolicy,
    mint: ReservationIdMint,
    origin: Instant,
}

impl Shard {
    pub(crate) async fn register(
        store: &PostgresStore,
        name: &str,
        weights: Vec<TenantFairnessWeight>,
    ) -> Result<Self> {
        Self::scored_by(store, name, weights, PoolScoring::default()).await
    }

    pub(crate) async fn scored_by(
        store: &PostgresStore,
        name: &str,
        weights: Vec<TenantFairnessWeight>,
        scoring: PoolScoring,
    ) -> Result<Self> {
        let policy = WeightedFairnessPolicy::new(SchedulerShardId::try_from(name)?, weights)?;
        let registration = PolicyRegistration::new(policy.clone())
            .in_pool(name.parse()?)
            .scored_by(scoring);
        let origin = Instant::now();
        let registered = store.register_policy(&registration).await?;
        let mint = ReservationIdMint::new(registered.store_time, origin.elapsed());
        Ok(Self {
            store: store.clone(),
            policy,
            mint,
            origin,
        })
    }

    /// The same shard, reached by another store.
    pub(crate) fn by(&self, store: &PostgresStore) -> Self {
        Self {
            store: store.clone(),
            ..self.clone()
        }
    }

    /// Takes the next `count` sequences, under a new id.
    pub(crate) async fn reserve(&mut self, count: u32) -> Result<Reservation> {
        let id = self.mint.mint(self.origin.elapsed());
        let count = ReservationCount::new(count)?;
        let request = ReserveRequest::new(&self.policy, id, count);
        let reservation = self.store.reserve(&request).await?;
        self.mint
            .observe(reservation.store_time, self.origin.elapsed());
        Ok(reservation)
    }
}

/// `count` tenants of one weight, in the order of their numbers.
pub(crate) fn equal_tenants(count: u32, weight: u32) -> Result<Vec<TenantFairnessWeight>> {
    (0..count)
        .map(|number| tenant(&format!("tenant-{number:04}"), weight))
        .collect()
}

pub(crate) fn tenant(id: &str, weight: u32) -> Result<TenantFairnessWeight> {
    Ok(TenantFairnessWeight::new(TenantId::try_from(id)?, weight)?)
}

/// What callers did together.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) per_second: f64,
    /// How long each call took.
    pub(crate) millis: Samples,
}

/// Lets this many callers reserve one sequence after the other for `length`, the shards dealt out in turns.
pub(crate) async fn reserve_by(
    shards: &[Shard],
    callers: usize,
    length: Duration,
) -> Result<Calls> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for shard in shards.iter().cycle().take(callers) {
        tasks.spawn(call_for(shard.clone(), length));
    }
    let mut calls = Samples::default();
    while let Some(ended) = tasks.join_next().await {
        calls.extend(ended??);
    }
    Ok(Calls {
        per_second: number(calls.len()) / start.elapsed().as_secs_f64(),
        millis: calls,
    })
}

async fn call_for(mut shard: Shard, length: Duration) -> Result<Vec<f64>> {
    let start = Instant::now();
    let mut calls = Vec::new();
    while start.elapsed() < length {
        let call = Instant::now();
        shard.reserve(1).await?;
        calls.push(millis(call.elapsed()));
    }
    Ok(calls)
}

/// How often a call can be made in a second, by one caller that makes it for `length`.
pub(crate) async fn rate(
    length: Duration,
    mut call: impl AsyncFnMut() -> Result<()>,
) -> Result<f64> {
    let start = Instant::now();
    let mut calls = 0_u32;
    while start.elapsed() < length {
        call().await?;
        calls += 1;
    }
    Ok(f64::from(calls) / start.elapsed().as_secs_f64())
}

/// The same for a number of calls instead of a time.
pub(crate) async fn rate_of(calls: u32, mut call: impl AsyncFnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..calls {
        call().await?;
    }
    Ok(f64::from(calls) / start.elapsed().as_secs_f64())
}
