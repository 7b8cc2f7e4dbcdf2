//! An order that is kept in steps, so that concurrent calls really interleave, and that can have a fault in each of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenhand_policy::SchedulerShardId;
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    CLOCK_SKEW_MAX, Reservation, ReservationId, ReservationStore, ReserveRequest, RetentionReport,
    Retirement, SEQUENCE_MAX, SchedulerFairnessRetentionPolicy, ShardStanding, StoreError,
    StoreErrorKind, Timestamp,
};

use super::Fault;

/// The order of all shards. Each access to the rows is one step, as a statement is; only the lock spans several.
#[derive(Debug)]
pub(super) struct Ledger {
    fault: Option<Fault>,
    /// Knows the policies and the clock, and is told of every reservation so that runs can be claimed against it.
    memory: MemoryStore,
    /// What a client's clock shows: it stands where it was when the client started.
    client_clock: Timestamp,
    lock: tokio::sync::Mutex<()>,
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    reservations: Vec<Row>,
    next_sequence: BTreeMap<SchedulerShardId, u64>,
    marks: BTreeMap<SchedulerShardId, u64>,
    passes: u64,
}

#[derive(Clone, Debug)]
struct Row {
    shard: SchedulerShardId,
    reservation: Reservation,
}

impl Ledger {
    pub(super) fn new(fault: Option<Fault>, memory: MemoryStore) -> Self {
        Self {
            fault,
            client_clock: memory.clock(),
            memory,
            lock: tokio::sync::Mutex::default(),
            rows: Mutex::default(),
        }
    }

