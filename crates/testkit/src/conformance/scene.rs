//! What most facts begin with, and the words they are told in.

use core::fmt::Debug;
use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{
    PoolId, SchedulerShardId, TeamId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy,
};
use evenhand_store::{
    AttemptRecord, Claim, ClaimRequest, ClaimedRun, LeaseDuration, NewRun, Payload,
    PolicyRegistration, Reservation, ReservationCount, ReservationId, ReservationStore,
    ReserveRequest, Round, RoundRequest, Run, RunCounts, RunId, RunKind, RunQueue,
    SchedulerFairnessRetentionPolicy, SequenceOutcome, SequenceRecord, StoreError, StoreErrorKind,
    Timestamp, WorkerName,
};
use futures::future::join_all;
use tokio::sync::Barrier;

use super::StoreUnderTest;

/// A store with one registered policy, and one handle on it.
pub(super) struct Scene<S: StoreUnderTest> {
    pub(super) under_test: S,
    pub(super) store: Arc<S::Store>,
    pub(super) policy: WeightedFairnessPolicy,
}

impl<S: StoreUnderTest> Scene<S> {
    /// Shard `scene` with tenants `a` of weight 3 and `b` of weight 1, serving the default pool.
    pub(super) async fn start() -> Self {
        Self::registered(PolicyRegistration::new(policy(
            "scene",
            &[("a", 3), ("b", 1)],
        )))
        .await
    }

    pub(super) async fn registered(registration: PolicyRegistration) -> Self {
        let under_test = S::start().await;
        let store = Arc::new(under_test.open().await);
        store
            .register_policy(&registration)
            .await
            .must("the first registration");
        Self {
            under_test,
            store,
            policy: registration.policy,
        }
    }

    /// Registers another shard, which serves a pool of its own name.
    pub(super) async fn another_shard(&self, shard: &str) -> WeightedFairnessPolicy {
        let policy = policy(shard, &[("a", 3), ("b", 1)]);
        let registration = PolicyRegistration::new(policy.clone()).in_pool(pool(shard));
        self.store
            .register_policy(&registration)
            .await
            .must("another registration");
        policy
    }

    pub(super) async fn handles(&self, number: usize) -> Vec<Arc<S::Store>> {
        join_all((0..number).map(|_| async { Arc::new(self.under_test.open().await) })).await
    }

    pub(super) async fn now(&self) -> Timestamp {
        self.store
            .cursor(self.policy.shard())
            .await
            .must("the cursor")
            .store_time
    }

    pub(super) async fn next_sequence(&self) -> Option<u64> {
        self.store
            .cursor(self.policy.shard())
            .await
            .must("the cursor")
            .next_sequence
    }

    pub(super) async fn advance(&self, by: Duration) {
        self.under_test.advance_clock(by).await;
    }

    /// A request for `count` sequences with a new id of the store's own time.
    pub(super) async fn request(&self, count: u32) -> ReserveRequest {
        request(&self.policy, ReservationId::mint(self.now().await), count)
    }

    pub(super) async fn reserve(&self, count: u32) -> Reservation {
        let request = self.request(count).await;
        self.store.reserve(&request).await.must("a new reservation")
    }

    pub(super) async fn reservations(&self) -> Vec<Reservation> {
        self.reservations_of(&self.policy).await
    }

    pub(super) async fn reservations_of(
        &self,
        policy: &WeightedFairnessPolicy,
    ) -> Vec<Reservation> {
        self.store
            .reservations(policy.shard(), 0, 10_000)
            .await
            .must("the reservations")
    }

    /// Deletes what is older than an hour, at most `batch` rows.
    pub(super) fn an_hour(batch: u32) -> SchedulerFairnessRetentionPolicy {
        SchedulerFairnessRetentionPolicy::new(Duration::from_hours(1), batch).must("one hour")
    }

    /// Reserves until it has `number` new sequences of `tenant`.
    pub(super) async fn sequences_of(&self, tenant: &str, number: usize) -> Vec<u64> {
        let mut sequences = Vec::new();
        while sequences.len() < number {
            let block = self.reserve(self.policy.cycle_length()).await.sequences();
            let selected =
                |sequence: &u64| self.policy.tenant_for_sequence(*sequence).as_str() == tenant;
            sequences.extend(block.filter(selected));
        }
        sequences.truncate(number);
        sequences
    }

    pub(super) async fn sequence_of(&self, tenant: &str) -> u64 {
        self.sequences_of(tenant, 1).await[0]
    }

    pub(super) async fn enqueue(&self, run: &NewRun) -> RunId {
        self.store.enqueue(run).await.must("an enqueue").run
    }

    pub(super) async fn run(&self, id: RunId) -> Run {
        self.store
            .run(id)
            .await
            .must("a run")
            .must("the run that was enqueued")
    }

    pub(super) async fn claim(&self, sequence: u64) -> Claim {
        let request = claim(&self.policy, sequence);
        self.store.claim(&request).await.must("a claim")
    }

    /// Claims against a new sequence of `tenant`, which must have a ready run.
    pub(super) async fn claimed(&self, tenant: &str) -> ClaimedRun {
        let sequence = self.sequence_of(tenant).await;
        ran(self.claim(sequence).await)
    }

    /// Enqueues a run of tenant `a` and claims it.
    pub(super) async fn started(&self) -> ClaimedRun {
        self.enqueue(&run("a")).await;
        self.claimed("a").await
    }

    /// Claims against all sequences of a block, as whoever else claims in this scene.
    pub(super) async fn round(&self, block: &Reservation) -> Round {
        let request = round(&self.policy, block, "conformance", block.count.get());
        self.store.claim_round(&request).await.must("a round")
    }

