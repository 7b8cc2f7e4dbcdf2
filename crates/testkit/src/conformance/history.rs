//! What became of each turn is told by tenant and period, and kept as long as a reservation covers it; ended runs are kept
//! for their own windows.

use core::time::Duration;

use evenhand_store::{
    Failure, HistoryReport, HistoryRetentionPolicy, NewRun, Reservation, ReservationStore, Retry,
    RunId, RunQueue, RunState, SequenceOutcome, SequenceRecord, StoreErrorKind, TenantHistory,
    TenantHistoryRequest, Timestamp,
};

use super::StoreUnderTest;
use super::optional::Method;
use super::scene::{Must, Scene, attempt, claim, ran, refused, round, run, tenant};

const HOUR: Duration = Duration::from_hours(1);

pub(super) async fn a_tenants_turns_are_told_as_they_are_on_record<S: StoreUnderTest>() {
    let Some(Told {
        scene,
        blocks,
        start,
    }) = told::<S>().await
    else {
        return;
    };
    let end = scene.now().await;
    let all = history(&scene, "a", start, end, 10).await;
    assert!(!all.more);
    let sequences: Vec<u64> = all.turns.iter().map(|turn| turn.sequence).collect();
    assert_eq!(
        sequences,
        [0, 1, 3, 4, 5, 7],
        "the tenant's slots of both blocks"
    );
    for turn in &all.turns {
        let block = blocks
            .iter()
            .find(|block| block.sequences().contains(&turn.sequence));
        assert_eq!(turn.reserved_at, block.must("its block").reserved_at);
    }
    // The first is as it is on record now: the run has been completed since.
    let ran = scene.record(0).await.outcome;
    assert_eq!(all.turns[0].outcome, Some(ran));
    assert_eq!(all.turns[3].outcome, Some(SequenceOutcome::Failed));
    assert_eq!(all.turns[4].outcome, None, "a sequence that is not settled");
    let summary = all.summary();
    assert_eq!((summary.ran, summary.contended, summary.idle), (1, 2, 0));
    assert_eq!(
        (
            summary.failed,
            summary.unsettled,
            summary.not_serving_longest
        ),
        (1, 2, 5)
    );
    let of_b = history(&scene, "b", start, end, 10).await.summary();
    assert_eq!((of_b.ran, of_b.idle, of_b.unsettled), (0, 1, 1));
}

pub(super) async fn turns_are_cut_by_period_and_limit<S: StoreUnderTest>() {
    let Some(Told {
        scene,
        blocks,
        start,
    }) = told::<S>().await
    else {
        return;
    };
    let end = scene.now().await;
    let all = history(&scene, "a", start, end, 10).await.turns;
    let second = blocks[1].reserved_at;
    let late = history(&scene, "a", second, end, 10).await;
    assert_eq!(
        (&late.turns[..], late.more),
        (&all[3..], false),
        "from the time itself on"
    );
    let early = history(&scene, "a", start, second, 10).await;
    assert_eq!(
        (&early.turns[..], early.more),
        (&all[..3], false),
        "without the time itself"
    );
    for limit in [1, 3, 5, 6] {
        let cut = history(&scene, "a", start, end, limit).await;
        let turns = usize::try_from(limit).must("a number");
        assert_eq!((&cut.turns[..], cut.more), (&all[..turns], turns < 6));
    }
    let empty = history(&scene, "a", end, start, 6).await;
    assert_eq!((empty.turns, empty.more), (vec![], false));
    let shard = scene.policy.shard().clone();
    let stranger = TenantHistoryRequest::new(shard, tenant("stranger"), start, end, 1);
    let answer = scene.store.tenant_history(&stranger).await;
    refused(
        answer,
        StoreErrorKind::Invalid,
        "the turns of a tenant that has none",
    );
}

pub(super) async fn pruning_keeps_what_a_reservation_covers<S: StoreUnderTest>() {
    let Some(scene) = pruning::<S>().await else {
        return;
    };
    scene
        .store
        .enqueue_many(&vec![run("a"); 2])
        .await
        .must("a backlog");
    let block = scene.reserve(4).await;
    for claimed in scene.round(&block).await.claimed {
        scene
            .store
            .complete(&claimed.lease)
            .await
            .must("a completion");
    }
    let single = scene.reserve(1).await;
    scene.claim(single.first_sequence).await;
    let before = scene.records().await;
    assert_eq!(before.len(), 5);
    scene.advance(500 * 24 * HOUR).await;
    let late = scene.enqueue(&run("a")).await;
    let report = prune(&scene, HOUR, 1_000).await;
    assert_eq!(
        (report.outcomes, report.attempts, report.more),
        (0, 0, false)
    );
    assert_eq!(scene.records().await, before, "what is covered was pruned");
    // Otherwise a sequence that ran, or was idle, could run again.
    for handle in scene.handles(1).await {
        let again = round(&scene.policy, &block, "conformance", 4);
        let answer = handle.claim_round(&again).await.must("the round again");
        assert_eq!((answer.claimed.len(), answer.moved_on.len()), (0, 2));
        let again = handle
            .claim(&claim(&scene.policy, single.first_sequence))
            .await;
        assert_eq!(again.must("the claim again"), evenhand_store::Claim::Idle);
    }
    assert_eq!(scene.run(late).await.state, RunState::Queued);
}

