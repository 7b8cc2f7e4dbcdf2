//! Runs are enqueued all or none, once per key, and kept as written.

use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::admission::{BasePriority, ValueClass};
use evenhand_store::{
    AttemptsMax, CostMicros, NewRun, PageSize, Payload, ReadyAt, Run, RunFilter, RunKind, RunQueue,
    RunState, RunTimeout, StoreErrorKind,
};
use serde_json::json;

use super::StoreUnderTest;
use super::scene::{Must, Scene, at_once, pool, refused, run, tenant};

pub(super) async fn a_keyed_run_is_enqueued_once<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let handles = scene.handles(3).await;
    let answers = at_once((0..6).map(|task| {
        let store = Arc::clone(&handles[task % 3]);
        async move {
            store
                .enqueue(&keyed("a", "once"))
                .await
                .must("one of the enqueues")
        }
    }))
    .await;
    let first = answers[0].run;
    assert!(
        answers.iter().all(|answer| answer.run == first),
        "one key was given several runs"
    );
    let created = answers.iter().filter(|answer| answer.created).count();
    assert_eq!(created, 1, "exactly one of the calls creates the run");

    // Another ready time is not other content, and neither does it move the run.
    let before = scene.run(first).await;
    let mut later = keyed("a", "once");
    later.ready_at = ReadyAt::After(Duration::from_hours(1));
    let pair = [later.clone(), keyed("a", "twice"), keyed("a", "twice")];
    let answers = scene.store.enqueue_many(&pair).await.must("an enqueue");
    assert_eq!((answers[0].run, answers[0].created), (first, false));
    assert!(
        answers[1].created && !answers[2].created,
        "a key given twice in one call"
    );
    assert_eq!(
        answers[1].run, answers[2].run,
        "a key given twice in one call"
    );
    assert_eq!(
        scene.run(first).await,
        before,
        "a repetition changed the run"
    );

    let mut elsewhere = keyed("a", "once");
    elsewhere.pool = pool("elsewhere");
    let other = scene
        .store
        .enqueue(&elsewhere)
        .await
        .must("the same key in another pool");
    assert!(
        other.created && other.run != first,
        "a key is unique within its pool only"
    );
    let done = scene.claimed("a").await.lease;
    scene.store.complete(&done).await.must("a completion");
    let again = scene
        .store
        .enqueue(&keyed("a", "once"))
        .await
        .must("the key of a run that is done");
    assert_eq!(
        (again.run, again.created),
        (first, false),
        "a key holds as long as its run is kept"
    );
}

pub(super) async fn other_content_under_a_key_is_refused_whole<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let first = scene.enqueue(&keyed("a", "key")).await;
    let changes: [fn(&mut NewRun); 8] = [
        |run| run.tenant = tenant("b"),
        |run| run.team = "another".try_into().must("a team"),
        |run| run.kind = "another".try_into().must("a kind"),
        |run| run.payload = Payload::new(json!({"other": true})).must("a payload"),
        |run| run.value_class = ValueClass::Critical,
        |run| run.base_priority = BasePriority::MAX,
        |run| run.cost_micros = CostMicros::new(1).must("a cost"),
        |run| run.attempts_max = AttemptsMax::new(1).must("attempts"),
    ];
    for change in changes {
        let mut other = keyed("a", "key");
        change(&mut other);
        let answer = scene
            .store
            .enqueue_many(&[run("a"), keyed("a", "new"), other])
            .await;
        refused(
            answer,
            StoreErrorKind::RunConflict,
            "other content under a known key",
        );
    }
    let mut other = keyed("a", "fresh");
    other.timeout = RunTimeout::new(Duration::from_secs(1)).must("a timeout");
    let answer = scene
        .store
        .enqueue_many(&[keyed("a", "fresh"), other])
        .await;
    refused(
        answer,
        StoreErrorKind::RunConflict,
        "two contents under one key in one call",
    );
    let ids: Vec<_> = listed(&scene, &RunFilter::default())
        .await
        .iter()
        .map(|run| run.id)
        .collect();
    assert_eq!(ids, [first], "a refused call enqueued some of its runs");
}

