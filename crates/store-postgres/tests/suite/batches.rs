//! A batch of runs is one statement, and means what one call a run would mean.

use core::time::Duration;

use evenhand_store::{NewRun, ReadyAt, RunQueue as _, StoreErrorKind};

use crate::scene::{Scene, kind, run};

fn keyed(tenant: &str, key: &str) -> NewRun {
    let mut run = run(tenant);
    run.idempotency_key = Some(key.try_into().expect("a key"));
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_of_a_batch_keeps_its_key() {
    let scene = Scene::start().await;
    let first = scene.store.enqueue(&keyed("a", "old")).await.unwrap();
    let batch = [
        run("a"),
        keyed("a", "new"),
        keyed("a", "old"),
        run("b"),
        keyed("a", "new"),
    ];
    let enqueued = scene.store.enqueue_many(&batch).await.unwrap();
    let created: Vec<bool> = enqueued.iter().map(|run| run.created).collect();
    assert_eq!(created, [true, true, false, true, false]);
    assert_eq!(enqueued[2].run, first.run);
    assert_eq!(enqueued[4].run, enqueued[1].run);
    assert!(enqueued[0].run < enqueued[1].run && enqueued[1].run < enqueued[3].run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_other_content_under_a_key_enqueues_nothing() {
    let scene = Scene::start().await;
    let batch = [run("a"), keyed("a", "key"), keyed("b", "key")];
    assert_eq!(
        kind(scene.store.enqueue_many(&batch).await),
        StoreErrorKind::RunConflict
    );
    assert_eq!(scene.number("SELECT count(*) FROM evenhand.runs").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_batch_are_ranked_and_timed_like_single_ones() {
    let scene = Scene::start().await;
    let mut later = run("a");
    later.ready_at = ReadyAt::After(Duration::from_secs(90));
    let mut elsewhere = run("a");
    elsewhere.pool = "another".parse().expect("a pool");
    let kinds = [run("a"), later, elsewhere];
    for run in &kinds {
        scene.store.enqueue(run).await.unwrap();
    }
    scene.store.enqueue_many(&kinds).await.unwrap();
    // Each kind of run is there twice, alike but for the moments at which it came.
    let alike = "SELECT count(*) FROM (
        SELECT count(*) AS twins FROM evenhand.runs
        GROUP BY pool_key, rank, state, tenant, team, kind, payload, value_class, attempts_max, timeout_ms, cost_micros,
                 round(extract(epoch FROM ready_at - enqueued_at) / 10), ready_at > enqueued_at,
                 ready_tick * 1000 - floor(extract(epoch FROM ready_at) * 1000) > -1000) AS kinds
        WHERE twins = 2";
    assert_eq!(scene.number(alike).await, 3);
}
