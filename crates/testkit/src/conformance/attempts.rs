//! Complete, fail and release, repeated with the same fence, are answered as the first time.

use core::time::Duration;

use evenhand_store::{
    AttemptsMax, Claim, Failure, FailureOutcome, Lease, RecoveryReport, Retry, RunQueue, RunState,
    StoreErrorKind, Timestamp,
};

use super::StoreUnderTest;
use super::scene::{Must, Scene, refused, run};

/// The wait tick of the default scoring.
const WAIT_TICK: Duration = Duration::from_secs(1);

pub(super) async fn a_repeated_completion_succeeds<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let lease = scene.started().await.lease;
    let before = scene.now().await;
    scene.store.complete(&lease).await.must("the completion");
    let done = scene.run(lease.run).await;
    assert_eq!(done.state, RunState::Done);
    let finished_at = done.finished_at.must("the end of a run that is done");
    assert!(before <= finished_at && finished_at <= scene.now().await);
    for handle in scene.handles(2).await {
        scene.advance(Duration::from_hours(1)).await;
        handle.complete(&lease).await.must("the completion again");
    }
    assert_eq!(
        scene.run(lease.run).await,
        done,
        "a repetition changed the run"
    );
    assert_eq!(
        scene.claim(scene.sequence_of("a").await).await,
        Claim::Idle,
        "a done run is ready"
    );
}

pub(super) async fn a_failed_run_waits_and_its_repetition_is_answered_alike<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let first = scene.started().await.lease;
    let delay = Duration::from_secs(90);
    let failure = Failure::new("no such table", Retry::After(delay));
    let before = scene.now().await;
    let outcome = scene.store.fail(&first, &failure).await.must("the failure");
    let after = scene.now().await;
    let FailureOutcome::Requeued(ready_at) = outcome else {
        panic!("a run with attempts left waits for its next one, but it is {outcome:?}")
    };
    assert!(
        before + delay <= ready_at,
        "the run is ready before its delay is over"
    );
    assert!(
        ready_at < after + delay + WAIT_TICK,
        "the run is ready a tick too late"
    );
    assert_eq!(
        ready_at.as_nanosecond() % 1_000_000_000,
        0,
        "it is not ready on a whole tick"
    );

    let queued = scene.run(first.run).await;
    assert_eq!(
        (queued.state, queued.attempt, queued.ready_at),
        (RunState::Queued, 1, ready_at)
    );
    assert_eq!(queued.last_error.as_deref(), Some("no such table"));
    let again = scene
        .store
        .fail(&first, &failure)
        .await
        .must("the failure again");
    assert_eq!(again, outcome, "a repetition is answered as the first time");
    assert_eq!(
        scene.claim(scene.sequence_of("a").await).await,
        Claim::Idle,
        "it does not wait"
    );

    scene.advance(delay + WAIT_TICK).await;
    let second = scene.claimed("a").await;
    assert_eq!((second.run.id, second.run.attempt), (first.run, 2));
    assert!(second.lease.fence > first.fence);
    let again = scene
        .store
        .fail(&first, &failure)
        .await
        .must("the failure, once more");
    assert_eq!(
        again, outcome,
        "a repetition is answered as the first time, also later"
    );
    assert_eq!(
        scene.run(first.run).await,
        second.run,
        "a repetition changed the next attempt"
    );
}

pub(super) async fn a_run_without_attempts_left_is_dead<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let retry = Failure::new("again", Retry::After(Duration::ZERO));
    let mut twice = run("a");
    twice.attempts_max = AttemptsMax::new(2).must("two attempts");
    scene.enqueue(&twice).await;
    for is_last in [false, true] {
        let lease = scene.claimed("a").await.lease;
        let outcome = scene.store.fail(&lease, &retry).await.must("a failure");
        assert_eq!(
            outcome == FailureOutcome::Dead,
            is_last,
            "the second attempt is the last"
        );
        assert_eq!(
            scene
                .store
                .fail(&lease, &retry)
                .await
                .must("a failure again"),
            outcome
        );
        if is_last {
            assert_dead(&scene, &lease).await;
        }
    }

    let given_up = scene.started().await.lease;
    let give_up = Failure::new("never", Retry::GiveUp);
    for _ in 0..2 {
        let outcome = scene
            .store
            .fail(&given_up, &give_up)
            .await
            .must("a failure");
        assert_eq!(
            outcome,
            FailureOutcome::Dead,
            "a run that gives up is dead at once"
        );
    }
    assert_dead(&scene, &given_up).await;

    let mut once = run("a");
    once.attempts_max = AttemptsMax::new(1).must("one attempt");
    scene.enqueue(&once).await;
    let expired = scene.claimed("a").await.lease;
    scene.advance(Duration::from_mins(1)).await;
    let report = scene.store.recover(10).await.must("a recovery");
    assert_eq!(
        report,
        RecoveryReport::new(0, 1),
        "its only attempt is lost"
    );
    assert_dead(&scene, &expired).await;
}

