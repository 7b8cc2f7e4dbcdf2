//! Completions of the same runs meet each other, renewals, recoveries and changes of a limit, and nobody is caught in a
//! deadlock.

use core::time::Duration;

use std::collections::{BTreeMap, VecDeque};

use evenhand_policy::PoolId;
use evenhand_store::{Lease, LimitSubject, Renewal, RunId, RunQueue, RunsMax, StoreErrorKind};
use evenhand_store_postgres::PostgresStore;
use sqlx::Connection as _;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::scene::{Scene, execute, lease, ran, run, tenant_id, wait_until};

const BACKENDS_WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Leases without a run that is running, permits without a lease, attempts that have not ended, and runs with more than
/// one attempt.
const LEFT_OVER: &str = "SELECT (SELECT count(*) FROM evenhand.leases)
    + (SELECT count(*) FROM evenhand.permits WHERE run_id IS NOT NULL)
    + (SELECT count(*) FROM evenhand.attempts WHERE ended_at IS NULL)
    + (SELECT count(*) FROM (SELECT FROM evenhand.attempts GROUP BY run_id HAVING count(*) > 1) AS r)";

fn pool() -> PoolId {
    "default".parse().expect("a pool")
}

/// Limits `a` to so many runs, or no longer.
async fn limit(store: &PostgresStore, runs_max: Option<u32>) {
    let subject = LimitSubject::Tenant(tenant_id("a"));
    let runs_max = runs_max.map(|runs| RunsMax::new(runs).expect("a limit"));
    let answer = store.set_limit(&pool(), &subject, runs_max).await;
    answer.expect("a change of the limit");
}

/// Leases of so many runs of `a`, in the order of their ids, which is the order of their permits.
async fn leases(scene: &Scene, number: usize) -> Vec<Lease> {
    let mut leases = Vec::new();
    for _ in 0..number {
        leases.push(scene.claimed("a").await.lease);
    }
    assert!(leases.is_sorted_by_key(|lease| lease.run));
    leases
}

fn backwards(leases: &[Lease]) -> Vec<Lease> {
    leases.iter().rev().cloned().collect()
}

async fn waiting(scene: &Scene, number: i64) {
    wait_until("they wait for locks", async || {
        scene.number(BACKENDS_WAITING).await == number
    })
    .await;
}

fn completing(scene: &Scene, leases: Vec<Lease>) -> JoinHandle<Vec<Option<StoreErrorKind>>> {
    let store = scene.store.clone();
    tokio::spawn(async move { ends(&store, &leases).await })
}

