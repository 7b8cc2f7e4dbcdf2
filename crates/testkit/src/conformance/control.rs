//! A cancelled run is not claimed any more; a running one is asked to stop and ends as cancelled unless it completes; who
//! is dead or cancelled can be queued again or discarded.

use core::time::Duration;

use std::sync::Arc;

use evenhand_store::{
    AttemptResult, AttemptsMax, Cancellation, Claim, Controlled, Failure, FailureOutcome, Lease,
    NewRun, RecoveryReport, Renewal, ReservationId, Retry, Run, RunId, RunQueue, RunState,
    SequenceOutcome, StoreErrorKind, Timestamp,
};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::StoreUnderTest;
use super::optional::Method;
use super::scene::{Must, Scene, at_once, attempt, claim, lease, ran, refused, run};

pub(super) async fn a_queued_run_is_cancelled_at_once<S: StoreUnderTest>() {
    let Some(scene) = with::<S, 1>([Method::Cancel]).await else {
        return;
    };
    let mut later = run("a");
    later.ready_at = evenhand_store::ReadyAt::After(Duration::from_secs(5));
    for spec in [run("a"), later] {
        let id = scene.enqueue(&spec).await;
        let before = scene.now().await;
        assert_eq!(cancel(&scene, id).await, Cancellation::Cancelled);
        let cancelled = scene.run(id).await;
        assert_eq!(cancelled.state, RunState::Cancelled);
        let finished_at = cancelled.finished_at.must("the end of a cancelled run");
        assert!(before <= finished_at && finished_at <= scene.now().await);
        assert_eq!(
            cancel(&scene, id).await,
            Cancellation::Ended(RunState::Cancelled)
        );
        assert_eq!(
            scene.run(id).await,
            cancelled,
            "a repetition changed the run"
        );
    }
    scene.advance(Duration::from_mins(1)).await;
    let sequence = scene.sequence_of("a").await;
    assert_eq!(
        scene.claim(sequence).await,
        Claim::Idle,
        "a cancelled run is ready"
    );
    let ready = scene
        .store
        .ready_tenants(scene.policy.shard())
        .await
        .must("the tenants");
    assert_eq!((ready.tenants, ready.next_ready_at), (vec![], None));
    assert_eq!(scene.count(|counts| counts.cancelled).await, 2);
    assert_eq!(scene.count(|counts| counts.queued).await, 0);
}

pub(super) async fn a_running_run_goes_on_until_its_attempt_ends<S: StoreUnderTest>() {
    let Some(scene) = with::<S, 1>([Method::Cancel]).await else {
        return;
    };
    let held = scene.started().await;
    for _ in 0..2 {
        assert_eq!(cancel(&scene, held.run.id).await, Cancellation::Requested);
    }
    assert_eq!(scene.run(held.run.id).await.state, RunState::Running);
    let again = ran(scene.claim(held.lease.sequence).await);
    assert_eq!(again.lease, held.lease, "the lease was taken away");
    let before = scene.now().await;
    let Renewal::StopRequested(expires_at) = renew(&scene, &held.lease).await else {
        panic!("the worker is not asked to stop")
    };
    assert!(
        before + lease(30).get() <= expires_at,
        "the lease was not renewed"
    );
    assert!(matches!(
        renew(&scene, &held.lease).await,
        Renewal::StopRequested(_)
    ));
    scene
        .store
        .complete(&held.lease)
        .await
        .must("a completion of a run that was to stop");
    assert_eq!(
        scene.run(held.run.id).await.state,
        RunState::Done,
        "whoever completes has won"
    );
    assert_eq!(result(&scene, &held.lease).await, AttemptResult::Completed);
    assert_eq!(
        cancel(&scene, held.run.id).await,
        Cancellation::Ended(RunState::Done)
    );
}

