//! Leases that are renewed together: one row for all of them, and none that lives longer than it was renewed for.

use core::time::Duration;

use evenhand_store::{ClaimedRun, Lease, LeaseDuration, Renewal, RunQueue};
use evenhand_store_postgres::PostgresStore;
use sqlx::Connection as _;

use crate::scene::{Scene, execute, lease, number, ran, wait_until};

/// Where the rows of leases are: each version of a row is elsewhere.
const PLACES: &str = "SELECT hashtext(string_agg(l.ctid::text || l.run_id, ' ' ORDER BY l.run_id))::bigint FROM evenhand.leases AS l";

/// Renewals that tests make past the store, in a transaction of their own.
const RENEW_ALL: &str = "SELECT count(*) FROM evenhand.renew(
    ARRAY(SELECT l.run_id FROM evenhand.leases AS l ORDER BY l.run_id),
    ARRAY(SELECT l.fence FROM evenhand.leases AS l ORDER BY l.run_id), 30000)";

async fn claimed(scene: &Scene, runs: usize) -> Vec<Lease> {
    let mut leases = Vec::new();
    for _ in 0..runs {
        leases.push(scene.claimed("a").await.lease);
    }
    leases
}

async fn pass(scene: &Scene, seconds: i64) {
    scene.database.move_clock(seconds * 1_000_000).await;
}

/// Which of these leases were held.
async fn renewed(store: &PostgresStore, leases: &[Lease]) -> Vec<bool> {
    let renewals = store.renew(leases, lease()).await.unwrap();
    renewals
        .into_iter()
        .map(|renewal| renewal != Renewal::Lost)
        .collect()
}

async fn recovered(scene: &Scene) -> u32 {
    scene.store.recover(100).await.unwrap().requeued
}

