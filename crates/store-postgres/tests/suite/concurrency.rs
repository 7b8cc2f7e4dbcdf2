//! Many connections at once.

use std::collections::BTreeSet;

use evenhand_store::{
    PolicyRegistration, ReservationStore, ReserveRequest, RunQueue, StoreErrorKind,
};
use futures::future::join_all;

use crate::scene::{Scene, kind, policy, ran, request, run};

#[tokio::test(flavor = "multi_thread")]
async fn one_id_asked_from_many_connections_at_once_gets_one_answer() {
    let scene = Scene::start().await;
    for _ in 0..20 {
        let request = scene.request(3);
        let answers = join_all((0..12).map(|_| scene.store.reserve(&request))).await;
        let first: BTreeSet<u64> = answers
            .into_iter()
            .map(|answer| answer.unwrap().first_sequence)
            .collect();
        assert_eq!(first.len(), 1);
    }
    assert_eq!(
        scene
            .number("SELECT count(*) FROM evenhand.reservations")
            .await,
        20
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_ids_from_many_connections_get_contiguous_disjoint_sequences() {
    let scene = Scene::start().await;
    let requests: Vec<ReserveRequest> = (0..400).map(|n| scene.request(1 + n % 5)).collect();
    let answers = join_all(requests.iter().map(|request| scene.store.reserve(request))).await;
    let mut taken: Vec<u64> = answers
        .into_iter()
        .flat_map(|answer| answer.unwrap().sequences())
        .collect();
    taken.sort_unstable();
    assert!(
        taken
            .iter()
            .copied()
            .eq(0..u64::try_from(taken.len()).unwrap())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_in_two_shards_at_once_is_refused_in_one() {
    let scene = Scene::start().await;
    let other = policy("other-v1", &[("a", 1)]);
    scene
        .store
        .register_policy(&PolicyRegistration::new(other.clone()).in_pool("other".parse().unwrap()))
        .await
        .unwrap();
    for _ in 0..20 {
        let here = scene.request(1);
        let mut there = request(&other, 1);
        there.id = here.id;
        let (a, b) = tokio::join!(scene.store.reserve(&here), scene.store.reserve(&there));
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
        let refused = if a.is_err() { here } else { there };
        assert_eq!(
            kind(scene.store.reserve(&refused).await),
            StoreErrorKind::ReservationConflict
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_policy_registered_from_many_connections_is_created_once() {
    let scene = Scene::start().await;
    let registration = PolicyRegistration::new(policy("second-v1", &[("x", 2), ("y", 1)]))
        .in_pool("second".parse().unwrap());
    let answers = join_all((0..12).map(|_| scene.store.register_policy(&registration))).await;
    let created = answers
        .into_iter()
        .filter(|answer| answer.as_ref().unwrap().created)
        .count();
    assert_eq!(created, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_claims_of_one_tenant_take_different_runs() {
    let scene = Scene::start().await;
    scene.store.enqueue_many(&vec![run("a"); 60]).await.unwrap();
    let reservation = scene.reserve(80).await;
    let of_a: Vec<u64> = reservation
        .sequences()
        .filter(|sequence| scene.policy.tenant_for_sequence(*sequence).as_str() == "a")
        .collect();
    assert_eq!(of_a.len(), 60);
    let claims = join_all(of_a.into_iter().map(|sequence| scene.claim(sequence))).await;
    // A claim may lose races against up to 15 others, but all 60 runs are ready and none is looked at for nothing.
    let runs: BTreeSet<_> = claims.into_iter().map(|claim| ran(claim).run.id).collect();
    assert_eq!(runs.len(), 60);
}
