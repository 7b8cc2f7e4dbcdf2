//! The runs.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId, TenantId};
use evenhand_store::{
    Cancellation, Claim, ClaimRequest, Controlled, Enqueued, Failure, FailureOutcome,
    HistoryReport, HistoryRetentionPolicy, IdempotencyKey, Lease, LeaseDuration, LimitSubject,
    NewRun, PageSize, ReadyAt, ReadyTenants, RecoveryReport, Renewal, Reservation,
    ReservationCount, Retry, Round, RoundRequest, Run, RunCounts, RunFilter, RunId, RunKind,
    RunLimit, RunPage, RunQueue, RunState, RunsMax, SequenceRecord, StoreError, StoreErrorKind,
    StoreHealth, TenantHistory, TenantHistoryRequest, UnservedRuns, WaitRequest,
};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{PgConnection, Row as _};

use crate::rows::{self, bigint, int, millis, time, undecodable, unsigned};
use crate::{PostgresStore, error};

/// What became of an enqueue in the caller's transaction. None of these ends that transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnqueuedIn {
    /// A new run; it is there once the transaction commits.
    Created(RunId),
    /// The key already names this run, which has the same content.
    Known(RunId),
    /// The key already names this run, which has other content. Nothing was enqueued.
    Conflict(RunId),
}

/// What became of a completion in the caller's transaction. Neither ends that transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletedIn {
    /// The run is done once the transaction commits.
    Completed,
    /// The fence is stale and nothing was changed: roll back whatever the attempt wrote.
    LeaseLost,
}

impl PostgresStore {
    /// Enqueues a run in the caller's own transaction.
    ///
    /// The connection may be anybody's; the run becomes visible when its transaction commits.
    ///
    /// # Errors
    ///
    /// *Invalid*, *unavailable* or *outcome unknown*; PostgreSQL has then ended the transaction.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the transaction in the caller's hands, with the statement perhaps made.
    pub async fn enqueue_in(
        connection: &mut PgConnection,
        run: &NewRun,
    ) -> Result<EnqueuedIn, StoreError> {
        let (ready_at, delay) = ready_columns(run.ready_at);
        let row = sqlx::query(include_str!("../sql/enqueue.sql"))
            .bind(run.pool.as_str())
            .bind(run.tenant.as_str())
            .bind(run.team.as_str())
            .bind(run.kind.as_str())
            .bind(Json(run.payload.as_value()))
            .bind(run.value_class.as_str())
            .bind(int(run.base_priority.get()))
            .bind(bigint(run.cost_micros.get()))
            .bind(ready_at)
            .bind(delay)
            .bind(int(run.attempts_max.get()))
            .bind(millis(run.timeout.get()))
            .bind(run.idempotency_key.as_ref().map(IdempotencyKey::as_str))
            .fetch_one(connection)
            .await
            .map_err(error::of_statement)?;
        enqueued_in(&row).map_err(error::of_statement)
    }

    /// Completes a run in the caller's own transaction, so that what the run wrote and that it is done become visible
    /// together or not at all.
    ///
    /// A worker that completes the run once more afterwards is answered with success.
    ///
    /// # Errors
    ///
    /// *Unavailable* or *outcome unknown*; PostgreSQL has then ended the transaction. In a transaction above read
    /// committed a concurrent recovery of the run shows as *unavailable*.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the transaction in the caller's hands, with the statement perhaps made.
    pub async fn complete_in(
        connection: &mut PgConnection,
        lease: &Lease,
    ) -> Result<CompletedIn, StoreError> {
        let completed: bool = sqlx::query_scalar(include_str!("../sql/complete.sql"))
            .bind(lease.run.as_uuid())
            .bind(bigint(lease.fence.get()))
            .bind(lease.shard.as_str())
            .bind(bigint(lease.sequence))
            .fetch_one(connection)
            .await
            .map_err(error::of_statement)?;
        Ok(if completed {
            CompletedIn::Completed
        } else {
            CompletedIn::LeaseLost
        })
    }
}

fn enqueued_in(row: &PgRow) -> Result<EnqueuedIn, sqlx::Error> {
    let run = RunId::new(row.try_get("run_id")?);
    match row.try_get("outcome")? {
        "created" => Ok(EnqueuedIn::Created(run)),
        "known" => Ok(EnqueuedIn::Known(run)),
        "conflict" => Ok(EnqueuedIn::Conflict(run)),
        other => Err(undecodable(format!(
            "{other:?} is no outcome of an enqueue"
        ))),
    }
}

/// A thousand years: rounded up to a wait tick, a later time might be one that cannot be read back.
const DELAY_MAX_MS: i64 = 31_557_600_000_000;

/// The year 9999, for the same reason.
const READY_AT_MAX_US: i64 = 253_370_764_800_000_000;