/// Claims the run that was put back.
async fn claimed_again(scene: &Scene) -> ClaimedRun {
    loop {
        let sequence = scene.reserve(1).await.first_sequence;
        if scene.policy.tenant_for_sequence(sequence).as_str() == "a" {
            return ran(scene.claim(sequence).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_of_the_same_leases_writes_no_row_of_theirs() {
    let scene = Scene::start().await;
    let leases = claimed(&scene, 8).await;
    assert_eq!(renewed(&scene.store, &leases).await, [true; 8]);
    let places = scene.number(PLACES).await;
    for _ in 0..3 {
        pass(&scene, 20).await;
        assert_eq!(renewed(&scene.store, &leases).await, [true; 8]);
        assert_eq!(recovered(&scene).await, 0);
    }
    assert_eq!(scene.number(PLACES).await, places);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_renewed_no_more_ends_while_the_others_go_on() {
    let scene = Scene::start().await;
    let leases = claimed(&scene, 3).await;
    assert_eq!(renewed(&scene.store, &leases).await, [true; 3]);
    pass(&scene, 20).await;
    assert_eq!(renewed(&scene.store, &leases[1..]).await, [true; 2]);
    pass(&scene, 9).await;
    assert_eq!(
        recovered(&scene).await,
        0,
        "it has not lost what it had left"
    );
    pass(&scene, 2).await;
    assert_eq!(recovered(&scene).await, 1);
    assert_eq!(
        renewed(&scene.store, &leases).await,
        [false, true, true],
        "the one that was left out is lost"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_change_company_are_renewed_with_those_they_are_with() {
    let scene = Scene::start().await;
    let leases = claimed(&scene, 4).await;
    let pairs = |order: [usize; 2]| order.map(|at| leases[at].clone());
    // Every lease is renewed each ten seconds, each time beside another one.
    for round in 0..12 {
        let couples = [
            [[3, 2], [0, 1]],
            [[0, 2], [1, 3]],
            [[3, 2], [1, 0]],
            [[3, 0], [2, 1]],
        ];
        for couple in couples[round % couples.len()] {
            assert_eq!(renewed(&scene.store, &pairs(couple)).await, [true; 2]);
        }
        pass(&scene, 20).await;
        assert_eq!(recovered(&scene).await, 0, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_claimed_again_is_renewed_by_its_new_fence_only() {
    let scene = Scene::start().await;
    let stale = claimed(&scene, 2).await;
    assert_eq!(renewed(&scene.store, &stale).await, [true; 2]);
    scene
        .store
        .release(&stale[1], Duration::ZERO)
        .await
        .unwrap();
    let leases = [stale[0].clone(), claimed_again(&scene).await.lease];
    assert_eq!(leases[1].run, stale[1].run);
    for _ in 0..3 {
        pass(&scene, 20).await;
        assert_eq!(renewed(&scene.store, &leases).await, [true; 2]);
        assert_eq!(recovered(&scene).await, 0);
    }
    assert_eq!(renewed(&scene.store, &stale).await, [true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_renewed_is_not_recovered() {
    let scene = Scene::start().await;
    let leases = claimed(&scene, 3).await;
    assert_eq!(renewed(&scene.store, &leases).await, [true; 3]);
    pass(&scene, 31).await;
    let mut connection = scene.database.connect().await;
    let mut renewing = connection.begin().await.unwrap();
    execute(&mut renewing, RENEW_ALL).await;
    assert_eq!(recovered(&scene).await, 0, "it steps over them");
    renewing.commit().await.unwrap();
    assert_eq!(recovered(&scene).await, 0);
    assert_eq!(renewed(&scene.store, &leases).await, [true; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_recovered_is_not_renewed() {
    let scene = Scene::start().await;
    let leases = claimed(&scene, 3).await;
    assert_eq!(renewed(&scene.store, &leases).await, [true; 3]);
    pass(&scene, 31).await;
    let mut connection = scene.database.connect().await;
    let mut recovering = connection.begin().await.unwrap();
    execute(
        &mut recovering,
        "SELECT requeued FROM evenhand.recover(100)",
    )
    .await;
    let renewing = renewed(&scene.store, &leases);
    let committing = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%evenhand.renew(%'";
        wait_until("the renewal waits", async || {
            scene.number(waiting).await == 1
        })
        .await;
        recovering.commit().await.unwrap();
    };
    let (renewed, ()) = tokio::join!(renewing, committing);
    assert_eq!(renewed, [false; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_asked_again_tells_the_end_that_the_renewal_gave() {
    let scene = Scene::start().await;
    let leases = claimed(&scene, 2).await;
    let renewals = scene
        .store
        .renew(&leases, LeaseDuration::new(Duration::from_mins(5)).unwrap())
        .await
        .unwrap();
    for (lease, renewal) in leases.iter().zip(renewals) {
        let again = ran(scene.claim(lease.sequence).await);
        assert_eq!(Renewal::Renewed(again.lease.expires_at), renewal);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terms_go_when_they_are_over_and_nobody_has_them() {
    let scene = Scene::start().await;
    let leases = claimed(&scene, 6).await;
    let terms = "SELECT count(*) FROM evenhand.terms";
    for pair in leases.chunks(2) {
        assert_eq!(renewed(&scene.store, pair).await, [true; 2]);
    }
    assert_eq!(scene.number(terms).await, 3);
    assert_eq!(renewed(&scene.store, &leases).await, [true; 6]);
    for lease in &leases[1..] {
        scene.store.complete(lease).await.unwrap();
    }
    assert_eq!(recovered(&scene).await, 0);
    assert_eq!(scene.number(terms).await, 3, "they are not over");
    pass(&scene, 31).await;
    let mut connection = scene.database.connect().await;
    let mut holding = connection.begin().await.unwrap();
    execute(
        &mut holding,
        "SELECT FROM evenhand.runs WHERE state = 'running' FOR UPDATE",
    )
    .await;
    assert_eq!(recovered(&scene).await, 0);
    assert_eq!(
        number(&mut holding, terms).await,
        1,
        "one lease still has one"
    );
    holding.commit().await.unwrap();
    assert_eq!(recovered(&scene).await, 1);
    assert_eq!(scene.number(terms).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_renewed_alone_needs_no_term() {
    let scene = Scene::start().await;
    let leases = claimed(&scene, 1).await;
    for _ in 0..3 {
        pass(&scene, 20).await;
        assert_eq!(renewed(&scene.store, &leases).await, [true]);
        assert_eq!(recovered(&scene).await, 0);
    }
    let terms = "SELECT count(*) FROM evenhand.terms";
    assert_eq!(scene.number(terms).await, 0);
}
