//! Limits hold at every moment, whoever claims, completes, or changes them.

use core::time::Duration;

use evenhand_policy::PoolId;
use evenhand_store::{
    Claim, ClaimRequest, Failure, LimitSubject, ReservationStore, Retry, RoundRequest, RunQueue,
    RunsMax, StoreErrorKind,
};
use evenhand_store_postgres::PostgresStore;
use futures::future::join_all;
use sqlx::Connection as _;

use crate::scene::{Scene, execute, kind, lease, number, ran, request, run, wait_until, worker};

fn pool() -> PoolId {
    "default".parse().expect("a pool")
}

fn tenant(name: &str) -> LimitSubject {
    LimitSubject::Tenant(name.parse().expect("a tenant"))
}

fn runs(most: u32) -> RunsMax {
    RunsMax::new(most).expect("a limit")
}

/// Running runs of tenant `a`.
const RUNNING: &str = "SELECT count(*) FROM evenhand.leases AS l JOIN evenhand.runs AS r ON r.id = l.run_id WHERE r.tenant = 'a'";

/// Permits that are held by no running run, running runs without a permit, and permits too many or too few: all in one
/// snapshot.
const WRONG_PERMITS: &str = "
    SELECT (SELECT count(*) FROM evenhand.permits AS p WHERE p.run_id IS NOT NULL AND NOT EXISTS (
                SELECT FROM evenhand.leases AS l WHERE l.run_id = p.run_id AND l.tenant_permit = p.ordinal))
         + (SELECT count(*) FROM evenhand.leases AS l JOIN evenhand.runs AS r ON r.id = l.run_id
            JOIN evenhand.limits AS m ON m.kind = 'tenant' AND m.name = r.tenant WHERE NOT EXISTS (
                SELECT FROM evenhand.permits AS p WHERE p.run_id = l.run_id))
         + (SELECT count(*) FROM evenhand.limits AS m WHERE m.runs_max + m.excess <> (
                SELECT count(*) FROM evenhand.permits AS p WHERE (p.pool_key, p.kind, p.name) = (m.pool_key, m.kind, m.name)))";

