//! Dropping a call's future at any point leaves no lock, no open transaction and no half-made change behind.

use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenhand_store::{
    Failure, PageSize, ReservationId, ReservationStore, Retry, RunFilter, RunQueue, RunState,
};

use super::StoreUnderTest;
use super::scene::{
    Must, Scene, assert_contiguous, at_once, claim, ran, request, round, run, tenant,
};

/// A call over a network is polled a few times; drop before the first poll, between any two, and after the last.
const POLLS_MAX: u32 = 9;

pub(super) async fn a_dropped_reserve_leaves_no_gap_and_no_lock<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(2).await;
    let now = scene.now().await;
    let answers = at_once((0..4_u32).map(|task| {
        let store = Arc::clone(&handles[usize::try_from(task % 2).must("an index")]);
        let policy = scene.policy.clone();
        async move {
            let mut acknowledged = Vec::new();
            for polls in 0..=POLLS_MAX {
                let asked = request(&policy, ReservationId::mint(now), 1 + polls % 3);
                let answer = dropped_after(polls, store.reserve(&asked)).await;
                // Whatever the dropped call left on the connection would swallow or block this one.
                let next = request(&policy, ReservationId::mint(now), 1);
                acknowledged.push(
                    store
                        .reserve(&next)
                        .await
                        .must("the call after a dropped one"),
                );
                if (polls + task) % 2 == 0 {
                    let again = store.reserve(&asked).await.must("the dropped call again");
                    if let Some(answer) = answer {
                        let answer = answer.must("the call that was answered after all");
                        assert_eq!(answer.first_sequence, again.first_sequence);
                    }
                    acknowledged.push(again);
                }
            }
            acknowledged
        }
    }))
    .await;
    let reservations = scene.reservations().await;
    assert_contiguous(&reservations);
    let on_record: BTreeSet<_> = reservations
        .iter()
        .map(|row| (row.id, row.first_sequence))
        .collect();
    assert_eq!(
        on_record.len(),
        reservations.len(),
        "an id has two reservations"
    );
    for answer in answers.into_iter().flatten() {
        let is_kept = on_record.contains(&(answer.id, answer.first_sequence));
        assert!(
            is_kept,
            "{} was acknowledged after a dropped call, and is lost",
            answer.id
        );
    }
}

pub(super) async fn a_dropped_enqueue_is_all_or_nothing<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    for polls in 0..=POLLS_MAX {
        let owner = format!("tenant-{polls}");
        let backlog: Vec<_> = (0..5)
            .map(|number| {
                let mut run = run(&owner);
                run.idempotency_key = Some(format!("{owner}-{number}").try_into().must("a key"));
                run
            })
            .collect();
        let answer = dropped_after(polls, scene.store.enqueue_many(&backlog)).await;
        let mut filter = RunFilter::default();
        filter.tenant = Some(tenant(&owner));
        let page = scene
            .store
            .runs(&filter, None, PageSize::default())
            .await
            .must("a listing");
        assert!(
            matches!(page.runs.len(), 0 | 5),
            "a dropped enqueue of 5 runs left {} of them",
            page.runs.len()
        );
        let again = scene
            .store
            .enqueue_many(&backlog)
            .await
            .must("the dropped call again");
        if let Some(answer) = answer {
            let first = answer.must("the call that was answered after all");
            assert!(
                first
                    .iter()
                    .zip(&again)
                    .all(|(first, again)| first.run == again.run)
            );
        }
        let page = scene
            .store
            .runs(&filter, None, PageSize::default())
            .await
            .must("a listing");
        assert_eq!(
            page.runs.len(),
            5,
            "asking again must end with each run once"
        );
    }
}