pub(super) async fn a_run_reads_back_as_it_was_enqueued<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let mut spec = keyed("stranger", "a key with ~ and \" in it");
    spec.pool = pool("elsewhere");
    spec.team = "team-7".try_into().must("a team");
    spec.kind = "report.build".try_into().must("a kind");
    spec.payload = Payload::new(json!({
        "text": "z\u{fc}rich \u{1f642} \\ \n", "list": [1, -2, 2.5, null, true, []], "": {"nested": {}},
        "large": i64::MAX,
    }))
    .must("a payload");
    spec.value_class = ValueClass::Batch;
    spec.base_priority = BasePriority::MAX;
    spec.cost_micros = CostMicros::new(CostMicros::MAX).must("a cost");
    spec.attempts_max = AttemptsMax::new(AttemptsMax::MAX).must("attempts");
    spec.timeout = RunTimeout::new(RunTimeout::MAX).must("a timeout");

    let before = scene.now().await;
    let run = scene.run(scene.enqueue(&spec).await).await;
    let after = scene.now().await;
    assert!(before <= run.enqueued_at && run.enqueued_at <= after);
    assert!(before <= run.ready_at && run.ready_at <= after);
    let expected = Run::queued(run.id, spec, run.ready_at, run.enqueued_at);
    let mut found = run;
    found.spec.ready_at = ReadyAt::Now;
    assert_eq!(found, expected);
    let unknown = evenhand_store::RunId::new(evenhand_store::ReservationId::mint(before).as_uuid());
    assert_eq!(
        scene.store.run(unknown).await.must("a look"),
        None,
        "there is no such run"
    );
    assert_eq!(scene.store.enqueue_many(&[]).await.must("no runs"), []);
}

pub(super) async fn runs_are_listed_by_filter_and_page_and_counted<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let mut odd = run("a");
    odd.kind = RunKind::try_from("odd").must("a kind");
    let mut elsewhere = run("c");
    elsewhere.pool = pool("elsewhere");
    let backlog = [run("a"), run("a"), run("a"), odd, run("b"), elsewhere];
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    let lease = scene.claimed("a").await.lease;
    scene.store.complete(&lease).await.must("a completion");
    scene.claimed("b").await;

    let all = listed(&scene, &RunFilter::default()).await;
    assert_eq!(all.len(), 6);
    assert!(
        all.is_sorted_by_key(|run| run.id),
        "the runs are not in order of their ids"
    );
    let changes: [fn(&mut RunFilter); 6] = [
        |filter| filter.pool = Some(pool("elsewhere")),
        |filter| filter.tenant = Some(tenant("a")),
        |filter| filter.kind = Some(RunKind::try_from("odd").must("a kind")),
        |filter| filter.state = Some(RunState::Queued),
        |filter| filter.state = Some(RunState::Done),
        |filter| filter.state = Some(RunState::Dead),
    ];
    for change in changes {
        let mut filter = RunFilter::default();
        change(&mut filter);
        let expected: Vec<_> = all
            .iter()
            .filter(|run| filter.matches(run))
            .cloned()
            .collect();
        assert_eq!(listed(&scene, &filter).await, expected, "{filter:?}");
    }

    let counts = scene.store.counts().await.must("the counts");
    let mut found: Vec<_> = counts
        .iter()
        .map(|count| {
            let numbers = [count.queued, count.running, count.done, count.dead];
            (count.pool.as_str(), count.tenant.as_str(), numbers)
        })
        .collect();
    found.sort_unstable();
    let expected = [
        ("default", "a", [3, 0, 1, 0]),
        ("default", "b", [0, 1, 0, 0]),
        ("elsewhere", "c", [1, 0, 0, 0]),
    ];
    assert_eq!(found, expected);
}

/// All runs that fit, read in pages of two.
async fn listed<S: StoreUnderTest>(scene: &Scene<S>, filter: &RunFilter) -> Vec<Run> {
    let (mut runs, mut after) = (Vec::new(), None);
    loop {
        let page = scene
            .store
            .runs(filter, after, PageSize::new(2))
            .await
            .must("a page");
        assert!(page.runs.len() <= 2, "a page is longer than asked for");
        runs.extend(page.runs);
        after = page.next;
        if after.is_none() {
            return runs;
        }
    }
}

fn keyed(owner: &str, key: &str) -> NewRun {
    let mut run = run(owner);
    run.idempotency_key = Some(key.try_into().must("a key"));
    run
}
