//! The runs: how they are enqueued, how they are shown, and how they are forgotten.

use core::ops::Bound;
use core::time::Duration;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use evenhand_policy::{PoolId, SchedulerShardId, TenantId};
use jiff::Timestamp;

use super::ready::ready_time;
use crate::{
    Enqueued, FailureOutcome, IdempotencyKey, Lease, LimitSubject, NewRun, PageSize, PoolScoring,
    ReadyAt, Run, RunCounts, RunFilter, RunId, RunPage, RunState, RunsMax, SequenceRecord,
    StoreError, StoreErrorKind,
};

/// All runs of all pools, and how the sequences that were looked at ended.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) rows: BTreeMap<RunId, Row>,
    pub(super) settled: BTreeMap<(SchedulerShardId, u64), Settled>,
    pub(super) limits: BTreeMap<(PoolId, LimitSubject), RunsMax>,
    keys: BTreeMap<(PoolId, IdempotencyKey), RunId>,
    runs_made: u64,
}

pub(super) struct Row {
    pub(super) run: Run,
    /// Whose right it is to work on the run; some exactly while it is running.
    pub(super) lease: Option<Lease>,
    /// Whether somebody cancelled the run while it was running.
    pub(super) stop_requested: bool,
}

pub(super) struct Settled {
    pub(super) record: SequenceRecord,
    /// What a failed attempt was answered, to answer the same again.
    pub(super) failed_with: Option<FailureOutcome>,
}

impl Row {
    /// Puts the run back in the queue, waiting from `ready_at` on.
    pub(super) fn requeue(&mut self, ready_at: Timestamp) {
        self.run.state = RunState::Queued;
        self.set_ready(ready_at);
        self.lease = None;
        self.stop_requested = false;
    }

    fn set_ready(&mut self, ready_at: Timestamp) {
        self.run.ready_at = ready_at;
        self.run.spec.ready_at = ReadyAt::At(ready_at);
    }

    pub(super) fn is_queued_in(&self, pool: &PoolId) -> bool {
        self.run.state == RunState::Queued && self.run.spec.pool == *pool
    }
}

impl Queue {
    pub(super) fn enqueue_many(
        &mut self,
        clock: Timestamp,
        runs: &[NewRun],
        wait_tick: impl Fn(&PoolId) -> Duration,
    ) -> Result<Vec<Enqueued>, StoreError> {
        // Refuse before the first change, so that a refused call enqueues nothing.
        let mut named: BTreeMap<(PoolId, IdempotencyKey), &NewRun> = BTreeMap::new();
        for run in runs {
            let Some(key) = key_of(run) else { continue };
            let first = match self.keys.get(&key).and_then(|id| self.rows.get(id)) {
                Some(row) => &row.run.spec,
                None => *named.entry(key).or_insert(run),
            };
            if !same_content(first, run) {
                return Err(StoreError::new(
                    StoreErrorKind::RunConflict,
                    "the idempotency key names a run with other content",
                ));
            }
        }
        Ok(runs
            .iter()
            .map(|run| self.enqueue(clock, run, wait_tick(&run.pool)))
            .collect())
    }

    fn enqueue(&mut self, clock: Timestamp, spec: &NewRun, wait_tick: Duration) -> Enqueued {
        let id = self.next_id(clock);
        if let Some(key) = key_of(spec) {
            match self.keys.entry(key) {
                Entry::Occupied(named) => return Enqueued::new(*named.get(), false),
                Entry::Vacant(free) => {
                    free.insert(id);
                }
            }
        }
        let ready_at = ready_time(clock, spec.ready_at, wait_tick);
        let run = Run::queued(id, spec.clone(), ready_at, clock);
        let mut row = Row {
            run,
            lease: None,
            stop_requested: false,
        };
        row.set_ready(ready_at);
        self.rows.insert(id, row);
        Enqueued::new(id, true)
    }

    /// A UUIDv7 whose random part is a number, so that runs enqueued at one time keep their order.
    fn next_id(&mut self, clock: Timestamp) -> RunId {
        self.runs_made += 1;
        let millis = u64::try_from(clock.as_millisecond()).unwrap_or(0);
        let mut random = [0; 10];
        random[2..].copy_from_slice(&self.runs_made.to_be_bytes());
        RunId::new(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// Rounds the ready times of runs that were enqueued before their pool was registered to the pool's wait tick.
    pub(super) fn rank_anew(&mut self, clock: Timestamp, pool: &PoolId, scoring: &PoolScoring) {
        for row in self.rows.values_mut().filter(|row| row.is_queued_in(pool)) {
            if row.run.ready_at > clock {
                let ready_at = ReadyAt::At(row.run.ready_at);
                row.set_ready(ready_time(clock, ready_at, scoring.wait_tick()));
            }
        }
    }

    /// Deletes a run, and with it the hold on its key.
    pub(super) fn forget(&mut self, id: RunId) {
        if let Some(key) = self.rows.remove(&id).and_then(|row| key_of(&row.run.spec)) {
            self.keys.remove(&key);
        }
    }

    pub(super) fn run(&self, id: RunId) -> Option<Run> {
        self.rows.get(&id).map(|row| row.run.clone())
    }

    pub(super) fn page(&self, filter: &RunFilter, after: Option<RunId>, size: PageSize) -> RunPage {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut fitting = self
            .rows
            .range((from, Bound::Unbounded))
            .map(|(_, row)| &row.run)
            .filter(|run| filter.matches(run));
        let size = usize::try_from(size.get()).unwrap_or(usize::MAX);
        let runs: Vec<Run> = fitting.by_ref().take(size).cloned().collect();
        let next = fitting.next().and_then(|_| runs.last().map(|run| run.id));
        RunPage::new(runs, next)
    }

    pub(super) fn counts(&self) -> Vec<RunCounts> {
        let mut counts: BTreeMap<(&PoolId, &TenantId), RunCounts> = BTreeMap::new();
        for Row { run, .. } in self.rows.values() {
            let counts = counts
                .entry((&run.spec.pool, &run.spec.tenant))
                .or_insert_with(|| RunCounts::new(run.spec.pool.clone(), run.spec.tenant.clone()));
            match run.state {
                RunState::Queued => counts.queued += 1,
                RunState::Running => counts.running += 1,
                RunState::Done => counts.done += 1,
                RunState::Dead => counts.dead += 1,
                RunState::Cancelled => counts.cancelled += 1,
            }
        }
        counts.into_values().collect()
    }

    pub(super) fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Vec<SequenceRecord> {
        self.settled
            .range((shard.clone(), from_sequence)..=(shard.clone(), u64::MAX))
            .take(usize::try_from(limit).unwrap_or(usize::MAX))
            .map(|(_, settled)| settled.record.clone())
            .collect()
    }
}

fn key_of(run: &NewRun) -> Option<(PoolId, IdempotencyKey)> {
    run.idempotency_key
        .as_ref()
        .map(|key| (run.pool.clone(), key.clone()))
}

/// Everything but the ready time is content: a repeated request may well mean another "in five minutes".
fn same_content(first: &NewRun, second: &NewRun) -> bool {
    let second = NewRun {
        ready_at: first.ready_at,
        ..second.clone()
    };
    *first == second
}
