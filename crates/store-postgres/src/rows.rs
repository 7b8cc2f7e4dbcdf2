//! Between SQL's signed numbers and texts and the contract's values.

use core::error::Error;
use core::time::Duration;

use evenhand_policy::TenantId;
use evenhand_store::{
    AttemptRecord, AttemptResult, AttemptsMax, CostMicros, Fence, NewRun, Payload, ReadyAt,
    ReadyTenants, Run, RunCounts, RunId, RunState, RunTimeout, SequenceOutcome, SequenceRecord,
    Timestamp, WorkerName,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

/// A value that SQL gave and the contract does not know is a decoding error, which callers see as *corrupt*.
pub(crate) fn undecodable(error: impl Into<Box<dyn Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}

/// Microseconds since the Unix epoch, as every function of the schema gives times.
pub(crate) fn time(micros: i64) -> Result<Timestamp, sqlx::Error> {
    Timestamp::from_microsecond(micros).map_err(undecodable)
}

/// A number that is never negative.
pub(crate) fn unsigned<S, U>(number: S) -> Result<U, sqlx::Error>
where
    U: TryFrom<S>,
    U::Error: Error + Send + Sync + 'static,
{
    U::try_from(number).map_err(undecodable)
}

/// A count for SQL. Every count of the contract is far below 2^31.
pub(crate) fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A sequence or fence for SQL. One beyond the range names nothing, and neither does the last of the range.
pub(crate) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A duration in whole milliseconds, as every function of the schema takes it.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn parsed<T>(row: &PgRow, column: &'static str) -> Result<T, sqlx::Error>
where
    T: for<'a> TryFrom<&'a str>,
    for<'a> <T as TryFrom<&'a str>>::Error: Error + Send + Sync + 'static,
{
    let text: &str = row.try_get(column)?;
    T::try_from(text).map_err(undecodable)
}

fn optional_time(row: &PgRow, column: &'static str) -> Result<Option<Timestamp>, sqlx::Error> {
    row.try_get::<Option<i64>, _>(column)?.map(time).transpose()
}

/// A row of `evenhand.run_row`.
pub(crate) fn run(row: &PgRow) -> Result<Run, sqlx::Error> {
    let payload = Payload::kept(row.try_get("payload")?).map_err(undecodable)?;
    let mut spec = NewRun::new(parsed(row, "tenant")?, parsed(row, "kind")?, payload);
    spec.pool = parsed(row, "pool")?;
    spec.team = parsed(row, "team")?;
    spec.value_class = row
        .try_get::<&str, _>("value_class")?
        .parse()
        .map_err(undecodable)?;
    spec.base_priority = unsigned::<i32, u32>(row.try_get("base_priority")?)?
        .try_into()
        .map_err(undecodable)?;
    spec.cost_micros =
        CostMicros::new(unsigned(row.try_get::<i64, _>("cost_micros")?)?).map_err(undecodable)?;
    spec.attempts_max =
        AttemptsMax::new(unsigned(row.try_get::<i32, _>("attempts_max")?)?).map_err(undecodable)?;
    let timeout = Duration::from_millis(unsigned(row.try_get::<i64, _>("timeout_ms")?)?);
    spec.timeout = RunTimeout::new(timeout).map_err(undecodable)?;
    spec.idempotency_key = row
        .try_get::<Option<&str>, _>("idempotency_key")?
        .map(TryFrom::try_from)
        .transpose()
        .map_err(undecodable)?;

    let ready_at = time(row.try_get("ready_at_us")?)?;
    spec.ready_at = ReadyAt::At(ready_at);
    let id = RunId::new(row.try_get("id")?);
    let mut run = Run::queued(id, spec, ready_at, time(row.try_get("enqueued_at_us")?)?);
    run.state = run_state(row.try_get("state")?)?;
    run.attempt = unsigned(row.try_get::<i32, _>("attempt")?)?;
    run.fence = Fence::new(unsigned(row.try_get::<i64, _>("fence")?)?);
    run.finished_at = optional_time(row, "finished_at_us")?;
    run.last_error = row.try_get("last_error")?;
    Ok(run)
}

pub(crate) fn run_state(text: &str) -> Result<RunState, sqlx::Error> {
    Ok(match text {
        "queued" => RunState::Queued,
        "running" => RunState::Running,
        "done" => RunState::Done,
        "dead" => RunState::Dead,
        "cancelled" => RunState::Cancelled,
        other => return Err(undecodable(format!("{other:?} is no state of a run"))),
    })
}

/// What a look showed, with the tenants in the column of this name.
pub(crate) fn ready_tenants(
    row: &PgRow,
    tenants: &'static str,
) -> Result<ReadyTenants, sqlx::Error> {
    let tenants = row.try_get::<Vec<String>, _>(tenants)?;
    let tenants = tenants
        .into_iter()
        .map(TenantId::try_from)
        .collect::<Result<_, _>>();
    Ok(ReadyTenants::new(
        tenants.map_err(undecodable)?,
        optional_time(row, "next_ready_at_us")?,
        time(row.try_get("store_time_us")?)?,
    ))
}

/// A row of `evenhand.counts`.
pub(crate) fn counts(row: &PgRow) -> Result<RunCounts, sqlx::Error> {
    let mut counts = RunCounts::new(parsed(row, "pool")?, parsed(row, "tenant")?);
    counts.queued = unsigned(row.try_get::<i64, _>("queued")?)?;
    counts.running = unsigned(row.try_get::<i64, _>("running")?)?;
    counts.done = unsigned(row.try_get::<i64, _>("done")?)?;
    counts.dead = unsigned(row.try_get::<i64, _>("dead")?)?;
    counts.cancelled = unsigned(row.try_get::<i64, _>("cancelled")?)?;
    Ok(counts)
}

/// A row of `evenhand.sequences`.
pub(crate) fn sequence(row: &PgRow) -> Result<SequenceRecord, sqlx::Error> {
    Ok(SequenceRecord::new(
        unsigned(row.try_get::<i64, _>("sequence")?)?,
        sequence_outcome(row.try_get("outcome")?, row)?,
        time(row.try_get("recorded_at_us")?)?,
    ))
}

/// An outcome by its name, with the attempt that stands in the same row if it ran.
pub(crate) fn sequence_outcome(name: &str, row: &PgRow) -> Result<SequenceOutcome, sqlx::Error> {
    Ok(match name {
        "ran" => SequenceOutcome::Ran(attempt(row)?),
        "idle" => SequenceOutcome::Idle,
        "contended" => SequenceOutcome::Contended,
        "failed" => SequenceOutcome::Failed,
        other => {
            return Err(undecodable(format!(
                "{other:?} is no outcome of a sequence"
            )));
        }
    })
}

fn attempt(row: &PgRow) -> Result<AttemptRecord, sqlx::Error> {
    let mut attempt = AttemptRecord::running(
        RunId::new(row.try_get::<Uuid, _>("run_id")?),
        parsed(row, "tenant")?,
        Fence::new(unsigned(row.try_get::<i64, _>("fence")?)?),
        parsed::<WorkerName>(row, "worker")?,
        time(row.try_get("ready_at_us")?)?,
        time(row.try_get("claimed_at_us")?)?,
    );
    let result = match row.try_get("result")? {
        None => None,
        Some("completed") => Some(AttemptResult::Completed),
        Some("failed") => Some(AttemptResult::Failed),
        Some("released") => Some(AttemptResult::Released),
        Some("expired") => Some(AttemptResult::Expired),
        Some("cancelled") => Some(AttemptResult::Cancelled),
        Some(other) => return Err(undecodable(format!("{other:?} is no result of an attempt"))),
    };
    attempt.ended = result.zip(optional_time(row, "ended_at_us")?);
    Ok(attempt)
}
