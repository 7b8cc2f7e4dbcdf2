//! Completions that are asked for together are answered in order, each as if it had been asked for alone.

use core::time::Duration;

use std::sync::Arc;

use evenhand_store::{Failure, Lease, Retry, RunQueue, RunState, StoreError, StoreErrorKind};

use super::StoreUnderTest;
use super::scene::{Must, Scene, at_once, refused};

/// How often a run is asked for again that somebody else holds at the moment.
const ROUNDS_MAX: usize = 1_000;

pub(super) async fn completions_are_answered_in_their_order<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let mut leases = leases(&scene, 5).await;
    // Neither the order of the claims nor that of the ids.
    leases.swap(0, 3);
    leases.swap(1, 4);
    let failure = Failure::new("later", Retry::After(Duration::from_hours(1)));
    for ended in [0, 1] {
        let store = &scene.store;
        store.fail(&leases[ended], &failure).await.must("a failure");
    }
    let answers = asked(&*scene.store, &leases).await;
    for (index, answer) in answers.into_iter().enumerate() {
        let lease = &leases[index];
        if [0, 1].contains(&index) {
            refused(
                answer,
                StoreErrorKind::LeaseLost,
                "the answer of a lost lease",
            );
            assert_eq!(scene.run(lease.run).await.state, RunState::Queued);
        } else {
            answer.must("the answer of a lease that holds");
            assert_eq!(scene.run(lease.run).await.state, RunState::Done);
        }
    }
    assert!(asked(&*scene.store, &[]).await.is_empty());
}

pub(super) async fn a_refused_completion_fails_nobody_else<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let stale = scene.started().await.lease;
    scene.advance(Duration::from_mins(1)).await;
    scene.store.recover(10).await.must("a recovery");
    let current = scene.claimed("a").await.lease;
    assert_eq!(stale.run, current.run);
    let other = scene.started().await.lease;
    // A run may be named by a stale fence and by the current one, and twice.
    let together = [&stale, &current, &other, &other].map(Lease::clone);
    let mut ends = Vec::new();
    for handle in scene.handles(3).await {
        let mut answers = asked(&*handle, &together).await.into_iter();
        refused(
            answers.next().must("an answer"),
            StoreErrorKind::LeaseLost,
            "a stale fence beside others",
        );
        for answer in answers {
            answer.must("a completion beside a stale fence, first and again");
        }
        ends.push([scene.run(current.run).await, scene.run(other.run).await]);
        scene.advance(Duration::from_hours(1)).await;
    }
    assert!(ends[0].iter().all(|run| run.state == RunState::Done));
    assert!(
        ends.iter().all(|runs| *runs == ends[0]),
        "a repetition changed a run"
    );
}

pub(super) async fn completions_that_overlap_agree<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let leases = leases(&scene, 12).await;
    let handles = scene.handles(4).await;
    let tasks = handles.iter().enumerate().map(|(number, store)| {
        let (store, mut leases) = (Arc::clone(store), leases.clone());
        leases.rotate_left(3 * number);
        if number % 2 == 1 {
            leases.reverse();
        }
        async move { complete_all(&*store, leases).await }
    });
    at_once(tasks).await;
    for lease in &leases {
        assert_eq!(scene.run(lease.run).await.state, RunState::Done);
    }
    let running = scene.count(|counts| counts.running).await;
    assert_eq!(running, 0, "a run is held by nobody");
}

/// The leases of so many runs of `a`.
async fn leases<S: StoreUnderTest>(scene: &Scene<S>, number: usize) -> Vec<Lease> {
    let mut leases = Vec::new();
    for _ in 0..number {
        leases.push(scene.started().await.lease);
    }
    leases
}

/// One answer for each lease.
async fn asked<Q: RunQueue>(store: &Q, leases: &[Lease]) -> Vec<Result<(), StoreError>> {
    let answers = store.complete_many(leases).await.must("the completions");
    assert_eq!(answers.len(), leases.len(), "each lease has an answer");
    answers
}

/// Completes all of these runs; those that somebody else holds are asked for again.
async fn complete_all<Q: RunQueue>(store: &Q, mut leases: Vec<Lease>) {
    for _ in 0..ROUNDS_MAX {
        let answers = asked(store, &leases).await;
        let mut held = Vec::new();
        for (lease, answer) in leases.into_iter().zip(answers) {
            match answer {
                Err(error) if error.is_retryable() => held.push(lease),
                answer => answer.must("a completion that others make too"),
            }
        }
        if held.is_empty() {
            return;
        }
        leases = held;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{} runs are held by somebody for ever", leases.len());
}
