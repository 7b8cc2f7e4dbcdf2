//! Attempts: how they begin, and the ends that they come to.

use core::time::Duration;

use evenhand_policy::{PoolId, SchedulerShardId};
use jiff::Timestamp;

use super::claims::Claimant;
use super::queue::{Queue, Row, Settled};
use super::ready::ready_time;
use super::shard::Shard;
use crate::{
    AttemptRecord, AttemptResult, ClaimedRun, Failure, FailureOutcome, Fence, Lease, LeaseDuration,
    ReadyAt, RecoveryReport, Renewal, Retry, RunId, RunState, SequenceOutcome, SequenceRecord,
    StoreError, StoreErrorKind,
};

impl Queue {
    /// Begins an attempt at a queued run.
    pub(super) fn start(
        &mut self,
        claimant: &Claimant<'_>,
        sequence: u64,
        run: RunId,
    ) -> Option<ClaimedRun> {
        let shard = claimant.shard.policy().shard();
        let row = self.rows.get_mut(&run)?;
        let run = &mut row.run;
        run.state = RunState::Running;
        run.attempt += 1;
        run.fence = Fence::new(run.fence.get() + 1);
        let expires_at = lease_end(claimant.clock, claimant.lease);
        let lease = Lease::new(run.id, run.fence, shard.clone(), sequence, expires_at);
        row.lease = Some(lease.clone());
        let claimed = ClaimedRun::new(run.clone(), lease);
        let attempt = AttemptRecord::running(
            run.id,
            run.spec.tenant.clone(),
            run.fence,
            claimant.worker.clone(),
            run.ready_at,
            claimant.clock,
        );
        self.settle(
            claimant.clock,
            shard,
            sequence,
            SequenceOutcome::Ran(attempt),
        );
        Some(claimed)
    }

    /// Records that looking failed, unless the sequence has an outcome.
    pub(super) fn record_failed(
        &mut self,
        clock: Timestamp,
        shard: &Shard,
        sequence: u64,
    ) -> Result<(), StoreError> {
        let name = shard.policy().shard();
        if !self.settled.contains_key(&(name.clone(), sequence)) {
            shard.require_active()?;
            self.settle(clock, name, sequence, SequenceOutcome::Failed);
        }
        Ok(())
    }

    pub(super) fn renew(
        &mut self,
        clock: Timestamp,
        lease: &Lease,
        duration: LeaseDuration,
    ) -> Renewal {
        let Some(row) = self.held(lease) else {
            return Renewal::Lost;
        };
        let expires_at = lease_end(clock, duration);
        if let Some(current) = &mut row.lease {
            current.expires_at = expires_at;
        }
        if row.stop_requested {
            Renewal::StopRequested(expires_at)
        } else {
            Renewal::Renewed(expires_at)
        }
    }

    pub(super) fn complete(&mut self, clock: Timestamp, lease: &Lease) -> Result<(), StoreError> {
        let Some(row) = self.held(lease) else {
            return self
                .ended_before(lease, &[AttemptResult::Completed])
                .map(drop);
        };
        row.end(clock, RunState::Done);
        let held = row.lease.take();
        self.end_attempt(clock, held, AttemptResult::Completed, None);
        Ok(())
    }

    pub(super) fn fail(
        &mut self,
        clock: Timestamp,
        lease: &Lease,
        failure: &Failure,
        wait_tick: impl Fn(&PoolId) -> Duration,
    ) -> Result<FailureOutcome, StoreError> {
        let Some(row) = self.held(lease) else {
            let ends = [AttemptResult::Failed, AttemptResult::Cancelled];
            let settled = self.ended_before(lease, &ends)?;
            return settled.failed_with.ok_or_else(lease_lost);
        };
        row.run.last_error = Some(failure.error().to_owned());
        let held = row.lease.take();
        if row.stop_requested {
            self.end_cancelled(clock, lease.run, held);
            return Ok(FailureOutcome::Cancelled);
        }
        let outcome = match failure.retry() {
            Retry::After(delay) if row.has_attempts_left() => {
                let wait_tick = wait_tick(&row.run.spec.pool);
                let ready_at = ready_time(clock, ReadyAt::After(delay), wait_tick);
                row.requeue(ready_at);
                FailureOutcome::Requeued(ready_at)
            }
            Retry::After(_) | Retry::GiveUp => {
                row.end(clock, RunState::Dead);
                FailureOutcome::Dead
            }
        };
        self.end_attempt(clock, held, AttemptResult::Failed, Some(outcome));
        Ok(outcome)
    }

