//! One shard's order: its policy, its place in its pool, and its reservations.

use std::collections::BTreeMap;

use evenhand_policy::{PoolId, SchedulerShardId, TenantId, WeightedFairnessPolicy};
use jiff::Timestamp;

use crate::{
    CLOCK_SKEW_MAX, Reservation, ReserveRequest, RoundRequest, SEQUENCE_MAX, ShardStanding,
    StoreError, StoreErrorKind,
};

pub(super) struct Shard {
    policy: WeightedFairnessPolicy,
    pool: PoolId,
    pub(super) standing: Standing,
    first_sequence: u64,
    /// By first sequence.
    reservations: BTreeMap<u64, Reservation>,
    /// The greatest own time of any id that was pruned, in milliseconds since the Unix epoch.
    mark: Option<u64>,
}

/// Where a shard is in its life.
#[derive(PartialEq, Eq)]
pub(super) enum Standing {
    Active,
    Pending,
    Retired {
        successor: SchedulerShardId,
        at: Timestamp,
    },
}

impl Shard {
    pub(super) fn new(policy: &WeightedFairnessPolicy, pool: &PoolId, standing: Standing) -> Self {
        Self {
            policy: policy.clone(),
            pool: pool.clone(),
            standing,
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

    pub(super) fn standing(&self) -> ShardStanding {
        match &self.standing {
            Standing::Active => ShardStanding::Active,
            Standing::Pending => ShardStanding::Pending,
            Standing::Retired { successor, .. } => ShardStanding::Retired {
                successor: successor.clone(),
            },
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.standing == Standing::Active
    }

    pub(super) fn require_active(&self) -> Result<(), StoreError> {
        match &self.standing {
            Standing::Active => Ok(()),
            Standing::Pending => Err(StoreError::new(
                StoreErrorKind::Pending,
                "another shard serves the pool until it is retired",
            )),
            Standing::Retired { successor, .. } => Err(StoreError::new(
                StoreErrorKind::Retired,
                format!("shard {successor} has taken the place of this one"),
            )),
        }
    }

    /// Lets the order begin elsewhere than at 0.
    pub(super) fn skip_to(&mut self, next_sequence: u64) -> Result<(), StoreError> {
        if !self.reservations.is_empty() {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                "the order has begun, so it cannot begin elsewhere",
            ));
        }
        self.first_sequence = next_sequence;
        Ok(())
    }

    /// The sequence after the newest reservation, unless the range is used up.
    pub(super) fn next_sequence(&self) -> Option<u64> {
        let next = self
            .newest()
            .map_or(self.first_sequence, |newest| newest.sequences().end() + 1);
        (next <= SEQUENCE_MAX).then_some(next)
    }

    /// Everything that is on record, in order.
    pub(super) fn on_record(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.values()
    }

    /// The reservations that end at or after `from_sequence`.
    pub(super) fn reservations(
        &self,
        clock: Timestamp,
        from_sequence: u64,
        limit: u32,
    ) -> Vec<Reservation> {
        self.on_record()
            .skip_while(|reservation| *reservation.sequences().end() < from_sequence)
            .take(usize::try_from(limit).unwrap_or(usize::MAX))
            .map(|reservation| as_seen_at(clock, reservation))
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

    /// Checks that a round is one over a whole reservation, by a caller who knows the policy.
    pub(super) fn require_block(&self, request: &RoundRequest) -> Result<(), StoreError> {
        let reserved = self.reservations.get(&request.first_sequence);
        if reserved.is_none_or(|reserved| reserved.count != request.count) {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                format!(
                    "no reservation of {} sequences begins at {}",
                    request.count.get(),
                    request.first_sequence
                ),
            ));
        }
        if self.policy.digest() != request.policy.digest() {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                "the round follows another policy than the shard",
            ));
        }
        Ok(())
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

    pub(super) fn require_policy(&self, request: &ReserveRequest) -> Result<(), StoreError> {
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
    pub(super) fn answer_again(
        &self,
        clock: Timestamp,
        request: &ReserveRequest,
    ) -> Result<Reservation, StoreError> {
        match self
            .on_record()
            .find(|reservation| reservation.id == request.id)
        {
            Some(known) if known.count == request.count => Ok(as_seen_at(clock, known)),
            _ => Err(StoreError::new(
                StoreErrorKind::ReservationConflict,
                "the id is in use for another count",
            )),
        }
    }

    /// Reserves the next sequences for an id that is not on record.
    pub(super) fn append(
        &mut self,
        clock: Timestamp,
        request: &ReserveRequest,
    ) -> Result<Reservation, StoreError> {
        self.require_active()?;
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
    pub(super) fn prunable(&self, cutoff: Timestamp) -> impl Iterator<Item = &Reservation> {
        let but_newest = self.reservations.len().saturating_sub(1);
        let old = move |reservation: &&Reservation| reservation.reserved_at < cutoff;
        self.on_record().take(but_newest).filter(old)
    }

    pub(super) fn forget(&mut self, first_sequence: u64) -> Option<Reservation> {
        let pruned = self.reservations.remove(&first_sequence)?;
        self.mark = self.mark.max(Some(pruned.id.unix_millis()));
        Some(pruned)
    }
}

/// The reservation with the store's clock as it is now.
pub(super) fn as_seen_at(clock: Timestamp, reservation: &Reservation) -> Reservation {
    Reservation {
        store_time: clock,
        ..*reservation
    }
}
