//! Sequences of a shard are contiguous from 0: no gap, no overlap, no repeat.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenhand_store::{ReservationCount, ReservationId, ReservationStore};

use super::StoreUnderTest;
use super::scene::{Must, Scene, assert_contiguous, at_once, request};

pub(super) async fn sequences_begin_at_zero_and_follow_each_other<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    assert_eq!(
        scene.next_sequence().await,
        Some(0),
        "a new shard begins at 0"
    );
    let mut expected = 0;
    for count in [1, 5, 1, 64, ReservationCount::MAX.get(), 1] {
        let reservation = scene.reserve(count).await;
        assert_eq!(
            reservation.first_sequence, expected,
            "the block of {count} does not follow"
        );
        assert_eq!(reservation.count.get(), count);
        expected += u64::from(count);
        assert_eq!(
            scene.next_sequence().await,
            Some(expected),
            "the cursor is elsewhere"
        );
    }
    assert_eq!(assert_contiguous(&scene.reservations().await), expected);
}

pub(super) async fn concurrent_reservations_are_contiguous_and_disjoint<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(3).await;
    let now = scene.now().await;
    let answers = at_once((0..12_u32).map(|task| {
        let store = Arc::clone(&handles[usize::try_from(task % 3).must("an index")]);
        let policy = scene.policy.clone();
        async move {
            let mut answers = Vec::new();
            for call in 0..10 {
                let request = request(&policy, ReservationId::mint(now), 1 + (task + call) % 5);
                answers.push(
                    store
                        .reserve(&request)
                        .await
                        .must("a concurrent reservation"),
                );
            }
            answers
        }
    }))
    .await;
    let reservations = scene.reservations().await;
    assert_contiguous(&reservations);
    let on_record: BTreeSet<_> = reservations
        .iter()
        .map(|row| (row.first_sequence, row.count, row.id))
        .collect();
    let answered: BTreeSet<_> = answers
        .iter()
        .flatten()
        .map(|row| (row.first_sequence, row.count, row.id))
        .collect();
    assert_eq!(answered.len(), 120, "two reservations were answered alike");
    assert_eq!(
        answered, on_record,
        "what was answered is not what is on record"
    );
}

pub(super) async fn shards_have_independent_orders<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let other = scene.another_shard("other").await;
    let now = scene.now().await;
    let both = [scene.policy.clone(), other];
    at_once((0..8).map(|task| {
        let (store, policy) = (Arc::clone(&scene.store), both[task % 2].clone());
        async move {
            for _ in 0..5 {
                let request = request(&policy, ReservationId::mint(now), 2);
                store.reserve(&request).await.must("a reservation");
            }
        }
    }))
    .await;
    for policy in &both {
        let end = assert_contiguous(&scene.reservations_of(policy).await);
        assert_eq!(
            end,
            40,
            "shard {} is not where its own reservations end",
            policy.shard()
        );
    }
}

pub(super) async fn reservations_are_listed_from_any_sequence<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let mut made = Vec::new();
    for _ in 0..6 {
        made.push(scene.reserve(4).await);
    }
    for (from_sequence, limit, expected) in [
        (0, 100, 0..6),
        (3, 2, 0..2),
        (4, 2, 1..3),
        (9, 2, 2..4),
        (23, 100, 5..6),
        (24, 100, 6..6),
        (0, 0, 0..0),
    ] {
        let listed = scene
            .store
            .reservations(scene.policy.shard(), from_sequence, limit)
            .await;
        let listed = listed.must("a listing");
        let numbers: Vec<_> = listed
            .iter()
            .map(|row| (row.id, row.first_sequence, row.count, row.reserved_at))
            .collect();
        let expected: Vec<_> = made[expected]
            .iter()
            .map(|row| (row.id, row.first_sequence, row.count, row.reserved_at))
            .collect();
        assert_eq!(
            numbers, expected,
            "from sequence {from_sequence}, at most {limit}"
        );
    }
}
