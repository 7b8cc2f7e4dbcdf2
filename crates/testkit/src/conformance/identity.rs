//! The same id always returns the same first sequence and count; concurrent calls with one id agree.

use std::sync::Arc;

use evenhand_store::{
    Reservation, ReservationId, ReservationStore, ReserveRequest, StoreError, StoreErrorKind,
};

use super::StoreUnderTest;
use super::scene::{Must, Scene, assert_contiguous, at_once, refused, request};

pub(super) async fn the_same_id_gives_the_same_answer<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let asked = scene.request(3).await;
    let first = scene.store.reserve(&asked).await.must("the first call");
    for handle in scene.handles(2).await {
        scene.reserve(2).await;
        let again = handle.reserve(&asked).await.must("the same call again");
        assert_same(&first, &again);
        assert!(
            again.store_time >= first.store_time,
            "the clock in the answer is not the store's"
        );
    }
    assert_eq!(
        assert_contiguous(&scene.reservations().await),
        3 + 2 * 2,
        "a repetition consumed"
    );
}

pub(super) async fn concurrent_calls_with_one_id_agree<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(3).await;
    for round in 1..=6_usize {
        let asked = scene.request(2).await;
        let answers = at_once((0..9).map(|task| {
            let (store, asked) = (Arc::clone(&handles[task % 3]), asked.clone());
            async move {
                store
                    .reserve(&asked)
                    .await
                    .must("one of the calls with one id")
            }
        }))
        .await;
        for answer in &answers {
            assert_same(&answers[0], answer);
        }
        let reservations = scene.reservations().await;
        assert_eq!(
            reservations.len(),
            round,
            "one id must have one reservation"
        );
        assert_contiguous(&reservations);
    }
}

pub(super) async fn the_same_id_with_another_count_is_refused<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let asked = scene.request(3).await;
    let first = scene.store.reserve(&asked).await.must("the first call");
    for count in [1, 2, 4] {
        let answer = scene
            .store
            .reserve(&request(&scene.policy, asked.id, count))
            .await;
        refused(
            answer,
            StoreErrorKind::ReservationConflict,
            "a known id with another count",
        );
    }
    let again = scene
        .store
        .reserve(&asked)
        .await
        .must("the first call again");
    assert_same(&first, &again);
    assert_eq!(
        scene.next_sequence().await,
        Some(3),
        "a refused call consumed sequences"
    );
}

pub(super) async fn the_same_id_under_another_shard_is_refused<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let other = scene.another_shard("other").await;
    let asked = scene.request(3).await;
    let first = scene.store.reserve(&asked).await.must("the first call");
    let answer = scene.store.reserve(&request(&other, asked.id, 3)).await;
    refused(
        answer,
        StoreErrorKind::ReservationConflict,
        "a known id under another shard",
    );
    assert!(
        scene.reservations_of(&other).await.is_empty(),
        "a refused call consumed sequences"
    );
    let again = scene
        .store
        .reserve(&asked)
        .await
        .must("the first call again");
    assert_same(&first, &again);
}

pub(super) async fn an_id_raced_in_two_shards_is_reserved_once<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let both = [scene.policy.clone(), scene.another_shard("other").await];
    let handles = scene.handles(2).await;
    for _ in 0..6 {
        let id = ReservationId::mint(scene.now().await);
        let answers = at_once((0..4).map(|task| {
            let store = Arc::clone(&handles[task / 2]);
            let asked = request(&both[task % 2], id, 2);
            async move { settled(&*store, &asked).await }
        }))
        .await;
        let mut holders = Vec::new();
        for policy in &both {
            holders.extend(
                scene
                    .reservations_of(policy)
                    .await
                    .into_iter()
                    .filter(|row| row.id == id),
            );
        }
        assert_eq!(
            holders.len(),
            1,
            "one id must have one reservation over all shards"
        );
        let mut winners = 0;
        for answer in answers {
            match answer {
                Ok(answer) => {
                    assert_same(&holders[0], &answer);
                    winners += 1;
                }
                lost => refused(
                    lost,
                    StoreErrorKind::ReservationConflict,
                    "the id in the other shard",
                ),
            }
        }
        assert_eq!(
            winners, 2,
            "both calls in the winning shard must be answered"
        );
    }
    for policy in &both {
        assert_contiguous(&scene.reservations_of(policy).await);
    }
}

/// Asks until the answer is final: two shards at once may get into each other's way.
async fn settled(
    store: &impl ReservationStore,
    asked: &ReserveRequest,
) -> Result<Reservation, StoreError> {
    const CALLS_MAX: u32 = 100;
    let mut answer = store.reserve(asked).await;
    for _ in 1..CALLS_MAX {
        match answer {
            Err(error) if error.is_retryable() => answer = store.reserve(asked).await,
            settled => return settled,
        }
    }
    answer
}

#[track_caller]
fn assert_same(first: &Reservation, again: &Reservation) {
    let numbers = |answer: &Reservation| {
        (
            answer.id,
            answer.first_sequence,
            answer.count,
            answer.reserved_at,
        )
    };
    assert_eq!(
        numbers(first),
        numbers(again),
        "one id was answered in two ways"
    );
}
