//! A fence only grows; a stale fence changes nothing and is answered with *lease lost*.

use core::time::Duration;

use std::sync::Arc;

use evenhand_store::{
    AttemptResult, Failure, Fence, Lease, RecoveryReport, Renewal, Retry, RunQueue, RunState,
    StoreError, StoreErrorKind, Timestamp,
};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::StoreUnderTest;
use super::scene::{Must, Scene, at_once, attempt, claim, lease, ran, refused, run};

/// Longer than the leases that the suite takes.
const LEASE_AND_MORE: Duration = Duration::from_secs(31);

pub(super) async fn an_expired_lease_is_recovered_and_its_fence_is_stale<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let first = scene.started().await;
    let report = scene.store.recover(10).await.must("a recovery");
    assert_eq!(
        report,
        RecoveryReport::new(0, 0),
        "a lease that lives was recovered"
    );
    scene.advance(LEASE_AND_MORE).await;
    let report = scene.store.recover(10).await.must("a recovery");
    assert_eq!(
        report,
        RecoveryReport::new(1, 0),
        "the expired lease was not recovered"
    );

    let queued = scene.run(first.run.id).await;
    assert_eq!((queued.state, queued.attempt), (RunState::Queued, 1));
    assert_eq!(
        queued.ready_at, first.run.ready_at,
        "a recovered run keeps its place"
    );
    assert_eq!(
        queued.fence, first.lease.fence,
        "a fence that was used stays used"
    );
    assert!(
        queued.last_error.is_some(),
        "the lost attempt leaves no trace"
    );
    refused(
        scene.store.complete(&first.lease).await,
        StoreErrorKind::LeaseLost,
        "a late completion",
    );
    assert_eq!(
        scene.run(first.run.id).await,
        queued,
        "a late completion changed the run"
    );
    let answer = scene
        .store
        .claim(&claim(&scene.policy, first.lease.sequence))
        .await;
    refused(
        answer,
        StoreErrorKind::LeaseLost,
        "the claim of an attempt that was lost",
    );

    let second = scene.claimed("a").await;
    assert_eq!((second.run.id, second.run.attempt), (first.run.id, 2));
    assert!(
        second.lease.fence > first.lease.fence,
        "the fence did not grow through the queue"
    );
    assert_eq!(
        ended(&scene, first.lease.sequence).await,
        Some(AttemptResult::Expired)
    );
}

pub(super) async fn a_stale_fence_changes_nothing<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let stale = scene.started().await.lease;
    scene.advance(LEASE_AND_MORE).await;
    scene.store.recover(10).await.must("a recovery");
    let current = scene.claimed("a").await;
    let forged = Lease::new(
        stale.run,
        Fence::new(current.lease.fence.get() + 1),
        stale.shard.clone(),
        stale.sequence,
        stale.expires_at,
    );
    let failure = Failure::new("late", Retry::GiveUp);
    for lease in [&stale, &forged] {
        refused(
            scene.store.complete(lease).await,
            StoreErrorKind::LeaseLost,
            "complete",
        );
        refused(
            scene.store.fail(lease, &failure).await,
            StoreErrorKind::LeaseLost,
            "fail",
        );
        let answer = scene.store.release(lease, Duration::ZERO).await;
        refused(answer, StoreErrorKind::LeaseLost, "release");
        assert_eq!(
            renew(&scene, lease).await,
            Renewal::Lost,
            "a stale fence was renewed"
        );
        assert_eq!(
            scene.run(stale.run).await,
            current.run,
            "a stale fence changed the run"
        );
    }
    let again = ran(scene.claim(current.lease.sequence).await);
    assert_eq!(
        again.lease, current.lease,
        "a stale fence changed the current lease"
    );
    scene
        .store
        .complete(&current.lease)
        .await
        .must("the completion with the current fence");
    assert_eq!(scene.run(stale.run).await.state, RunState::Done);
    assert_eq!(
        ended(&scene, stale.sequence).await,
        Some(AttemptResult::Expired)
    );
}

pub(super) async fn a_renewed_lease_is_not_recovered<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let (kept, lost) = (scene.started().await.lease, scene.started().await.lease);
    scene.store.complete(&lost).await.must("a completion");
    scene.advance(Duration::from_secs(20)).await;
    let before = scene.now().await;
    let leases = [kept.clone(), lost, kept.clone()];
    let renewals = scene
        .store
        .renew(&leases, lease(30))
        .await
        .must("the renewals");
    let after = scene.now().await;
    assert_eq!(renewals.len(), 3, "one answer for each lease, in order");
    assert_eq!(
        renewals[1],
        Renewal::Lost,
        "the lease of a run that is done was renewed"
    );
    for renewal in [renewals[0], renewals[2]] {
        let expires_at = renewed(renewal);
        let duration = lease(30).get();
        assert!(before + duration <= expires_at && expires_at <= after + duration);
    }
    // Past the first end of the lease, before the new one.
    scene.advance(Duration::from_secs(15)).await;
    let report = scene.store.recover(10).await.must("a recovery");
    assert_eq!(
        report,
        RecoveryReport::new(0, 0),
        "a renewed lease was recovered"
    );
    let again = ran(scene.claim(kept.sequence).await);
    assert_eq!(again.lease.fence, kept.fence);
    assert!(
        again.lease.expires_at > kept.expires_at,
        "asking again shows the lease as it is now"
    );
    scene
        .store
        .complete(&kept)
        .await
        .must("the completion with a renewed lease");
}

