//! The contract, forwarded to the model call by call.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::{PoolId, SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{
    Cancellation, Claim, ClaimRequest, Cursor, Enqueued, Failure, FailureOutcome, HistoryReport,
    HistoryRetentionPolicy, Lease, LeaseDuration, LimitSubject, NewRun, PageSize,
    PolicyRegistration, ReadyTenants, RecoveryReport, Registered, Renewal, Reservation,
    ReservationCount, ReservationStore, ReserveRequest, RetentionReport, Retirement, Round,
    RoundRequest, Run, RunCounts, RunFilter, RunId, RunPage, RunQueue, RunsMax,
    SchedulerFairnessRetentionPolicy, SequenceRecord, ShardStanding, StoreError, StoreHealth,
    UnservedRuns, WaitRequest,
};

use super::{TestStore, Wakes};

#[async_trait]
impl ReservationStore for TestStore {
    async fn register_policy(
        &self,
        registration: &PolicyRegistration,
    ) -> Result<Registered, StoreError> {
        self.call("register_policy", self.model.register_policy(registration))
            .await
    }

    async fn load_policy(
        &self,
        shard: &SchedulerShardId,
    ) -> Result<WeightedFairnessPolicy, StoreError> {
        self.call("load_policy", self.model.load_policy(shard))
            .await
    }

    async fn standing(&self, shard: &SchedulerShardId) -> Result<ShardStanding, StoreError> {
        self.call("standing", self.model.standing(shard)).await
    }

    async fn active_policy(&self, pool: &PoolId) -> Result<WeightedFairnessPolicy, StoreError> {
        self.call("active_policy", self.model.active_policy(pool))
            .await
    }

    async fn retire(
        &self,
        old: &SchedulerShardId,
        new: &SchedulerShardId,
    ) -> Result<Retirement, StoreError> {
        self.call("retire", self.model.retire(old, new)).await
    }

    async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError> {
        let reserved = self.call("reserve", self.model.reserve(request)).await?;
        if self.deserted {
            self.desert(request).await?;
        }
        Ok(reserved)
    }

    async fn cursor(&self, shard: &SchedulerShardId) -> Result<Cursor, StoreError> {
        self.call("cursor", self.model.cursor(shard)).await
    }

    async fn reservations(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        self.call(
            "reservations",
            self.model.reservations(shard, from_sequence, limit),
        )
        .await
    }

    async fn prune_scheduler_fairness_reservations(
        &self,
        policy: SchedulerFairnessRetentionPolicy,
    ) -> Result<RetentionReport, StoreError> {
        self.call(
            "prune",
            self.model.prune_scheduler_fairness_reservations(policy),
        )
        .await
    }
}

#[async_trait]
impl RunQueue for TestStore {
    async fn enqueue_many(&self, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
        let answer = self
            .call("enqueue_many", self.model.enqueue_many(runs))
            .await;
        self.enqueued.notify_waiters();
        answer
    }

    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
        self.call("ready_tenants", self.model.ready_tenants(shard))
            .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        self.call("claim", self.model.claim(request)).await
    }

    fn round_length_max(&self) -> ReservationCount {
        self.round_length_max
    }

    async fn claim_round(&self, request: &RoundRequest) -> Result<Round, StoreError> {
        let round = self.call("claim_round", self.model.claim_round(request));
        let mut round = round.await?;
        if self.keeps_ready {
            round.ready = None;
        }
        Ok(round)
    }

    async fn lost_blocks(
        &self,
        shard: &SchedulerShardId,
        older_than: Duration,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        self.call(
            "lost_blocks",
            self.model.lost_blocks(shard, older_than, limit),
        )
        .await
    }

    async fn wait_for_work(&self, request: &WaitRequest) -> Result<(), StoreError> {
        self.script
            .lock()
            .expect("no panic")
            .waits
            .push(request.longest);
        let woken = async {
            match self.wakes {
                Wakes::Nobody => return self.model.wait_for_work(request).await,
                Wakes::AtOnce => {}
                Wakes::WhenEnqueued => tokio::select! {
                    biased;
                    () = self.enqueued.notified() => {}
                    () = tokio::time::sleep(request.longest) => {}
                },
            }
            Ok(())
        };
        self.call("wait_for_work", woken).await
    }

    async fn record_failed(
        &self,
        shard: &SchedulerShardId,
        sequence: u64,
    ) -> Result<(), StoreError> {
        self.call("record_failed", self.model.record_failed(shard, sequence))
            .await
    }

    async fn renew(
        &self,
        leases: &[Lease],
        duration: LeaseDuration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.script
            .lock()
            .expect("no panic")
            .renewed
            .push(leases.len());
        self.call("renew", self.model.renew(leases, duration)).await
    }

    async fn complete(&self, lease: &Lease) -> Result<(), StoreError> {
        self.call("complete", self.model.complete(lease)).await
    }

    async fn complete_many(
        &self,
        leases: &[Lease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        self.script
            .lock()
            .expect("no panic")
            .completed
            .push(leases.len());
        let mut answers = Vec::new();
        for lease in leases {
            answers.push(self.complete(lease).await);
        }
        Ok(answers)
    }

    async fn fail(&self, lease: &Lease, failure: &Failure) -> Result<FailureOutcome, StoreError> {
        self.call("fail", self.model.fail(lease, failure)).await
    }

    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), StoreError> {
        self.call("release", self.model.release(lease, delay)).await
    }

    async fn recover(&self, limit: u32) -> Result<RecoveryReport, StoreError> {
        self.call("recover", self.model.recover(limit)).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        self.call("run", self.model.run(id)).await
    }

    async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<RunId>,
        size: PageSize,
    ) -> Result<RunPage, StoreError> {
        self.call("runs", self.model.runs(filter, after, size))
            .await
    }

    async fn counts(&self) -> Result<Vec<RunCounts>, StoreError> {
        self.call("counts", self.model.counts()).await
    }

    async fn sequences(
        &self,
        shard: &SchedulerShardId,
        from_sequence: u64,
        limit: u32,
    ) -> Result<Vec<SequenceRecord>, StoreError> {
        self.call(
            "sequences",
            self.model.sequences(shard, from_sequence, limit),
        )
        .await
    }

    async fn cancel(&self, id: RunId) -> Result<Cancellation, StoreError> {
        self.call("cancel", self.model.cancel(id)).await
    }

    async fn set_limit(
        &self,
        pool: &PoolId,
        subject: &LimitSubject,
        runs_max: Option<RunsMax>,
    ) -> Result<(), StoreError> {
        self.call("set_limit", self.model.set_limit(pool, subject, runs_max))
            .await
    }

    async fn unserved(&self) -> Result<Vec<UnservedRuns>, StoreError> {
        self.call("unserved", self.model.unserved()).await
    }

    async fn health(&self, shard: &SchedulerShardId) -> Result<StoreHealth, StoreError> {
        let mut health = self.call("health", self.model.health(shard)).await?;
        health.oldest_snapshot_age = self.script.lock().expect("no panic").snapshot_age;
        Ok(health)
    }

    async fn prune_history(
        &self,
        policy: HistoryRetentionPolicy,
    ) -> Result<HistoryReport, StoreError> {
        self.call("prune_history", self.model.prune_history(policy))
            .await
    }
}
