//! Register is idempotent for byte-identical policies; anything else is refused and changes nothing.

use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::admission::Scoring;
use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, WeightedFairnessPolicy};
use evenhand_store::{
    PolicyRegistration, PoolScoring, ReservationId, ReservationStore, RunQueue, ShardStanding,
    StoreErrorKind, TenantHistoryRequest, Timestamp,
};

use super::StoreUnderTest;
use super::optional::Method;
use super::scene::{Must, Scene, at_once, claim, policy, pool, refused, request, round, tenant};

pub(super) async fn register_is_idempotent_for_identical_policies<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let shard = policy("raced", &[("a", 3), ("b", 1)]);
    // The same weights in another order are the same policy, byte for byte.
    let again = policy("raced", &[("b", 1), ("a", 3)]);
    let handles = scene.handles(3).await;
    let answers = at_once((0..9).map(|task| {
        let store = Arc::clone(&handles[task % 3]);
        let policy = if task % 2 == 0 {
            shard.clone()
        } else {
            again.clone()
        };
        let registration = PolicyRegistration::new(policy).in_pool(pool("raced"));
        async move {
            store
                .register_policy(&registration)
                .await
                .must("a registration")
        }
    }))
    .await;
    let created = answers.iter().filter(|answer| answer.created).count();
    assert_eq!(
        created, 1,
        "exactly one of the identical registrations creates the binding"
    );
    let registration = PolicyRegistration::new(shard).in_pool(pool("raced"));
    let later = scene
        .store
        .register_policy(&registration)
        .await
        .must("a later registration");
    assert!(!later.created, "the binding was there already");
}

pub(super) async fn register_refuses_another_policy<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let other = policy("scene", &[("a", 3), ("b", 2)]);
    let answer = scene
        .store
        .register_policy(&PolicyRegistration::new(other.clone()))
        .await;
    refused(
        answer,
        StoreErrorKind::PolicyConflict,
        "another policy under a known shard",
    );
    let loaded = scene
        .store
        .load_policy(scene.policy.shard())
        .await
        .must("the policy");
    assert_eq!(
        loaded, scene.policy,
        "the refused registration changed the policy"
    );
    let first = scene.reserve(1).await;
    assert_eq!(
        first.first_sequence, 0,
        "the refused registration consumed a sequence"
    );
    let with_other = request(&other, ReservationId::mint(scene.now().await), 1);
    let answer = scene.store.reserve(&with_other).await;
    refused(
        answer,
        StoreErrorKind::PolicyConflict,
        "a reservation with the refused policy",
    );
    let again = scene
        .store
        .register_policy(&PolicyRegistration::new(scene.policy.clone()))
        .await;
    assert!(
        !again.must("the first policy again").created,
        "the refusal unbound the shard"
    );
}

pub(super) async fn racing_policies_have_one_winner<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(2).await;
    for round in 0..4 {
        let shard = format!("raced-{round}");
        let rivals: Vec<_> = (1..=4)
            .map(|weight| policy(&shard, &[("a", 5), ("b", weight)]))
            .collect();
        let answers = at_once(rivals.iter().enumerate().map(|(number, rival)| {
            let store = Arc::clone(&handles[number % 2]);
            let registration = PolicyRegistration::new(rival.clone()).in_pool(pool(&shard));
            async move { store.register_policy(&registration).await }
        }))
        .await;
        let loaded = scene
            .store
            .load_policy(rivals[0].shard())
            .await
            .must("the winner");
        for (rival, answer) in rivals.iter().zip(answers) {
            if *rival == loaded {
                assert!(
                    answer.must("the winner").created,
                    "the winner was told that it came late"
                );
            } else {
                refused(
                    answer,
                    StoreErrorKind::PolicyConflict,
                    "a policy that lost the race",
                );
            }
        }
    }
}

