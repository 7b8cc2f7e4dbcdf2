//! A retired shard reserves and settles nothing any more; what it knows is answered as ever.

use core::time::Duration;

use evenhand_store::{Renewal, ReservationStore, RunQueue, StoreErrorKind};

use super::StoreUnderTest;
use super::optional::Method;
use super::scene::{Must, Scene, claim, lease, ran, refused, round, run};
use super::succession::{changing, registered, retire};

pub(super) async fn a_retired_shard_reserves_nothing_new<S: StoreUnderTest>() {
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let known = scene.request(7).await;
    let first = scene.store.reserve(&known).await;
    let first = first.must("the last reservation of the old order");
    retire_scene(&scene).await;
    let answer = scene.store.ready_tenants(scene.policy.shard()).await;
    refused(answer, StoreErrorKind::Retired, "a look at a retired shard");
    for handle in scene.handles(2).await {
        let answer = handle.reserve(&scene.request(1).await).await;
        refused(
            answer,
            StoreErrorKind::Retired,
            "a new id on a retired shard",
        );
        let again = handle
            .reserve(&known)
            .await
            .must("a known id on a retired shard");
        assert_eq!(again.first_sequence, first.first_sequence);
        assert_eq!(again.reserved_at, first.reserved_at);
    }
    assert_eq!(
        scene.next_sequence().await,
        Some(7),
        "a refused reservation consumed a sequence"
    );
    assert_eq!(scene.reservations().await.len(), 1);
    let loaded = scene
        .store
        .load_policy(scene.policy.shard())
        .await
        .must("the policy");
    assert_eq!(loaded, scene.policy);
}

pub(super) async fn what_has_ended_is_answered_as_before<S: StoreUnderTest>() {
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let (store, shard) = (&scene.store, scene.policy.shard());
    let settled = scene.reserve(4).await;
    let idle = scene.round(&settled).await;
    store
        .enqueue_many(&vec![run("a"); 4])
        .await
        .must("a backlog");
    let half = scene.reserve(4).await;
    let held = ran(scene.claim(half.first_sequence).await);
    let failed = half.first_sequence + 1;
    store
        .record_failed(shard, failed)
        .await
        .must("the record of a failure");
    retire_scene(&scene).await;

    let again = store
        .claim(&claim(&scene.policy, half.first_sequence))
        .await;
    assert_eq!(ran(again.must("a claim that was made before")), held);
    let again = store.record_failed(shard, failed).await;
    again.must("the record of a failure that is on record");
    let asked = round(&scene.policy, &settled, "conformance", 4);
    let again = store
        .claim_round(&asked)
        .await
        .must("a round that was made before");
    assert_eq!(again, idle);
    let renewals = store
        .renew(core::slice::from_ref(&held.lease), lease(30))
        .await;
    assert!(matches!(renewals.must("a renewal")[0], Renewal::Renewed(_)));
    store
        .complete(&held.lease)
        .await
        .must("a completion in a retired order");
}

pub(super) async fn open_sequences_stay_open<S: StoreUnderTest>() {
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let (store, shard) = (&scene.store, scene.policy.shard());
    store
        .enqueue_many(&vec![run("a"); 4])
        .await
        .must("a backlog");
    let half = scene.reserve(4).await;
    scene.claim(half.first_sequence).await;
    let untouched = scene.reserve(4).await;
    retire_scene(&scene).await;

    for open in [half.first_sequence + 1, untouched.first_sequence] {
        let answer = store.claim(&claim(&scene.policy, open)).await;
        refused(
            answer,
            StoreErrorKind::Retired,
            "a claim in a retired order",
        );
        let answer = store.record_failed(shard, open).await;
        refused(
            answer,
            StoreErrorKind::Retired,
            "the record of a failure in a retired order",
        );
    }
    for block in [half, untouched] {
        let asked = round(&scene.policy, &block, "conformance", 4);
        let answer = store.claim_round(&asked).await;
        refused(
            answer,
            StoreErrorKind::Retired,
            "a round with an open sequence",
        );
    }
    assert_eq!(
        scene.records().await.len(),
        1,
        "a refused call left an outcome"
    );
    assert_eq!(
        scene.count(|counts| counts.running).await,
        1,
        "a refused call took a run"
    );
    scene.advance(Duration::from_secs(40)).await;
    if scene.offers([Method::LostBlocks]).await {
        let lost = store.lost_blocks(shard, Duration::from_secs(30), 10).await;
        assert_eq!(
            lost.must("the lost blocks"),
            [],
            "what a retired order lost stays so"
        );
    }
}

/// Retires the scene's shard.
async fn retire_scene<S: StoreUnderTest>(scene: &Scene<S>) {
    let next = registered(scene, "next").await;
    retire(scene, &scene.policy, &next)
        .await
        .must("the retirement");
}
