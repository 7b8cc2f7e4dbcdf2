//! What is `MemoryStore`'s own, beside the promises of every store.
#![cfg(feature = "memory")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    Claim, ClaimRequest, Failure, FailureOutcome, LeaseDuration, NewRun, PageSize, Payload,
    PolicyRegistration, ReservationCount, ReservationId, ReservationStore, ReserveRequest, Retry,
    RunFilter, RunQueue, SEQUENCE_MAX, SchedulerFairnessRetentionPolicy, StoreErrorKind, Timestamp,
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