pub(super) async fn a_pool_has_one_active_shard_and_one_scoring<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let same = PolicyRegistration::new(scene.policy.clone());
    let slow = PoolScoring::new(Scoring::default(), Duration::from_mins(1)).must("a scoring");
    let other = PolicyRegistration::new(policy("other", &[("a", 1)]));
    for (what, registration) in [
        (
            "the shard for another pool",
            same.clone().in_pool(pool("elsewhere")),
        ),
        (
            "the pool with another scoring",
            same.clone().scored_by(slow.clone()),
        ),
        (
            "the pool for another shard, with another scoring",
            other.clone().scored_by(slow),
        ),
    ] {
        let answer = scene.store.register_policy(&registration).await;
        refused(answer, StoreErrorKind::PolicyConflict, what);
    }
    let shard = other.policy.shard();
    refused(
        scene.store.load_policy(shard).await,
        StoreErrorKind::PolicyNotFound,
        "a shard whose registration was refused",
    );

    let second = scene.store.register_policy(&other).await;
    if scene.offers([Method::Retire]).await {
        let second = second.must("a successor");
        assert!(second.created, "the refused registrations bound the shard");
        assert_eq!(second.standing, ShardStanding::Pending);
        let moved = other.in_pool(pool("elsewhere"));
        let answer = scene.store.register_policy(&moved).await;
        refused(
            answer,
            StoreErrorKind::PolicyConflict,
            "a pending shard for another pool",
        );
    } else {
        refused(
            second,
            StoreErrorKind::PolicyConflict,
            "a second shard of a pool, in a store that cannot retire the first",
        );
        let free = other.in_pool(pool("elsewhere"));
        let answer = scene.store.register_policy(&free).await;
        let answer = answer.must("the shard for a free pool");
        assert!(answer.created, "the refused registration took the pool");
    }
    let again = scene.store.register_policy(&same).await;
    let again = again.must("the first registration again");
    assert!(
        !again.created,
        "a refused registration unbound the first shard"
    );
    assert_eq!(again.standing, ShardStanding::Active);
    scene.reserve(1).await;
}

pub(super) async fn load_policy_gives_back_what_was_registered<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let weights = (0..1_024).map(|number| {
        let name = format!("tenant-{number:04}");
        TenantFairnessWeight::new(tenant(&name), 4).must("a weight")
    });
    let shard = SchedulerShardId::try_from("largest").must("a shard id");
    let largest = WeightedFairnessPolicy::new(shard, weights).must("a policy at the limits");
    let registration = PolicyRegistration::new(largest.clone()).in_pool(pool("largest"));
    scene
        .store
        .register_policy(&registration)
        .await
        .must("the largest policy");
    for handle in scene.handles(2).await {
        let loaded = handle
            .load_policy(largest.shard())
            .await
            .must("the largest policy");
        assert_eq!(loaded.shard(), largest.shard());
        assert_eq!(loaded.canonical_bytes(), largest.canonical_bytes());
        assert_eq!(loaded.digest(), largest.digest());
    }
}

pub(super) async fn an_unregistered_shard_is_not_found<S: StoreUnderTest>() {
    const NOT_FOUND: StoreErrorKind = StoreErrorKind::PolicyNotFound;
    let scene = Scene::<S>::start().await;
    let unknown = policy("unknown", &[("a", 1)]);
    let (store, shard) = (&scene.store, unknown.shard());
    let reserve = request(&unknown, ReservationId::mint(Timestamp::UNIX_EPOCH), 1);
    refused(store.load_policy(shard).await, NOT_FOUND, "load_policy");
    refused(store.reserve(&reserve).await, NOT_FOUND, "reserve");
    refused(store.cursor(shard).await, NOT_FOUND, "cursor");
    refused(
        store.reservations(shard, 0, 1).await,
        NOT_FOUND,
        "reservations",
    );
    refused(store.ready_tenants(shard).await, NOT_FOUND, "ready_tenants");
    refused(store.claim(&claim(&unknown, 0)).await, NOT_FOUND, "claim");
    refused(
        store.record_failed(shard, 0).await,
        NOT_FOUND,
        "record_failed",
    );
    refused(store.sequences(shard, 0, 1).await, NOT_FOUND, "sequences");
    refused(store.standing(shard).await, NOT_FOUND, "standing");
    let block = scene.reserve(1).await;
    let round = round(&unknown, &block, "conformance", 1);
    refused(store.claim_round(&round).await, NOT_FOUND, "claim_round");
    if scene.offers([Method::LostBlocks]).await {
        let answer = store.lost_blocks(shard, Duration::ZERO, 1).await;
        refused(answer, NOT_FOUND, "lost_blocks");
    }
    if scene.offers([Method::TenantHistory]).await {
        let (from, to) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let request = TenantHistoryRequest::new(shard.clone(), tenant("a"), from, to, 1);
        let answer = store.tenant_history(&request).await;
        refused(answer, NOT_FOUND, "tenant_history");
    }
    if scene.offers([Method::Health]).await {
        refused(store.health(shard).await, NOT_FOUND, "health");
    }
}
