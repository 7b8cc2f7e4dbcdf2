//! No more runs of a limited tenant or team are running than its limit says, over all replicas; nobody waits for it.

use core::time::Duration;

use std::sync::Arc;

use evenhand_store::{
    Claim, Failure, Lease, LimitSubject, NewRun, PolicyRegistration, ReservationId,
    ReservationStore, Retry, RunLimit, RunQueue, RunsMax, SequenceOutcome,
};
use futures::future::BoxFuture;

use super::StoreUnderTest;
use super::optional::Method;
use super::scene::{
    Must, Scene, at_once, claim, policy, pool, ran, request, round, run, team, tenant,
};

pub(super) async fn limits_are_exact_under_concurrency<S: StoreUnderTest>() {
    let Some(scene) = limited::<S>().await else {
        return;
    };
    scene
        .store
        .enqueue_many(&vec![run("a"); 80])
        .await
        .must("a backlog");
    limit(&scene, &of_tenant("a"), Some(3)).await;
    let handles = scene.handles(4).await;
    let mut held: Vec<Lease> = Vec::new();
    for sequences in scene.sequences_of("a", 72).await.chunks(12) {
        // What the turn before left running comes to its end while others claim.
        let mut calls: Vec<BoxFuture<'static, Option<Claim>>> = Vec::new();
        for (store, lease) in handles.iter().zip(held.drain(..)) {
            let store = Arc::clone(store);
            calls.push(Box::pin(async move {
                store.complete(&lease).await.must("a completion");
                None
            }));
        }
        for (store, sequence) in handles.iter().cycle().zip(sequences) {
            let (store, asked) = (Arc::clone(store), claim(&scene.policy, *sequence));
            calls.push(Box::pin(async move {
                Some(store.claim(&asked).await.must("a claim"))
            }));
        }
        for answer in at_once(calls).await.into_iter().flatten() {
            if let Claim::Ran(claimed) = answer {
                held.push(claimed.lease);
            } else {
                assert_eq!(answer, Claim::Contended, "there is a run for each claim");
            }
        }
        let running = scene.count(|counts| counts.running).await;
        assert!(
            running <= 3,
            "{running} runs are running at once, the limit is 3"
        );
        assert_eq!(usize::try_from(running).must("a number"), held.len());
    }
    for lease in held {
        scene.store.complete(&lease).await.must("a completion");
    }

    // All permits have come back: the next three are free, and not one more.
    for (number, sequence) in scene.sequences_of("a", 5).await.into_iter().enumerate() {
        let is_free = matches!(scene.claim(sequence).await, Claim::Ran(_));
        assert_eq!(is_free, number < 3, "claim {number} of five");
    }
}

pub(super) async fn concurrent_rounds_stay_within_a_teams_limit<S: StoreUnderTest>() {
    let Some(scene) = limited::<S>().await else {
        return;
    };
    let backlog: Vec<_> = (0..60)
        .map(|number| in_team(["a", "b"][number % 2], "t"))
        .collect();
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    limit(&scene, &of_team("t"), Some(5)).await;
    let handles = scene.handles(3).await;
    let mut blocks = Vec::new();
    for _ in 0..6 {
        blocks.push(scene.reserve(8).await);
    }
    let answers = at_once(blocks.into_iter().enumerate().map(|(task, block)| {
        let store = Arc::clone(&handles[task % 3]);
        let asked = round(&scene.policy, &block, &format!("worker-{task}"), 8);
        async move { store.claim_round(&asked).await.must("a round") }
    }))
    .await;
    let claimed: usize = answers.iter().map(|answer| answer.claimed.len()).sum();
    let running = scene.count(|counts| counts.running).await;
    assert!(
        claimed <= 5,
        "{claimed} runs of the team were claimed, the limit is 5"
    );
    assert_eq!(usize::try_from(running).must("a number"), claimed);
    let block = scene.reserve(8).await;
    let rest = scene.round(&block).await;
    assert_eq!(
        claimed + rest.claimed.len(),
        5,
        "one more round finds the permits that are left"
    );
    assert_eq!(rest.claimed.len() + rest.contended.len(), 8);
}