pub(super) async fn history_goes_after_its_reservation<S: StoreUnderTest>() {
    let Some(scene) = pruning::<S>().await else {
        return;
    };
    let store = &scene.store;
    store
        .enqueue_many(&vec![run("a"); 3])
        .await
        .must("a backlog");
    let block = scene.reserve(4).await;
    let claimed = scene.round(&block).await.claimed;
    assert_eq!(claimed.len(), 3);
    let held = claimed[0].lease.clone();
    for ended in &claimed[1..] {
        store.complete(&ended.lease).await.must("a completion");
    }
    scene.reserve(4).await;
    scene.advance(90 * Duration::from_mins(1)).await;
    let kept = scene.reserve(1).await;
    scene.claim(kept.first_sequence).await;
    scene.advance(Duration::from_mins(40)).await;
    let pass = Scene::<S>::an_hour(100);
    let pruned = store
        .prune_scheduler_fairness_reservations(pass)
        .await
        .must("a pass");
    assert_eq!(pruned.deleted, 2, "the two old reservations");

    let two_hours_young = prune(&scene, 3 * HOUR, 1_000).await;
    assert_eq!((two_hours_young.attempts, two_hours_young.more), (0, false));
    let report = prune(&scene, HOUR, 1_000).await;
    assert_eq!(
        (report.attempts, report.more),
        (2, false),
        "an attempt that has not ended stays"
    );
    let again = prune(&scene, HOUR, 1_000).await;
    assert_eq!((again.outcomes, again.attempts, again.more), (0, 0, false));
    let left = scene.records().await;
    assert_eq!(
        left.last().must("the newest outcome").sequence,
        kept.first_sequence
    );
    let is_pruned = |record: &SequenceRecord| {
        claimed[1..]
            .iter()
            .any(|ended| ended.lease.sequence == record.sequence)
    };
    assert!(!left.iter().any(is_pruned), "pruned attempts are on record");

    store
        .complete(&held)
        .await
        .must("the completion of an attempt whose reservation is gone");
    store.complete(&held).await.must("the completion again");
    assert_eq!(scene.run(held.run).await.state, RunState::Done);
    scene.advance(2 * HOUR).await;
    assert_eq!(
        prune(&scene, HOUR, 1_000).await.attempts,
        1,
        "once it has ended it goes too"
    );
}

pub(super) async fn ended_runs_are_kept_for_their_windows<S: StoreUnderTest>() {
    let Some(scene) = pruning::<S>().await else {
        return;
    };
    let store = &scene.store;
    let mut ended = Vec::new();
    for number in 0..3 {
        let done = keyed(&scene, &format!("done-{number}")).await;
        let lease = scene.claimed("a").await.lease;
        store.complete(&lease).await.must("a completion");
        let dead = keyed(&scene, &format!("dead-{number}")).await;
        let lease = scene.claimed("a").await.lease;
        store
            .fail(&lease, &Failure::new("no", Retry::GiveUp))
            .await
            .must("a failure");
        ended.push((done, dead));
        scene.advance(Duration::from_mins(1)).await;
    }
    let running = scene.started().await.lease;
    let queued = scene.enqueue(&run("b")).await;
    let windows = |finished, dead, batch| {
        HistoryRetentionPolicy::new(HOUR, finished, dead, batch).must("windows")
    };
    let pass = async |policy| {
        let report: HistoryReport = store.prune_history(policy).await.must("a pass");
        (report.finished, report.dead, report.more)
    };
    assert_eq!(
        pass(windows(HOUR, HOUR, 10)).await,
        (0, 0, false),
        "nothing is old enough"
    );
    scene.advance(2 * HOUR).await;
    assert_eq!(pass(windows(3 * HOUR, 3 * HOUR, 10)).await, (0, 0, false));
    assert_eq!(
        pass(windows(HOUR, 3 * HOUR, 2)).await,
        (2, 0, true),
        "at most a batch"
    );
    for (number, (done, dead)) in ended.iter().enumerate() {
        let done = store.run(*done).await.must("a look");
        assert_eq!(done.is_some(), number == 2, "the oldest go first");
        assert!(store.run(*dead).await.must("a look").is_some());
    }
    assert_eq!(pass(windows(HOUR, 3 * HOUR, 2)).await, (1, 0, false));
    assert_eq!(pass(windows(3 * HOUR, HOUR, 10)).await, (0, 3, false));
    assert_eq!(scene.run(running.run).await.state, RunState::Running);
    assert_eq!(scene.run(queued).await.state, RunState::Queued);
    let again = keyed(&scene, "done-0").await;
    assert_ne!(again, ended[0].0, "a pruned run holds its key no more");
    // The sequences that they ran against are settled as before.
    let record = scene.record(0).await;
    assert_eq!(
        attempt(&record).run,
        ended[0].0,
        "what a sequence ran stays on record"
    );
    store.complete(&running).await.must("a completion");
}