pub(super) async fn an_attempt_that_was_to_stop_ends_as_cancelled<S: StoreUnderTest>() {
    const LOST: StoreErrorKind = StoreErrorKind::LeaseLost;
    let Some(scene) = with::<S, 1>([Method::Cancel]).await else {
        return;
    };
    let store = &scene.store;
    let retry = Failure::new("stopped", Retry::After(Duration::ZERO));
    let failed = stopping(&scene).await;
    for _ in 0..2 {
        let outcome = store.fail(&failed, &retry).await.must("a failure");
        assert_eq!(
            outcome,
            FailureOutcome::Cancelled,
            "a stopped run is not tried again"
        );
    }
    let given_up = stopping(&scene).await;
    let outcome = store
        .fail(&given_up, &Failure::new("no", Retry::GiveUp))
        .await;
    assert_eq!(outcome.must("a failure"), FailureOutcome::Cancelled);
    let released = stopping(&scene).await;
    for delay in [Duration::ZERO, Duration::from_mins(1), Duration::ZERO] {
        store.release(&released, delay).await.must("a release");
    }
    let expired = stopping(&scene).await;
    scene.advance(Duration::from_secs(40)).await;
    let report = store.recover(10).await.must("a recovery");
    assert_eq!(
        report,
        RecoveryReport::new(0, 0),
        "neither queued again nor dead"
    );

    for ended in [failed, given_up, released, expired] {
        let run = scene.run(ended.run).await;
        assert_eq!(run.state, RunState::Cancelled);
        assert!(run.finished_at.is_some());
        assert_eq!(result(&scene, &ended).await, AttemptResult::Cancelled);
        refused(
            store.complete(&ended).await,
            LOST,
            "a completion after the end",
        );
        assert_eq!(renew(&scene, &ended).await, Renewal::Lost);
        assert_eq!(scene.run(ended.run).await, run);
    }
    let sequence = scene.sequence_of("a").await;
    assert_eq!(
        scene.claim(sequence).await,
        Claim::Idle,
        "a cancelled run is ready"
    );
}

pub(super) async fn who_has_ended_is_not_cancelled<S: StoreUnderTest>() {
    let Some(scene) = with::<S, 3>([Method::Cancel, Method::Requeue, Method::Discard]).await else {
        return;
    };
    let store = &scene.store;
    let dead = bury(&scene).await;
    assert_eq!(
        cancel(&scene, dead.id).await,
        Cancellation::Ended(RunState::Dead)
    );
    assert_eq!(
        scene.run(dead.id).await,
        dead,
        "a refused cancellation changed the run"
    );
    let unknown = RunId::new(ReservationId::mint(scene.now().await).as_uuid());
    assert_eq!(cancel(&scene, unknown).await, Cancellation::NotFound);
    assert_eq!(
        store.requeue(unknown).await.must("an answer"),
        Controlled::NotFound
    );
    assert_eq!(
        store.discard(unknown).await.must("an answer"),
        Controlled::NotFound
    );

    let done = scene.started().await.lease;
    store.complete(&done).await.must("a completion");
    let running = scene.started().await.lease;
    let queued = scene.enqueue(&run("a")).await;
    for (id, state) in [
        (done.run, RunState::Done),
        (running.run, RunState::Running),
        (queued, RunState::Queued),
    ] {
        let before = scene.run(id).await;
        assert_eq!(
            store.requeue(id).await.must("an answer"),
            Controlled::Refused(state)
        );
        assert_eq!(
            store.discard(id).await.must("an answer"),
            Controlled::Refused(state)
        );
        assert_eq!(scene.run(id).await, before, "a refusal changed the run");
    }
    store.complete(&running).await.must("a completion");
}

