//! Replies that never arrive, backends that die.

use evenhand_store::{Claim, ReservationStore, RunQueue, RunState, StoreError, StoreErrorKind};
use evenhand_testkit::postgres::Cut;

use crate::scene::{Scene, ran, run, through_proxy};

fn assert_unknown<T: core::fmt::Debug>(answer: Result<T, StoreError>) {
    let error = answer.expect_err("the reply was cut");
    assert_eq!(error.kind(), StoreErrorKind::OutcomeUnknown, "{error:?}");
    assert!(error.is_retryable());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_whose_acknowledgement_was_lost_is_answered_again() {
    let scene = Scene::start().await;
    let (proxy, store) = through_proxy(&scene).await;
    for expected in 0..5 {
        let request = scene.request(1);
        proxy.cut(Cut::reply().matching("evenhand.reserve("));
        assert_unknown(store.reserve(&request).await);
        proxy.stop_cutting();
        // It was really committed.
        assert_eq!(
            scene
                .number("SELECT count(*) FROM evenhand.reservations")
                .await,
            expected + 1
        );
        assert_eq!(
            store.reserve(&request).await.unwrap().first_sequence,
            u64::try_from(expected).unwrap()
        );
    }
    assert_eq!(proxy.cuts_made(), 5);
    assert_eq!(
        scene
            .number("SELECT count(*) FROM evenhand.reservations")
            .await,
        5
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_never_reached_the_server_consumes_nothing() {
    let scene = Scene::start().await;
    let (proxy, store) = through_proxy(&scene).await;
    let request = scene.request(1);
    proxy.cut(Cut::request().matching("evenhand.reserve("));
    assert_unknown(store.reserve(&request).await);
    proxy.stop_cutting();
    assert_eq!(
        scene
            .number("SELECT count(*) FROM evenhand.reservations")
            .await,
        0
    );
    assert_eq!(store.reserve(&request).await.unwrap().first_sequence, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_acknowledgement_was_lost_gives_the_same_run() {
    let scene = Scene::start().await;
    let (proxy, store) = through_proxy(&scene).await;
    scene
        .store
        .enqueue_many(&[run("a"), run("a")])
        .await
        .unwrap();
    let sequence = scene.reserve(1).await.first_sequence;
    proxy.cut(Cut::reply().matching("evenhand.claim("));
    assert_unknown(store.claim(&scene.claim_request(sequence)).await);
    proxy.stop_cutting();
    assert_eq!(
        scene.number("SELECT count(*) FROM evenhand.leases").await,
        1
    );
    let again = ran(store.claim(&scene.claim_request(sequence)).await.unwrap());
    assert_eq!(again.lease.fence.get(), 1);
    assert_eq!(scene.claim(sequence).await, Claim::Ran(Box::new(again)));
    assert_eq!(
        scene.number("SELECT count(*) FROM evenhand.attempts").await,
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_whose_acknowledgement_was_lost_succeeds_again() {
    let scene = Scene::start().await;
    let (proxy, store) = through_proxy(&scene).await;
    let claimed = scene.claimed("a").await;
    proxy.cut(Cut::reply().matching("evenhand.complete("));
    assert_unknown(store.complete(&claimed.lease).await);
    proxy.stop_cutting();
    assert_eq!(
        scene
            .store
            .run(claimed.run.id)
            .await
            .unwrap()
            .unwrap()
            .state,
        RunState::Done
    );
    store.complete(&claimed.lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_backends_cost_one_call_each_and_no_sequence() {
    let scene = Scene::start().await;
    let request = scene.request(1);
    scene.store.reserve(&request).await.unwrap();
    for _ in 0..3 {
        scene
            .sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .await;
        let next = scene.request(1);
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            assert!(tries < 5, "the pool does not recover");
            match scene.store.reserve(&next).await {
                Ok(answer) => break answer,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        };
        assert_eq!(
            scene.store.reserve(&next).await.unwrap().first_sequence,
            answer.first_sequence
        );
    }
    assert_eq!(
        scene
            .number("SELECT max(first_sequence) FROM evenhand.reservations")
            .await,
        3
    );
}