/// A ready time as the two columns that SQL takes: microseconds since the epoch, or milliseconds from now.
fn ready_columns(ready_at: ReadyAt) -> (Option<i64>, Option<i64>) {
    match ready_at {
        ReadyAt::At(time) => (Some(time.as_microsecond().min(READY_AT_MAX_US)), None),
        ReadyAt::After(delay) => (None, Some(millis(delay).min(DELAY_MAX_MS))),
        ReadyAt::Now | _ => (None, None),
    }
}

#[async_trait]
impl RunQueue for PostgresStore {
    async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let column =
            |of: fn(&NewRun) -> &str| runs.iter().map(of).map(str::to_owned).collect::<Vec<_>>();
        let (ready_at, delays): (Vec<_>, Vec<_>) =
            runs.iter().map(|run| ready_columns(run.ready_at)).unzip();
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/enqueue_many.sql"))
            .bind(column(|run| run.pool.as_str()))
            .bind(column(|run| run.tenant.as_str()))
            .bind(column(|run| run.team.as_str()))
            .bind(column(|run| run.kind.as_str()))
            .bind(
                runs.iter()
                    .map(|run| Json(run.payload.as_value()))
                    .collect::<Vec<_>>(),
            )
            .bind(column(|run| run.value_class.as_str()))
            .bind(
                runs.iter()
                    .map(|run| int(run.base_priority.get()))
                    .collect::<Vec<_>>(),
            )
            .bind(
                runs.iter()
                    .map(|run| bigint(run.cost_micros.get()))
                    .collect::<Vec<_>>(),
            )
            .bind(ready_at)
            .bind(delays)
            .bind(
                runs.iter()
                    .map(|run| int(run.attempts_max.get()))
                    .collect::<Vec<_>>(),
            )
            .bind(
                runs.iter()
                    .map(|run| millis(run.timeout.get()))
                    .collect::<Vec<_>>(),
            )
            .bind(
                runs.iter()
                    .map(|run| {
                        run.idempotency_key
                            .as_ref()
                            .map(|key| key.as_str().to_owned())
                    })
                    .collect::<Vec<_>>(),
            )
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                Ok(Enqueued::new(
                    RunId::new(row.try_get("run_id")?),
                    row.try_get("created")?,
                ))
            })
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/ready_tenants.sql"))
            .bind(shard.as_str())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| rows::ready_tenants(&row, "tenants"))
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        self.claim_one(request).await
    }

    fn round_length_max(&self) -> ReservationCount {
        ReservationCount::MAX
    }

    async fn claim_round(&self, request: &RoundRequest) -> Result<Round, StoreError> {
        self.claim_round_in_one_call(request).await
    }

    async fn cancel(&self, id: RunId) -> Result<Cancellation, StoreError> {
        self.cancel_run(id).await
    }

    async fn requeue(&self, id: RunId) -> Result<Controlled, StoreError> {
        self.requeue_run(id).await
    }

    async fn discard(&self, id: RunId) -> Result<Controlled, StoreError> {
        self.discard_run(id).await
    }

    async fn tenant_history(
        &self,
        request: &TenantHistoryRequest,
    ) -> Result<TenantHistory, StoreError> {
        self.history_of_tenant(request).await
    }

    async fn prune_history(
        &self,
        policy: HistoryRetentionPolicy,
    ) -> Result<HistoryReport, StoreError> {
        self.prune_records(policy).await
    }

    async fn health(&self, shard: &SchedulerShardId) -> Result<StoreHealth, StoreError> {
        self.health_of(shard).await
    }

    async fn wait_for_work(&self, request: &WaitRequest) -> Result<(), StoreError> {
        self.sleep_until_work(request).await
    }

    async fn lost_blocks(
        &self,
        shard: &SchedulerShardId,
        older_than: Duration,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        self.find_lost_blocks(shard, older_than, limit).await
    }

    async fn set_limit(
        &self,
        pool: &PoolId,
        subject: &LimitSubject,
        runs_max: Option<RunsMax>,
    ) -> Result<(), StoreError> {
        self.set_limit_of(pool, subject, runs_max).await
    }

    async fn limits(&self, pool: &PoolId) -> Result<Vec<RunLimit>, StoreError> {
        self.limits_of(pool).await
    }

    async fn unserved(&self) -> Result<Vec<UnservedRuns>, StoreError> {
        self.unserved_runs().await
    }

    async fn record_failed(
        &self,
        shard: &SchedulerShardId,
        sequence: u64,
    ) -> Result<(), StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/record_failed.sql"))
            .bind(shard.as_str())
            .bind(bigint(sequence))
            .persistent(session.is_persistent())
            .execute(session.connection()?)
            .await;
        session.end(answer).await.map(drop)
    }

    async fn renew(
        &self,
        leases: &[Lease],
        duration: LeaseDuration,
    ) -> Result<Vec<Renewal>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/renew.sql"))
            .bind(
                leases
                    .iter()
                    .map(|lease| lease.run.as_uuid())
                    .collect::<Vec<_>>(),
            )
            .bind(
                leases
                    .iter()
                    .map(|lease| bigint(lease.fence.get()))
                    .collect::<Vec<_>>(),
            )
            .bind(millis(duration.get()))
            .persistent(session.is_persistent())
            .try_map(
                |row: PgRow| match row.try_get::<Option<i64>, _>("expires_at_us")? {
                    Some(expires_at) if row.try_get("stop_requested")? => {
                        Ok(Renewal::StopRequested(time(expires_at)?))
                    }
                    Some(expires_at) => Ok(Renewal::Renewed(time(expires_at)?)),
                    None => Ok(Renewal::Lost),
                },
            )
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn complete(&self, lease: &Lease) -> Result<(), StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query_scalar(include_str!("../sql/complete.sql"))
            .bind(lease.run.as_uuid())
            .bind(bigint(lease.fence.get()))
            .bind(lease.shard.as_str())
            .bind(bigint(lease.sequence))
            .persistent(session.is_persistent())
            .fetch_one(session.connection()?)
            .await;
        if session.end(answer).await? {
            Ok(())
        } else {
            Err(lease_lost(lease))
        }
    }

    async fn complete_many(
        &self,
        leases: &[Lease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        self.complete_in_one_call(leases).await
    }

    async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError> {
        let delay = match failure.retry() {
            Retry::After(delay) => Some(millis(delay)),
            Retry::GiveUp | _ => None,
        };
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/fail.sql"))
            .bind(lease.run.as_uuid())
            .bind(bigint(lease.fence.get()))
            .bind(lease.shard.as_str())
            .bind(bigint(lease.sequence))
            .bind(failure.error())
            .bind(delay)
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| match row.try_get("outcome")? {
                "requeued" => Ok(Some(FailureOutcome::Requeued(time(
                    row.try_get("ready_at_us")?,
                )?))),
                "dead" => Ok(Some(FailureOutcome::Dead)),
                "cancelled" => Ok(Some(FailureOutcome::Cancelled)),
                _ => Ok(None),
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await?.ok_or_else(|| lease_lost(lease))
    }

    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query_scalar(include_str!("../sql/release.sql"))
            .bind(lease.run.as_uuid())
            .bind(bigint(lease.fence.get()))
            .bind(lease.shard.as_str())
            .bind(bigint(lease.sequence))
            .bind(millis(delay))
            .persistent(session.is_persistent())
            .fetch_one(session.connection()?)
            .await;
        if session.end(answer).await? {
            Ok(())
        } else {
            Err(lease_lost(lease))
        }
    }

    async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/recover.sql"))
            .bind(int(limit))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                Ok(RecoveryReport::new(
                    unsigned(row.try_get::<i32, _>("requeued")?)?,
                    unsigned(row.try_get::<i32, _>("dead")?)?,
                ))
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/run.sql"))
            .bind(id.as_uuid())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| rows::run(&row))
            .fetch_optional(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<RunId>,
        size: PageSize,
    ) -> Result<RunPage, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/runs.sql"))
            .bind(filter.pool.as_ref().map(PoolId::as_str))
            .bind(filter.tenant.as_ref().map(TenantId::as_str))
            .bind(filter.kind.as_ref().map(RunKind::as_str))
            .bind(filter.state.map(RunState::as_str))
            .bind(after.map(RunId::as_uuid))
            // One more than the page shows whether there is a next one.
            .bind(int(size.get().saturating_add(1)))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| rows::run(&row))
            .fetch_all(session.connection()?)
            .await;
        let mut runs = session.end(answer).await?;
        let page = usize::try_from(size.get()).unwrap_or(usize::MAX);
        let next = (runs.len() > page)
            .then(|| runs.truncate(page))
            .and_then(|()| runs.last().map(|run| run.id));
        Ok(RunPage::new(runs, next))
    }

    async fn counts(&self) -> Result<Vec<RunCounts>, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/counts.sql"))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| rows::counts(&row))
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<SequenceRecord>, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/sequences.sql"))
            .bind(shard.as_str())
            .bind(bigint(from_sequence))
            .bind(int(limit))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| rows::sequence(&row))
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await
    }
}

pub(crate) fn lease_lost(lease: &Lease) -> StoreError {
    StoreError::new(
        StoreErrorKind::LeaseLost,
        format!("fence {} of run {} is stale", lease.fence.get(), lease.run),
    )
}