pub(super) async fn cancelled_runs_are_kept_as_long_as_done_ones<S: StoreUnderTest>() {
    let Some(scene) = pruning::<S>().await else {
        return;
    };
    if !scene.offers([Method::Cancel]).await {
        return;
    }
    let id = scene.enqueue(&run("a")).await;
    scene.store.cancel(id).await.must("a cancellation");
    scene.advance(2 * HOUR).await;
    let policy = HistoryRetentionPolicy::new(HOUR, HOUR, 3 * HOUR, 10).must("windows");
    let report = scene.store.prune_history(policy).await.must("a pass");
    assert_eq!((report.finished, report.dead), (1, 0));
    assert_eq!(scene.store.run(id).await.must("a look"), None);
}

pub(super) async fn health_tells_backlogs_and_the_oldest_evidence<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::Health]).await {
        return;
    }
    let shard = scene.policy.shard();
    let health = scene
        .store
        .health(shard)
        .await
        .must("the health of a new shard");
    assert_eq!(
        (health.oldest_reservation_at, health.backlogs),
        (None, vec![])
    );
    let first = scene.reserve(1).await;
    let mut later = run("a");
    later.ready_at = evenhand_store::ReadyAt::After(HOUR);
    let old = scene.enqueue(&run("b")).await;
    scene
        .store
        .enqueue_many(&[later, run("stranger")])
        .await
        .must("a backlog");
    scene.advance(Duration::from_mins(1)).await;
    scene.reserve(1).await;
    scene.enqueue(&run("b")).await;
    let before = scene.now().await;
    let health = scene.store.health(shard).await.must("the health");
    assert!(before <= health.store_time && health.store_time <= scene.now().await);
    assert_eq!(health.oldest_reservation_at, Some(first.reserved_at));
    let backlogs: Vec<_> = health.backlogs.into_iter().map(pair).collect();
    let expected = (tenant("b"), scene.run(old).await.ready_at);
    assert_eq!(
        backlogs,
        [expected],
        "served tenants with ready runs, and their oldest"
    );

    scene.advance(2 * HOUR).await;
    ran(scene.claim(scene.sequence_of("b").await).await);
    let health = scene.store.health(shard).await.must("the health");
    let tenants: Vec<_> = health
        .backlogs
        .into_iter()
        .map(|backlog| backlog.tenant)
        .collect();
    assert_eq!(tenants, [tenant("a"), tenant("b")], "in bytewise order");
}

fn pair(backlog: evenhand_store::Backlog) -> (evenhand_policy::TenantId, Timestamp) {
    (backlog.tenant, backlog.oldest_ready_at)
}

/// Two blocks of one cycle each, an hour apart: a round of one run in the first, a failure in the second.
struct Told<S: StoreUnderTest> {
    scene: Scene<S>,
    blocks: [Reservation; 2],
    start: Timestamp,
}

/// A scene of a store that tells a tenant's history.
async fn told<S: StoreUnderTest>() -> Option<Told<S>> {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::TenantHistory]).await {
        return None;
    }
    let start = scene.now().await;
    let first = scene.reserve(4).await;
    scene
        .store
        .enqueue_many(&vec![run("a"); 2])
        .await
        .must("a backlog");
    let asked = round(&scene.policy, &first, "conformance", 1);
    let answer = scene.store.claim_round(&asked).await.must("a round");
    scene.advance(HOUR).await;
    let second = scene.reserve(4).await;
    let shard = scene.policy.shard();
    scene
        .store
        .record_failed(shard, second.first_sequence)
        .await
        .must("a failure");
    scene
        .store
        .complete(&answer.claimed[0].lease)
        .await
        .must("a completion");
    scene.advance(HOUR).await;
    Some(Told {
        scene,
        blocks: [first, second],
        start,
    })
}

/// A scene of a store that prunes its history.
async fn pruning<S: StoreUnderTest>() -> Option<Scene<S>> {
    let scene = Scene::<S>::start().await;
    scene.offers([Method::PruneHistory]).await.then_some(scene)
}

/// One pass that keeps outcomes and attempts for `evidence`, and ended runs for a year.
async fn prune<S: StoreUnderTest>(
    scene: &Scene<S>,
    evidence: Duration,
    batch: u32,
) -> HistoryReport {
    let year = 366 * 24 * HOUR;
    let policy = HistoryRetentionPolicy::new(evidence, year, year, batch).must("windows");
    scene.store.prune_history(policy).await.must("a pass")
}

async fn history<S: StoreUnderTest>(
    scene: &Scene<S>,
    owner: &str,
    from: Timestamp,
    to: Timestamp,
    limit: u32,
) -> TenantHistory {
    let shard = scene.policy.shard().clone();
    let request = TenantHistoryRequest::new(shard, tenant(owner), from, to, limit);
    scene.store.tenant_history(&request).await.must("a history")
}

async fn keyed<S: StoreUnderTest>(scene: &Scene<S>, key: &str) -> RunId {
    let mut run: NewRun = run("a");
    run.idempotency_key = Some(key.try_into().must("a key"));
    scene.enqueue(&run).await
}
