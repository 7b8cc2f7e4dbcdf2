//! Unknown ids are judged by the store's clock; known ids are answered whatever the clocks say.

use core::time::Duration;

use evenhand_store::{CLOCK_SKEW_MAX, ReservationId, ReservationStore, StoreErrorKind};

use super::StoreUnderTest;
use super::scene::{Must, Scene, refused, request};

const MINUTE: Duration = Duration::from_mins(1);

pub(super) async fn an_unknown_id_too_far_ahead_is_clock_skew<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    // The clock may go on between two calls, so what is exactly at the limit now is within it by then.
    let at_the_limit = ReservationId::mint(scene.now().await + CLOCK_SKEW_MAX);
    let answer = scene
        .store
        .reserve(&request(&scene.policy, at_the_limit, 1))
        .await;
    answer.must("an id at the limit of the skew");
    let beyond = ReservationId::mint(scene.now().await + CLOCK_SKEW_MAX + MINUTE);
    let beyond = request(&scene.policy, beyond, 1);
    refused(
        scene.store.reserve(&beyond).await,
        StoreErrorKind::ClockSkew,
        "an id beyond the limit",
    );
    scene.advance(2 * MINUTE).await;
    scene
        .store
        .reserve(&beyond)
        .await
        .must("the same id, once the clock has caught up");
    // An id from long ago is fine as long as nothing was pruned: it cannot have been forgotten.
    let ancient = ReservationId::mint(scene.now().await - Duration::from_hours(24 * 365));
    let answer = scene
        .store
        .reserve(&request(&scene.policy, ancient, 1))
        .await;
    answer.must("an unknown id from long ago on a shard that was never pruned");
}

pub(super) async fn skew_is_measured_from_the_newest_reservation_when_the_clock_steps_back<
    S: StoreUnderTest,
>() {
    let scene = Scene::<S>::start().await;
    scene.advance(Duration::from_hours(2)).await;
    let newest = scene.reserve(1).await;
    scene
        .under_test
        .set_clock_back(Duration::from_hours(1))
        .await;
    // Clients minted these from the clock as it was before it stepped back.
    let ahead_of_clock = ReservationId::mint(newest.reserved_at + CLOCK_SKEW_MAX);
    let answer = scene
        .store
        .reserve(&request(&scene.policy, ahead_of_clock, 1))
        .await;
    answer.must("an id within the skew of the newest reservation");
    let beyond = ReservationId::mint(newest.reserved_at + CLOCK_SKEW_MAX + MINUTE);
    let answer = scene
        .store
        .reserve(&request(&scene.policy, beyond, 1))
        .await;
    refused(
        answer,
        StoreErrorKind::ClockSkew,
        "an id beyond the skew of clock and newest reservation",
    );
}

pub(super) async fn known_ids_are_answered_whatever_the_clocks_say<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let ahead = ReservationId::mint(scene.now().await + 4 * MINUTE);
    let asked = request(&scene.policy, ahead, 2);
    let first = scene.store.reserve(&asked).await.must("the first call");
    scene
        .under_test
        .set_clock_back(Duration::from_hours(24))
        .await;
    let again = scene
        .store
        .reserve(&asked)
        .await
        .must("a known id a day ahead of the clock");
    assert_eq!(again.first_sequence, first.first_sequence);
    scene.advance(Duration::from_hours(24 * 400)).await;
    let again = scene
        .store
        .reserve(&asked)
        .await
        .must("a known id more than a year old");
    assert_eq!(again.first_sequence, first.first_sequence);
    assert_eq!(
        scene.next_sequence().await,
        Some(2),
        "a repetition consumed sequences"
    );
}

pub(super) async fn time_never_runs_backwards_within_a_shard<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let mut newest = scene.reserve(1).await.reserved_at;
    for step_back in [
        MINUTE,
        Duration::from_hours(24),
        Duration::from_hours(24 * 30),
    ] {
        scene.under_test.set_clock_back(step_back).await;
        for _ in 0..2 {
            let reservation = scene.reserve(1).await;
            assert!(
                reservation.reserved_at >= newest,
                "{} was reserved at {}, after one at {newest}",
                reservation.id,
                reservation.reserved_at
            );
            newest = reservation.reserved_at;
        }
    }
    scene.advance(Duration::from_hours(24 * 60)).await;
    let after = scene.reserve(1).await;
    assert!(
        after.reserved_at > newest,
        "the clock went on, but the shard's time did not"
    );
    assert_eq!(
        after.first_sequence, 7,
        "a clock that steps back must not cost a sequence"
    );
}
