//! The model store on tokio's clock, with faults on demand and a log of its calls; and what all facts need.

mod contract;

use core::future::Future;
use core::time::Duration;

use std::sync::{Arc, Mutex};

use evenhand_policy::{TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::Job;
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    NewRun, Reservation, ReservationCount, ReservationId, ReservationStore, ReserveRequest, Run,
    RunId, RunQueue, SequenceOutcome, SequenceRecord, StoreError, StoreErrorKind, Timestamp,
};
use tokio::sync::Notify;
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
    /// It is done after this long.
    Late(Duration),
}

/// Whom a store wakes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wakes {
    /// It does not offer to.
    Nobody,
    /// Whoever waits when something is enqueued.
    WhenEnqueued,
    /// Whoever waits, for no reason.
    AtOnce,
}

#[derive(Default)]
struct Script {
    faults: Vec<(&'static str, Fault, usize)>,
    calls: Vec<&'static str>,
    renewed: Vec<usize>,
    completed: Vec<usize>,
    waits: Vec<Duration>,
    snapshot_age: Option<Duration>,
}

/// A model store whose clock goes with tokio's. Clones share everything, as processes share a database.
#[derive(Clone)]
pub(crate) struct TestStore {
    pub(crate) model: MemoryStore,
    started: Timestamp,
    origin: Instant,
    script: Arc<Mutex<Script>>,
    enqueued: Arc<Notify>,
    wakes: Wakes,
    deserted: bool,
    keeps_ready: bool,
    round_length_max: ReservationCount,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        let started: Timestamp = "2026-05-01T12:00:00Z".parse().expect("a time");
        Self {
            model: MemoryStore::new(started),
            started,
            origin: Instant::now(),
            script: Arc::default(),
            enqueued: Arc::default(),
            wakes: Wakes::Nobody,
            deserted: false,
            keeps_ready: false,
            round_length_max: ReservationCount::MAX,
        }
    }

    /// The same store, which also wakes those who wait for work.
    pub(crate) fn that_wakes(mut self, wakes: Wakes) -> Self {
        self.wakes = wakes;
        self
    }

    /// The same store, in which after each reservation somebody else reserves the rest of the cycle, and dies.
    pub(crate) fn with_deserters(mut self) -> Self {
        self.deserted = true;
        self
    }

    /// The same store, which keeps to itself who is ready after a round.
    pub(crate) fn that_tells_no_looks(mut self) -> Self {
        self.keeps_ready = true;
        self
    }

    /// The same store for which blocks of this length are the longest worth reserving.
    pub(crate) fn with_rounds_of(mut self, sequences: u32) -> Self {
        self.round_length_max = ReservationCount::new(sequences).expect("a count");
        self
    }

    /// The next `times` calls of this method go wrong.
    pub(crate) fn inject(&self, method: &'static str, fault: Fault, times: usize) {
        self.script
            .lock()
            .expect("no panic")
            .faults
            .push((method, fault, times));
    }

    /// From now on the oldest snapshot is said to be held for this long, or for how long is said to be hidden.
    pub(crate) fn tell_snapshot_age(&self, age: Option<Duration>) {
        self.script.lock().expect("no panic").snapshot_age = age;
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

    /// How many leases each call of `complete_many` was for.
    pub(crate) fn completed(&self) -> Vec<usize> {
        self.script.lock().expect("no panic").completed.clone()
    }

    /// How long each call of `wait_for_work` asked to wait at most.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.script.lock().expect("no panic").waits.clone()
    }

    /// All reservations that were made in the policy's shard.
    pub(crate) async fn blocks(&self, policy: &WeightedFairnessPolicy) -> Vec<Reservation> {
        self.model
            .reservations(policy.shard(), 0, 10_000)
            .await
            .expect("registered")
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
            .sequences(policy.shard(), 0, 1_000_000)
            .await
            .expect("registered")
    }

    /// Whether every sequence that was consumed has an end on record.
    pub(crate) async fn everything_is_on_record(&self, policy: &WeightedFairnessPolicy) -> bool {
        let records = self.records(policy).await;
        (0..self.consumed(policy).await).eq(records.iter().map(|record| record.sequence))
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

    async fn desert(&self, request: &ReserveRequest) -> Result<(), StoreError> {
        let cursor = self.model.cursor(&request.shard).await?;
        let next = cursor.next_sequence.expect("the range is not used up");
        let slots = u64::from(request.cycle_length);
        let rest = u32::try_from((slots - next % slots) % slots).expect("a slot");
        if let Ok(count) = ReservationCount::new(rest) {
            let id = ReservationId::mint(cursor.store_time);
            let mut rest = request.clone();
            (rest.id, rest.count) = (id, count);
            self.model.reserve(&rest).await?;
        }
        Ok(())
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
            Some(Fault::Late(pause)) => {
                tokio::time::sleep(pause).await;
                work.await
            }
        }
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
    policy_of("shard", weights)
}

pub(crate) fn policy_of(shard: &str, weights: &[(&str, u32)]) -> WeightedFairnessPolicy {
    let weights = weights.iter().map(|(tenant, weight)| {
        TenantFairnessWeight::new(tenant.parse().expect("a tenant"), *weight).expect("a weight")
    });
    WeightedFairnessPolicy::new(shard.parse().expect("a shard"), weights).expect("a policy")
}