/// How each completion failed, if it did.
async fn ends(store: &PostgresStore, leases: &[Lease]) -> Vec<Option<StoreErrorKind>> {
    let answers = store.complete_many(leases).await.expect("the completions");
    let kinds = answers
        .into_iter()
        .map(|answer| answer.err().map(|error| error.kind()));
    kinds.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_locks_several_leases_goes_along_the_same_order() {
    let scene = Scene::start().await;
    let leases = leases(&scene, 8).await;
    let back = backwards(&leases);
    // Completions go as far as the lease in the middle, and hold all before it.
    let mut holder = scene.database.connect().await;
    let mut holding = holder.begin().await.unwrap();
    let middle = leases[4].run;
    let hold = format!("SELECT FROM evenhand.leases WHERE run_id = '{middle}' FOR UPDATE");
    execute(&mut holding, &hold).await;
    let completions = completing(&scene, back.clone());
    waiting(&scene, 1).await;
    let renewals = {
        let (store, back) = (scene.store.clone(), back.clone());
        tokio::spawn(async move { store.renew(&back, lease()).await.expect("the renewals") })
    };
    let limiting = {
        let store = scene.store.clone();
        tokio::spawn(async move { limit(&store, Some(20)).await })
    };
    waiting(&scene, 3).await;
    // These wait for nobody.
    scene.database.move_clock(31_000_000).await;
    let recovered = scene.store.recover(10).await.unwrap();
    assert_eq!((recovered.requeued, recovered.dead), (0, 0));
    let held = ends(&scene.store, &leases).await;
    assert_eq!(held, [Some(StoreErrorKind::Unavailable); 8]);

    holding.rollback().await.unwrap();
    assert_eq!(completions.await.unwrap(), [None; 8]);
    assert_eq!(renewals.await.unwrap(), [Renewal::Lost; 8]);
    limiting.await.unwrap();
    assert_eq!(ends(&scene.store, &leases).await, [None; 8]);
    assert_eq!(scene.number(LEFT_OVER).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_freed_in_the_order_in_which_a_limit_is_lifted() {
    let scene = Scene::start().await;
    limit(&scene.store, Some(8)).await;
    let leases = leases(&scene, 8).await;
    let mut holder = scene.database.connect().await;
    let mut holding = holder.begin().await.unwrap();
    let hold = format!(
        "SELECT FROM evenhand.permits WHERE run_id = '{}' FOR UPDATE",
        leases[4].run
    );
    execute(&mut holding, &hold).await;
    let completions = completing(&scene, backwards(&leases));
    waiting(&scene, 1).await;
    let lifting = {
        let store = scene.store.clone();
        tokio::spawn(async move { limit(&store, None).await })
    };
    waiting(&scene, 2).await;
    holding.rollback().await.unwrap();
    assert_eq!(completions.await.unwrap(), [None; 8]);
    lifting.await.unwrap();
    assert_eq!(
        scene.number("SELECT count(*) FROM evenhand.permits").await,
        0
    );
    assert_eq!(scene.number(LEFT_OVER).await, 0);
}

/// How many runs each of the storm's rounds is about.
const RUNS: usize = 40;

/// Completes all of these, `at_once` in a call; what somebody else holds is asked for again. Answers with the end of each
/// run, and how often one was held.
async fn complete_all(
    store: PostgresStore,
    leases: &[Lease],
    at_once: usize,
) -> (BTreeMap<RunId, Option<StoreErrorKind>>, usize) {
    let (mut ended, mut held) = (BTreeMap::new(), 0);
    let mut left = VecDeque::from(leases.to_vec());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !left.is_empty() {
        assert!(Instant::now() < deadline, "{left:?} are held for ever");
        let asked: Vec<Lease> = left.drain(..at_once.min(left.len())).collect();
        let answers = ends(&store, &asked).await;
        for (lease, answer) in asked.into_iter().zip(answers) {
            if answer == Some(StoreErrorKind::Unavailable) {
                left.push_back(lease);
                held += 1;
            } else {
                ended.insert(lease.run, answer);
            }
        }
    }
    (ended, held)
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_completions_among_recoveries_renewals_and_limits_end_each_run_once() {
    let scene = Scene::start().await;
    let [first, second, third] = [
        scene.database.store().await,
        scene.database.store().await,
        scene.database.store().await,
    ];
    let (mut held, mut completed, mut recovered) = (0, 0, 0);
    // Any deadlock would fail one of the calls.
    for round in 0..24 {
        limit(&scene.store, (round % 2 == 0).then_some(50)).await;
        scene
            .store
            .enqueue_many(&vec![run("a"); RUNS])
            .await
            .unwrap();
        let mut leases = Vec::new();
        while leases.len() < RUNS {
            let sequence = scene.sequence_of("a").await;
            leases.push(ran(scene.claim(sequence).await).lease);
        }
        // Every other lease is over: who completes the run and who recovers it race for it.
        scene
            .sql(
                "UPDATE evenhand.leases SET expires_at = evenhand.clock() - interval '1 s'
                 WHERE sequence IN (SELECT sequence FROM evenhand.leases ORDER BY run_id LIMIT 20)",
            )
            .await;
        let back = backwards(&leases);
        // All in one call meet each other most, a few a call leave something to be recovered.
        let at_once = if round % 4 < 2 { [RUNS, RUNS] } else { [7, 9] };
        let meddling = async {
            for recovered_at_once in [3, 7, 20] {
                third.recover(recovered_at_once).await.expect("a recovery");
                limit(&third, None).await;
                third
                    .renew(&back[..10], lease())
                    .await
                    .expect("the renewals");
                limit(&third, Some(60)).await;
                third.renew(&back, lease()).await.expect("the renewals");
            }
            limit(&third, None).await;
        };
        let ((forth, forth_held), (back, back_held), ()) = tokio::join!(
            complete_all(first.clone(), &leases, at_once[0]),
            complete_all(second.clone(), &back, at_once[1]),
            meddling,
        );
        held += forth_held + back_held;
        assert_eq!(forth, back, "both are told the same of every run");
        for (run, end) in forth {
            let (expected, result) = match end {
                None => ("done", "completed"),
                Some(StoreErrorKind::LeaseLost) => ("queued", "expired"),
                other => panic!("{run} ended with {other:?}"),
            };
            let ended = format!(
                "SELECT count(*) FROM evenhand.runs AS r JOIN evenhand.attempts AS a ON a.run_id = r.id
                 WHERE r.id = '{run}' AND r.state = '{expected}' AND a.result = '{result}'"
            );
            assert_eq!(scene.number(&ended).await, 1, "{run} is {expected}");
            completed += usize::from(end.is_none());
            recovered += usize::from(end.is_some());
        }
        assert_eq!(scene.number(LEFT_OVER).await, 0);
        scene
            .sql("DELETE FROM evenhand.runs WHERE state = 'queued'")
            .await;
    }
    println!(
        "{completed} runs completed, {recovered} recovered, {held} times one was held by another"
    );
    assert!(completed > RUNS && recovered > 0);
}
