//! Pruning goes oldest first, in batches, and never touches policy, cursor or the newest reservation of a shard. An id
//! that was pruned, or may have been, is expired for ever.

use core::time::Duration;

use std::sync::Arc;

use evenhand_store::{
    Reservation, ReservationId, ReservationStore, RetentionReport, StoreErrorKind, Timestamp,
};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::StoreUnderTest;
use super::scene::{Must, Scene, at_once, refused, request};

const HOUR: Duration = Duration::from_hours(1);
const MINUTE: Duration = Duration::from_mins(1);

pub(super) async fn pruning_deletes_only_what_is_older_than_the_window<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    for _ in 0..3 {
        scene.reserve(2).await;
    }
    scene.advance(40 * MINUTE).await;
    let kept = [scene.reserve(2).await, scene.reserve(2).await];
    scene.advance(40 * MINUTE).await;
    let before = scene.now().await;
    let report = prune(&scene, 100).await;
    let after = scene.now().await;
    assert!(
        before - HOUR <= report.cutoff && report.cutoff <= after - HOUR,
        "the cutoff is not the window ago"
    );
    assert_eq!(
        (report.deleted, report.more),
        (3, false),
        "three reservations are older than the window"
    );
    let left: Vec<_> = scene
        .reservations()
        .await
        .iter()
        .map(|row| row.id)
        .collect();
    assert_eq!(
        left,
        kept.map(|row| row.id),
        "the reservations within the window must be kept"
    );
    let again = prune(&scene, 100).await;
    assert_eq!(
        (again.deleted, again.more),
        (0, false),
        "nothing is left to prune"
    );
}

pub(super) async fn pruning_keeps_the_newest_reservation_and_the_cursor<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    scene.reserve(2).await;
    let newest = scene.request(5).await;
    let first = scene
        .store
        .reserve(&newest)
        .await
        .must("the newest reservation");
    for _ in 0..2 {
        scene.advance(Duration::from_hours(24)).await;
        prune(&scene, 100).await;
        let left = scene.reservations().await;
        assert_eq!(
            left.len(),
            1,
            "only the newest reservation is left, however old it is"
        );
        assert_eq!(left[0].id, newest.id, "the newest reservation was pruned");
        assert_eq!(
            scene.next_sequence().await,
            Some(7),
            "pruning moved the cursor"
        );
    }
    let loaded = scene
        .store
        .load_policy(scene.policy.shard())
        .await
        .must("the policy");
    assert_eq!(loaded, scene.policy, "pruning touched the policy");
    let again = scene
        .store
        .reserve(&newest)
        .await
        .must("the newest id again");
    assert_eq!(again.first_sequence, first.first_sequence);
    assert_eq!(
        scene.reserve(1).await.first_sequence,
        7,
        "the order does not go on where it was"
    );
}

pub(super) async fn pruning_goes_oldest_first_over_all_shards<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let both = [scene.policy.clone(), scene.another_shard("other").await];
    for _ in 0..3 {
        for policy in &both {
            let id = ReservationId::mint(scene.now().await);
            scene
                .store
                .reserve(&request(policy, id, 1))
                .await
                .must("a reservation");
            scene.advance(MINUTE).await;
        }
    }
    scene.advance(2 * HOUR).await;
    // Four may go, because each shard keeps its newest.
    for (deleted, more, left_in_first, left_in_other) in
        [(3, true, vec![2], vec![1, 2]), (1, false, vec![2], vec![2])]
    {
        let report = prune(&scene, 3).await;
        assert_eq!(
            (report.deleted, report.more),
            (deleted, more),
            "a pass of at most three rows"
        );
        for (policy, left) in both.iter().zip([left_in_first, left_in_other]) {
            let rows = scene.reservations_of(policy).await;
            let found: Vec<u64> = rows.iter().map(|row| row.first_sequence).collect();
            assert_eq!(
                found,
                left,
                "in shard {} the oldest must go first",
                policy.shard()
            );
        }
    }
}

pub(super) async fn a_pruned_id_is_expired_for_ever<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let other = scene.another_shard("other").await;
    // Minted ahead, so that the mark is ahead of the time of the reservation too.
    let mark = whole_millis(scene.now().await + 3 * MINUTE);
    let pruned = request(&scene.policy, ReservationId::mint(mark), 2);
    scene
        .store
        .reserve(&pruned)
        .await
        .must("the reservation to be pruned");
    scene.reserve(1).await;
    scene.advance(2 * HOUR).await;
    assert_eq!(prune(&scene, 100).await.deleted, 1);

    let at = |time| ReservationId::mint(time);
    for _ in 0..2 {
        for (what, asked) in [
            ("the pruned id", pruned.clone()),
            (
                "the pruned id with another count",
                request(&scene.policy, pruned.id, 1),
            ),
            (
                "an unknown id of the mark's time",
                request(&scene.policy, at(mark), 1),
            ),
            (
                "an unknown id before the mark",
                request(&scene.policy, at(mark - HOUR), 1),
            ),
        ] {
            for handle in scene.handles(1).await {
                refused(handle.reserve(&asked).await, StoreErrorKind::Expired, what);
            }
        }
        scene.advance(Duration::from_hours(24 * 400)).await;
    }
    assert_eq!(
        scene.next_sequence().await,
        Some(3),
        "an expired id consumed a sequence"
    );
    let later = request(&scene.policy, at(mark + Duration::from_millis(1)), 1);
    scene
        .store
        .reserve(&later)
        .await
        .must("an unknown id just after the mark");
    let elsewhere = request(&other, at(mark), 1);
    scene
        .store
        .reserve(&elsewhere)
        .await
        .must("an id of the mark's time in another shard");
}

