//! A pool has one active shard; another takes its place once and for ever, and nothing is reserved or claimed in the old
//! order after that.

use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{
    PolicyRegistration, Registered, Reservation, ReservationId, ReservationStore, ReserveRequest,
    Retirement, RunQueue, ShardStanding, StoreError, StoreErrorKind, UnservedRuns,
};
use futures::future::BoxFuture;

use super::StoreUnderTest;
use super::optional::Method;
use super::scene::{
    Must, Scene, assert_contiguous, at_once, policy, pool, refused, request, round, run, tenant,
};

pub(super) async fn a_later_shard_of_a_pool_is_pending<S: StoreUnderTest>() {
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let store = &scene.store;
    assert_eq!(standing(&scene, &scene.policy).await, ShardStanding::Active);
    let next = successor("next");
    let registration = PolicyRegistration::new(next.clone());
    for is_first in [true, false] {
        let registered = store
            .register_policy(&registration)
            .await
            .must("a successor");
        assert_eq!(
            (registered.created, registered.standing),
            (is_first, ShardStanding::Pending)
        );
    }
    let again = PolicyRegistration::new(scene.policy.clone());
    let again = store
        .register_policy(&again)
        .await
        .must("the active shard again");
    assert_eq!(
        (again.created, again.standing),
        (false, ShardStanding::Active)
    );
    assert_eq!(standing(&scene, &next).await, ShardStanding::Pending);

    let asked = request(&next, ReservationId::mint(scene.now().await), 1);
    refused(
        store.reserve(&asked).await,
        StoreErrorKind::Pending,
        "a reservation before its time",
    );
    let cursor = store.cursor(next.shard()).await.must("the cursor");
    assert_eq!(
        cursor.next_sequence,
        Some(0),
        "the refused reservation consumed a sequence"
    );
    let answer = store.ready_tenants(next.shard()).await;
    refused(answer, StoreErrorKind::Pending, "a look before its time");
    if scene.offers([Method::LostBlocks]).await {
        let lost = store.lost_blocks(next.shard(), Duration::ZERO, 10).await;
        assert_eq!(lost.must("the lost blocks"), []);
    }
    let active = store
        .active_policy(&pool("default"))
        .await
        .must("the active policy");
    assert_eq!(active, scene.policy);
    let answer = store.active_policy(&pool("nobodys")).await;
    refused(
        answer,
        StoreErrorKind::PolicyNotFound,
        "the policy of a pool without a shard",
    );
    scene.enqueue(&run("a")).await;
    scene.claimed("a").await;
}

pub(super) async fn retiring_moves_a_pool_to_its_successor<S: StoreUnderTest>() {
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let store = &scene.store;
    let next = registered(&scene, "next").await;
    let waiting = scene.enqueue(&run("b")).await;
    scene.reserve(7).await;
    let before = scene.now().await;
    let retirement = retire(&scene, &scene.policy, &next)
        .await
        .must("the retirement");
    assert!(before <= retirement.retired_at && retirement.retired_at <= scene.now().await);
    assert!(retirement.created);
    assert_eq!(retirement.old_length, Some(7));
    assert_eq!(
        (&retirement.old, &retirement.new),
        (scene.policy.shard(), next.shard())
    );
    assert_eq!(
        standing(&scene, &scene.policy).await,
        retired_for(next.shard())
    );
    assert_eq!(standing(&scene, &next).await, ShardStanding::Active);
    let active = store
        .active_policy(&pool("default"))
        .await
        .must("the active policy");
    assert_eq!(active, next);
    scene.advance(Duration::from_hours(1)).await;
    let mut expected = retirement;
    expected.created = false;
    let again = retire(&scene, &scene.policy, &next)
        .await
        .must("the retirement again");
    assert_eq!(again, expected, "asked again it answers the same");

    // What was queued is served by the new order, which begins at 0.
    let asked = request(
        &next,
        ReservationId::mint(scene.now().await),
        next.cycle_length(),
    );
    let block = store
        .reserve(&asked)
        .await
        .must("the first block of the new order");
    assert_eq!(block.first_sequence, 0);
    let ready = store.ready_tenants(next.shard()).await.must("the tenants");
    assert_eq!(ready.tenants, [tenant("b")]);
    let asked = round(&next, &block, "conformance", 8);
    let answer = store
        .claim_round(&asked)
        .await
        .must("a round of the new order");
    assert_eq!(answer.claimed.len(), 1);
    assert_eq!(answer.claimed[0].run.id, waiting);
}

pub(super) async fn only_an_active_shard_is_retired_and_only_for_a_pending_one<
    S: StoreUnderTest,
