//! What became of a tenant's turns, and how long that is remembered.

use core::time::Duration;

use evenhand_policy::SchedulerShardId;
use jiff::Timestamp;

use super::queue::{Queue, Settled};
use super::shard::{Shard, as_seen_at};
use crate::{
    HistoryReport, HistoryRetentionPolicy, Reservation, RunId, RunState, SequenceOutcome,
    StoreError, StoreErrorKind, TenantHistory, TenantHistoryRequest, TenantTurn,
};

impl Queue {
    pub(super) fn tenant_history(
        &self,
        shard: &Shard,
        request: &TenantHistoryRequest,
    ) -> Result<TenantHistory, StoreError> {
        let policy = shard.policy();
        if !policy.contains(&request.tenant) {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                format!("the policy does not know tenant {}", request.tenant),
            ));
        }
        let mut turns = shard
            .on_record()
            .filter(|reservation| (request.from..request.to).contains(&reservation.reserved_at))
            .flat_map(|reservation| {
                let reserved_at = reservation.reserved_at;
                reservation
                    .sequences()
                    .map(move |sequence| (sequence, reserved_at))
            })
            .filter(|(sequence, _)| *policy.tenant_for_sequence(*sequence) == request.tenant)
            .map(|(sequence, reserved_at)| {
                let settled = self.settled.get(&(request.shard.clone(), sequence));
                let outcome = settled.map(|settled| settled.record.outcome.clone());
                TenantTurn::new(sequence, reserved_at, outcome)
            });
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let first = turns.by_ref().take(limit).collect();
        Ok(TenantHistory::new(first, turns.next().is_some()))
    }

    /// The reservations of an active shard that were made before `cutoff` and have a sequence whose end is not on record.
    pub(super) fn lost_blocks(
        &self,
        clock: Timestamp,
        shard: &Shard,
        older_than: Duration,
        limit: u32,
    ) -> Vec<Reservation> {
        let cutoff = before(clock, older_than);
        let name = shard.policy().shard();
        shard
            .on_record()
            .filter(|reservation| shard.is_active() && reservation.reserved_at < cutoff)
            .filter(|reservation| {
                let (first, last) = reservation.sequences().into_inner();
                let block = (name.clone(), first)..=(name.clone(), last);
                let settled = u32::try_from(self.settled.range(block).count());
                settled.is_ok_and(|settled| settled < reservation.count.get())
            })
            .take(usize::try_from(limit).unwrap_or(usize::MAX))
            .map(|reservation| as_seen_at(clock, reservation))
            .collect()
    }

    /// Deletes one batch of each kind of record, oldest first. `oldest_covered` is the first sequence of a shard whose
    /// reservation is on record.
    pub(super) fn prune(
        &mut self,
        clock: Timestamp,
        policy: &HistoryRetentionPolicy,
        oldest_covered: impl Fn(&SchedulerShardId) -> u64,
    ) -> HistoryReport {
        let batch = usize::try_from(policy.batch()).unwrap_or(usize::MAX);
        let cutoff = before(clock, policy.evidence());
        let spent = self
            .settled
            .iter()
            .filter(|((shard, sequence), _)| *sequence < oldest_covered(shard))
            .filter_map(|(key, settled)| Some((settled.over_since()?, key.clone())));
        let (spent, more_evidence) = oldest(spent, cutoff, batch);
        let mut attempts = 0;
        for key in &spent {
            let record = self.settled.remove(key).map(|settled| settled.record);
            if record.is_some_and(|record| matches!(record.outcome, SequenceOutcome::Ran(_))) {
                attempts += 1;
            }
        }
        let cutoff = before(clock, policy.finished());
        let (finished, more_finished) = oldest(
            self.ended(&[RunState::Done, RunState::Cancelled]),
            cutoff,
            batch,
        );
        let cutoff = before(clock, policy.dead());
        let (dead, more_dead) = oldest(self.ended(&[RunState::Dead]), cutoff, batch);
        for id in finished.iter().chain(&dead) {
            self.forget(*id);
        }
        let number = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
        HistoryReport::new(
            number(spent.len()),
            attempts,
            number(finished.len()),
            number(dead.len()),
            more_evidence || more_finished || more_dead,
        )
    }

    fn ended(&self, states: &[RunState]) -> impl Iterator<Item = (Timestamp, RunId)> {
        self.rows
            .values()
            .filter(|row| states.contains(&row.run.state))
            .filter_map(|row| Some((row.run.finished_at?, row.run.id)))
    }
}

impl Settled {
    /// From when on nothing more can become of the sequence; `None` while its attempt has not ended.
    fn over_since(&self) -> Option<Timestamp> {
        match &self.record.outcome {
            SequenceOutcome::Ran(attempt) => attempt.ended.map(|(_, ended_at)| ended_at),
            SequenceOutcome::Idle | SequenceOutcome::Contended | SequenceOutcome::Failed => {
                Some(self.record.recorded_at)
            }
        }
    }
}

/// The first `batch` of what is older than the cutoff, and whether there is more.
fn oldest<K: Ord>(
    rows: impl Iterator<Item = (Timestamp, K)>,
    cutoff: Timestamp,
    batch: usize,
) -> (Vec<K>, bool) {
    let mut old: Vec<(Timestamp, K)> = rows.filter(|(time, _)| *time < cutoff).collect();
    old.sort();
    let more = old.len() > batch;
    old.truncate(batch);
    (old.into_iter().map(|(_, key)| key).collect(), more)
}

fn before(clock: Timestamp, window: Duration) -> Timestamp {
    clock.saturating_sub(window).unwrap_or(Timestamp::MIN)
}