pub(super) async fn a_limited_tenant_is_contended_at_once<S: StoreUnderTest>() {
    let Some(scene) = limited::<S>().await else {
        return;
    };
    scene
        .store
        .enqueue_many(&[run("a"), run("a"), run("b")])
        .await
        .must("a backlog");
    limit(&scene, &of_tenant("a"), Some(0)).await;
    let paused = scene.sequence_of("a").await;
    assert_eq!(
        scene.claim(paused).await,
        Claim::Contended,
        "a paused tenant"
    );
    assert_eq!(
        scene.record(paused).await.outcome,
        SequenceOutcome::Contended
    );
    scene.claimed("b").await;
    let block = scene.reserve(4).await;
    let answer = scene.round(&block).await;
    assert_eq!((answer.claimed.len(), answer.contended.len()), (0, 3));
    let ready = scene
        .store
        .ready_tenants(scene.policy.shard())
        .await
        .must("the tenants");
    assert_eq!(
        ready.tenants,
        [tenant("a")],
        "a paused tenant is ready all the same"
    );

    limit(&scene, &of_tenant("a"), Some(1)).await;
    assert_eq!(
        scene.claim(paused).await,
        Claim::Contended,
        "a consumed sequence stays so"
    );
    scene.claimed("a").await;
    let at_its_limit = scene.sequence_of("a").await;
    assert_eq!(scene.claim(at_its_limit).await, Claim::Contended);
    limit(&scene, &of_tenant("a"), None).await;
    scene.claimed("a").await;
    let idle = scene.sequence_of("a").await;
    assert_eq!(
        scene.claim(idle).await,
        Claim::Idle,
        "no limit and no run is idle"
    );
}

pub(super) async fn permits_come_back_with_every_end<S: StoreUnderTest>() {
    let Some(scene) = limited::<S>().await else {
        return;
    };
    let store = &scene.store;
    store
        .enqueue_many(&vec![in_team("a", "t"); 16])
        .await
        .must("a backlog");
    limit(&scene, &of_tenant("a"), Some(1)).await;
    limit(&scene, &of_team("t"), Some(1)).await;
    let later = Duration::from_hours(1);
    for end in 0..7 {
        let lease = scene.claimed("a").await.lease;
        assert_eq!(running(&scene).await, [1, 1]);
        let sequence = scene.sequence_of("a").await;
        assert_eq!(
            scene.claim(sequence).await,
            Claim::Contended,
            "the permit is taken"
        );
        match end {
            0 => store.complete(&lease).await.must("a completion"),
            1 => drop(
                store
                    .fail(&lease, &Failure::new("x", Retry::GiveUp))
                    .await
                    .must("a failure"),
            ),
            2 => drop(
                store
                    .fail(&lease, &Failure::new("x", Retry::After(later)))
                    .await
                    .must("a failure"),
            ),
            3 => store
                .release(&lease, Duration::ZERO)
                .await
                .must("a release"),
            4 => store.release(&lease, later).await.must("a release"),
            5 => {
                let answers = store.complete_many(core::slice::from_ref(&lease)).await;
                assert!(answers.must("the completions")[0].is_ok());
            }
            _ => {
                scene.advance(Duration::from_mins(1)).await;
                assert_eq!(
                    running(&scene).await,
                    [1, 1],
                    "an expired lease holds its permit"
                );
                store.recover(10).await.must("a recovery");
            }
        }
        assert_eq!(
            running(&scene).await,
            [0, 0],
            "end {end} gave no permit back"
        );
        // Said again, the end gives back nothing that another run holds by now.
        let next = scene.claimed("a").await.lease;
        drop(store.complete(&lease).await);
        assert_eq!(running(&scene).await, [1, 1]);
        store.complete(&next).await.must("a completion");
    }
}

