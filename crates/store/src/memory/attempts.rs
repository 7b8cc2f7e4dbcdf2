//! Attempts: claims against sequences, and the ends that they come to.

use core::time::Duration;

use evenhand_policy::{PoolId, SchedulerShardId};
use jiff::Timestamp;

use super::queue::{Queue, Row, Settled};
use super::ready::ready_time;
use crate::{
    AttemptRecord, AttemptResult, Claim, ClaimRequest, ClaimedRun, Failure, FailureOutcome, Fence,
    Lease, LeaseDuration, PoolScoring, ReadyAt, RecoveryReport, Renewal, Retry, RunId, RunState,
    SequenceOutcome, SequenceRecord, StoreError, StoreErrorKind,
};

impl Queue {
    /// Claims against a reserved sequence whose tenant was checked.
    pub(super) fn claim(
        &mut self,
        clock: Timestamp,
        pool: &PoolId,
        scoring: &PoolScoring,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        if let Some(settled) = self.settled.get(&(request.shard.clone(), request.sequence)) {
            return self.claim_again(settled);
        }
        let best = self.best(clock, pool, &request.tenant, scoring);
        let Some(row) = best.and_then(|id| self.rows.get_mut(&id)) else {
            self.settle(
                clock,
                &request.shard,
                request.sequence,
                SequenceOutcome::Idle,
            );
            return Ok(Claim::Idle);
        };
        let run = &mut row.run;
        run.state = RunState::Running;
        run.attempt += 1;
        run.fence = Fence::new(run.fence.get() + 1);
        let expires_at = lease_end(clock, request.lease);
        let shard = request.shard.clone();
        let lease = Lease::new(run.id, run.fence, shard, request.sequence, expires_at);
        row.lease = Some(lease.clone());
        let claimed = ClaimedRun::new(run.clone(), lease);
        let attempt = AttemptRecord::running(
            run.id,
            run.spec.tenant.clone(),
            run.fence,
            request.worker.clone(),
            run.ready_at,
            clock,
        );
        self.settle(
            clock,
            &request.shard,
            request.sequence,
            SequenceOutcome::Ran(attempt),
        );
        Ok(Claim::Ran(Box::new(claimed)))
    }

    /// The answer for a sequence that ended before: the same as long as that is true.
    fn claim_again(&self, settled: &Settled) -> Result<Claim, StoreError> {
        let attempt = match &settled.record.outcome {
            SequenceOutcome::Ran(attempt) => attempt,
            SequenceOutcome::Idle => return Ok(Claim::Idle),
            SequenceOutcome::Contended => return Ok(Claim::Contended),
            SequenceOutcome::Failed => {
                return Err(StoreError::new(
                    StoreErrorKind::Invalid,
                    "looking at the sequence's tenant failed, so nothing is claimed against it",
                ));
            }
        };
        let row = self
            .rows
            .get(&attempt.run)
            .filter(|row| row.is_held_by(attempt.fence));
        match row.and_then(|row| row.lease.as_ref().map(|lease| (row, lease))) {
            Some((row, lease)) => Ok(Claim::Ran(Box::new(ClaimedRun::new(
                row.run.clone(),
                lease.clone(),
            )))),
            None => Err(lease_lost()),
        }
    }

    /// Records that looking failed, unless the sequence has an outcome.
    pub(super) fn record_failed(
        &mut self,
        clock: Timestamp,
        shard: &SchedulerShardId,
        sequence: u64,
    ) {
        self.settle(clock, shard, sequence, SequenceOutcome::Failed);
    }

    pub(super) fn renew(
        &mut self,
        clock: Timestamp,
        lease: &Lease,
        duration: LeaseDuration,
    ) -> Renewal {
        match self.held(lease).and_then(|row| row.lease.as_mut()) {
            Some(current) => {
                current.expires_at = lease_end(clock, duration);
                Renewal::Renewed(current.expires_at)
            }
            None => Renewal::Lost,
        }
    }

    pub(super) fn complete(&mut self, clock: Timestamp, lease: &Lease) -> Result<(), StoreError> {
        let Some(row) = self.held(lease) else {
            return self.ended_before(lease, AttemptResult::Completed).map(drop);
        };
        row.run.state = RunState::Done;
        row.run.finished_at = Some(clock);
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
            let settled = self.ended_before(lease, AttemptResult::Failed)?;
            return settled.failed_with.ok_or_else(lease_lost);
        };
        row.run.last_error = Some(failure.error().to_owned());
        let held = row.lease.take();
        let outcome = match failure.retry() {
            Retry::After(delay) if row.has_attempts_left() => {
                let wait_tick = wait_tick(&row.run.spec.pool);
                let ready_at = ready_time(clock, ReadyAt::After(delay), wait_tick);
                row.requeue(ready_at);
                FailureOutcome::Requeued(ready_at)
            }
            Retry::After(_) | Retry::GiveUp => {
                row.bury(clock);
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
            return self.ended_before(lease, AttemptResult::Released).map(drop);
        };
        row.run.attempt = row.run.attempt.saturating_sub(1);
        let held = row.lease.take();
        let ready_at = if delay.is_zero() {
            row.run.ready_at
        } else {
            ready_time(clock, ReadyAt::After(delay), wait_tick(&row.run.spec.pool))
        };
        row.requeue(ready_at);
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
            if row.has_attempts_left() {
                row.requeue(row.run.ready_at);
                report.requeued += 1;
            } else {
                row.bury(clock);
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

    /// The record of the lease's attempt, if that is how it ended: then the call is a repetition, and succeeds again.
    fn ended_before(&self, lease: &Lease, result: AttemptResult) -> Result<&Settled, StoreError> {
        let ended_so = |settled: &&Settled| match &settled.record.outcome {
            SequenceOutcome::Ran(attempt) => {
                attempt.run == lease.run
                    && attempt.fence == lease.fence
                    && attempt.ended.is_some_and(|(ended, _)| ended == result)
            }
            SequenceOutcome::Idle | SequenceOutcome::Contended | SequenceOutcome::Failed => false,
        };
        self.settled
            .get(&(lease.shard.clone(), lease.sequence))
            .filter(ended_so)
            .ok_or_else(lease_lost)
    }

    fn settle(
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
    fn is_held_by(&self, fence: Fence) -> bool {
        self.run.state == RunState::Running && self.run.fence == fence
    }

    fn has_attempts_left(&self) -> bool {
        self.run.attempt < self.run.spec.attempts_max.get()
    }

    fn bury(&mut self, clock: Timestamp) {
        self.run.state = RunState::Dead;
        self.run.finished_at = Some(clock);
    }
}

fn lease_end(clock: Timestamp, duration: LeaseDuration) -> Timestamp {
    clock
        .saturating_add(duration.get())
        .unwrap_or(Timestamp::MAX)
}

fn lease_lost() -> StoreError {
    StoreError::new(
        StoreErrorKind::LeaseLost,
        "another attempt owns the run, or it has ended",
    )
}
