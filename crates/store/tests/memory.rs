//! What is `MemoryStore`'s own, beside the promises of every store.
#![cfg(feature = "memory")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{
    PoolId, SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy,
};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    Cancellation, Claim, ClaimRequest, Controlled, Failure, FailureOutcome, HistoryRetentionPolicy,
    LeaseDuration, LimitSubject, NewRun, PageSize, Payload, PolicyRegistration, ReservationCount,
    ReservationId, ReservationStore, ReserveRequest, Retry, RoundLimits, RoundRequest, RunFilter,
    RunQueue, RunsMax, SEQUENCE_MAX, SchedulerFairnessRetentionPolicy, ShardStanding,
    StoreErrorKind, TenantHistoryRequest, Timestamp, WaitRequest,
};

fn clock() -> Timestamp {
    "2026-05-01T12:00:00Z".parse().unwrap()
}

fn policy() -> WeightedFairnessPolicy {
    let weight = |name, weight| {
        TenantFairnessWeight::new(TenantId::try_from(name).unwrap(), weight).unwrap()
    };
    WeightedFairnessPolicy::new("shard".parse().unwrap(), [weight("a", 1), weight("b", 1)]).unwrap()
}

fn request(count: u32) -> ReserveRequest {
    let count = ReservationCount::new(count).unwrap();
    ReserveRequest::new(&policy(), ReservationId::mint(clock()), count)
}

fn run(name: &str) -> NewRun {
    let tenant = TenantId::try_from(name).unwrap();
    NewRun::new(tenant, "kind".parse().unwrap(), Payload::default())
}

fn claim(sequence: u64) -> ClaimRequest {
    ClaimRequest::new(
        &policy(),
        sequence,
        "worker".parse().unwrap(),
        LeaseDuration::default(),
    )
}

async fn registered() -> MemoryStore {
    let store = MemoryStore::new(clock());
    store
        .register_policy(&PolicyRegistration::new(policy()))
        .await
        .unwrap();
    store
}

#[tokio::test]
async fn a_clone_is_another_handle_on_the_same_data() {
    let store = registered().await;
    let other = store.clone();
    let asked = request(3);
    let first = store.reserve(&asked).await.unwrap();
    assert_eq!(other.reserve(&asked).await.unwrap(), first);
    other.advance(Duration::from_secs(1));
    assert_eq!(store.clock(), clock() + Duration::from_secs(1));
}

#[tokio::test]
async fn the_same_calls_get_the_same_run_ids() {
    let mut ids = Vec::new();
    for _ in 0..2 {
        let store = registered().await;
        let enqueued = store
            .enqueue_many(&[run("b"), run("a"), run("a")])
            .await
            .unwrap();
        ids.push(enqueued.iter().map(|answer| answer.run).collect::<Vec<_>>());
    }
    assert_eq!(ids[0], ids[1]);
    assert!(ids[0].is_sorted(), "runs of one time keep their order");
}

#[tokio::test]
async fn an_order_is_moved_only_before_it_begins() {
    let store = registered().await;
    let unknown = SchedulerShardId::try_from("unknown").unwrap();
    let error = store.skip_to(&unknown, 7).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::PolicyNotFound);
    store.skip_to(policy().shard(), 7).unwrap();
    assert_eq!(store.reserve(&request(1)).await.unwrap().first_sequence, 7);
    let error = store.skip_to(policy().shard(), 9).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
}