pub(super) async fn dropped_completions_can_be_asked_again<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    for polls in 0..=POLLS_MAX {
        let first = scene.started().await.lease;
        let leases = [first, scene.started().await.lease];
        dropped_after(polls, scene.store.complete_many(&leases)).await;
        // One by one, so that whatever the dropped call still holds is waited for.
        for lease in &leases {
            let again = scene.store.complete(lease).await;
            again.must("a dropped completion again");
        }
    }
    let counts = scene.store.counts().await.must("the counts");
    assert_eq!(
        counts.iter().map(|counts| counts.done).sum::<u64>(),
        2 * u64::from(POLLS_MAX + 1)
    );
}

pub(super) async fn dropped_claims_and_endings_can_be_asked_again<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let calls = usize::try_from(POLLS_MAX).must("a number") + 1;
    let sequences = scene.sequences_of("a", calls).await;
    for (polls, sequence) in (0..).zip(sequences) {
        scene.enqueue(&run("a")).await;
        let asked = claim(&scene.policy, sequence);
        let answer = dropped_after(polls, scene.store.claim(&asked)).await;
        let claimed = ran(scene.claim(sequence).await);
        if let Some(answer) = answer {
            let first = ran(answer.must("the claim that was answered after all"));
            assert_eq!(
                (first.run.id, first.lease.fence),
                (claimed.run.id, claimed.lease.fence)
            );
        }
        assert_eq!(
            claimed.lease.fence.get(),
            1,
            "the dropped claim and its repetition both counted"
        );
        let lease = &claimed.lease;
        if polls % 2 == 0 {
            dropped_after(polls, scene.store.complete(lease)).await;
            scene
                .store
                .complete(lease)
                .await
                .must("the dropped completion again");
            assert_eq!(scene.run(claimed.run.id).await.state, RunState::Done);
        } else {
            let failure = Failure::new("dropped", Retry::After(Duration::from_hours(2)));
            let first = dropped_after(polls, scene.store.fail(lease, &failure)).await;
            let again = scene
                .store
                .fail(lease, &failure)
                .await
                .must("the dropped failure again");
            if let Some(first) = first {
                assert_eq!(first.must("the failure that was answered after all"), again);
            }
            assert_eq!(scene.run(claimed.run.id).await.attempt, 1);
        }
    }
    let counts = scene.store.counts().await.must("the counts");
    assert_eq!(
        counts.iter().map(|counts| counts.running).sum::<u64>(),
        0,
        "a run is held by nobody"
    );
}

pub(super) async fn dropped_rounds_can_be_asked_again<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    for polls in 0..=POLLS_MAX {
        let backlog = [run("a"), run("a"), run("b")];
        scene.store.enqueue_many(&backlog).await.must("a backlog");
        let block = scene.reserve(8).await;
        let asked = round(&scene.policy, &block, "conformance", 8);
        let first = dropped_after(polls, scene.store.claim_round(&asked)).await;
        let again = scene.round(&block).await;
        let claimed = again.claimed.len();
        assert_eq!(
            claimed, 3,
            "the dropped round and its repetition both counted"
        );
        assert_eq!((again.contended, again.moved_on), (vec![], vec![]));
        if let Some(first) = first {
            let first = first.must("the round that was answered after all");
            assert_eq!(first.claimed, again.claimed);
        }
        for claimed in &again.claimed {
            assert_eq!(claimed.lease.fence.get(), 1, "a run was claimed twice");
            scene
                .store
                .complete(&claimed.lease)
                .await
                .must("a completion");
        }
    }
    assert_eq!(
        scene.count(|counts| counts.running).await,
        0,
        "a run is held by nobody"
    );
}

/// Polls the call at most this often and then drops it; `Some` if it was answered by then.
async fn dropped_after<F: Future>(polls: u32, call: F) -> Option<F::Output> {
    let mut call = pin!(call);
    let mut polls_left = polls;
    poll_fn(|context| {
        if polls_left == 0 {
            return Poll::Ready(None);
        }
        polls_left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            // At once, not when it is woken: the request is then on its way, and its answer will find nobody.
            Poll::Pending if polls_left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