>() {
    const CONFLICT: StoreErrorKind = StoreErrorKind::PolicyConflict;
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let active = scene.policy.clone();
    let (one, two) = (
        registered(&scene, "one").await,
        registered(&scene, "two").await,
    );
    let elsewhere = scene.another_shard("elsewhere").await;
    let after_it = successor("after-elsewhere");
    let registration = PolicyRegistration::new(after_it.clone()).in_pool(pool("elsewhere"));
    scene
        .store
        .register_policy(&registration)
        .await
        .must("a successor in another pool");
    let unknown = successor("unknown");
    for (what, old, new, kind) in [
        (
            "an unknown shard",
            &unknown,
            &one,
            StoreErrorKind::PolicyNotFound,
        ),
        (
            "for an unknown shard",
            &active,
            &unknown,
            StoreErrorKind::PolicyNotFound,
        ),
        (
            "for the active shard of another pool",
            &active,
            &elsewhere,
            CONFLICT,
        ),
        (
            "for a pending shard of another pool",
            &active,
            &after_it,
            CONFLICT,
        ),
        ("for itself", &active, &active, CONFLICT),
        ("a pending shard", &one, &two, CONFLICT),
        ("the other way round", &one, &active, CONFLICT),
    ] {
        refused(retire(&scene, old, new).await, kind, what);
    }
    assert_eq!(standing(&scene, &active).await, ShardStanding::Active);
    for pending in [&one, &two] {
        assert_eq!(standing(&scene, pending).await, ShardStanding::Pending);
    }
    scene.reserve(1).await;
}

pub(super) async fn a_retirement_is_for_ever<S: StoreUnderTest>() {
    const CONFLICT: StoreErrorKind = StoreErrorKind::PolicyConflict;
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let active = scene.policy.clone();
    let (one, two) = (
        registered(&scene, "one").await,
        registered(&scene, "two").await,
    );
    let elsewhere = scene.another_shard("elsewhere").await;
    retire(&scene, &active, &one)
        .await
        .must("the first retirement");
    for (what, old, new) in [
        ("for another successor", &active, &two),
        ("back to the shard before", &one, &active),
        ("for itself", &one, &one),
    ] {
        refused(retire(&scene, old, new).await, CONFLICT, what);
    }
    retire(&scene, &one, &two)
        .await
        .must("the second retirement");
    let first = retire(&scene, &active, &one)
        .await
        .must("the first retirement again");
    assert!(!first.created);
    for (shard, expected) in [
        (&active, retired_for(one.shard())),
        (&one, retired_for(two.shard())),
        (&two, ShardStanding::Active),
        (&elsewhere, ShardStanding::Active),
    ] {
        assert_eq!(standing(&scene, shard).await, expected);
    }
}

pub(super) async fn racing_retirements_have_one_winner<S: StoreUnderTest>() {
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let handles = scene.handles(3).await;
    let mut old = scene.policy.clone();
    for turn in 0..4 {
        let mut rivals = Vec::new();
        for rival in 0..2 {
            rivals.push(registered(&scene, &format!("rival-{turn}-{rival}")).await);
        }
        let answers = at_once((0..8).map(|task| {
            let store = Arc::clone(&handles[task % 3]);
            let (old, new) = (old.shard().clone(), rivals[task % 2].shard().clone());
            async move { store.retire(&old, &new).await }
        }))
        .await;
        let active = scene
            .store
            .active_policy(&pool("default"))
            .await
            .must("the active policy");
        let created = answers
            .iter()
            .flatten()
            .filter(|answer| answer.created)
            .count();
        assert_eq!(created, 1, "exactly one call retires the shard");
        for (task, answer) in answers.into_iter().enumerate() {
            if rivals[task % 2] == active {
                assert_eq!(answer.must("a call for the winner").new, *active.shard());
            } else {
                refused(
                    answer,
                    StoreErrorKind::PolicyConflict,
                    "a call that lost the race",
                );
            }
        }
        old = active;
    }
}