/// Claims runs of `a`, by rounds and singly in turn, completes each, and ends once `left` runs at most are queued.
async fn work(scene: &Scene, store: PostgresStore, left: i64) {
    let mut connection = scene.database.connect().await;
    let queued = "SELECT count(*) FROM evenhand.runs WHERE state = 'queued'";
    while number(&mut connection, queued).await > left {
        let block = store.reserve(&request(&scene.policy, 4)).await.unwrap();
        let round = RoundRequest::new(&scene.policy, &block, worker(), lease(), 2);
        let mut claimed = store.claim_round(&round).await.unwrap().claimed;
        let sequence = store
            .reserve(&request(&scene.policy, 1))
            .await
            .unwrap()
            .first_sequence;
        let single = ClaimRequest::new(&scene.policy, sequence, worker(), lease());
        if let Claim::Ran(run) = store.claim(&single).await.unwrap() {
            claimed.push(*run);
        }
        for (turn, claimed) in claimed.iter().enumerate() {
            if turn % 3 == 2 {
                store.release(&claimed.lease, Duration::ZERO).await.unwrap();
            } else {
                store.complete(&claimed.lease).await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_while_many_claim_and_complete() {
    let scene = Scene::start().await;
    scene
        .store
        .enqueue_many(&vec![run("a"); 300])
        .await
        .unwrap();
    scene
        .store
        .set_limit(&pool(), &tenant("a"), Some(runs(5)))
        .await
        .unwrap();
    let working = async {
        let workers =
            (0..16).map(|_| async { work(&scene, scene.database.store().await, 0).await });
        join_all(workers).await;
    };
    let (mut most, mut looks) = (0, 0);
    let watching = async {
        let mut connection = scene.database.connect().await;
        loop {
            most = most.max(number(&mut connection, RUNNING).await);
            assert_eq!(number(&mut connection, WRONG_PERMITS).await, 0);
            looks += 1;
        }
    };
    tokio::select! {
        () = working => {}
        () = watching => {}
    }
    println!("at most {most} running in {looks} looks");
    assert!(looks > 50);
    assert_eq!(most, 5, "the limit was reached and held");
    let limits = scene.store.limits(&pool()).await.unwrap();
    assert_eq!((limits[0].runs_max.get(), limits[0].running), (5, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_changes_under_load_is_never_exceeded_by_a_claim() {
    let scene = Scene::start().await;
    scene
        .store
        .enqueue_many(&vec![run("a"); 600])
        .await
        .unwrap();
    let working = async {
        let workers = (0..8).map(|_| async { work(&scene, scene.database.store().await, 0).await });
        join_all(workers).await;
    };
    let changing = async {
        let mut connection = scene.database.connect().await;
        for most in [3, 9, 1, 6, 0, 4, 2].into_iter().cycle() {
            // Set anew, over runs that are running, as often as it is changed.
            if most == 9 {
                scene
                    .store
                    .set_limit(&pool(), &tenant("a"), None)
                    .await
                    .unwrap();
            }
            scene
                .store
                .set_limit(&pool(), &tenant("a"), Some(runs(most)))
                .await
                .unwrap();
            let mut before = i64::MAX;
            for _ in 0..12 {
                let running = number(&mut connection, RUNNING).await;
                assert!(
                    running <= before.max(most.into()),
                    "{running} are running after {before}, of {most}"
                );
                assert_eq!(number(&mut connection, WRONG_PERMITS).await, 0);
                before = running;
            }
        }
    };
    tokio::select! {
        () = working => {}
        () = changing => {}
    }
    assert_eq!(scene.number(WRONG_PERMITS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_under_way_counts_for_a_limit_that_is_set_meanwhile() {
    let scene = Scene::start().await;
    scene
        .store
        .enqueue_many(&[run("a"), run("a")])
        .await
        .unwrap();
    scene.reserve(2).await;
    // Claimed, and not committed.
    let mut claimer = scene.database.connect().await;
    let mut claiming = claimer.begin().await.unwrap();
    execute(
        &mut claiming,
        "SELECT evenhand.claim('primary-v1', 0, 'a', 'w', 30000)",
    )
    .await;
    let subject = tenant("a");
    let limiting = async {
        scene
            .store
            .set_limit(&pool(), &subject, Some(runs(1)))
            .await
            .unwrap();
    };
    let committing = async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        wait_until("the limit waits", async || scene.number(waiting).await == 1).await;
        claiming.commit().await.unwrap();
    };
    tokio::join!(limiting, committing);
    let limits = scene.store.limits(&pool()).await.unwrap();
    assert_eq!(limits[0].running, 1);
    assert_eq!(scene.claim(1).await, Claim::Contended);
    assert_eq!(scene.number(WRONG_PERMITS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_that_completes_a_run_stops_no_claims_for_long() {
    let scene = Scene::start().await;
    let claimed = scene.claimed("a").await;
    let mut connection = scene.database.connect().await;
    let mut completing = connection.begin().await.unwrap();
    PostgresStore::complete_in(&mut completing, &claimed.lease)
        .await
        .unwrap();
    // Whether the run is running is not decided, so the limit cannot be set; it gives up long before claims do.
    let (pool, subject) = (pool(), tenant("a"));
    let refused = scene.store.set_limit(&pool, &subject, Some(runs(1))).await;
    assert_eq!(kind(refused), StoreErrorKind::Unavailable);
    assert_eq!(scene.store.limits(&pool).await.unwrap(), []);
    completing.commit().await.unwrap();
    scene
        .store
        .set_limit(&pool, &subject, Some(runs(1)))
        .await
        .unwrap();
    // Nothing is left of the run that was being completed.
    scene.claimed("a").await;
    assert_eq!(scene.number(WRONG_PERMITS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_of_an_attempt_gives_its_permits_back() {
    let scene = Scene::start().await;
    let free = "SELECT count(*) FROM evenhand.permits WHERE run_id IS NULL";
    let team = LimitSubject::Team(run("a").team);
    for subject in [tenant("a"), team] {
        scene
            .store
            .set_limit(&pool(), &subject, Some(runs(1)))
            .await
            .unwrap();
    }
    let give_up = Failure::new("no", Retry::GiveUp);
    for end in ["completed", "failed", "released", "expired"] {
        let claimed = scene.claimed("a").await;
        assert_eq!(scene.number(free).await, 0);
        let lease = &claimed.lease;
        match end {
            "completed" => scene.store.complete(lease).await.unwrap(),
            "failed" => drop(scene.store.fail(lease, &give_up).await.unwrap()),
            "released" => scene
                .store
                .release(lease, Duration::from_hours(1))
                .await
                .unwrap(),
            _ => {
                scene.database.move_clock(31_000_000).await;
                assert_eq!(scene.store.recover(10).await.unwrap().requeued, 1);
            }
        }
        assert_eq!(scene.number(free).await, 2, "{end}");
    }
    // A limit that was lifted and set again has other permits, which the older lease leaves alone.
    let claimed = scene.claimed("a").await;
    for most in [None, Some(runs(3))] {
        scene
            .store
            .set_limit(&pool(), &tenant("a"), most)
            .await
            .unwrap();
    }
    scene.store.complete(&claimed.lease).await.unwrap();
    assert_eq!(scene.number(free).await, 4);
}

/// A number that changes when anybody writes, locks, adds or removes a permit: a lock leaves its transaction in the row.
const PERMITS: &str = "SELECT hashtextextended(string_agg(ROW(p.ctid, p.xmin, p.xmax, p.*)::text, ';' ORDER BY p.ctid), 0)
    FROM evenhand.permits AS p";

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_tenants_without_a_limit_write_and_lock_no_permit() {
    let limited_team = LimitSubject::Team("limited".parse().unwrap());
    for limits in [vec![tenant("b")], vec![tenant("b"), limited_team]] {
        let scene = Scene::start().await;
        for subject in &limits {
            scene
                .store
                .set_limit(&pool(), subject, Some(runs(20)))
                .await
                .unwrap();
        }
        // The round goes over all tenants, of whom only `a` has ready runs.
        scene.store.enqueue_many(&vec![run("a"); 12]).await.unwrap();
        let before = scene.number(PERMITS).await;
        let block = scene.reserve(8).await;
        let round = RoundRequest::new(&scene.policy, &block, worker(), lease(), 8);
        let round = scene.store.claim_round(&round).await.unwrap();
        let leases: Vec<_> = round.claimed.into_iter().map(|run| run.lease).collect();
        assert_eq!(leases.len(), 6);
        scene.store.enqueue_many(&vec![run("b"); 4]).await.unwrap();
        let single = ran(scene.claim(scene.sequence_of("a").await).await).lease;
        scene.store.renew(&leases, lease()).await.unwrap();
        scene.store.complete(&single).await.unwrap();
        let answers = scene.store.complete_many(&leases[..3]).await.unwrap();
        assert!(answers.iter().all(Result::is_ok));
        let give_up = Failure::new("no", Retry::GiveUp);
        scene.store.fail(&leases[3], &give_up).await.unwrap();
        scene
            .store
            .release(&leases[4], Duration::ZERO)
            .await
            .unwrap();
        scene.database.move_clock(31_000_000).await;
        assert_eq!(scene.store.recover(10).await.unwrap().requeued, 1);
        assert_eq!(scene.number(PERMITS).await, before, "{limits:?}");
        // It is a number that a claim of the limited tenant does change.
        ran(scene.claim(scene.sequence_of("b").await).await);
        assert_ne!(scene.number(PERMITS).await, before, "{limits:?}");
    }
}