pub(super) async fn a_lowered_limit_waits_for_the_runs_above_it<S: StoreUnderTest>() {
    let Some(scene) = limited::<S>().await else {
        return;
    };
    scene
        .store
        .enqueue_many(&vec![run("a"); 20])
        .await
        .must("a backlog");
    limit(&scene, &of_tenant("a"), Some(4)).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(scene.claimed("a").await.lease);
    }
    limit(&scene, &of_tenant("a"), Some(2)).await;
    assert_eq!(shown(&scene).await, [(of_tenant("a"), 2, 4)]);
    for left in [3, 2] {
        scene
            .store
            .complete(&held.remove(0))
            .await
            .must("a completion");
        let sequence = scene.sequence_of("a").await;
        assert_eq!(
            scene.claim(sequence).await,
            Claim::Contended,
            "{left} are running still"
        );
        assert_eq!(shown(&scene).await, [(of_tenant("a"), 2, left)]);
    }
    scene
        .store
        .complete(&held.remove(0))
        .await
        .must("a completion");
    scene.claimed("a").await;
    let sequence = scene.sequence_of("a").await;
    assert_eq!(scene.claim(sequence).await, Claim::Contended);

    limit(&scene, &of_tenant("a"), Some(0)).await;
    limit(&scene, &of_tenant("a"), Some(3)).await;
    scene.claimed("a").await;
    let sequence = scene.sequence_of("a").await;
    assert_eq!(
        scene.claim(sequence).await,
        Claim::Contended,
        "raised from 0 to 3, two were running"
    );
    assert_eq!(shown(&scene).await, [(of_tenant("a"), 3, 3)]);
}

pub(super) async fn a_limit_counts_what_is_running_already<S: StoreUnderTest>() {
    let Some(scene) = limited::<S>().await else {
        return;
    };
    scene
        .store
        .enqueue_many(&vec![in_team("a", "t"); 20])
        .await
        .must("a backlog");
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(scene.claimed("a").await.lease);
    }
    limit(&scene, &of_tenant("a"), Some(2)).await;
    limit(&scene, &of_team("t"), Some(4)).await;
    assert_eq!(
        shown(&scene).await,
        [(of_tenant("a"), 2, 3), (of_team("t"), 4, 3)]
    );
    for _ in 0..2 {
        let sequence = scene.sequence_of("a").await;
        assert_eq!(
            scene.claim(sequence).await,
            Claim::Contended,
            "two or more are running"
        );
        scene
            .store
            .complete(&held.remove(0))
            .await
            .must("a completion");
    }
    scene.claimed("a").await;
    let sequence = scene.sequence_of("a").await;
    assert_eq!(scene.claim(sequence).await, Claim::Contended);
    // Lifted and set again, it counts anew.
    limit(&scene, &of_tenant("a"), None).await;
    scene.claimed("a").await;
    limit(&scene, &of_tenant("a"), Some(3)).await;
    assert_eq!(
        shown(&scene).await,
        [(of_tenant("a"), 3, 3), (of_team("t"), 4, 3)]
    );
    let sequence = scene.sequence_of("a").await;
    assert_eq!(scene.claim(sequence).await, Claim::Contended);
}

pub(super) async fn a_limited_team_lets_other_teams_pass<S: StoreUnderTest>() {
    let Some(scene) = limited::<S>().await else {
        return;
    };
    limit(&scene, &of_team("t"), Some(1)).await;
    let mut better = in_team("a", "t");
    better.base_priority = 50.try_into().must("a priority");
    let backlog = [better.clone(), better, run("a"), in_team("b", "t")];
    let enqueued = scene.store.enqueue_many(&backlog).await.must("a backlog");
    let first = scene.claimed("a").await;
    assert_eq!(first.run.id, enqueued[0].run);
    let second = scene.claimed("a").await;
    assert_eq!(
        second.run.id, enqueued[2].run,
        "the next best whose team has a permit"
    );
    for owner in ["a", "b"] {
        let sequence = scene.sequence_of(owner).await;
        let answer = scene.claim(sequence).await;
        assert_eq!(
            answer,
            Claim::Contended,
            "the team is limited across tenants"
        );
    }
    scene
        .store
        .complete(&first.lease)
        .await
        .must("a completion");
    assert_eq!(scene.claimed("b").await.run.id, enqueued[3].run);
}

