//! A round ends every sequence of its block, as if each had been claimed against at one moment, and answers the same when
//! it is asked again.

use core::time::Duration;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, WeightedFairnessPolicy};
use evenhand_store::{
    PolicyRegistration, Reservation, ReservationCount, ReservationId, ReservationStore, Round,
    RunQueue, RunState, SequenceOutcome, StoreErrorKind,
};

use super::StoreUnderTest;
use super::optional::Method;
use super::scene::{
    Must, Scene, at_once, attempt, claim, lease, pool, ran, refused, request, round, run, tenant,
    worker,
};

pub(super) async fn every_sequence_of_a_block_ends<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let mut better = run("a");
    better.base_priority = 7.try_into().must("a priority");
    let backlog = [
        run("a"),
        better,
        run("b"),
        run("b"),
        run("b"),
        run("stranger"),
    ];
    let enqueued = scene.store.enqueue_many(&backlog).await.must("a backlog");
    let block = scene.reserve(12).await;
    let before = scene.now().await;
    let answer = scene.round(&block).await;
    let after = scene.now().await;

    // The better run of `a` comes first; its seven other slots are idle, whoever else may have runs.
    let (of_a, of_b) = (slots(&scene, &block, "a"), slots(&scene, &block, "b"));
    let mut expected = vec![
        (of_a[0], enqueued[1].run),
        (of_a[1], enqueued[0].run),
        (of_b[0], enqueued[2].run),
        (of_b[1], enqueued[3].run),
        (of_b[2], enqueued[4].run),
    ];
    expected.sort_unstable();
    assert_eq!(claimed(&answer), expected);
    assert_eq!((answer.contended.len(), answer.moved_on.len()), (0, 0));
    for claimed in &answer.claimed {
        assert_eq!(
            (claimed.run.state, claimed.run.attempt),
            (RunState::Running, 1)
        );
        assert_eq!(claimed.run.fence, claimed.lease.fence);
        assert_eq!(claimed.lease.run, claimed.run.id);
        let expires_at = claimed.lease.expires_at;
        let length = lease(30).get();
        assert!(before + length <= expires_at && expires_at <= after + length);
        assert_eq!(scene.run(claimed.run.id).await, claimed.run);
    }
    assert_on_record(&scene, &block, &answer).await;
    let claimed = answer.claimed.into_iter().next().must("a run");
    scene
        .store
        .complete(&claimed.lease)
        .await
        .must("a completion");
}

pub(super) async fn a_round_claims_no_more_than_its_runs_max<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    scene
        .store
        .enqueue_many(&vec![run("a"); 9])
        .await
        .must("a backlog");
    scene.enqueue(&run("b")).await;
    for runs_max in [0, 1, 3] {
        let block = scene.reserve(8).await;
        let request = round(&scene.policy, &block, "conformance", runs_max);
        let answer = scene.store.claim_round(&request).await.must("a round");
        let first: Vec<u64> = block.sequences().take(answer.claimed.len()).collect();
        let sequences: Vec<u64> = claimed(&answer)
            .iter()
            .map(|(sequence, _)| *sequence)
            .collect();
        assert_eq!(
            answer.claimed.len(),
            usize::try_from(runs_max).must("a number")
        );
        assert_eq!(
            sequences, first,
            "the first sequences whose tenants are ready"
        );
        let others: Vec<u64> = block.sequences().skip(first.len()).collect();
        if runs_max < 3 {
            assert_eq!(
                answer.contended, others,
                "ready runs are left for each of them"
            );
        } else {
            // The only run of `b` was among the three, so that its second slot has nothing left.
            let of_a: Vec<u64> = others
                .into_iter()
                .filter(|sequence| scene.policy.tenant_for_sequence(*sequence).as_str() == "a")
                .collect();
            assert_eq!(answer.contended, of_a);
        }
        assert_eq!(
            scene.count(|counts| counts.running).await,
            u64::from(runs_max)
        );
        for claimed in &answer.claimed {
            scene
                .store
                .release(&claimed.lease, Duration::ZERO)
                .await
                .must("a release");
        }
    }
}