    pub(super) fn release(
        &mut self,
        clock: Timestamp,
        lease: &Lease,
        delay: Duration,
        wait_tick: impl Fn(&PoolId) -> Duration,
    ) -> Result<(), StoreError> {
        let Some(row) = self.held(lease) else {
            let ends = [AttemptResult::Released, AttemptResult::Cancelled];
            return self.ended_before(lease, &ends).map(drop);
        };
        row.run.attempt = row.run.attempt.saturating_sub(1);
        let held = row.lease.take();
        if row.stop_requested {
            self.end_cancelled(clock, lease.run, held);
            return Ok(());
        }
        let wait_tick = wait_tick(&row.run.spec.pool);
        row.requeue(match delay {
            Duration::ZERO => row.run.ready_at,
            delay => ready_time(clock, ReadyAt::After(delay), wait_tick),
        });
        self.end_attempt(clock, held, AttemptResult::Released, None);
        Ok(())
    }

    /// Takes back at most `limit` runs, those whose leases expired first.
    pub(super) fn recover(&mut self, clock: Timestamp, limit: u32) -> RecoveryReport {
        let mut expired: Vec<(Timestamp, RunId)> = self
            .rows
            .iter()
            .filter_map(|(id, row)| Some((row.lease.as_ref()?.expires_at, *id)))
            .filter(|(expires_at, _)| *expires_at <= clock)
            .collect();
        expired.sort();
        expired.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let mut report = RecoveryReport::default();
        for (_, id) in expired {
            let Some(row) = self.rows.get_mut(&id) else {
                continue;
            };
            row.run.last_error = Some("the lease expired".to_owned());
            let held = row.lease.take();
            if row.stop_requested {
                self.end_cancelled(clock, id, held);
                continue;
            }
            if row.has_attempts_left() {
                row.requeue(row.run.ready_at);
                report.requeued += 1;
            } else {
                row.end(clock, RunState::Dead);
                report.dead += 1;
            }
            self.end_attempt(clock, held, AttemptResult::Expired, None);
        }
        report
    }

    /// The row of the lease's run, if the lease is the current right to it. An expired lease still is, until somebody
    /// recovers the run.
    fn held(&mut self, lease: &Lease) -> Option<&mut Row> {
        self.rows
            .get_mut(&lease.run)
            .filter(|row| row.is_held_by(lease.fence))
    }

    /// The record of the lease's attempt, if it ended in one of these ways: then the call is a repetition, and is
    /// answered as the first time.
    fn ended_before(
        &self,
        lease: &Lease,
        results: &[AttemptResult],
    ) -> Result<&Settled, StoreError> {
        let ended_so = |settled: &&Settled| match &settled.record.outcome {
            SequenceOutcome::Ran(attempt) => {
                attempt.run == lease.run
                    && attempt.fence == lease.fence
                    && attempt
                        .ended
                        .is_some_and(|(ended, _)| results.contains(&ended))
            }
            SequenceOutcome::Idle | SequenceOutcome::Contended | SequenceOutcome::Failed => false,
        };
        self.settled
            .get(&(lease.shard.clone(), lease.sequence))
            .filter(ended_so)
            .ok_or_else(lease_lost)
    }

    /// Records how a sequence ended, unless that is on record.
    pub(super) fn settle(
        &mut self,
        clock: Timestamp,
        shard: &SchedulerShardId,
        sequence: u64,
        outcome: SequenceOutcome,
    ) {
        self.settled
            .entry((shard.clone(), sequence))
            .or_insert_with(|| Settled {
                record: SequenceRecord::new(sequence, outcome, clock),
                failed_with: None,
            });
    }

    /// Ends the attempt of a run that somebody cancelled meanwhile, whichever end was asked for.
    fn end_cancelled(&mut self, clock: Timestamp, run: RunId, held: Option<Lease>) {
        if let Some(row) = self.rows.get_mut(&run) {
            row.end(clock, RunState::Cancelled);
        }
        let answer = Some(FailureOutcome::Cancelled);
        self.end_attempt(clock, held, AttemptResult::Cancelled, answer);
    }

    fn end_attempt(
        &mut self,
        clock: Timestamp,
        held: Option<Lease>,
        result: AttemptResult,
        failed_with: Option<FailureOutcome>,
    ) {
        let settled = held.and_then(|lease| self.settled.get_mut(&(lease.shard, lease.sequence)));
        if let Some(settled) = settled {
            settled.failed_with = failed_with;
            if let SequenceOutcome::Ran(attempt) = &mut settled.record.outcome {
                attempt.ended = Some((result, clock));
            }
        }
    }
}

impl Row {
    pub(super) fn is_held_by(&self, fence: Fence) -> bool {
        self.run.state == RunState::Running && self.run.fence == fence
    }

    fn has_attempts_left(&self) -> bool {
        self.run.attempt < self.run.spec.attempts_max.get()
    }

    /// Ends the run for good, or until somebody queues it again.
    pub(super) fn end(&mut self, clock: Timestamp, state: RunState) {
        self.run.state = state;
        self.run.finished_at = Some(clock);
    }
}

fn lease_end(clock: Timestamp, duration: LeaseDuration) -> Timestamp {
    clock
        .saturating_add(duration.get())
        .unwrap_or(Timestamp::MAX)
}

pub(super) fn lease_lost() -> StoreError {
    StoreError::new(
        StoreErrorKind::LeaseLost,
        "another attempt owns the run, or it has ended",
    )
}
