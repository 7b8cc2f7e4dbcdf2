//! The durable order of every shard: what is bound, what is reserved, what is forgotten.

use core::time::Duration;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use evenhand_policy::{PoolId, SchedulerShardId, TenantId, WeightedFairnessPolicy};
use jiff::Timestamp;

use crate::{
    CLOCK_SKEW_MAX, PolicyRegistration, PoolScoring, Reservation, ReservationId, ReserveRequest,
    RetentionReport, SEQUENCE_MAX, SchedulerFairnessRetentionPolicy, StoreError, StoreErrorKind,
};

/// All shards, and the pools that they serve.
#[derive(Default)]
pub(super) struct Order {
    shards: BTreeMap<SchedulerShardId, Shard>,
    pools: BTreeMap<PoolId, Pool>,
    /// Which shard an id on record was used in, because an id names one reservation over all shards.
    ids: HashMap<ReservationId, SchedulerShardId>,
}

struct Pool {
    shard: SchedulerShardId,
    scoring: PoolScoring,
}

/// One shard's order.
pub(super) struct Shard {
    policy: WeightedFairnessPolicy,
    pool: PoolId,
    first_sequence: u64,
    /// By first sequence.
    reservations: BTreeMap<u64, Reservation>,
    /// The greatest own time of any id that was pruned, in milliseconds since the Unix epoch.
    mark: Option<u64>,
}

impl Order {
    /// Binds a policy; the answer is whether it was not bound before.
    pub(super) fn register(
        &mut self,
        registration: &PolicyRegistration,
    ) -> Result<bool, StoreError> {
        let PolicyRegistration {
            policy,
            pool,
            scoring,
        } = registration;
        let conflict = |message| Err(StoreError::new(StoreErrorKind::PolicyConflict, message));
        if let Some(bound) = self.shards.get(policy.shard()) {
            if bound.policy.canonical_bytes() != policy.canonical_bytes() {
                return conflict("the shard is bound to another policy");
            }
            if bound.pool != *pool {
                return conflict("the shard serves another pool");
            }
        }
        match self.pools.entry(pool.clone()) {
            Entry::Occupied(served) if served.get().shard != *policy.shard() => {
                conflict("the pool is served by another shard")
            }
            Entry::Occupied(served) if served.get().scoring != *scoring => {
                conflict("the pool is registered with another scoring")
            }
            Entry::Occupied(_) => Ok(false),
            Entry::Vacant(free) => {
                free.insert(Pool {
                    shard: policy.shard().clone(),
                    scoring: scoring.clone(),
                });
                self.shards
                    .insert(policy.shard().clone(), Shard::new(policy, pool));
                Ok(true)
            }
        }
    }

    pub(super) fn shard(&self, shard: &SchedulerShardId) -> Result<&Shard, StoreError> {
        self.shards.get(shard).ok_or_else(policy_not_found)
    }

    /// How the pool's runs are ranked; by default as long as no shard serves it.
    pub(super) fn scoring(&self, pool: &PoolId) -> PoolScoring {
        self.pools
            .get(pool)
            .map_or_else(PoolScoring::default, |pool| pool.scoring.clone())
    }

    pub(super) fn wait_tick(&self, pool: &PoolId) -> Duration {
        self.scoring(pool).wait_tick()
    }