pub(super) async fn asking_again_gives_the_same_round<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    scene
        .store
        .enqueue_many(&vec![run("a"); 4])
        .await
        .must("a backlog");
    let block = scene.reserve(8).await;
    let request = round(&scene.policy, &block, "conformance", 3);
    let first = scene.store.claim_round(&request).await.must("a round");
    assert_eq!((first.claimed.len(), first.contended.len()), (3, 3));
    // Whatever is enqueued now is too late for this block, for ready tenants and idle ones.
    let late = [run("a"), run("b"), run("b")];
    scene.store.enqueue_many(&late).await.must("a late backlog");
    for handle in scene.handles(2).await {
        let again = handle.claim_round(&request).await.must("the round again");
        assert_eq!(again, first, "asking again was answered differently");
    }
    assert_eq!(
        scene.count(|counts| counts.running).await,
        3,
        "asking again took more runs"
    );

    let leases: Vec<_> = first
        .claimed
        .iter()
        .map(|claimed| claimed.lease.clone())
        .collect();
    scene.store.complete(&leases[0]).await.must("a completion");
    scene.advance(Duration::from_secs(10)).await;
    scene
        .store
        .renew(&leases[1..2], lease(60))
        .await
        .must("a renewal");
    let again = scene
        .store
        .claim_round(&request)
        .await
        .must("the round again");
    assert_eq!(again.moved_on, [leases[0].sequence], "its run has ended");
    assert_eq!(again.contended, first.contended);
    assert_eq!(claimed(&again), claimed(&first)[1..]);
    assert!(
        again.claimed[0].lease.expires_at > leases[1].expires_at,
        "asking again shows the lease as it is now"
    );
    assert_eq!(again.claimed[1], first.claimed[2]);
}

pub(super) async fn what_was_claimed_singly_stays_as_it_was<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let block = scene.reserve(16).await;
    let of_a = slots(&scene, &block, "a");
    let idle = scene.claim(of_a[0]).await;
    assert_eq!(idle, evenhand_store::Claim::Idle);
    scene
        .store
        .enqueue_many(&vec![run("a"); 6])
        .await
        .must("a backlog");
    let shard = scene.policy.shard();
    scene
        .store
        .record_failed(shard, of_a[1])
        .await
        .must("the record of a failure");
    let done = ran(scene.claim(of_a[2]).await);
    scene.store.complete(&done.lease).await.must("a completion");
    let own = ran(scene.claim(of_a[5]).await);
    let mut by_other = claim(&scene.policy, of_a[3]);
    by_other.worker = worker("other");
    let others = ran(scene
        .store
        .claim(&by_other)
        .await
        .must("the claim of another"));

    // The run that was claimed before does not count against what the round may still claim.
    let request = round(&scene.policy, &block, "conformance", 2);
    for _ in 0..2 {
        let answer = scene.store.claim_round(&request).await.must("a round");
        let sequences: Vec<u64> = claimed(&answer)
            .iter()
            .map(|(sequence, _)| *sequence)
            .collect();
        assert_eq!(sequences, [of_a[4], of_a[5], of_a[6]]);
        assert_eq!(
            answer.claimed[1], own,
            "what this worker holds is its own still"
        );
        assert_eq!(answer.moved_on, [of_a[2], of_a[3]]);
        let mut contended = vec![of_a[1]];
        contended.extend(&of_a[7..]);
        assert_eq!(
            answer.contended, contended,
            "a failed sequence is looked at no more"
        );
    }
    assert_eq!(scene.record(of_a[0]).await.outcome, SequenceOutcome::Idle);
    assert_eq!(scene.record(of_a[1]).await.outcome, SequenceOutcome::Failed);
    scene
        .store
        .complete(&others.lease)
        .await
        .must("the completion of another's run");
}