pub(super) async fn a_requeued_run_begins_anew_and_its_fence_goes_on<S: StoreUnderTest>() {
    let Some(scene) = with::<S, 2>([Method::Cancel, Method::Requeue]).await else {
        return;
    };
    let store = &scene.store;
    let mut twice = run("a");
    twice.attempts_max = AttemptsMax::new(2).must("two attempts");
    let id = scene.enqueue(&twice).await;
    let mut fences = Vec::new();
    for life in 0..3 {
        for attempt in 1..=2 {
            let held = scene.claimed("a").await;
            assert_eq!(
                (held.run.id, held.run.attempt),
                (id, attempt),
                "in life {life}"
            );
            fences.push(held.lease.fence);
            assert_eq!(
                fail(&scene, &held.lease).await == FailureOutcome::Dead,
                attempt == 2
            );
            if attempt == 2 {
                let before = scene.now().await;
                assert_eq!(store.requeue(id).await.must("an answer"), Controlled::Done);
                assert_queued_anew(&scene, &held.lease, before).await;
            }
        }
    }
    assert!(
        fences.is_sorted_by(|a, b| a < b),
        "a fence was used twice: {fences:?}"
    );

    // A request to stop dies with the run that it was for.
    let held = scene.claimed("a").await;
    assert_eq!(cancel(&scene, id).await, Cancellation::Requested);
    store
        .release(&held.lease, Duration::ZERO)
        .await
        .must("a release");
    assert_eq!(store.requeue(id).await.must("an answer"), Controlled::Done);
    let held = scene.claimed("a").await;
    assert!(matches!(
        renew(&scene, &held.lease).await,
        Renewal::Renewed(_)
    ));
    store.complete(&held.lease).await.must("a completion");
}

pub(super) async fn a_discarded_run_is_gone_with_its_key<S: StoreUnderTest>() {
    let Some(scene) = with::<S, 2>([Method::Cancel, Method::Discard]).await else {
        return;
    };
    let store = &scene.store;
    let keyed = |key: &str| {
        let mut run = run("a");
        run.idempotency_key = Some(key.try_into().must("a key"));
        run
    };
    let cancelled = scene.enqueue(&keyed("cancelled")).await;
    assert_eq!(cancel(&scene, cancelled).await, Cancellation::Cancelled);
    let buried = scene.enqueue(&keyed("dead")).await;
    let held = scene.claimed("a").await.lease;
    store
        .fail(&held, &Failure::new("no", Retry::GiveUp))
        .await
        .must("a failure");
    for (id, key) in [(cancelled, "cancelled"), (buried, "dead")] {
        assert_eq!(store.discard(id).await.must("an answer"), Controlled::Done);
        assert_eq!(store.run(id).await.must("a look"), None);
        assert_eq!(
            store.discard(id).await.must("an answer"),
            Controlled::NotFound
        );
        assert_eq!(cancel(&scene, id).await, Cancellation::NotFound);
        let mut other: NewRun = keyed(key);
        other.base_priority = 9.try_into().must("a priority");
        let answer = store
            .enqueue(&other)
            .await
            .must("other content under a free key");
        assert!(answer.created && answer.run != id);
    }
    let record = scene.record(held.sequence).await;
    assert_eq!(
        attempt(&record).run,
        buried,
        "what a sequence ran stays on record"
    );
    let answer = store.claim(&claim(&scene.policy, held.sequence)).await;
    refused(
        answer,
        StoreErrorKind::LeaseLost,
        "a claim whose run is gone",
    );
    refused(
        store.complete(&held).await,
        StoreErrorKind::LeaseLost,
        "the end of a run that is gone",
    );
}

