//! The durable order: the trait, and its calls as the journal keeps them.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::admission::{Scoring, ScoringOptions};
use evenhand_policy::{PolicyDigest, PoolId, SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    Cursor, PolicyRegistration, PoolScoring, Registered, Reservation, ReservationCount,
    ReservationId, ReservationStore, ReserveRequest, RetentionReport, Retirement,
    SchedulerFairnessRetentionPolicy, ShardStanding, StoreError,
};
use serde::{Deserialize, Serialize};

use crate::FileStore;
use crate::entry::{Change, at_once, text};
use crate::journal::corrupt;

#[async_trait]
impl ReservationStore for FileStore {
    async fn register_policy(
        &self,
        registration: &PolicyRegistration,
    ) -> Result<Registered, StoreError> {
        self.change(Register {
            policy: registration.policy.clone(),
            pool: registration.pool.clone(),
            scoring: registration.scoring.scoring().options(),
            wait_tick: registration.scoring.wait_tick(),
        })
        .await
    }

    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        let shard = shard.clone();
        self.look(move |machine| at_once(machine.load_policy(&shard)))
            .await
    }

    async fn standing(&self, shard: &SchedulerShardId) -> Result<ShardStanding, StoreError> {
        let shard = shard.clone();
        self.look(move |machine| at_once(machine.standing(&shard)))
            .await
    }

    async fn active_policy(&self, pool: &PoolId) -> Result<WeightedFairnessPolicy, StoreError> {
        let pool = pool.clone();
        self.look(move |machine| at_once(machine.active_policy(&pool)))
            .await
    }

    async fn retire(
        &self,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        let (old, new) = (old.clone(), new.clone());
        self.change(Retire { old, new }).await
    }

    async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError> {
        self.change(Reserve {
            shard: request.shard.clone(),
            id: request.id,
            digest: request.digest,
            cycle_length: request.cycle_length,
            count: request.count.get(),
        })
        .await
    }

    async fn cursor(&self, shard: &SchedulerShardId) -> Result<Cursor, StoreError> {
        let shard = shard.clone();
        self.look(move |machine| at_once(machine.cursor(&shard)))
            .await
    }

    async fn reservations(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        let shard = shard.clone();
        self.look(move |machine| at_once(machine.reservations(&shard, from_sequence, limit)))
            .await
    }

    async fn prune_scheduler_fairness_reservations(
        &self,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> Result<RetentionReport, StoreError> {
        let (window, batch) = (policy.window(), policy.batch());
        self.change(Prune { window, batch }).await
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Register {
    policy: WeightedFairnessPolicy,
    pool: PoolId,
    scoring: ScoringOptions,
    wait_tick: Duration,
}

impl Change for Register {
    const NAME: &'static str = "register";
    type Answer = Registered;

    fn apply(&self, machine: &MemoryStore) -> Result<Registered, StoreError> {
        let scoring = Scoring::new(self.scoring).map_err(corrupt)?;
        let scoring = PoolScoring::new(scoring, self.wait_tick).map_err(corrupt)?;
        let registration = PolicyRegistration::new(self.policy.clone())
            .in_pool(self.pool.clone())
            .scored_by(scoring);
        at_once(machine.register_policy(&registration))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Retire {
    old: SchedulerShardId,
    new: SchedulerShardId,
}

impl Change for Retire {
    const NAME: &'static str = "retire";
    type Answer = Retirement;

    fn apply(&self, machine: &MemoryStore) -> Result<Retirement, StoreError> {
        at_once(machine.retire(&self.old, &self.new))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Reserve {
    shard: SchedulerShardId,
    #[serde(with = "text")]
    id: ReservationId,
    #[serde(with = "text")]
    digest: PolicyDigest,
    cycle_length: u32,
    count: u32,
}

impl Change for Reserve {
    const NAME: &'static str = "reserve";
    type Answer = Reservation;

    fn apply(&self, machine: &MemoryStore) -> Result<Reservation, StoreError> {
        let policy = at_once(machine.load_policy(&self.shard))?;
        let count = ReservationCount::new(self.count).map_err(corrupt)?;
        let mut request = ReserveRequest::new(&policy, self.id, count);
        request.digest = self.digest;
        request.cycle_length = self.cycle_length;
        at_once(machine.reserve(&request))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Prune {
    window: Duration,
    batch: u32,
}

impl Change for Prune {
    const NAME: &'static str = "prune";
    type Answer = RetentionReport;

    fn apply(&self, machine: &MemoryStore) -> Result<RetentionReport, StoreError> {
        let policy =
            SchedulerFairnessRetentionPolicy::new(self.window, self.batch).map_err(corrupt)?;
        at_once(machine.prune_scheduler_fairness_reservations(policy))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct SkipTo {
    pub(crate) shard: SchedulerShardId,
    pub(crate) next_sequence: u64,
}

impl Change for SkipTo {
    const NAME: &'static str = "skip_to";
    type Answer = ();

    fn apply(&self, machine: &MemoryStore) -> Result<(), StoreError> {
        machine.skip_to(&self.shard, self.next_sequence)
    }
}