pub(super) async fn a_released_run_is_not_counted_and_keeps_its_place<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let first = scene.started().await;
    scene.advance(Duration::from_secs(5)).await;
    for _ in 0..2 {
        scene
            .store
            .release(&first.lease, Duration::ZERO)
            .await
            .must("the release");
        let queued = scene.run(first.run.id).await;
        assert_eq!(
            (queued.state, queued.attempt),
            (RunState::Queued, 0),
            "an attempt was counted"
        );
        assert_eq!(
            queued.ready_at, first.run.ready_at,
            "a released run keeps its place"
        );
        assert_eq!(queued.fence, first.lease.fence, "the fence stays used");
    }
    let second = scene.claimed("a").await;
    assert_eq!((second.run.id, second.run.attempt), (first.run.id, 1));
    assert!(
        second.lease.fence > first.lease.fence,
        "a fence was used twice"
    );

    scene
        .store
        .release(&first.lease, Duration::ZERO)
        .await
        .must("the first release again");
    assert_eq!(
        scene.run(first.run.id).await,
        second.run,
        "a repetition changed the next attempt"
    );
    let delay = Duration::from_mins(1);
    let before = scene.now().await;
    scene
        .store
        .release(&second.lease, delay)
        .await
        .must("a release with a delay");
    assert!(scene.run(first.run.id).await.ready_at >= before + delay);
    assert_eq!(
        scene.claim(scene.sequence_of("a").await).await,
        Claim::Idle,
        "it does not wait"
    );
    scene.advance(delay + WAIT_TICK).await;
    assert_eq!(scene.claimed("a").await.run.id, first.run.id);
}

pub(super) async fn an_attempt_that_ended_otherwise_refuses_other_ends<S: StoreUnderTest>() {
    const LOST: StoreErrorKind = StoreErrorKind::LeaseLost;
    let scene = Scene::<S>::start().await;
    let store = &scene.store;
    let later = Duration::from_hours(1);
    let failure = Failure::new("later", Retry::After(later));

    let completed = scene.started().await.lease;
    store.complete(&completed).await.must("a completion");
    let after = scene.run(completed.run).await;
    refused(
        store.fail(&completed, &failure).await,
        LOST,
        "fail after complete",
    );
    refused(
        store.release(&completed, later).await,
        LOST,
        "release after complete",
    );
    assert_eq!(scene.run(completed.run).await, after);

    let failed = scene.started().await.lease;
    store.fail(&failed, &failure).await.must("a failure");
    let after = scene.run(failed.run).await;
    refused(store.complete(&failed).await, LOST, "complete after fail");
    refused(
        store.release(&failed, later).await,
        LOST,
        "release after fail",
    );
    assert_eq!(scene.run(failed.run).await, after);

    let released = scene.started().await.lease;
    store.release(&released, later).await.must("a release");
    let after = scene.run(released.run).await;
    refused(
        store.complete(&released).await,
        LOST,
        "complete after release",
    );
    refused(
        store.fail(&released, &failure).await,
        LOST,
        "fail after release",
    );
    assert_eq!(scene.run(released.run).await, after);
}

async fn assert_dead<S: StoreUnderTest>(scene: &Scene<S>, lease: &Lease) {
    let dead = scene.run(lease.run).await;
    assert_eq!(dead.state, RunState::Dead);
    let finished_at: Option<Timestamp> = dead.finished_at;
    assert!(finished_at.is_some(), "a dead run has ended");
    assert_eq!(
        scene.claim(scene.sequence_of("a").await).await,
        Claim::Idle,
        "a dead run is ready"
    );
}
