//! At most one run is ever claimed against one sequence; asking again gives the same run, fence and lease.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenhand_store::{AttemptResult, Claim, RunQueue, RunState, SequenceOutcome, StoreErrorKind};

use super::StoreUnderTest;
use super::scene::{
    Must, Scene, at_once, attempt, claim, lease, pool, ran, refused, run, tenant, worker,
};

pub(super) async fn only_the_tenant_of_a_reserved_sequence_is_claimed_for<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let of_a = scene.enqueue(&run("a")).await;
    let of_b = scene.enqueue(&run("b")).await;
    let sequence = scene.sequence_of("a").await;

    let mut for_other = claim(&scene.policy, sequence);
    for_other.tenant = tenant("b");
    let answer = scene.store.claim(&for_other).await;
    refused(
        answer,
        StoreErrorKind::Invalid,
        "a claim for a tenant that the cycle does not name",
    );
    let next = scene.next_sequence().await.must("a sequence");
    for beyond in [next, next + 1_000, i64::MAX.unsigned_abs()] {
        let answer = scene.store.claim(&claim(&scene.policy, beyond)).await;
        refused(
            answer,
            StoreErrorKind::Invalid,
            "a claim against a sequence that is not reserved",
        );
    }
    for id in [of_a, of_b] {
        assert_eq!(
            scene.run(id).await.state,
            RunState::Queued,
            "a refused claim took a run"
        );
    }
    let records = scene
        .store
        .sequences(scene.policy.shard(), 0, 100)
        .await
        .must("the outcomes");
    assert_eq!(records, [], "a refused claim left an outcome");
    assert_eq!(ran(scene.claim(sequence).await).run.id, of_a);
    assert_eq!(scene.run(of_b).await.state, RunState::Queued);
}

pub(super) async fn concurrent_claims_of_one_sequence_agree<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(3).await;
    for sequence in scene.sequences_of("a", 5).await {
        // More runs than one, so that a second claim would find something.
        scene
            .store
            .enqueue_many(&[run("a"), run("a")])
            .await
            .must("two runs");
        let answers = at_once((0..6).map(|task| {
            let store = Arc::clone(&handles[task % 3]);
            let asked = claim(&scene.policy, sequence);
            async move { ran(store.claim(&asked).await.must("one of the claims")) }
        }))
        .await;
        for answer in &answers {
            assert_eq!(
                answer.run.id, answers[0].run.id,
                "one sequence was given two runs"
            );
            assert_eq!(
                answer.lease, answers[0].lease,
                "one sequence was given two leases"
            );
        }
    }
    let counts = scene.store.counts().await.must("the counts");
    assert_eq!(
        (counts[0].running, counts[0].queued),
        (5, 5),
        "five sequences run five of ten runs"
    );
}

pub(super) async fn concurrent_claims_of_many_sequences_never_share_a_run<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(3).await;
    scene
        .store
        .enqueue_many(&vec![run("a"); 18])
        .await
        .must("a backlog");
    let sequences = scene.sequences_of("a", 18).await;
    let answers = at_once(sequences.iter().enumerate().map(|(task, sequence)| {
        let store = Arc::clone(&handles[task % 3]);
        let asked = claim(&scene.policy, *sequence);
        async move { store.claim(&asked).await.must("one of the claims") }
    }))
    .await;
    let mut claimed = Vec::new();
    for answer in answers {
        if let Claim::Ran(claim) = answer {
            claimed.push(claim.run.id);
        } else {
            assert_eq!(
                answer,
                Claim::Contended,
                "there was a run for each sequence"
            );
        }
    }
    let runs: BTreeSet<_> = claimed.iter().collect();
    assert_eq!(
        runs.len(),
        claimed.len(),
        "two sequences were given one run"
    );
    let running = scene.store.counts().await.must("the counts")[0].running;
    assert_eq!(usize::try_from(running).must("a number"), runs.len());
}

pub(super) async fn asking_again_gives_the_same_run_fence_and_lease<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    scene.enqueue(&run("a")).await;
    let second = scene.enqueue(&run("a")).await;
    let before = scene.now().await;
    let claimed = scene.claimed("a").await;
    let after = scene.now().await;
    assert_eq!(claimed.run.state, RunState::Running);
    assert_eq!(
        (claimed.run.attempt, claimed.run.fence),
        (1, claimed.lease.fence)
    );
    let duration = lease(30).get();
    let expires_at = claimed.lease.expires_at;
    assert!(
        before + duration <= expires_at && expires_at <= after + duration,
        "not a lease length"
    );
    for handle in scene.handles(2).await {
        let asked = claim(&scene.policy, claimed.lease.sequence);
        let again = ran(handle.claim(&asked).await.must("the claim again"));
        assert_eq!(again, claimed, "asking again was answered differently");
    }
    assert_eq!(
        scene.run(second).await.state,
        RunState::Queued,
        "asking again took another run"
    );

    scene
        .store
        .complete(&claimed.lease)
        .await
        .must("the completion");
    let answer = scene
        .store
        .claim(&claim(&scene.policy, claimed.lease.sequence))
        .await;
    refused(
        answer,
        StoreErrorKind::LeaseLost,
        "a claim whose run has ended",
    );
    assert_eq!(
        scene.run(second).await.state,
        RunState::Queued,
        "a spent sequence took another run"
    );
}