    pub(super) fn skip_to(
        &mut self,
        shard: &SchedulerShardId,
        next_sequence: u64,
    ) -> Result<(), StoreError> {
        let shard = self.shards.get_mut(shard).ok_or_else(policy_not_found)?;
        if !shard.reservations.is_empty() {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                "the order has begun, so it cannot begin elsewhere",
            ));
        }
        shard.first_sequence = next_sequence;
        Ok(())
    }

    pub(super) fn reserve(
        &mut self,
        clock: Timestamp,
        request: &ReserveRequest,
    ) -> Result<Reservation, StoreError> {
        let shard = self
            .shards
            .get_mut(&request.shard)
            .ok_or_else(policy_not_found)?;
        shard.require_policy(request)?;
        // A known id is answered before mark and clocks are looked at: they only judge ids of which nothing is known.
        match self.ids.get(&request.id) {
            Some(used_in) if *used_in == request.shard => shard.answer_again(clock, request),
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

impl Shard {
    fn new(policy: &WeightedFairnessPolicy, pool: &PoolId) -> Self {
        Self {
            policy: policy.clone(),
            pool: pool.clone(),
            first_sequence: 0,
            reservations: BTreeMap::new(),
            mark: None,
        }
    }

    pub(super) fn policy(&self) -> &WeightedFairnessPolicy {
        &self.policy
    }

    pub(super) fn pool(&self) -> &PoolId {
        &self.pool
    }

    /// The sequence after the newest reservation, unless the range is used up.
    pub(super) fn next_sequence(&self) -> Option<u64> {
        let next = self
            .newest()
            .map_or(self.first_sequence, |newest| newest.sequences().end() + 1);
        (next <= SEQUENCE_MAX).then_some(next)
    }

    /// The reservations that end at or after `from_sequence`.
    pub(super) fn reservations(
        &self,
        clock: Timestamp,
        from_sequence: u64,
        limit: u32,
    ) -> Vec<Reservation> {
        self.reservations
            .values()
            .skip_while(|reservation| *reservation.sequences().end() < from_sequence)
            .take(usize::try_from(limit).unwrap_or(usize::MAX))
            .map(|reservation| Reservation {
                store_time: clock,
                ..*reservation
            })
            .collect()
    }

    pub(super) fn require_reserved(&self, sequence: u64) -> Result<(), StoreError> {
        let at_or_before = self.reservations.range(..=sequence).next_back();
        match at_or_before {
            Some((_, reservation)) if reservation.sequences().contains(&sequence) => Ok(()),
            _ => Err(StoreError::new(
                StoreErrorKind::Invalid,
                format!("sequence {sequence} is not reserved"),
            )),
        }
    }

    pub(super) fn require_tenant(
        &self,
        sequence: u64,
        tenant: &TenantId,
    ) -> Result<(), StoreError> {
        let selected = self.policy.tenant_for_sequence(sequence);
        if selected == tenant {
            Ok(())
        } else {
            Err(StoreError::new(
                StoreErrorKind::Invalid,
                format!("sequence {sequence} belongs to {selected}, not to {tenant}"),
            ))
        }
    }

    fn require_policy(&self, request: &ReserveRequest) -> Result<(), StoreError> {
        if self.policy.digest() == request.digest
            && self.policy.cycle_length() == request.cycle_length
        {
            Ok(())
        } else {
            Err(StoreError::new(
                StoreErrorKind::PolicyConflict,
                "the shard is bound to a policy of another digest or cycle length",
            ))
        }
    }

    /// The answer for an id that this shard has on record.
    fn answer_again(
        &self,
        clock: Timestamp,
        request: &ReserveRequest,
    ) -> Result<Reservation, StoreError> {
        match self
            .reservations
            .values()
            .find(|reservation| reservation.id == request.id)
        {
            Some(known) if known.count == request.count => Ok(Reservation {
                store_time: clock,
                ..*known
            }),
            _ => Err(StoreError::new(
                StoreErrorKind::ReservationConflict,
                "the id is in use for another count",
            )),
        }
    }

    /// Reserves the next sequences for an id that is not on record.
    fn append(
        &mut self,
        clock: Timestamp,
        request: &ReserveRequest,
    ) -> Result<Reservation, StoreError> {
        let id_time = request.id.unix_millis();
        if self.mark.is_some_and(|mark| id_time <= mark) {
            return Err(StoreError::new(
                StoreErrorKind::Expired,
                "the id is not later than the newest pruned one",
            ));
        }
        // Time never runs backwards within a shard, whatever the clock does.
        let now = self
            .newest()
            .map_or(clock, |newest| newest.reserved_at.max(clock));
        let latest = now.saturating_add(CLOCK_SKEW_MAX).unwrap_or(Timestamp::MAX);
        if i128::from(id_time) > i128::from(latest.as_millisecond()) {
            return Err(StoreError::new(
                StoreErrorKind::ClockSkew,
                "the id is more than 5 minutes ahead of the store",
            ));
        }
        let exhausted = || {
            StoreError::new(
                StoreErrorKind::SequenceExhausted,
                "the sequences do not fit before the end of the range",
            )
        };
        let first_sequence = self.next_sequence().ok_or_else(exhausted)?;
        let reservation = Reservation::new(request.id, first_sequence, request.count, now, clock);
        if *reservation.sequences().end() > SEQUENCE_MAX {
            return Err(exhausted());
        }
        self.reservations.insert(first_sequence, reservation);
        Ok(reservation)
    }

    fn newest(&self) -> Option<&Reservation> {
        self.reservations.last_key_value().map(|(_, newest)| newest)
    }

    /// The reservations before `cutoff` that may be deleted: never the newest, because the order continues from it.
    fn prunable(&self, cutoff: Timestamp) -> impl Iterator<Item = &Reservation> {
        let but_newest = self.reservations.len().saturating_sub(1);
        let old = move |reservation: &&Reservation| reservation.reserved_at < cutoff;
        self.reservations.values().take(but_newest).filter(old)
    }

    fn forget(&mut self, first_sequence: u64) -> Option<Reservation> {
        let pruned = self.reservations.remove(&first_sequence)?;
        self.mark = self.mark.max(Some(pruned.id.unix_millis()));
        Some(pruned)
    }
}

fn policy_not_found() -> StoreError {
    StoreError::new(
        StoreErrorKind::PolicyNotFound,
        "no policy is registered under this shard",
    )
}
