//! Who waits for work is woken by it, and waits no longer than asked.

use core::time::Duration;

use std::sync::Arc;

use evenhand_store::{RunQueue, StoreErrorKind, WaitRequest};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::timeout;

use super::StoreUnderTest;
use super::optional::Method;
use super::scene::{Must, Scene, at_once, policy, refused, run, worker};

/// So much longer than any wake-up takes that polling this seldom cannot be mistaken for one.
const LONG: Duration = Duration::from_mins(5);
const DEADLINE: Duration = Duration::from_secs(10);

pub(super) async fn a_waiting_worker_is_woken_by_an_enqueue<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::Waiting]).await {
        return;
    }
    let handles = scene.handles(2).await;
    for _ in 0..5 {
        // The two race: whoever enqueues must see the sleeper, or the sleeper the run.
        let (sleeper, client) = (Arc::clone(&handles[0]), Arc::clone(&handles[1]));
        let asked = WaitRequest::new(scene.policy.shard().clone(), worker("sleeper"), LONG);
        let shard = scene.policy.shard().clone();
        let waits = async move {
            let woken = timeout(DEADLINE, async {
                loop {
                    sleeper.wait_for_work(&asked).await.must("a wait");
                    let ready = sleeper.ready_tenants(&shard).await.must("a look");
                    if !ready.tenants.is_empty() {
                        break;
                    }
                }
            });
            woken.await.must("a wake-up before the deadline");
        };
        let enqueues = async move {
            client.enqueue(&run("a")).await.must("an enqueue");
        };
        let both: [BoxFuture<'static, ()>; 2] = [waits.boxed(), enqueues.boxed()];
        at_once(both).await;
        let lease = scene.claimed("a").await.lease;
        scene.store.complete(&lease).await.must("a completion");
    }
}

pub(super) async fn nobody_waits_for_work_that_is_there<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::Waiting]).await {
        return;
    }
    scene.enqueue(&run("b")).await;
    let asked = WaitRequest::new(scene.policy.shard().clone(), worker("sleeper"), LONG);
    let wait = timeout(DEADLINE, scene.store.wait_for_work(&asked)).await;
    wait.must("an answer before the deadline").must("a wait");
}

pub(super) async fn a_wait_ends_when_its_time_is_over<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::Waiting]).await {
        return;
    }
    // Work of another pool, of nobody's tenant, or for later, is no work.
    let mut elsewhere = run("a");
    elsewhere.pool = super::scene::pool("elsewhere");
    let mut later = run("a");
    later.ready_at = evenhand_store::ReadyAt::After(Duration::from_hours(1));
    let backlog = [elsewhere, later, run("stranger")];
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    let longest = Duration::from_millis(300);
    let asked = WaitRequest::new(scene.policy.shard().clone(), worker("sleeper"), longest);
    let wait = timeout(DEADLINE, scene.store.wait_for_work(&asked)).await;
    wait.must("an answer before the deadline").must("a wait");
    let unknown = policy("unknown", &[("a", 1)]);
    let asked = WaitRequest::new(unknown.shard().clone(), worker("sleeper"), longest);
    let answer = scene.store.wait_for_work(&asked).await;
    refused(
        answer,
        StoreErrorKind::PolicyNotFound,
        "a wait for an unknown shard",
    );
}