pub(super) async fn a_claim_is_answered_to_its_worker_and_to_who_takes_over<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    scene.enqueue(&run("a")).await;
    let claimed = scene.claimed("a").await;
    let mut of_other = claim(&scene.policy, claimed.lease.sequence);
    of_other.worker = worker("other");
    for handle in scene.handles(2).await {
        refused(
            handle.claim(&of_other).await,
            StoreErrorKind::LeaseLost,
            "a claim of what another worker claimed",
        );
    }
    let again = scene
        .store
        .claim(&claim(&scene.policy, claimed.lease.sequence))
        .await;
    assert_eq!(ran(again.must("the worker's own claim again")), claimed);
    let taken_over = scene.store.claim(&of_other.clone().taking_over()).await;
    assert_eq!(ran(taken_over.must("a claim that is taken over")), claimed);
    scene
        .store
        .complete(&claimed.lease)
        .await
        .must("a completion");
    refused(
        scene.store.claim(&of_other.taking_over()).await,
        StoreErrorKind::LeaseLost,
        "a claim of a run that has ended",
    );
}

pub(super) async fn an_idle_sequence_stays_idle<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let sequences = scene.sequences_of("a", 2).await;
    assert_eq!(scene.claim(sequences[0]).await, Claim::Idle);
    let late = scene.enqueue(&run("a")).await;
    assert_eq!(
        scene.claim(sequences[0]).await,
        Claim::Idle,
        "a consumed sequence was used again"
    );
    assert_eq!(
        scene.record(sequences[0]).await.outcome,
        SequenceOutcome::Idle
    );
    assert_eq!(ran(scene.claim(sequences[1]).await).run.id, late);
}

pub(super) async fn a_failed_sequence_claims_nothing<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let id = scene.enqueue(&run("a")).await;
    let sequences = scene.sequences_of("a", 2).await;
    let shard = scene.policy.shard();
    for _ in 0..2 {
        scene
            .store
            .record_failed(shard, sequences[0])
            .await
            .must("the record of a failure");
        let answer = scene.store.claim(&claim(&scene.policy, sequences[0])).await;
        refused(
            answer,
            StoreErrorKind::Invalid,
            "a claim against a failed sequence",
        );
    }
    assert_eq!(
        scene.record(sequences[0]).await.outcome,
        SequenceOutcome::Failed
    );
    assert_eq!(scene.run(id).await.state, RunState::Queued);

    let claimed = ran(scene.claim(sequences[1]).await);
    scene
        .store
        .record_failed(shard, sequences[1])
        .await
        .must("a failure that comes too late");
    assert_eq!(
        ran(scene.claim(sequences[1]).await),
        claimed,
        "an outcome was overwritten"
    );
    let next = scene.next_sequence().await.must("a sequence");
    let answer = scene.store.record_failed(shard, next).await;
    refused(
        answer,
        StoreErrorKind::Invalid,
        "the failure of a sequence that is not reserved",
    );
}

pub(super) async fn outcomes_are_on_record_by_sequence<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let sequences = scene.sequences_of("a", 4).await;
    scene.enqueue(&run("a")).await;
    let done = ran(scene.claim(sequences[0]).await);
    scene
        .store
        .complete(&done.lease)
        .await
        .must("the completion");
    assert_eq!(scene.claim(sequences[1]).await, Claim::Idle);
    scene
        .store
        .record_failed(scene.policy.shard(), sequences[2])
        .await
        .must("a failure");
    scene.enqueue(&run("a")).await;
    let before = scene.now().await;
    let running = ran(scene.claim(sequences[3]).await);
    let after = scene.now().await;

    let shard = scene.policy.shard();
    let records = scene
        .store
        .sequences(shard, 0, 100)
        .await
        .must("the outcomes");
    let settled: Vec<u64> = records.iter().map(|record| record.sequence).collect();
    assert_eq!(
        settled, sequences,
        "one record for each sequence that was looked at, in order"
    );
    let completed = attempt(&records[0]).ended.must("the end of the first");
    assert_eq!(completed.0, AttemptResult::Completed);
    assert_eq!(records[1].outcome, SequenceOutcome::Idle);
    assert_eq!(records[2].outcome, SequenceOutcome::Failed);
    let last = attempt(&records[3]);
    assert_eq!(last.ended, None);
    assert_eq!(
        (last.run, last.fence),
        (running.run.id, running.lease.fence)
    );
    assert_eq!(
        (&last.tenant, last.worker.as_str()),
        (&tenant("a"), "conformance")
    );
    assert_eq!(last.ready_at, running.run.ready_at);
    assert!(before <= last.claimed_at && last.claimed_at <= after);
    let page = scene
        .store
        .sequences(shard, sequences[1], 2)
        .await
        .must("a page");
    assert_eq!(page, records[1..3], "a page begins where it is told to");
}

pub(super) async fn claims_stay_within_their_pool<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let other = scene.another_shard("other").await;
    let mut elsewhere = run("a");
    elsewhere.pool = pool("other");
    let id = scene.enqueue(&elsewhere).await;
    let sequence = scene.sequence_of("a").await;
    assert_eq!(
        scene.claim(sequence).await,
        Claim::Idle,
        "a run of another pool was claimed"
    );
    assert_eq!(scene.run(id).await.state, RunState::Queued);
    let ready = scene
        .store
        .ready_tenants(other.shard())
        .await
        .must("the ready tenants");
    assert_eq!(ready.tenants, [tenant("a")]);
    let ready = scene
        .store
        .ready_tenants(scene.policy.shard())
        .await
        .must("the ready tenants");
    assert_eq!(
        ready.tenants,
        [],
        "a run of another pool makes nobody ready"
    );
}