#[tokio::test]
async fn an_order_can_begin_where_the_range_ends() {
    let store = registered().await;
    store.skip_to(policy().shard(), SEQUENCE_MAX + 1).unwrap();
    assert_eq!(
        store.cursor(policy().shard()).await.unwrap().next_sequence,
        None
    );
    let error = store.reserve(&request(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::SequenceExhausted);
}

#[tokio::test]
async fn a_clock_at_the_end_of_the_calendar_stays_there() {
    let store = registered().await;
    store.advance(Duration::MAX);
    assert_eq!(store.clock(), Timestamp::MAX);
    let far = ReserveRequest::new(
        &policy(),
        ReservationId::mint(Timestamp::MAX),
        ReservationCount::ONE,
    );
    store.reserve(&far).await.unwrap();
    store.enqueue(&run("a")).await.unwrap();
    let Claim::Ran(claimed) = store.claim(&claim(0)).await.unwrap() else {
        panic!("no run")
    };
    assert_eq!(claimed.lease.expires_at, Timestamp::MAX);
    let failure = Failure::new("late", Retry::After(Duration::MAX));
    let outcome = store.fail(&claimed.lease, &failure).await.unwrap();
    assert_eq!(outcome, FailureOutcome::Requeued(Timestamp::MAX));
}

/// Calls every method of both traits through whatever points to a store.
async fn call_all<S: ReservationStore + RunQueue>(store: S) {
    let shard = policy().shard().clone();
    store
        .register_policy(&PolicyRegistration::new(policy()))
        .await
        .unwrap();
    assert_eq!(store.load_policy(&shard).await.unwrap(), policy());
    store.reserve(&request(8)).await.unwrap();
    assert_eq!(store.cursor(&shard).await.unwrap().next_sequence, Some(8));
    assert_eq!(store.reservations(&shard, 0, 10).await.unwrap().len(), 1);
    let hour = SchedulerFairnessRetentionPolicy::new(Duration::from_hours(1), 1).unwrap();
    let pass = store
        .prune_scheduler_fairness_reservations(hour)
        .await
        .unwrap();
    assert_eq!((pass.deleted, pass.more), (0, false));

    store.enqueue_many(&[run("a"), run("a")]).await.unwrap();
    let last = store.enqueue(&run("a")).await.unwrap().run;
    assert_eq!(
        store.ready_tenants(&shard).await.unwrap().tenants,
        [run("a").tenant]
    );
    for sequence in [0, 2, 4] {
        let Claim::Ran(claimed) = store.claim(&claim(sequence)).await.unwrap() else {
            panic!("sequence {sequence} ran nothing")
        };
        let lease = claimed.lease;
        store
            .renew(core::slice::from_ref(&lease), LeaseDuration::default())
            .await
            .unwrap();
        match sequence {
            0 => store.complete(&lease).await.unwrap(),
            2 => drop(
                store
                    .fail(&lease, &Failure::new("no", Retry::GiveUp))
                    .await
                    .unwrap(),
            ),
            _ => store.release(&lease, Duration::from_mins(1)).await.unwrap(),
        }
    }
    store.record_failed(&shard, 6).await.unwrap();
    assert_eq!(store.recover(10).await.unwrap().requeued, 0);
    assert_eq!(store.run(last).await.unwrap().unwrap().id, last);
    let page = store
        .runs(&RunFilter::default(), None, PageSize::default())
        .await
        .unwrap();
    assert_eq!((page.runs.len(), page.next), (3, None));
    assert_eq!(store.counts().await.unwrap().len(), 1);
    assert_eq!(store.sequences(&shard, 0, 10).await.unwrap().len(), 4);
    call_optional(store, &shard).await;
}

/// Calls every method with a default body after the others; each answer differs from that of the default.
async fn call_optional<S: ReservationStore + RunQueue>(store: S, shard: &SchedulerShardId) {
    assert_eq!(store.round_length_max(), ReservationCount::MAX);
    let block = store.reservations(shard, 0, 1).await.unwrap()[0];
    let (worker, lease) = ("worker".parse().unwrap(), LeaseDuration::default());
    let limits = RoundLimits::default().with_team_window(1);
    let request = RoundRequest::new(&policy(), &block, worker, lease, 8).within(limits);
    let round = store.claim_round(&request).await.unwrap();
    assert_eq!((round.moved_on.len(), round.contended.len()), (3, 1));
    let lost = store.lost_blocks(shard, Duration::ZERO, 1).await.unwrap();
    assert_eq!(lost, []);
    let wait = WaitRequest::new(shard.clone(), "worker".parse().unwrap(), Duration::ZERO);
    let error = store.wait_for_work(&wait).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);

    let (tenant, from, to) = (run("a").tenant, Timestamp::MIN, Timestamp::MAX);
    let request = TenantHistoryRequest::new(shard.clone(), tenant.clone(), from, to, 10);
    let summary = store.tenant_history(&request).await.unwrap().summary();
    assert_eq!((summary.ran, summary.failed), (3, 1));
    let health = store.health(shard).await.unwrap();
    assert_eq!(health.oldest_reservation_at, Some(block.reserved_at));
    let pool = PoolId::default();
    let subject = LimitSubject::Tenant(tenant);
    let runs_max = Some(RunsMax::new(2).unwrap());
    store.set_limit(&pool, &subject, runs_max).await.unwrap();
    assert_eq!(store.limits(&pool).await.unwrap().len(), 1);

    let id = store.enqueue(&run("stranger")).await.unwrap().run;
    assert_eq!(store.unserved().await.unwrap().len(), 1);
    assert_eq!(store.cancel(id).await.unwrap(), Cancellation::Cancelled);
    assert_eq!(store.requeue(id).await.unwrap(), Controlled::Done);
    assert_eq!(store.cancel(id).await.unwrap(), Cancellation::Cancelled);
    assert_eq!(store.discard(id).await.unwrap(), Controlled::Done);
    let report = store.prune_history(HistoryRetentionPolicy::default()).await;
    assert!(!report.unwrap().more);

    let next =
        WeightedFairnessPolicy::new("next".parse().unwrap(), policy().tenants().iter().cloned());
    let next = next.unwrap();
    let registered = store
        .register_policy(&PolicyRegistration::new(next.clone()))
        .await;
    assert_eq!(registered.unwrap().standing, ShardStanding::Pending);
    assert!(store.retire(shard, next.shard()).await.unwrap().created);
    assert_eq!(
        store.standing(next.shard()).await.unwrap(),
        ShardStanding::Active
    );
    assert_eq!(store.active_policy(&pool).await.unwrap(), next);
}

#[tokio::test]
async fn pointers_to_a_store_are_stores() {
    call_all(&MemoryStore::new(clock())).await;
    call_all(Box::new(MemoryStore::new(clock()))).await;
    call_all(Arc::new(MemoryStore::new(clock()))).await;
}

#[tokio::test]
async fn both_traits_work_behind_dyn() {
    let store = Arc::new(registered().await);
    let order: Arc<dyn ReservationStore> = store.clone();
    let queue: Arc<dyn RunQueue> = store;
    order.reserve(&request(2)).await.unwrap();
    queue.enqueue(&run("b")).await.unwrap();
    assert!(matches!(
        queue.claim(&claim(1)).await.unwrap(),
        Claim::Ran(_)
    ));
}
