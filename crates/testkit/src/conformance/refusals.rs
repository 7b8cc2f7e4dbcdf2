//! A refused or failed call consumes nothing.

use core::time::Duration;

use evenhand_store::{
    ReservationCount, ReservationId, ReservationStore, SEQUENCE_MAX, StoreErrorKind,
};

use super::StoreUnderTest;
use super::scene::{Must, Scene, policy, refused, request};

pub(super) async fn another_digest_or_cycle_length_is_refused<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let other = policy("scene", &[("a", 1), ("b", 3)]);
    let known = scene.request(1).await;
    scene.store.reserve(&known).await.must("a reservation");
    for asked in [scene.request(1).await, known] {
        let mut with_digest = asked.clone();
        with_digest.digest = other.digest();
        let mut with_length = asked;
        with_length.cycle_length += 1;
        for asked in [with_digest, with_length] {
            let answer = scene.store.reserve(&asked).await;
            refused(
                answer,
                StoreErrorKind::PolicyConflict,
                "another digest or cycle length",
            );
        }
    }
    assert_eq!(
        scene.next_sequence().await,
        Some(1),
        "a refused call consumed a sequence"
    );
}

pub(super) async fn refused_calls_consume_nothing<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let pruned = scene.request(2).await;
    scene.store.reserve(&pruned).await.must("a reservation");
    scene.advance(Duration::from_hours(2)).await;
    let known = scene.request(3).await;
    scene.store.reserve(&known).await.must("a reservation");
    let pass = scene
        .store
        .prune_scheduler_fairness_reservations(Scene::<S>::an_hour(10))
        .await;
    assert_eq!(pass.must("a pruning pass").deleted, 1);

    let ahead = ReservationId::mint(scene.now().await + Duration::from_mins(10));
    let mut conflicting = scene.request(7).await;
    conflicting.cycle_length += 1;
    for (asked, kind) in [
        (conflicting, StoreErrorKind::PolicyConflict),
        (
            request(&scene.policy, known.id, 7),
            StoreErrorKind::ReservationConflict,
        ),
        (request(&scene.policy, ahead, 7), StoreErrorKind::ClockSkew),
        (
            request(&scene.policy, pruned.id, 7),
            StoreErrorKind::Expired,
        ),
    ] {
        refused(
            scene.store.reserve(&asked).await,
            kind,
            "a call that must be refused",
        );
        assert_eq!(
            scene.next_sequence().await,
            Some(5),
            "a call refused as {kind} consumed"
        );
        // What was consumed in secret would show as a gap before the next reservation.
        let cursor = scene
            .reservations()
            .await
            .last()
            .must("a reservation")
            .sequences()
            .end()
            + 1;
        assert_eq!(cursor, 5, "a call refused as {kind} is on record");
    }
    assert_eq!(
        scene.reserve(1).await.first_sequence,
        5,
        "a refused call left a gap"
    );
}

pub(super) async fn a_block_that_does_not_fit_is_refused_whole<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    scene
        .under_test
        .skip_to(scene.policy.shard(), SEQUENCE_MAX - 10)
        .await;
    let before = scene.reserve(1).await;
    assert_eq!(before.first_sequence, SEQUENCE_MAX - 10);
    for count in [11, 12, ReservationCount::MAX.get()] {
        let asked = scene.request(count).await;
        let answer = scene.store.reserve(&asked).await;
        refused(
            answer,
            StoreErrorKind::SequenceExhausted,
            "a block that does not fit",
        );
        assert_eq!(
            scene.next_sequence().await,
            Some(SEQUENCE_MAX - 9),
            "it was cut, not refused"
        );
    }
    let asked = scene.request(10).await;
    let last = scene
        .store
        .reserve(&asked)
        .await
        .must("the block that just fits");
    assert_eq!(*last.sequences().end(), SEQUENCE_MAX);
    assert_eq!(scene.next_sequence().await, None, "the range is used up");
    let one_more = scene.request(1).await;
    let answer = scene.store.reserve(&one_more).await;
    refused(
        answer,
        StoreErrorKind::SequenceExhausted,
        "a sequence beyond the range",
    );
    let again = scene
        .store
        .reserve(&asked)
        .await
        .must("a known id after the range is used up");
    assert_eq!(again.first_sequence, last.first_sequence);
    let listed = scene
        .store
        .reservations(scene.policy.shard(), SEQUENCE_MAX, 10)
        .await;
    assert_eq!(
        listed.must("a listing").len(),
        1,
        "the last sequence is in one reservation"
    );
}