pub(super) async fn nothing_is_reserved_after_the_retirement<S: StoreUnderTest>() {
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let handles = scene.handles(4).await;
    let mut old = scene.policy.clone();
    for turn in 0..3 {
        let next = registered(&scene, &format!("next-{turn}")).await;
        let now = scene.now().await;
        let asked: Vec<ReserveRequest> = (0..24)
            .map(|number| request(&old, ReservationId::mint(now), 1 + number % 3))
            .collect();
        let mut races: Vec<BoxFuture<'static, Vec<Result<Reservation, StoreError>>>> = Vec::new();
        for (store, asked) in handles.iter().zip(asked.chunks(6)) {
            let (store, asked) = (Arc::clone(store), asked.to_vec());
            races.push(Box::pin(async move {
                let mut answers = Vec::new();
                for asked in asked {
                    answers.push(store.reserve(&asked).await);
                }
                answers
            }));
        }
        let (store, from, to) = (
            Arc::clone(&handles[0]),
            old.shard().clone(),
            next.shard().clone(),
        );
        races.push(Box::pin(async move {
            store.retire(&from, &to).await.must("the retirement");
            Vec::new()
        }));
        let answers: Vec<_> = at_once(races).await.into_iter().flatten().collect();
        let rows = scene.reservations_of(&old).await;
        let length = assert_contiguous(&rows);
        let again = retire(&scene, &old, &next)
            .await
            .must("the retirement again");
        assert_eq!(
            again.old_length,
            Some(length),
            "the length that the retirement recorded"
        );
        for answer in answers {
            match answer {
                Ok(reservation) => assert!(
                    rows.iter().any(|row| row.id == reservation.id),
                    "an acknowledged reservation is lost"
                ),
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Retired, "{error}"),
            }
        }
        old = next;
    }
}

pub(super) async fn runs_that_a_successor_does_not_serve_are_told<S: StoreUnderTest>() {
    let Some(scene) = changing::<S>().await else {
        return;
    };
    let mut later = run("b");
    later.ready_at = evenhand_store::ReadyAt::After(Duration::from_hours(1));
    let mut elsewhere = run("c");
    elsewhere.pool = pool("unserved");
    let backlog = [run("a"), later, run("b"), run("c"), elsewhere];
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    let again = PolicyRegistration::new(scene.policy.clone());
    let again = scene
        .store
        .register_policy(&again)
        .await
        .must("the active shard again");
    let unserved = |pool_name: &str, owner: &str, queued| {
        UnservedRuns::new(pool(pool_name), tenant(owner), queued)
    };
    assert_eq!(again.unserved, [unserved("default", "c", 1)]);

    let next = policy("next", &[("a", 1), ("c", 1)]);
    let answer = scene
        .store
        .register_policy(&PolicyRegistration::new(next.clone()))
        .await;
    let expected = [unserved("default", "b", 2)];
    assert_eq!(
        answer.must("the successor").unserved,
        expected,
        "told before the change"
    );
    let tells_all = scene.offers([Method::Unserved]).await;
    if tells_all {
        let all = scene.store.unserved().await.must("who is not served");
        assert_eq!(
            all,
            [unserved("default", "c", 1), unserved("unserved", "c", 1)]
        );
    }
    let retirement = retire(&scene, &scene.policy, &next)
        .await
        .must("the retirement");
    assert_eq!(retirement.unserved, expected, "told with the change");
    if tells_all {
        let all = scene.store.unserved().await.must("who is not served");
        assert_eq!(
            all,
            [unserved("default", "b", 2), unserved("unserved", "c", 1)]
        );
    }
}

/// A scene of a store that can retire shards.
pub(super) async fn changing<S: StoreUnderTest>() -> Option<Scene<S>> {
    let scene = Scene::<S>::start().await;
    scene.offers([Method::Retire]).await.then_some(scene)
}

/// The policy of a pending shard.
pub(super) async fn registered<S: StoreUnderTest>(
    scene: &Scene<S>,
    shard: &str,
) -> WeightedFairnessPolicy {
    let policy = successor(shard);
    let answer = scene
        .store
        .register_policy(&PolicyRegistration::new(policy.clone()))
        .await;
    let Registered {
        created, standing, ..
    } = answer.must("a successor");
    assert!(created && standing == ShardStanding::Pending);
    policy
}

/// A policy with other weights than the scene's.
fn successor(shard: &str) -> WeightedFairnessPolicy {
    policy(shard, &[("a", 1), ("b", 2)])
}

pub(super) async fn retire<S: StoreUnderTest>(
    scene: &Scene<S>,
    old: &WeightedFairnessPolicy,
    new: &WeightedFairnessPolicy,
) -> Result<Retirement, StoreError> {
    scene.store.retire(old.shard(), new.shard()).await
}

pub(super) async fn standing<S: StoreUnderTest>(
    scene: &Scene<S>,
    policy: &WeightedFairnessPolicy,
) -> ShardStanding {
    scene
        .store
        .standing(policy.shard())
        .await
        .must("the standing")
}

pub(super) fn retired_for(successor: &SchedulerShardId) -> ShardStanding {
    let successor = successor.clone();
    ShardStanding::Retired { successor }
}
