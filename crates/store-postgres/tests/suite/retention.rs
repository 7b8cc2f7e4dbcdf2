//! Pruning, and what it leaves behind.

use core::time::Duration;

use evenhand_store::{
    ReservationStore, RetentionReport, SchedulerFairnessRetentionPolicy, StoreErrorKind,
};
use sqlx::Connection as _;

use crate::scene::{Scene, execute, kind, number};

const HOUR: i64 = 3_600_000_000;

async fn prune(scene: &Scene, batch: u32) -> RetentionReport {
    let policy = SchedulerFairnessRetentionPolicy::new(Duration::from_hours(1), batch).unwrap();
    scene
        .store
        .prune_scheduler_fairness_reservations(policy)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_bounded_and_report_what_is_left() {
    let scene = Scene::start().await;
    for _ in 0..10 {
        scene.reserve(3).await;
    }
    assert_eq!(prune(&scene, 100).await.deleted, 0);
    scene.database.move_clock(HOUR + 1).await;
    let passes: Vec<_> = [
        prune(&scene, 4).await,
        prune(&scene, 4).await,
        prune(&scene, 4).await,
    ]
    .iter()
    .map(|report| (report.deleted, report.more))
    .collect();
    // The newest of the ten stays.
    assert_eq!(passes, [(4, true), (4, true), (1, false)]);
    assert_eq!(
        scene
            .store
            .reservations(scene.policy.shard(), 0, 10)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(scene.reserve(1).await.first_sequence, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_pruning_is_expired_for_ever() {
    let scene = Scene::start().await;
    let pruned = scene.request(1);
    scene.store.reserve(&pruned).await.unwrap();
    let kept = scene.request(1);
    scene.store.reserve(&kept).await.unwrap();
    scene.database.move_clock(HOUR + 1).await;
    assert_eq!(prune(&scene, 10).await.deleted, 1);
    for _ in 0..2 {
        assert_eq!(
            kind(scene.store.reserve(&pruned).await),
            StoreErrorKind::Expired
        );
        assert_eq!(scene.store.reserve(&kept).await.unwrap().first_sequence, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_while_its_row_is_being_pruned_is_answered_or_expired() {
    let scene = Scene::start().await;
    let request = scene.request(2);
    scene.store.reserve(&request).await.unwrap();
    scene.reserve(1).await;
    scene.database.move_clock(HOUR + 1).await;
    let mut pruner = scene.database.connect().await;
    let mut pruning = pruner.begin().await.unwrap();
    assert_eq!(
        number(
            &mut pruning,
            "SELECT deleted::bigint FROM evenhand.prune_reservations(3600000, 10)"
        )
        .await,
        1
    );
    // The row is deleted but not committed: the retry neither waits for that nor takes new sequences.
    assert_eq!(
        scene.store.reserve(&request).await.unwrap().first_sequence,
        0
    );
    pruning.commit().await.unwrap();
    assert_eq!(
        kind(scene.store.reserve(&request).await),
        StoreErrorKind::Expired
    );
    assert_eq!(scene.reserve(1).await.first_sequence, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_others_hold_are_stepped_over_and_found_again() {
    let scene = Scene::start().await;
    for _ in 0..6 {
        scene.reserve(1).await;
    }
    scene.database.move_clock(HOUR + 1).await;
    let mut holder = scene.database.connect().await;
    let mut holding = holder.begin().await.unwrap();
    execute(
        &mut holding,
        "SELECT FROM evenhand.reservations WHERE first_sequence IN (0, 2) FOR UPDATE",
    )
    .await;
    let held = prune(&scene, 2).await;
    assert_eq!((held.deleted, held.more), (2, true));
    let held = prune(&scene, 10).await;
    assert_eq!((held.deleted, held.more), (1, true));
    holding.rollback().await.unwrap();
    let free = prune(&scene, 10).await;
    assert_eq!((free.deleted, free.more), (2, false));
    assert_eq!(
        scene.number("SELECT resume_from FROM evenhand.marks").await,
        5
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_being_made_keeps_its_reservation() {
    let scene = Scene::start().await;
    scene.reserve(1).await;
    scene.reserve(1).await;
    scene.database.move_clock(HOUR + 1).await;
    let mut claimer = scene.database.connect().await;
    let mut claiming = claimer.begin().await.unwrap();
    execute(
        &mut claiming,
        "SELECT evenhand.claim('primary-v1', 0, 'a', 'w', 1000)",
    )
    .await;
    assert_eq!(prune(&scene, 10).await.deleted, 0);
    claiming.commit().await.unwrap();
    assert_eq!(prune(&scene, 10).await.deleted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_passes_at_once_never_wait_for_each_other_or_delete_twice() {
    let scene = Scene::start().await;
    for _ in 0..40 {
        scene.reserve(1).await;
    }
    scene.database.move_clock(HOUR + 1).await;
    let mut deleted = 0;
    loop {
        let reports = tokio::join!(prune(&scene, 3), prune(&scene, 3), prune(&scene, 3));
        let pass = reports.0.deleted + reports.1.deleted + reports.2.deleted;
        deleted += pass;
        if pass == 0 {
            break;
        }
    }
    assert_eq!(deleted, 39);
}