pub(super) async fn another_workers_block_has_moved_on<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    scene
        .store
        .enqueue_many(&vec![run("a"); 8])
        .await
        .must("a backlog");
    let block = scene.reserve(4).await;
    let first = scene.round(&block).await;
    assert_eq!(first.claimed.len(), 3);
    let by_other = round(&scene.policy, &block, "other", 4);
    for handle in scene.handles(2).await {
        let answer = handle
            .claim_round(&by_other)
            .await
            .must("the round of another");
        assert_eq!(answer.claimed, [], "two workers were given one run");
        assert_eq!(answer.moved_on, slots(&scene, &block, "a"));
        assert!(answer.contended.is_empty());
    }
    for claimed in &first.claimed {
        scene
            .store
            .complete(&claimed.lease)
            .await
            .must("the completion of the first worker");
    }
}

pub(super) async fn concurrent_rounds_of_one_block_agree<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(3).await;
    let backlog: Vec<_> = (0..60).map(|number| run(["a", "b"][number % 2])).collect();
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    for by_one in [true, false, true, false] {
        let block = scene.reserve(8).await;
        let answers = at_once((0..6).map(|task| {
            let store = Arc::clone(&handles[task % 3]);
            let by = if by_one {
                "one".to_owned()
            } else {
                format!("worker-{task}")
            };
            let asked = round(&scene.policy, &block, &by, 8);
            async move { store.claim_round(&asked).await.must("one of the rounds") }
        }))
        .await;
        if by_one {
            assert_eq!(answers[0].claimed.len(), 8);
            for answer in &answers {
                assert_eq!(*answer, answers[0], "one worker was answered differently");
            }
        } else {
            for sequence in block.sequences() {
                let owners = answers.iter().flat_map(claimed);
                let owners = owners.filter(|(claimed, _)| *claimed == sequence).count();
                let others = answers
                    .iter()
                    .filter(|answer| answer.moved_on.contains(&sequence));
                assert_eq!(
                    (owners, others.count()),
                    (1, 5),
                    "sequence {sequence} has one owner"
                );
            }
        }
    }
    assert_eq!(
        scene.count(|counts| counts.running).await,
        32,
        "four blocks of 8 runs each"
    );
}

pub(super) async fn concurrent_rounds_never_share_a_run<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(3).await;
    let backlog: Vec<_> = (0..30).map(|number| run(["a", "b"][number % 2])).collect();
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    let mut blocks = Vec::new();
    for _ in 0..8 {
        blocks.push(scene.reserve(8).await);
    }
    let answers = at_once(blocks.into_iter().enumerate().map(|(task, block)| {
        let store = Arc::clone(&handles[task % 3]);
        let asked = round(&scene.policy, &block, &format!("worker-{task}"), 5);
        async move { store.claim_round(&asked).await.must("one of the rounds") }
    }))
    .await;
    let all: Vec<_> = answers.iter().flat_map(claimed).collect();
    let runs: BTreeSet<_> = all.iter().map(|(_, run)| run).collect();
    assert_eq!(runs.len(), all.len(), "two sequences were given one run");
    assert!(answers.iter().all(|answer| answer.claimed.len() <= 5));
    for claimed in answers.iter().flat_map(|answer| &answer.claimed) {
        let selected = scene.policy.tenant_for_sequence(claimed.lease.sequence);
        assert_eq!(claimed.run.spec.tenant, *selected);
    }
    let running = scene.count(|counts| counts.running).await;
    assert_eq!(usize::try_from(running).must("a number"), runs.len());
}

pub(super) async fn a_round_needs_its_reservation<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    scene
        .store
        .enqueue_many(&vec![run("a"); 8])
        .await
        .must("a backlog");
    let block = scene.reserve(4).await;
    let part = |first_sequence, count| {
        let count = ReservationCount::new(count).must("a count");
        let (id, at) = (block.id, block.reserved_at);
        round(
            &scene.policy,
            &Reservation::new(id, first_sequence, count, at, at),
            "other",
            4,
        )
    };
    let mut refusals = vec![("a block that nobody reserved", part(4, 2))];
    if scene.offers([Method::RoundLimits]).await {
        refusals.push(("a part of a block", part(0, 3)));
        refusals.push(("the rest of a block", part(1, 3)));
        refusals.push(("more than a block", part(0, 5)));
    }
    for (what, asked) in refusals {
        let answer = scene.store.claim_round(&asked).await;
        refused(answer, StoreErrorKind::Invalid, what);
    }
    assert_eq!(scene.records().await, [], "a refused round left an outcome");
    assert_eq!(
        scene.count(|counts| counts.running).await,
        0,
        "a refused round took a run"
    );
    assert_eq!(scene.round(&block).await.claimed.len(), 3);
}