pub(super) async fn an_expired_lease_holds_until_it_is_recovered<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let (renewed_late, completed_late) = (scene.started().await.lease, scene.started().await.lease);
    scene.advance(LEASE_AND_MORE).await;
    scene
        .store
        .complete(&completed_late)
        .await
        .must("a completion before the recovery");
    renewed(renew(&scene, &renewed_late).await);
    let report = scene.store.recover(10).await.must("a recovery");
    assert_eq!(
        report,
        RecoveryReport::new(0, 0),
        "nothing is left to recover"
    );
    scene
        .store
        .complete(&renewed_late)
        .await
        .must("the completion with the renewed lease");
}

pub(super) async fn recovery_takes_the_oldest_expiry_first<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let mut claimed = Vec::new();
    for (sequence, seconds) in scene
        .sequences_of("a", 3)
        .await
        .into_iter()
        .zip([30, 10, 20])
    {
        scene.enqueue(&run("a")).await;
        let mut asked = claim(&scene.policy, sequence);
        asked.lease = lease(seconds);
        claimed.push(ran(scene.store.claim(&asked).await.must("a claim")).run.id);
    }
    scene.advance(Duration::from_mins(1)).await;
    let report = scene
        .store
        .recover(2)
        .await
        .must("a recovery of at most two");
    assert_eq!(report, RecoveryReport::new(2, 0));
    let mut states = Vec::new();
    for id in &claimed {
        states.push(scene.run(*id).await.state);
    }
    let expected = [RunState::Running, RunState::Queued, RunState::Queued];
    assert_eq!(
        states, expected,
        "the lease that expired last was recovered first"
    );
    let report = scene.store.recover(2).await.must("the next recovery");
    assert_eq!(report, RecoveryReport::new(1, 0));
}

pub(super) async fn racing_endings_have_one_winner<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(2).await;
    for round in 0..6 {
        let lease = scene.started().await.lease;
        scene.advance(LEASE_AND_MORE).await;
        let racing = |number: usize| (Arc::clone(&handles[(number + round) % 2]), lease.clone());
        let (store, held) = racing(0);
        let complete = async move { store.complete(&held).await };
        let (store, held) = racing(1);
        let failure = Failure::new("raced", Retry::GiveUp);
        let fail = async move { store.fail(&held, &failure).await.map(drop) };
        let (store, held) = racing(2);
        let release = async move { store.release(&held, Duration::from_hours(1)).await };
        let (store, _) = racing(3);
        let recover = async move { store.recover(10).await.map(drop) };
        let all: [BoxFuture<'static, Result<(), StoreError>>; 4] = [
            complete.boxed(),
            fail.boxed(),
            release.boxed(),
            recover.boxed(),
        ];
        let mut answers = at_once(all).await;
        answers.pop().must("the recovery").must("the recovery");
        let winner = ended(&scene, lease.sequence)
            .await
            .must("an end of the attempt");
        let ends = [
            AttemptResult::Completed,
            AttemptResult::Failed,
            AttemptResult::Released,
        ];
        for (end, answer) in ends.into_iter().zip(answers) {
            if end == winner {
                answer.must("the end that won");
            } else {
                refused(
                    answer,
                    StoreErrorKind::LeaseLost,
                    "an end that lost the race",
                );
            }
        }
        // The next round must find no other run ready.
        scene.store.recover(10).await.must("a recovery");
        while let evenhand_store::Claim::Ran(left) = scene.claim(scene.sequence_of("a").await).await
        {
            scene.store.complete(&left.lease).await.must("a completion");
        }
    }
}

async fn ended<S: StoreUnderTest>(scene: &Scene<S>, sequence: u64) -> Option<AttemptResult> {
    attempt(&scene.record(sequence).await)
        .ended
        .map(|(result, _)| result)
}

async fn renew<S: StoreUnderTest>(scene: &Scene<S>, held: &Lease) -> Renewal {
    let renewals = scene
        .store
        .renew(core::slice::from_ref(held), lease(30))
        .await;
    renewals
        .must("a renewal")
        .into_iter()
        .next()
        .must("an answer for the lease")
}

#[track_caller]
fn renewed(renewal: Renewal) -> Timestamp {
    let Renewal::Renewed(expires_at) = renewal else {
        panic!("the lease must be renewed, but it is {renewal:?}")
    };
    expires_at
}