pub(super) async fn racing_cancellations_and_claims_agree<S: StoreUnderTest>() {
    let Some(scene) = with::<S, 1>([Method::Cancel]).await else {
        return;
    };
    let handles = scene.handles(2).await;
    for turn in 0..8 {
        let id = scene.enqueue(&run("a")).await;
        let sequence = scene.sequence_of("a").await;
        let asked = claim(&scene.policy, sequence);
        let claimant = Arc::clone(&handles[turn % 2]);
        let claims = async move {
            let is_running = matches!(claimant.claim(&asked).await.must("a claim"), Claim::Ran(_));
            (is_running, None)
        };
        let operator = Arc::clone(&handles[(turn + 1) % 2]);
        let cancels = async move {
            let answer = operator.cancel(id).await.must("a cancellation");
            (false, Some(answer))
        };
        let both: [BoxFuture<'static, (bool, Option<Cancellation>)>; 2] =
            [claims.boxed(), cancels.boxed()];
        let answers = at_once(both).await;
        let (is_running, cancellation) = (answers[0].0, answers[1].1.must("an answer"));
        let run = scene.run(id).await;
        if is_running {
            assert_eq!(cancellation, Cancellation::Requested);
            assert_eq!(run.state, RunState::Running);
            // Ended, so that the next turn finds no run but its own.
            let held = ran(scene.claim(sequence).await).lease;
            scene
                .store
                .release(&held, Duration::ZERO)
                .await
                .must("a release");
        } else {
            assert_eq!(cancellation, Cancellation::Cancelled);
        }
        assert_eq!(scene.run(id).await.state, RunState::Cancelled);
    }
}

async fn with<S: StoreUnderTest, const N: usize>(methods: [Method; N]) -> Option<Scene<S>> {
    let scene = Scene::<S>::start().await;
    scene.offers(methods).await.then_some(scene)
}

async fn cancel<S: StoreUnderTest>(scene: &Scene<S>, id: RunId) -> Cancellation {
    scene.store.cancel(id).await.must("a cancellation")
}

/// The lease of a run that is running and was cancelled.
async fn stopping<S: StoreUnderTest>(scene: &Scene<S>) -> Lease {
    let held = scene.started().await.lease;
    assert_eq!(cancel(scene, held.run).await, Cancellation::Requested);
    held
}

/// Fails the attempt, which is tried again at once while the run has attempts left.
async fn fail<S: StoreUnderTest>(scene: &Scene<S>, held: &Lease) -> FailureOutcome {
    let retry = Failure::new("again", Retry::After(Duration::ZERO));
    scene.store.fail(held, &retry).await.must("a failure")
}

/// Asserts that the run is queued as if it were new, but for its fence, and that its last attempt has ended as before.
async fn assert_queued_anew<S: StoreUnderTest>(scene: &Scene<S>, last: &Lease, before: Timestamp) {
    let queued = scene.run(last.run).await;
    assert_eq!((queued.state, queued.attempt), (RunState::Queued, 0));
    assert_eq!((queued.finished_at, &queued.last_error), (None, &None));
    assert!(
        before <= queued.ready_at && queued.ready_at <= scene.now().await,
        "ready at once"
    );
    assert_eq!(queued.fence, last.fence, "its fence stays used");
    let again = scene.store.requeue(last.run).await.must("an answer");
    assert_eq!(again, Controlled::Refused(RunState::Queued));
    assert_eq!(
        fail(scene, last).await,
        FailureOutcome::Dead,
        "answered as the first time"
    );
    let late = scene.store.complete(last).await;
    refused(late, StoreErrorKind::LeaseLost, "a stale fence");
    assert_eq!(scene.run(last.run).await, queued);
}

async fn bury<S: StoreUnderTest>(scene: &Scene<S>) -> Run {
    let held = scene.started().await.lease;
    let give_up = Failure::new("never", Retry::GiveUp);
    scene.store.fail(&held, &give_up).await.must("a failure");
    scene.run(held.run).await
}

async fn renew<S: StoreUnderTest>(scene: &Scene<S>, held: &Lease) -> Renewal {
    let renewals = scene
        .store
        .renew(core::slice::from_ref(held), lease(30))
        .await;
    let mut renewals = renewals.must("a renewal").into_iter();
    renewals.next().must("an answer for the lease")
}

/// How the attempt of the lease ended, as its sequence tells.
async fn result<S: StoreUnderTest>(scene: &Scene<S>, lease: &Lease) -> AttemptResult {
    let record = scene.record(lease.sequence).await;
    assert!(matches!(record.outcome, SequenceOutcome::Ran(_)));
    attempt(&record).ended.must("the end of the attempt").0
}