    /// How many runs of all tenants and pools are in this state.
    pub(super) async fn count(&self, of_state: fn(&RunCounts) -> u64) -> u64 {
        let counts = self.store.counts().await.must("the counts");
        counts.iter().map(of_state).sum()
    }

    pub(super) async fn records(&self) -> Vec<SequenceRecord> {
        let shard = self.policy.shard();
        let records = self.store.sequences(shard, 0, 10_000).await;
        records.must("the outcomes")
    }

    pub(super) async fn record(&self, sequence: u64) -> SequenceRecord {
        let shard = self.policy.shard();
        let records = self
            .store
            .sequences(shard, sequence, 1)
            .await
            .must("the outcomes");
        let record = records.into_iter().next().must("an outcome");
        assert_eq!(
            record.sequence, sequence,
            "the outcome is that of another sequence"
        );
        record
    }
}

/// Unwraps what a promise says must be there.
pub(super) trait Must<T> {
    #[track_caller]
    fn must(self, what: &str) -> T;
}

impl<T, E: Debug> Must<T> for Result<T, E> {
    fn must(self, what: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("{what} must succeed, but: {error:?}"),
        }
    }
}

impl<T> Must<T> for Option<T> {
    fn must(self, what: &str) -> T {
        match self {
            Some(value) => value,
            None => panic!("{what} must be there"),
        }
    }
}

/// Asserts that a call is refused for this reason.
#[track_caller]
pub(super) fn refused<T: Debug>(answer: Result<T, StoreError>, kind: StoreErrorKind, what: &str) {
    match answer {
        Err(error) => assert_eq!(
            error.kind(),
            kind,
            "{what} is refused for the wrong reason: {error}"
        ),
        Ok(value) => panic!("{what} must be refused ({kind}), but was answered {value:?}"),
    }
}

/// Asserts that the reservations follow each other without gap or overlap, and returns the sequence after the last.
#[track_caller]
pub(super) fn assert_contiguous(reservations: &[Reservation]) -> u64 {
    let mut expected = 0;
    for reservation in reservations {
        assert_eq!(
            reservation.first_sequence, expected,
            "gap or overlap at {reservation:?}"
        );
        expected = reservation.sequences().end() + 1;
    }
    expected
}

/// The policy of `shard`.
pub(super) fn policy(shard: &str, weights: &[(&str, u32)]) -> WeightedFairnessPolicy {
    let shard = SchedulerShardId::try_from(shard).must("a shard id");
    let weights = weights
        .iter()
        .map(|(name, weight)| TenantFairnessWeight::new(tenant(name), *weight).must("a weight"));
    WeightedFairnessPolicy::new(shard, weights).must("a policy")
}

pub(super) fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name).must("a tenant id")
}

pub(super) fn pool(name: &str) -> PoolId {
    PoolId::try_from(name).must("a pool id")
}

pub(super) fn team(name: &str) -> TeamId {
    TeamId::try_from(name).must("a team id")
}

pub(super) fn worker(name: &str) -> WorkerName {
    WorkerName::try_from(name).must("a name")
}

pub(super) fn request(
    policy: &WeightedFairnessPolicy,
    id: ReservationId,
    count: u32,
) -> ReserveRequest {
    ReserveRequest::new(policy, id, ReservationCount::new(count).must("a count"))
}

/// A run of `name` with every default.
pub(super) fn run(name: &str) -> NewRun {
    let kind = RunKind::try_from("conformance").must("a kind");
    NewRun::new(tenant(name), kind, Payload::default())
}

pub(super) fn claim(policy: &WeightedFairnessPolicy, sequence: u64) -> ClaimRequest {
    ClaimRequest::new(policy, sequence, worker("conformance"), lease(30))
}

pub(super) fn lease(seconds: u64) -> LeaseDuration {
    LeaseDuration::new(Duration::from_secs(seconds)).must("a lease")
}

/// A round over the whole of `block`.
pub(super) fn round(
    policy: &WeightedFairnessPolicy,
    block: &Reservation,
    by: &str,
    runs_max: u32,
) -> RoundRequest {
    RoundRequest::new(policy, block, worker(by), lease(30), runs_max)
}

#[track_caller]
pub(super) fn ran(claim: Claim) -> ClaimedRun {
    let Claim::Ran(claimed) = claim else {
        panic!("the claim must run something, but it is {claim:?}")
    };
    *claimed
}

/// The attempt of a sequence that ran.
#[track_caller]
pub(super) fn attempt(record: &SequenceRecord) -> &AttemptRecord {
    let SequenceOutcome::Ran(attempt) = &record.outcome else {
        panic!(
            "sequence {} ran, but its outcome is {:?}",
            record.sequence, record.outcome
        )
    };
    attempt
}

/// Who claimed the run that a sequence ran, if it ran any.
pub(super) fn worker_of(outcome: &SequenceOutcome) -> Option<&WorkerName> {
    if let SequenceOutcome::Ran(attempt) = outcome {
        Some(&attempt.worker)
    } else {
        None
    }
}

/// Runs the tasks at once, each on a task of its own, and gives their answers in order. A panic goes on in the caller.
pub(super) async fn at_once<F>(tasks: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let tasks: Vec<F> = tasks.into_iter().collect();
    let start = Arc::new(Barrier::new(tasks.len()));
    let spawned: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let start = Arc::clone(&start);
            tokio::spawn(async move {
                start.wait().await;
                task.await
            })
        })
        .collect();
    let mut answers = Vec::with_capacity(spawned.len());
    for task in spawned {
        match task.await {
            Ok(answer) => answers.push(answer),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    answers
}