pub(super) async fn idle_slots_of_a_long_block_are_on_record<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let weights = (0..1_024).map(|number| {
        TenantFairnessWeight::new(tenant(&format!("tenant-{number:04}")), 4).must("a weight")
    });
    let shard = SchedulerShardId::try_from("long").must("a shard id");
    let long = WeightedFairnessPolicy::new(shard, weights).must("a policy at the limits");
    let registration = PolicyRegistration::new(long.clone()).in_pool(pool("long"));
    scene
        .store
        .register_policy(&registration)
        .await
        .must("a long cycle");
    let length = scene
        .store
        .round_length_max()
        .get()
        .min(long.cycle_length());
    let mut busy = run(long.tenant_for_sequence(0).as_str());
    busy.pool = pool("long");
    scene
        .store
        .enqueue_many(&vec![busy; 9])
        .await
        .must("the backlog of one tenant");
    let asked = request(&long, ReservationId::mint(scene.now().await), length);
    let block = scene.store.reserve(&asked).await.must("a long block");
    let asked = round(&long, &block, "conformance", 2);
    let answer = scene.store.claim_round(&asked).await.must("a long round");

    let is_busy =
        |sequence: &u64| long.tenant_for_sequence(*sequence) == long.tenant_for_sequence(0);
    let turns: Vec<u64> = block.sequences().filter(is_busy).collect();
    let served = turns.len().min(2);
    let sequences: Vec<u64> = claimed(&answer)
        .iter()
        .map(|(sequence, _)| *sequence)
        .collect();
    assert_eq!(sequences, turns[..served]);
    assert_eq!(answer.contended, turns[served..]);
    let records = scene
        .store
        .sequences(long.shard(), 0, length + 1)
        .await
        .must("the outcomes");
    assert_eq!(records.len(), usize::try_from(length).must("a number"));
    for (record, sequence) in records.iter().zip(block.sequences()) {
        assert_eq!(record.sequence, sequence);
        assert_eq!(record.outcome == SequenceOutcome::Idle, !is_busy(&sequence));
    }
}

/// The sequences of the block at which the cycle names `owner`.
pub(super) fn slots<S: StoreUnderTest>(
    scene: &Scene<S>,
    block: &Reservation,
    owner: &str,
) -> Vec<u64> {
    let is_owned = |sequence: &u64| scene.policy.tenant_for_sequence(*sequence).as_str() == owner;
    block.sequences().filter(is_owned).collect()
}

/// Which sequence was given which run.
pub(super) fn claimed(round: &Round) -> Vec<(u64, evenhand_store::RunId)> {
    let pair = |claimed: &evenhand_store::ClaimedRun| (claimed.lease.sequence, claimed.run.id);
    round.claimed.iter().map(pair).collect()
}

/// Asserts that the record says of a new round what its answer said, for every sequence of the block.
async fn assert_on_record<S: StoreUnderTest>(scene: &Scene<S>, block: &Reservation, round: &Round) {
    let records = scene.records().await;
    for sequence in block.sequences() {
        let record = records.iter().find(|record| record.sequence == sequence);
        let record = record.must("the end of every sequence");
        let owner = scene.policy.tenant_for_sequence(sequence);
        let claimed = round
            .claimed
            .iter()
            .find(|claimed| claimed.lease.sequence == sequence);
        if let Some(claimed) = claimed {
            let attempt = attempt(record);
            assert_eq!(
                (attempt.run, attempt.fence),
                (claimed.run.id, claimed.lease.fence)
            );
            assert_eq!(attempt.worker, worker("conformance"));
            assert_eq!((&attempt.tenant, &claimed.run.spec.tenant), (owner, owner));
        } else if round.contended.contains(&sequence) {
            assert_eq!(record.outcome, SequenceOutcome::Contended);
        } else {
            assert_eq!(record.outcome, SequenceOutcome::Idle);
        }
    }
}
