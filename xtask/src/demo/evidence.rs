//! What is left of a demo when all workers have ended: the data that the verdicts are about.

use core::error::Error;
use std::collections::{BTreeMap, HashMap};

use evenhand_policy::{PoolId, SchedulerShardId};
use evenhand_store::{
    AttemptRecord, Fence, PageSize, ReservationStore, Run, RunFilter, RunId, RunQueue,
    SequenceOutcome, SequenceRecord, StoreError, Timestamp, WorkerName,
};
use evenhand_testkit::history;
use sqlx::{PgConnection, Row as _};

const PAGE: u32 = 1_000;

/// Everything that is on record, and what this process knows from elsewhere.
#[derive(Debug)]
pub(super) struct Evidence {
    /// Policy, reservations, and how sequences ended.
    pub(super) order: history::Evidence,
    /// The sequence that the next reservation would start with.
    pub(super) next_sequence: Option<u64>,
    /// Every run that the store has, by id.
    pub(super) runs: BTreeMap<RunId, Run>,
    /// What the handlers wrote.
    pub(super) results: Vec<ResultRow>,
    /// What this process enqueued.
    pub(super) expected: HashMap<RunId, Expected>,
    /// What was done to the workers.
    pub(super) workers: WorkersDone,
}

/// A run as this process enqueued it.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// Its line in the file of runs.
    pub(super) line: usize,
    /// The file that it hashes.
    pub(super) file: String,
    /// The checksum that it must come to.
    pub(super) digest: String,
    /// A time of the store's clock at which its enqueue was known to be committed.
    pub(super) committed_by: Timestamp,
}

/// A row of the handlers' own table.
#[derive(Clone, Debug)]
pub(super) struct ResultRow {
    pub(super) run: RunId,
    pub(super) fence: Fence,
    pub(super) digest: String,
}

/// The workers that there were.
#[derive(Clone, Debug)]
pub(super) struct WorkersDone {
    /// How many were started, the killed one included.
    pub(super) started: u32,
    /// How many runs each works on at a time.
    pub(super) concurrency: u32,
    /// Which one was killed.
    pub(super) killed: WorkerName,
    /// Which one was started in its place.
    pub(super) replacement: WorkerName,
}

/// A sequence that was reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReservedSequence<'a> {
    pub(super) reserved_at: Timestamp,
    /// How it ended; `None` when it was lost.
    pub(super) record: Option<&'a SequenceRecord>,
}

impl Evidence {
    /// Reads what the store and the demo's table have, page by page.
    ///
    /// # Errors
    ///
    /// Those of the store and of the database.
    pub(super) async fn read(
        store: &(impl ReservationStore + RunQueue),
        results: &mut PgConnection,
        shard: &SchedulerShardId,
        expected: HashMap<RunId, Expected>,
        workers: WorkersDone,
    ) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            order: history::Evidence::read(store, shard).await?,
            next_sequence: store.cursor(shard).await?.next_sequence,
            runs: read_runs(store).await?,
            results: read_results(results).await?,
            expected,
            workers,
        })
    }

    /// The sequences that were reserved, each with what became of it.
    pub(super) fn reserved(&self) -> BTreeMap<u64, ReservedSequence<'_>> {
        let records: HashMap<u64, &SequenceRecord> = (self.order.sequences.iter())
            .map(|record| (record.sequence, record))
            .collect();
        let with_record = |sequence, reserved_at| {
            let record = records.get(&sequence).copied();
            (
                sequence,
                ReservedSequence {
                    reserved_at,
                    record,
                },
            )
        };
        (self.order.reservations.iter())
            .flat_map(|row| row.sequences().map(|sequence| (sequence, row.reserved_at)))
            .map(|(sequence, reserved_at)| with_record(sequence, reserved_at))
            .collect()
    }

    /// The attempts in the order of their sequences.
    pub(super) fn attempts(&self) -> impl Iterator<Item = (u64, &AttemptRecord)> {
        self.order
            .sequences
            .iter()
            .filter_map(|record| attempt_of(record).map(|attempt| (record.sequence, attempt)))
    }

    /// The attempts of each run, in the order of their fences.
    pub(super) fn attempts_by_run(&self) -> BTreeMap<RunId, Vec<&AttemptRecord>> {
        let mut by_run: BTreeMap<RunId, Vec<&AttemptRecord>> = BTreeMap::new();
        for (_, attempt) in self.attempts() {
            by_run.entry(attempt.run).or_default().push(attempt);
        }
        for attempts in by_run.values_mut() {
            attempts.sort_by_key(|attempt| attempt.fence);
        }
        by_run
    }
}

/// How many runs a worker is working on, as far as is on record of the newest sequences.
pub(super) async fn held_by(
    store: &(impl ReservationStore + RunQueue),
    shard: &SchedulerShardId,
    worker: &WorkerName,
) -> Result<usize, StoreError> {
    // An attempt of the demo takes far less time than it takes to reserve so many.
    const NEWEST: u32 = 300;
    let next_sequence = store.cursor(shard).await?.next_sequence.unwrap_or(u64::MAX);
    let from_sequence = next_sequence.saturating_sub(u64::from(NEWEST));
    let page = store.sequences(shard, from_sequence, 2 * NEWEST).await?;
    let attempts = page.iter().filter_map(attempt_of);
    let held = attempts.filter(|attempt| attempt.worker == *worker && attempt.ended.is_none());
    Ok(held.count())
}

/// The attempt of a sequence that ran.
pub(super) fn attempt_of(record: &SequenceRecord) -> Option<&AttemptRecord> {
    match &record.outcome {
        SequenceOutcome::Ran(attempt) => Some(attempt),
        SequenceOutcome::Idle | SequenceOutcome::Contended | SequenceOutcome::Failed | _ => None,
    }
}

/// How many items there are, in the width of everything that is counted here.
pub(super) fn count(items: impl Iterator) -> u64 {
    items.fold(0, |count, _| count + 1)
}

async fn read_runs(store: &impl RunQueue) -> Result<BTreeMap<RunId, Run>, StoreError> {
    let mut filter = RunFilter::default();
    filter.pool = Some(PoolId::default());
    let (mut runs, mut after) = (BTreeMap::new(), None);
    loop {
        let page = store.runs(&filter, after, PageSize::new(PAGE)).await?;
        runs.extend(page.runs.into_iter().map(|run| (run.id, run)));
        after = page.next;
        if after.is_none() {
            return Ok(runs);
        }
    }
}

async fn read_results(connection: &mut PgConnection) -> Result<Vec<ResultRow>, Box<dyn Error>> {
    let rows = sqlx::query(include_str!("sql/results.sql"))
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(ResultRow {
                run: RunId::new(row.try_get("run_id")?),
                fence: Fence::new(u64::try_from(row.try_get::<i64, _>("fence")?)?),
                digest: row.try_get("digest")?,
            })
        })
        .collect()
}