    pub(super) fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) {
        self.rows()
            .next_sequence
            .insert(shard.clone(), next_sequence);
    }

    pub(super) fn next_sequence(&self, shard: &SchedulerShardId) -> Option<u64> {
        let next = self.rows().next_sequence.get(shard).copied().unwrap_or(0);
        (next <= SEQUENCE_MAX).then_some(next)
    }

    pub(super) fn reservations(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Vec<Reservation> {
        let mut reservations: Vec<Reservation> = self
            .rows()
            .reservations
            .iter()
            .filter(|row| row.shard == *shard)
            .map(|row| row.reservation)
            .filter(|reservation| *reservation.sequences().end() >= from_sequence)
            .collect();
        reservations.sort_by_key(|reservation| reservation.first_sequence);
        reservations.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        reservations
    }

    pub(super) async fn reserve(
        &self,
        request: &ReserveRequest,
    ) -> Result<Reservation, StoreError> {
        let policy = self.memory.load_policy(&request.shard).await?;
        if (policy.digest(), policy.cycle_length()) != (request.digest, request.cycle_length) {
            return refuse(StoreErrorKind::PolicyConflict);
        }
        let before_lock = self.known(request.id);
        let cursor_before_lock = self.next_sequence(&request.shard);
        if self.has(Fault::LookupBeforeLock) || self.has(Fault::CursorBeforeLock) {
            pause(100).await;
        }
        let _lock = self.lock.lock().await;
        let mark_before_lookup = self.mark(&request.shard);
        if self.has(Fault::MarkBeforeLookup) {
            self.wait_for_a_pass().await;
        }
        let known = if self.has(Fault::LookupBeforeLock) {
            before_lock
        } else {
            self.known(request.id)
        };
        pause(1).await;
        if let Some(known) = known {
            return self.answer_again(request, &known);
        }
        let mark = if self.has(Fault::MarkBeforeLookup) {
            mark_before_lookup
        } else {
            self.mark(&request.shard)
        };
        pause(1).await;
        if !self.has(Fault::ReservesWhenRetired) {
            self.require_active(&request.shard).await?;
        }
        if self.has(Fault::RetiresWithoutLock) {
            pause(100).await;
        }
        self.judge(request, mark)?;
        let cursor = if self.has(Fault::CursorBeforeLock) {
            cursor_before_lock
        } else {
            self.next_sequence(&request.shard)
        };
        self.append(request, cursor).await
    }

    pub(super) async fn retire(
        &self,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        pause(50).await;
        let _lock = match self.fault {
            Some(Fault::RetiresWithoutLock) => None,
            _ => Some(self.lock.lock().await),
        };
        self.memory.retire(old, new).await
    }

    pub(super) async fn prune(&self, policy: SchedulerFairnessRetentionPolicy) -> RetentionReport {
        pause(50).await;
        let report = self.delete_old(policy);
        // The queue's own order forgets too, so that its history may.
        let memory = &self.memory;
        memory
            .prune_scheduler_fairness_reservations(policy)
            .await
            .ok();
        report
    }

    fn delete_old(&self, policy: SchedulerFairnessRetentionPolicy) -> RetentionReport {
        let cutoff = self.clock() - policy.window();
        let batch = usize::try_from(policy.batch()).unwrap_or(usize::MAX);
        let mut rows = self.rows();
        let mut old: Vec<Row> = rows.reservations.clone();
        old.retain(|row| {
            let newest = rows.newest(&row.shard).map(|newest| newest.id);
            let is_newest = newest == Some(row.reservation.id);
            row.reservation.reserved_at < cutoff && (!is_newest || self.has(Fault::PrunesNewest))
        });
        old.sort_by_key(|row| {
            (
                row.reservation.reserved_at,
                row.shard.clone(),
                row.reservation.first_sequence,
            )
        });
        if self.has(Fault::PrunesNewestFirst) {
            old.reverse();
        }
        let more = old.len() > batch;
        old.truncate(batch);
        for row in &old {
            rows.reservations
                .retain(|kept| kept.reservation.id != row.reservation.id);
            let own_time = if self.has(Fault::MarksTheCutoff) {
                u64::try_from(cutoff.as_millisecond()).unwrap_or(0)
            } else {
                row.reservation.id.unix_millis()
            };
            let mark = rows.marks.entry(row.shard.clone()).or_default();
            *mark = own_time.max(*mark);
        }
        rows.passes += 1;
        RetentionReport::new(cutoff, u32::try_from(old.len()).unwrap_or(u32::MAX), more)
    }

    /// The answer for an id that is on record.
    fn answer_again(
        &self,
        request: &ReserveRequest,
        known: &Row,
    ) -> Result<Reservation, StoreError> {
        if known.shard != request.shard || known.reservation.count != request.count {
            self.burn(request);
            return refuse(StoreErrorKind::ReservationConflict);
        }
        let mut answer = known.reservation;
        answer.store_time = self.clock();
        Ok(answer)
    }

    /// Refuses a shard that does not serve its pool.
    async fn require_active(&self, shard: &SchedulerShardId) -> Result<(), StoreError> {
        let kind = match self.memory.standing(shard).await? {
            ShardStanding::Active => return Ok(()),
            ShardStanding::Pending => StoreErrorKind::Pending,
            ShardStanding::Retired { .. } => StoreErrorKind::Retired,
            _ => StoreErrorKind::Unsupported,
        };
        refuse(kind)
    }

    /// Refuses an unknown id by its own time.
    fn judge(&self, request: &ReserveRequest, mark: Option<u64>) -> Result<(), StoreError> {
        let id_time = request.id.unix_millis();
        let latest = self.shard_time(&request.shard) + CLOCK_SKEW_MAX;
        let kind = if mark.is_some_and(|mark| id_time <= mark) {
            StoreErrorKind::Expired
        } else if i128::from(id_time) > i128::from(latest.as_millisecond()) {
            StoreErrorKind::ClockSkew
        } else {
            return Ok(());
        };
        self.burn(request);
        refuse(kind)
    }

    /// Takes the next sequences.
    async fn append(
        &self,
        request: &ReserveRequest,
        cursor: Option<u64>,
    ) -> Result<Reservation, StoreError> {
        let Some(first_sequence) = cursor else {
            return refuse(StoreErrorKind::SequenceExhausted);
        };
        let (reserved_at, clock) = (self.shard_time(&request.shard), self.clock());
        let count = request.count;
        let reservation = Reservation::new(request.id, first_sequence, count, reserved_at, clock);
        let last_sequence = *reservation.sequences().end();
        if last_sequence > SEQUENCE_MAX {
            return refuse(StoreErrorKind::SequenceExhausted);
        }
        let next_sequence = if self.has(Fault::OverlappingBlocks) {
            first_sequence
        } else {
            last_sequence
        } + 1;
        if self.has(Fault::GapOnDrop) {
            self.skip_to(&request.shard, next_sequence);
            pause(4).await;
        }
        let row = Row {
            shard: request.shard.clone(),
            reservation,
        };
        let is_lost = self.has(Fault::LostAcknowledgement) && first_sequence % 7 == 3;
        self.rows().append(row, next_sequence, is_lost);
        // The queue's own order is only there for claims; whatever it says to a faulty order does not matter.
        self.memory.reserve(request).await.ok();
        Ok(reservation)
    }

    /// Gives a pass of pruning every chance to commit.
    async fn wait_for_a_pass(&self) {
        let passes = self.rows().passes;
        for _ in 0..500 {
            if self.rows().passes != passes {
                break;
            }
            pause(1).await;
        }
    }

    /// Consumes what a refused call asked for.
    fn burn(&self, request: &ReserveRequest) {
        if self.has(Fault::GapOnFailure) {
            let mut rows = self.rows();
            let next = rows.next_sequence.entry(request.shard.clone()).or_default();
            *next += u64::from(request.count.get());
        }
    }

    fn known(&self, id: ReservationId) -> Option<Row> {
        let rows = self.rows();
        let known = rows
            .reservations
            .iter()
            .find(|row| row.reservation.id == id)?;
        let newest = rows.newest(&known.shard)?;
        let is_forgotten = self.has(Fault::SecondAnswer) && newest.id != id;
        (!is_forgotten).then(|| known.clone())
    }

    fn mark(&self, shard: &SchedulerShardId) -> Option<u64> {
        self.rows().marks.get(shard).copied()
    }

    /// The clock, or the time of the shard's newest reservation if that is later.
    fn shard_time(&self, shard: &SchedulerShardId) -> Timestamp {
        let clock = self.clock();
        self.rows()
            .newest(shard)
            .map_or(clock, |newest| newest.reserved_at.max(clock))
    }

    fn clock(&self) -> Timestamp {
        if self.has(Fault::ClientClock) {
            self.client_clock
        } else {
            self.memory.clock()
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    fn append(&mut self, row: Row, next_sequence: u64, is_lost: bool) {
        self.next_sequence.insert(row.shard.clone(), next_sequence);
        if !is_lost {
            self.reservations.push(row);
        }
    }

    fn newest(&self, shard: &SchedulerShardId) -> Option<&Reservation> {
        let of_shard = self.reservations.iter().filter(|row| row.shard == *shard);
        of_shard
            .map(|row| &row.reservation)
            .max_by_key(|row| row.first_sequence)
    }
}

/// Lets others act, this many times.
pub(super) async fn pause(turns: u32) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

fn refuse<T>(kind: StoreErrorKind) -> Result<T, StoreError> {
    Err(StoreError::new(kind, "refused by the ledger"))
}