pub(super) async fn only_ids_that_were_really_pruned_move_the_mark<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let start = whole_millis(scene.now().await);
    let ahead = start + 4 * MINUTE;
    let mut asked = Vec::new();
    for time in [start, ahead, start, start] {
        let request = request(&scene.policy, ReservationId::mint(time), 1);
        scene.store.reserve(&request).await.must("a reservation");
        asked.push(request);
    }
    scene.advance(2 * HOUR).await;
    let unknown = |time| request(&scene.policy, ReservationId::mint(time), 1);
    let just_later = Duration::from_millis(1);

    assert_eq!(prune(&scene, 1).await.deleted, 1);
    let answer = scene.store.reserve(&unknown(start + just_later)).await;
    answer.must("an unknown id after the only one that was pruned");
    let answer = scene.store.reserve(&unknown(start)).await;
    refused(
        answer,
        StoreErrorKind::Expired,
        "an unknown id of the pruned one's time",
    );

    assert_eq!(prune(&scene, 1).await.deleted, 1);
    let answer = scene.store.reserve(&unknown(ahead)).await;
    refused(
        answer,
        StoreErrorKind::Expired,
        "an unknown id that is not later than a pruned one",
    );
    let kept = scene
        .store
        .reserve(&asked[2])
        .await
        .must("a known id that is not later than the mark");
    assert_eq!(kept.first_sequence, 2);
}

pub(super) async fn a_retry_that_races_with_pruning_never_gets_a_second_sequence<
    S: StoreUnderTest,
>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(3).await;
    for _ in 0..6 {
        let mut made = Vec::new();
        for _ in 0..8 {
            let asked = scene.request(1).await;
            made.push((
                asked.clone(),
                scene.store.reserve(&asked).await.must("a reservation"),
            ));
        }
        scene.reserve(1).await;
        scene.advance(2 * HOUR).await;
        let cursor = scene.next_sequence().await;
        let pruner = Arc::clone(&handles[0]);
        let pass: BoxFuture<'static, _> = async move {
            let pass = pruner
                .prune_scheduler_fairness_reservations(Scene::<S>::an_hour(100))
                .await;
            pass.must("a pruning pass");
            None
        }
        .boxed();
        let retries = made.iter().enumerate().map(|(number, (asked, _))| {
            let (store, asked) = (Arc::clone(&handles[number % 3]), asked.clone());
            async move { Some(store.reserve(&asked).await) }.boxed()
        });
        let answers = at_once(retries.chain([pass])).await;
        for ((_, first), answer) in made.iter().zip(answers.into_iter().flatten()) {
            match answer {
                Ok(answer) => assert_eq!(
                    answer.first_sequence, first.first_sequence,
                    "a retry got a second sequence while its reservation was being pruned"
                ),
                gone => refused(gone, StoreErrorKind::Expired, "a retry of a pruned id"),
            }
        }
        assert_eq!(
            scene.next_sequence().await,
            cursor,
            "a retry consumed a sequence"
        );
    }
}

pub(super) async fn concurrent_passes_delete_each_row_once<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    for _ in 0..30 {
        scene.reserve(1).await;
    }
    scene.advance(2 * HOUR).await;
    let handles = scene.handles(2).await;
    let passes = at_once((0..4).map(|task| {
        let store = Arc::clone(&handles[task % 2]);
        async move {
            store
                .prune_scheduler_fairness_reservations(Scene::<S>::an_hour(6))
                .await
        }
    }))
    .await;
    let mut deleted = 0;
    for pass in passes {
        let pass = pass.must("a concurrent pass");
        assert!(
            pass.deleted <= 6,
            "a pass deleted {} rows, more than its batch",
            pass.deleted
        );
        deleted += pass.deleted;
    }
    let left = u32::try_from(scene.reservations().await.len()).must("a number");
    assert_eq!(
        deleted + left,
        30,
        "what was reported as deleted is not what is gone"
    );
    // A pass steps over rows that others hold; passes later on find them again.
    loop {
        let pass = prune(&scene, 6).await;
        deleted += pass.deleted;
        if !pass.more {
            break;
        }
    }
    assert_eq!(
        deleted, 29,
        "all but the newest reservation must be gone, each deleted once"
    );
    let left: Vec<Reservation> = scene.reservations().await;
    assert_eq!(left.len(), 1, "the newest reservation is left");
}

async fn prune<S: StoreUnderTest>(scene: &Scene<S>, batch: u32) -> RetentionReport {
    let pass = scene
        .store
        .prune_scheduler_fairness_reservations(Scene::<S>::an_hour(batch))
        .await;
    pass.must("a pruning pass")
}

/// The time that an id minted at `time` has.
fn whole_millis(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).must("the same time")
}