pub(super) async fn limits_hold_within_their_pool<S: StoreUnderTest>() {
    let Some(scene) = limited::<S>().await else {
        return;
    };
    let other = policy("other", &[("a", 1)]);
    let registration = PolicyRegistration::new(other.clone()).in_pool(pool("other"));
    scene
        .store
        .register_policy(&registration)
        .await
        .must("another pool");
    let mut elsewhere = in_team("a", "t");
    elsewhere.pool = pool("other");
    let backlog = [in_team("a", "t"), elsewhere];
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    for subject in [of_team("t"), of_tenant("b"), of_team("s"), of_tenant("a")] {
        limit(&scene, &subject, Some(1)).await;
    }
    limit(&scene, &of_team("t"), Some(0)).await;
    let expected = [
        (of_tenant("a"), 1, 0),
        (of_tenant("b"), 1, 0),
        (of_team("s"), 1, 0),
        (of_team("t"), 0, 0),
    ];
    assert_eq!(
        shown(&scene).await,
        expected,
        "tenants before teams, each by name"
    );
    let limits = scene.store.limits(&pool("other")).await.must("the limits");
    assert_eq!(limits, [], "another pool has no limits");
    let sequence = scene.sequence_of("a").await;
    assert_eq!(scene.claim(sequence).await, Claim::Contended);
    let asked = request(&other, ReservationId::mint(scene.now().await), 1);
    scene
        .store
        .reserve(&asked)
        .await
        .must("a sequence of the other pool");
    ran(scene
        .store
        .claim(&claim(&other, 0))
        .await
        .must("a claim in another pool"));
    limit(&scene, &of_tenant("never-limited"), None).await;
}

/// A scene of a store that can limit; what it cannot limit, nobody is told of.
async fn limited<S: StoreUnderTest>() -> Option<Scene<S>> {
    let scene = Scene::<S>::start().await;
    if scene.offers([Method::Limits]).await {
        return Some(scene);
    }
    let limits = scene
        .store
        .limits(&pool("default"))
        .await
        .must("the limits");
    assert_eq!(limits, [], "a store that limits nobody shows limits");
    None
}

async fn limit<S: StoreUnderTest>(scene: &Scene<S>, subject: &LimitSubject, runs_max: Option<u32>) {
    let runs_max = runs_max.map(|runs| RunsMax::new(runs).must("a limit"));
    let answer = scene
        .store
        .set_limit(&pool("default"), subject, runs_max)
        .await;
    answer.must("the change of a limit");
}

/// The limits of the default pool: who, how many, and how many are running.
async fn shown<S: StoreUnderTest>(scene: &Scene<S>) -> Vec<(LimitSubject, u32, u32)> {
    let limits = scene
        .store
        .limits(&pool("default"))
        .await
        .must("the limits");
    let is_in_pool = |limit: &RunLimit| limit.pool == pool("default");
    assert!(limits.iter().all(is_in_pool));
    limits
        .into_iter()
        .map(|limit| (limit.subject, limit.runs_max.get(), limit.running))
        .collect()
}

async fn running<S: StoreUnderTest>(scene: &Scene<S>) -> Vec<u32> {
    let shown = shown(scene).await;
    shown.into_iter().map(|(_, _, running)| running).collect()
}

fn of_tenant(name: &str) -> LimitSubject {
    LimitSubject::Tenant(tenant(name))
}

fn of_team(name: &str) -> LimitSubject {
    LimitSubject::Team(team(name))
}

fn in_team(owner: &str, name: &str) -> NewRun {
    let mut run = run(owner);
    run.team = team(name);
    run
}
