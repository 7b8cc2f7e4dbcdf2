//! The durable order of every shard: what is bound, what is reserved, what is forgotten.

use core::time::Duration;

use std::collections::{BTreeMap, HashMap};

use evenhand_policy::{PoolId, SchedulerShardId};
use jiff::Timestamp;

use super::shard::{Shard, Standing};
use crate::{
    PolicyRegistration, PoolScoring, Reservation, ReservationId, ReserveRequest, RetentionReport,
    SchedulerFairnessRetentionPolicy, StoreError, StoreErrorKind,
};

/// All shards, and the pools that they serve.
#[derive(Default)]
pub(super) struct Order {
    pub(super) shards: BTreeMap<SchedulerShardId, Shard>,
    /// How the runs of each pool are ranked that was ever served.
    scorings: BTreeMap<PoolId, PoolScoring>,
    /// Which shard an id on record was used in, because an id names one reservation over all shards.
    ids: HashMap<ReservationId, SchedulerShardId>,
}

/// What a registration did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    /// The policy was bound before.
    Known,
    /// The shard is the first of its pool.
    Founds,
    /// The shard waits for the active one of its pool.
    Waits,
}

impl Order {
    pub(super) fn register(
        &mut self,
        registration: &PolicyRegistration,
    ) -> Result<Binding, StoreError> {
        let PolicyRegistration {
            policy,
            pool,
            scoring,
        } = registration;
        let conflict = |message| Err(StoreError::new(StoreErrorKind::PolicyConflict, message));
        let bound = self.shards.get(policy.shard());
        if bound.is_some_and(|bound| bound.policy().canonical_bytes() != policy.canonical_bytes()) {
            return conflict("the shard is bound to another policy");
        }
        if bound.is_some_and(|bound| bound.pool() != pool) {
            return conflict("the shard serves another pool");
        }
        let known_scoring = self.scorings.get(pool);
        if known_scoring.is_some_and(|known| known != scoring) {
            return conflict("the pool is registered with another scoring");
        }
        let (binding, standing) = match (bound, known_scoring) {
            (Some(_), _) => return Ok(Binding::Known),
            (None, None) => (Binding::Founds, Standing::Active),
            (None, Some(_)) => (Binding::Waits, Standing::Pending),
        };
        self.scorings.insert(pool.clone(), scoring.clone());
        self.shards
            .insert(policy.shard().clone(), Shard::new(policy, pool, standing));
        Ok(binding)
    }

    pub(super) fn shard(&self, shard: &SchedulerShardId) -> Result<&Shard, StoreError> {
        self.shards.get(shard).ok_or_else(policy_not_found)
    }

    pub(super) fn shard_mut(&mut self, shard: &SchedulerShardId) -> Result<&mut Shard, StoreError> {
        self.shards.get_mut(shard).ok_or_else(policy_not_found)
    }

    /// The first sequence of the shard whose reservation is on record.
    pub(super) fn oldest_covered(&self, shard: &SchedulerShardId) -> u64 {
        let shard = self.shards.get(shard);
        let oldest = shard.and_then(|shard| shard.on_record().next());
        oldest.map_or(0, |oldest| oldest.first_sequence)
    }

    /// How the pool's runs are ranked; by default as long as no shard serves it.
    pub(super) fn scoring(&self, pool: &PoolId) -> PoolScoring {
        self.scorings.get(pool).cloned().unwrap_or_default()
    }

    pub(super) fn wait_tick(&self, pool: &PoolId) -> Duration {
        self.scoring(pool).wait_tick()
    }

    pub(super) fn reserve(
        &mut self,
        clock: Timestamp,
        request: &ReserveRequest,
    ) -> Result<Reservation, StoreError> {
        let used_in = self.ids.get(&request.id).cloned();
        let shard = self.shard_mut(&request.shard)?;
        shard.require_policy(request)?;
        // A known id is answered before standing, mark and clocks are looked at: they only judge ids of which nothing
        // is known.
        match used_in {
            Some(used_in) if used_in == request.shard => shard.answer_again(clock, request),
            Some(_) => Err(StoreError::new(
                StoreErrorKind::ReservationConflict,
                "the id is in use under another shard",
            )),
            None => {
                let reservation = shard.append(clock, request)?;
                self.ids.insert(request.id, request.shard.clone());
                Ok(reservation)
            }
        }
    }

    /// Deletes one batch, oldest first over all shards.
    pub(super) fn prune(
        &mut self,
        clock: Timestamp,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> RetentionReport {
        let cutoff = clock
            .saturating_sub(policy.window())
            .unwrap_or(Timestamp::MIN);
        let mut old: Vec<(Timestamp, SchedulerShardId, u64)> = self
            .shards
            .iter()
            .flat_map(|(name, shard)| {
                shard
                    .prunable(cutoff)
                    .map(|row| (row.reserved_at, name.clone(), row.first_sequence))
            })
            .collect();
        old.sort();
        let batch = usize::try_from(policy.batch()).unwrap_or(usize::MAX);
        let more = old.len() > batch;
        old.truncate(batch);
        for (_, name, first_sequence) in &old {
            let pruned = self
                .shards
                .get_mut(name)
                .and_then(|shard| shard.forget(*first_sequence));
            if let Some(pruned) = pruned {
                self.ids.remove(&pruned.id);
            }
        }
        RetentionReport::new(cutoff, u32::try_from(old.len()).unwrap_or(u32::MAX), more)
    }
}

fn policy_not_found() -> StoreError {
    StoreError::new(
        StoreErrorKind::PolicyNotFound,
        "no policy is registered under this shard",
    )
}
