//! The queue of a store that may be broken: a sound one, and what faults make of its answers.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId};
use evenhand_store::{
    Cancellation, Claim, ClaimRequest, Controlled, Enqueued, Failure, FailureOutcome, Fence,
    HistoryReport, HistoryRetentionPolicy, Lease, LeaseDuration, LimitSubject, NewRun, PageSize,
    ReadyTenants, RecoveryReport, Renewal, Reservation, ReservationCount, ReservationStore, Round,
    RoundRequest, Run, RunCounts, RunFilter, RunId, RunLimit, RunPage, RunQueue, RunState, RunsMax,
    SequenceOutcome, SequenceRecord, StoreError, StoreErrorKind, StoreHealth, TenantHistory,
    TenantHistoryRequest, UnservedRuns, WaitRequest,
};

use tokio::time::Instant;

use super::ledger::pause;
use super::{BrokenStore, Fault};

/// How long whoever waits for work sleeps between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

#[async_trait]
impl RunQueue for BrokenStore {
    async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
        if !self.has(Fault::EnqueueOneByOne) {
            return self.memory.enqueue_many(runs).await;
        }
        let mut answers = Vec::with_capacity(runs.len());
        for run in runs {
            answers.push(self.memory.enqueue(run).await?);
        }
        Ok(answers)
    }

    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
        self.memory.ready_tenants(shard).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let mut request = request.clone();
        if self.has(Fault::AnyTenant) {
            let policy = self.memory.load_policy(&request.shard).await?;
            request.tenant = policy.tenant_for_sequence(request.sequence).clone();
        }
        if self.has(Fault::LimitWithoutRunning) || self.has(Fault::LimitCheckedTooEarly) {
            return self.claim_past_a_limit(&request).await;
        }
        if self.has(Fault::ClaimAnswersAnybody) {
            return self.claim_as_its_worker(&request).await;
        }
        request.takes_over &= !self.has(Fault::ClaimTakesOverNothing);
        self.memory.claim(&request).await
    }

    fn round_length_max(&self) -> ReservationCount {
        self.memory.round_length_max()
    }

    async fn claim_round(&self, request: &RoundRequest) -> Result<Round, StoreError> {
        let mut request = request.clone();
        if self.has(Fault::RunsMaxIgnored) {
            request.runs_max = u32::MAX;
        }
        if self.has(Fault::TeamWindowIgnored) {
            request.limits.team_window = None;
        }
        let mut round = self.memory.claim_round(&request).await?;
        self.spoil(&request, &mut round).await;
        Ok(round)
    }

    async fn lost_blocks(
        &self,
        shard: &SchedulerShardId,
        older_than: Duration,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        let mut blocks = self.memory.lost_blocks(shard, older_than, limit).await?;
        if self.has(Fault::HalfSettledBlocksForgotten) {
            let records = self.memory.sequences(shard, 0, u32::MAX).await?;
            blocks.retain(|block| {
                let covers = |record: &SequenceRecord| block.sequences().contains(&record.sequence);
                !records.iter().any(covers)
            });
        }
        Ok(blocks)
    }

    async fn record_failed(
        &self,
        shard: &SchedulerShardId,
        sequence: u64,
    ) -> Result<(), StoreError> {
        self.memory.record_failed(shard, sequence).await
    }

    async fn renew(
        &self,
        leases: &[Lease],
        duration: LeaseDuration,
    ) -> Result<Vec<Renewal>, StoreError> {
        if self.has(Fault::RenewsLostLeases) {
            return Ok(vec![
                Renewal::Renewed(self.memory.clock() + duration.get());
                leases.len()
            ]);
        }
        self.memory.renew(leases, duration).await
    }

    async fn complete(&self, lease: &Lease) -> Result<(), StoreError> {
        let run = self.memory.run(lease.run).await?;
        let state = run.as_ref().map(|run| run.state);
        if self.has(Fault::RepetitionRefused) && state == Some(RunState::Done) {
            return Err(StoreError::new(
                StoreErrorKind::LeaseLost,
                "the run has ended",
            ));
        }
        let mut lease = lease.clone();
        if self.has(Fault::CompletionWithoutFence) && state == Some(RunState::Running) {
            lease.fence = run.map_or(lease.fence, |run| run.fence);
        }
        self.memory.complete(&lease).await
    }

    async fn complete_many(
        &self,
        leases: &[Lease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let mut leases = leases.to_vec();
        if self.has(Fault::CompletionsSorted) {
            leases.sort_unstable_by_key(|lease| lease.run);
        }
        let mut answers = Vec::with_capacity(leases.len());
        for lease in &leases {
            let answer = self.complete(lease).await;
            if self.has(Fault::OneRefusalRefusesAll) {
                answer.as_ref().map_err(|error| {
                    StoreError::new(error.kind(), "one of the leases was refused")
                })?;
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError> {
        self.memory.fail(lease, failure).await
    }

    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError> {
        self.memory.release(lease, delay).await
    }

    async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError> {
        self.memory.recover(limit).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        self.memory.run(id).await
    }

    async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<RunId>,
        size: PageSize,
    ) -> Result<RunPage, StoreError> {
        self.memory.runs(filter, after, size).await
    }

    async fn counts(&self) -> Result<Vec<RunCounts>, StoreError> {
        self.memory.counts().await
    }

    async fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<SequenceRecord>, StoreError> {
        let mut records = self.memory.sequences(shard, from_sequence, limit).await?;
        let forgotten_before = self.notes().forgotten_before;
        records.retain(|record| forgotten_before.is_none_or(|before| record.recorded_at >= before));
        Ok(records)
    }

    async fn wait_for_work(&self, request: &WaitRequest) -> Result<(), StoreError> {
        let until = Instant::now() + request.longest;
        loop {
            let ready = self.memory.ready_tenants(&request.shard).await?;
            let is_awake = !self.has(Fault::SleepsThrough) && !ready.tenants.is_empty();
            if is_awake || Instant::now() >= until {
                return Ok(());
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn tenant_history(
        &self,
        request: &TenantHistoryRequest,
    ) -> Result<TenantHistory, StoreError> {
        self.memory.tenant_history(request).await
    }

    async fn cancel(&self, id: RunId) -> Result<Cancellation, StoreError> {
        let answer = self.memory.cancel(id).await?;
        if self.has(Fault::CancelTakesTheLease) && answer == Cancellation::Requested {
            self.end_attempt_of(id).await?;
        }
        Ok(answer)
    }

    async fn requeue(&self, id: RunId) -> Result<Controlled, StoreError> {
        self.memory.requeue(id).await
    }

    async fn discard(&self, id: RunId) -> Result<Controlled, StoreError> {
        self.memory.discard(id).await
    }

    async fn set_limit(
        &self,
        pool: &PoolId,
        subject: &LimitSubject,
        runs_max: Option<RunsMax>,
    ) -> Result<(), StoreError> {
        self.memory.set_limit(pool, subject, runs_max).await
    }

    async fn limits(&self, pool: &PoolId) -> Result<Vec<RunLimit>, StoreError> {
        self.memory.limits(pool).await
    }

    async fn unserved(&self) -> Result<Vec<UnservedRuns>, StoreError> {
        self.memory.unserved().await
    }

    async fn prune_history(
        &self,
        policy: HistoryRetentionPolicy,
    ) -> Result<HistoryReport, StoreError> {
        if self.has(Fault::CoveredHistoryPruned) {
            let cutoff = self.memory.clock() - policy.evidence();
            self.notes().forgotten_before = Some(cutoff);
        }
        self.memory.prune_history(policy).await
    }

    async fn health(&self, shard: &SchedulerShardId) -> Result<StoreHealth, StoreError> {
        self.memory.health(shard).await
    }
}

impl BrokenStore {
    /// Spoils the answer of a round.
    async fn spoil(&self, request: &RoundRequest, round: &mut Round) {
        if self.has(Fault::IdleSlotsGivenAway) {
            for (claimed, sequence) in round.claimed.iter_mut().zip(request.sequences()) {
                claimed.lease.sequence = sequence;
            }
        }
        let block = (request.shard().clone(), request.first_sequence);
        let is_repeated = !self.notes().rounds.insert(block);
        if self.has(Fault::RoundClaimsAnew) && is_repeated {
            for claimed in &mut round.claimed {
                claimed.run.fence = Fence::new(claimed.run.fence.get() + 1);
                claimed.lease.fence = claimed.run.fence;
            }
        }
        if self.has(Fault::LostBlocksShared) {
            for sequence in core::mem::take(&mut round.moved_on) {
                let (worker, lease) = (request.worker.clone(), request.lease);
                let asked = ClaimRequest::new(&request.policy, sequence, worker, lease);
                match self.claim_as_its_worker(&asked).await {
                    Ok(Claim::Ran(claimed)) => round.claimed.push(*claimed),
                    _ => round.moved_on.push(sequence),
                }
            }
        }
    }

    /// Claims in the name of whoever has claimed against the sequence, if anybody has.
    async fn claim_as_its_worker(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let mut request = request.clone();
        let (shard, sequence) = (&request.shard, request.sequence);
        for record in self.memory.sequences(shard, sequence, 1).await? {
            if let SequenceOutcome::Ran(attempt) = record.outcome
                && record.sequence == sequence
            {
                request.worker = attempt.worker;
            }
        }
        self.memory.claim(&request).await
    }

    /// Claims without its tenant's limit, in the default pool, if that limit looked as if it had room for one more.
    async fn claim_past_a_limit(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let (pool, subject) = (
            PoolId::default(),
            LimitSubject::Tenant(request.tenant.clone()),
        );
        let limits = self.memory.limits(&pool).await?;
        let limit = limits.into_iter().find(|limit| limit.subject == subject);
        let counts_running = self.has(Fault::LimitCheckedTooEarly);
        let has_room = limit.as_ref().is_some_and(|limit| {
            let running = if counts_running { limit.running } else { 0 };
            running < limit.runs_max.get()
        });
        pause(50).await;
        if !has_room {
            return self.memory.claim(request).await;
        }
        self.memory.set_limit(&pool, &subject, None).await?;
        let answer = self.memory.claim(request).await;
        let runs_max = limit.map(|limit| limit.runs_max);
        self.memory.set_limit(&pool, &subject, runs_max).await?;
        answer
    }

    /// Ends the attempt of a running run, as if its worker had.
    async fn end_attempt_of(&self, id: RunId) -> Result<(), StoreError> {
        let Some(run) = self.memory.run(id).await? else {
            return Ok(());
        };
        // The store knows where the run was claimed; whoever holds its fence need not say it rightly.
        let anywhere = SchedulerShardId::try_from("anywhere").map_err(|error| {
            StoreError::new(StoreErrorKind::Invalid, "no shard id").with_source(error)
        })?;
        let held = Lease::new(id, run.fence, anywhere, 0, self.memory.clock());
        self.memory.release(&held, Duration::ZERO).await
    }
}
