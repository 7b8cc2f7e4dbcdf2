//! The model store on tokio's clock, with faults on demand and a log of its calls; and what all facts need.

use core::future::Future;
use core::time::Duration;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::Job;
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    Claim, ClaimRequest, Cursor, Enqueued, Failure, FailureOutcome, Lease, LeaseDuration, NewRun,
    PageSize, PolicyRegistration, ReadyTenants, RecoveryReport, Registered, Renewal, Reservation,
    ReservationStore, ReserveRequest, RetentionReport, Run, RunCounts, RunFilter, RunId, RunPage,
    RunQueue, SchedulerFairnessRetentionPolicy, SequenceOutcome, SequenceRecord, StoreError,
    StoreErrorKind, Timestamp,
};
use tokio::time::Instant;

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It is refused, and nothing is done.
    Refuse(StoreErrorKind),
    /// It is done, and the answer is lost.
    LoseReply,
    /// It is never answered, and nothing is done.
    Hang,
    /// The store panics.
    Panic,
}

#[derive(Default)]
struct Script {
    faults: Vec<(&'static str, Fault, usize)>,
    calls: Vec<&'static str>,
    renewed: Vec<usize>,
}

/// A model store whose clock goes with tokio's. Clones share everything, as processes share a database.
#[derive(Clone)]
pub(crate) struct TestStore {
    pub(crate) model: MemoryStore,
    started: Timestamp,
    origin: Instant,
    script: Arc<Mutex<Script>>,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        let started: Timestamp = "2026-05-01T12:00:00Z".parse().expect("a time");
        Self {
            model: MemoryStore::new(started),
            started,
            origin: Instant::now(),
            script: Arc::default(),
        }
    }

    /// The next `times` calls of this method go wrong.
    pub(crate) fn inject(&self, method: &'static str, fault: Fault, times: usize) {
        self.script
            .lock()
            .expect("no panic")
            .faults
            .push((method, fault, times));
    }

    /// From now on everything works again.
    pub(crate) fn mend(&self) {
        self.script.lock().expect("no panic").faults.clear();
    }

    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.script.lock().expect("no panic").calls.clone()
    }

    pub(crate) fn count(&self, method: &str) -> usize {
        self.calls().iter().filter(|call| **call == method).count()
    }

    /// How many leases each call of renew was for.
    pub(crate) fn renewed(&self) -> Vec<usize> {
        self.script.lock().expect("no panic").renewed.clone()
    }

    pub(crate) async fn add(&self, tenant: &str, count: u32) -> Vec<RunId> {
        let runs: Vec<NewRun> = (0..count).map(|number| run_of(tenant, number)).collect();
        self.add_all(&runs).await
    }

    pub(crate) async fn add_all(&self, runs: &[NewRun]) -> Vec<RunId> {
        let enqueued = self.enqueue_many(runs).await.expect("enqueued");
        enqueued.iter().map(|enqueued| enqueued.run).collect()
    }

    pub(crate) async fn get(&self, run: RunId) -> Run {
        self.model
            .run(run)
            .await
            .expect("answered")
            .expect("there is such a run")
    }

    pub(crate) async fn consumed(&self, policy: &WeightedFairnessPolicy) -> u64 {
        let cursor = self.model.cursor(policy.shard()).await.expect("registered");
        cursor.next_sequence.expect("the range is not used up")
    }

    pub(crate) async fn records(&self, policy: &WeightedFairnessPolicy) -> Vec<SequenceRecord> {
        self.model
            .sequences(policy.shard(), 0, 10_000)
            .await
            .expect("registered")
    }

    /// The tenants of the sequences that ran something, in order.
    pub(crate) async fn ran(&self, policy: &WeightedFairnessPolicy) -> Vec<(u64, TenantId)> {
        let records = self.records(policy).await.into_iter();
        records
            .filter_map(|record| {
                let SequenceOutcome::Ran(attempt) = record.outcome else {
                    return None;
                };
                Some((record.sequence, attempt.tenant))
            })
            .collect()
    }

    async fn call<T>(
        &self,
        method: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let now = self
            .started
            .saturating_add(self.origin.elapsed())
            .expect("in range");
        self.model.set_clock(now);
        let fault = {
            let mut script = self.script.lock().expect("no panic");
            script.calls.push(method);
            let next = script
                .faults
                .iter_mut()
                .find(|(name, _, times)| *name == method && *times > 0);
            next.map(|(_, fault, times)| {
                *times -= 1;
                *fault
            })
        };
        match fault {
            None => work.await,
            Some(Fault::Refuse(kind)) => Err(StoreError::new(kind, "injected")),
            Some(Fault::LoseReply) => {
                work.await?;
                Err(StoreError::new(StoreErrorKind::OutcomeUnknown, "injected"))
            }
            Some(Fault::Hang) => core::future::pending().await,
            Some(Fault::Panic) => panic!("injected"),
        }
    }
}

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

    async fn reserve(&self, request: &ReserveRequest) -> Result<Reservation, StoreError> {
        self.call("reserve", self.model.reserve(request)).await
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
        self.call("enqueue_many", self.model.enqueue_many(runs))
            .await
    }

    async fn ready_tenants(&self, shard: &SchedulerShardId) -> Result<ReadyTenants, StoreError> {
        self.call("ready_tenants", self.model.ready_tenants(shard))
            .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        self.call("claim", self.model.claim(request)).await
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
}

/// The job of most facts.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Task {
    pub(crate) number: u32,
}

impl Job for Task {
    const KIND: &'static str = "task";
}

pub(crate) fn run_of(tenant: &str, number: u32) -> NewRun {
    Task { number }
        .new_run(tenant.parse().expect("a tenant"))
        .expect("a run")
}

pub(crate) fn policy(weights: &[(&str, u32)]) -> WeightedFairnessPolicy {
    let weights = weights.iter().map(|(tenant, weight)| {
        TenantFairnessWeight::new(tenant.parse().expect("a tenant"), *weight).expect("a weight")
    });
    WeightedFairnessPolicy::new("shard".parse().expect("a shard"), weights).expect("a policy")
}
