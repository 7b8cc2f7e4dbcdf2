//! Rounds among many connections, cut replies and dead backends; blocks that nobody settled.

use core::time::Duration;
use std::collections::BTreeSet;

use evenhand_policy::{TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    NewRun, Reservation, ReservationStore, Round, RoundLimits, RoundRequest, RunId, RunQueue,
    StoreErrorKind,
};
use evenhand_store_postgres::PostgresStore;
use evenhand_testkit::postgres::Cut;
use futures::future::join_all;
use sqlx::Connection as _;

use crate::scene::{
    Scene, execute, kind, lease, policy, request, run, through_proxy, wait_until, worker,
};

fn round_of(scene: &Scene, block: &Reservation, runs_max: u32) -> RoundRequest {
    RoundRequest::new(&scene.policy, block, worker(), lease(), runs_max)
}

fn of_team(tenant: &str, team: &str) -> NewRun {
    let mut run = run(tenant);
    run.team = team.parse().expect("a team");
    run
}

fn ids(round: &Round) -> Vec<RunId> {
    round.claimed.iter().map(|claimed| claimed.run.id).collect()
}

/// Sequences that are reserved and have no outcome.
const UNSETTLED: &str = "SELECT (SELECT sum(count) FROM evenhand.reservations) - (SELECT coalesce(sum(count), 0) FROM evenhand.outcomes)";

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_rounds_share_no_run_and_leave_no_sequence_open() {
    let scene = Scene::start().await;
    let runs: Vec<NewRun> = (0..400).map(|n| run(["a", "b"][n % 2])).collect();
    scene.store.enqueue_many(&runs).await.unwrap();
    // Each takes blocks until it finds nothing more.
    let working = async |store: PostgresStore, policy: WeightedFairnessPolicy| {
        let mut claimed = Vec::new();
        loop {
            let block = store.reserve(&request(&policy, 24)).await.unwrap();
            let request = RoundRequest::new(&policy, &block, worker(), lease(), 16);
            let round = store.claim_round(&request).await.unwrap();
            if round == Round::default() {
                return claimed;
            }
            claimed.extend(ids(&round));
        }
    };
    let workers = (0..8).map(|_| {
        let (database, policy) = (&scene.database, scene.policy.clone());
        async move {
            let store = database.store().await;
            tokio::spawn(working(store, policy)).await.unwrap()
        }
    });
    let claimed: Vec<RunId> = join_all(workers).await.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 400);
    assert_eq!(claimed.iter().collect::<BTreeSet<_>>().len(), 400);
    assert_eq!(scene.number(UNSETTLED).await, 0);
    let blocks = scene
        .number("SELECT count(*) FROM evenhand.reservations")
        .await;
    let outcomes = "SELECT count(*) FROM evenhand.outcomes AS o
        JOIN evenhand.reservations AS r USING (shard_key, first_sequence, count)";
    assert_eq!(scene.number(outcomes).await, blocks, "one row a block");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_block_settled_from_many_connections_at_once_is_settled_once() {
    let scene = Scene::start().await;
    scene.store.enqueue_many(&vec![run("a"); 60]).await.unwrap();
    for _ in 0..5 {
        let block = scene.reserve(16).await;
        let request = round_of(&scene, &block, 16);
        let rounds = join_all((0..8).map(|_| scene.store.claim_round(&request))).await;
        let mut rounds = rounds.into_iter().map(Result::unwrap);
        let first = rounds.next().unwrap();
        assert_eq!(first.claimed.len(), 12);
        assert!(rounds.all(|round| round == first));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_takes_the_next_best_of_what_others_hold() {
    let scene = Scene::start().await;
    scene.store.enqueue_many(&vec![run("a"); 80]).await.unwrap();
    let held = |count: u32| {
        format!(
            "SELECT id FROM evenhand.runs WHERE state = 'queued' ORDER BY ready_tick, id LIMIT {count} FOR NO KEY UPDATE"
        )
    };
    // The window of 3 and 64 runs beyond it reach over 64 held ones, and no further.
    for (count, claimed) in [(64, 3), (67, 0)] {
        let mut holder = scene.database.connect().await;
        let mut holding = holder.begin().await.unwrap();
        execute(&mut holding, &held(count)).await;
        let block = scene.reserve(4).await;
        let round = scene
            .store
            .claim_round(&round_of(&scene, &block, 4))
            .await
            .unwrap();
        assert_eq!(round.claimed.len(), claimed, "{count} held: {round:?}");
        assert_eq!(round.contended.len(), 3 - claimed);
        holding.rollback().await.unwrap();
        for claimed in &round.claimed {
            scene.store.complete(&claimed.lease).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_looks_64_runs_beyond_its_window_for_a_team_with_room() {
    for (blocked, claimed) in [(64, 1), (65, 0)] {
        let scene = Scene::start().await;
        let mut runs = vec![of_team("b", "full"); blocked];
        runs.push(of_team("b", "free"));
        scene.store.enqueue_many(&runs).await.unwrap();
        let full = evenhand_store::LimitSubject::Team("full".parse().unwrap());
        let nothing = evenhand_store::RunsMax::new(0).unwrap();
        scene
            .store
            .set_limit(&"default".parse().unwrap(), &full, Some(nothing))
            .await
            .unwrap();
        let block = scene.reserve(4).await;
        let round = scene
            .store
            .claim_round(&round_of(&scene, &block, 4))
            .await
            .unwrap();
        assert_eq!(round.claimed.len(), claimed, "{blocked} of a full team");
        assert_eq!(round.contended.len(), 1 - claimed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_tells_what_is_ready_after_it() {
    let scene = Scene::start().await;
    // The block has three slots of `a` and one of `b`.
    for (tenant, runs) in [("a", 4), ("b", 1)] {
        let runs = vec![run(tenant); runs];
        scene.store.enqueue_many(&runs).await.unwrap();
    }
    for expected in [&["a"][..], &[]] {
        let block = scene.reserve(4).await;
        let request = round_of(&scene, &block, 4);
        let ready = scene.store.claim_round(&request).await.unwrap().ready;
        let look = scene.store.ready_tenants(scene.policy.shard()).await;
        let (ready, look) = (ready.unwrap(), look.unwrap());
        let names: Vec<&str> = ready.tenants.iter().map(TenantId::as_str).collect();
        assert_eq!(names, expected);
        assert_eq!(ready.tenants, look.tenants);
        assert_eq!(ready.next_ready_at, look.next_ready_at);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_round_is_one_statement_in_one_round_trip() {
    let scene = Scene::start().await;
    scene.store.enqueue_many(&vec![run("a"); 9]).await.unwrap();
    let (proxy, store) = through_proxy(&scene).await;
    for turn in 0..2 {
        let block = scene.reserve(4).await;
        if turn == 1 {
            proxy.reset_counts();
        }
        let round = store.claim_round(&round_of(&scene, &block, 4)).await;
        assert_eq!(round.unwrap().claimed.len(), 3);
    }
    let counts = proxy.counts();
    assert_eq!((counts.statements(), counts.round_trips), (1, 1));
    assert_eq!(counts.parse, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_whose_acknowledgement_was_lost_is_answered_again() {
    let scene = Scene::start().await;
    scene.store.enqueue_many(&vec![run("a"); 9]).await.unwrap();
    let (proxy, store) = through_proxy(&scene).await;
    let block = scene.reserve(8).await;
    let limits = RoundLimits::default().with_capacity_micros(0);
    let request = round_of(&scene, &block, 5).within(limits);
    proxy.cut(Cut::reply().matching("evenhand.claim_round("));
    let lost = kind(store.claim_round(&request).await);
    assert_eq!(lost, StoreErrorKind::OutcomeUnknown);
    proxy.stop_cutting();
    assert_eq!(
        scene.number("SELECT count(*) FROM evenhand.leases").await,
        5
    );
    let round = store.claim_round(&request).await.unwrap();
    assert_eq!((round.claimed.len(), round.contended.len()), (5, 1));
    assert_eq!(scene.store.claim_round(&request).await.unwrap(), round);
    assert_eq!(
        scene.number("SELECT count(*) FROM evenhand.attempts").await,
        5
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_whose_backend_dies_has_not_happened() {
    let scene = Scene::start().await;
    scene.store.enqueue_many(&vec![run("a"); 9]).await.unwrap();
    let block = scene.reserve(8).await;
    let request = round_of(&scene, &block, 8);
    // Holds the round up inside the server.
    let mut holder = scene.database.connect().await;
    let mut holding = holder.begin().await.unwrap();
    execute(&mut holding, "SELECT FROM evenhand.reservations FOR UPDATE").await;
    let victim =
        "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let dying = async { kind(scene.store.claim_round(&request).await) };
    let killing = async {
        wait_until("the round waits", async || {
            scene.number(&format!("SELECT count(*) {victim}")).await == 1
        })
        .await;
        scene
            .sql(&format!("SELECT pg_terminate_backend(pid, 5000) {victim}"))
            .await;
    };
    let (lost, ()) = tokio::join!(dying, killing);
    assert_eq!(lost, StoreErrorKind::OutcomeUnknown);
    holding.rollback().await.unwrap();
    assert_eq!(scene.number(UNSETTLED).await, 8);
    let mut answer = scene.store.claim_round(&request).await;
    if matches!(&answer, Err(error) if error.is_retryable()) {
        // The connection of the dead backend was the first at hand.
        answer = scene.store.claim_round(&request).await;
    }
    let round = answer.unwrap();
    assert_eq!(round.claimed.len(), 6);
    assert_eq!(scene.store.claim_round(&request).await.unwrap(), round);
}

/// 1,024 tenants of 4 slots each.
fn crowd() -> WeightedFairnessPolicy {
    let names: Vec<String> = (0..1_024).map(|n| format!("tenant-{n:04}")).collect();
    let tenants: Vec<(&str, u32)> = names.iter().map(|name| (&**name, 4)).collect();
    policy("primary-v1", &tenants)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_over_many_idle_tenants_is_one_row_and_finds_the_busy_one() {
    let scene = Scene::with(crowd()).await;
    let busy = "tenant-0700";
    scene
        .store
        .enqueue_many(&vec![run(busy); 20])
        .await
        .unwrap();
    scene.reserve(5).await;
    let block = scene.reserve(1 << 18).await;
    let request = round_of(&scene, &block, 16);
    let round = scene.store.claim_round(&request).await.unwrap();
    let turns: Vec<u64> = block
        .sequences()
        .filter(|sequence| scene.policy.tenant_for_sequence(*sequence).as_str() == busy)
        .collect();
    let claimed: Vec<u64> = round
        .claimed
        .iter()
        .map(|claimed| claimed.lease.sequence)
        .collect();
    assert_eq!(claimed, turns[..16]);
    assert_eq!(round.contended, turns[16..]);
    assert_eq!(
        scene.number("SELECT count(*) FROM evenhand.outcomes").await,
        1
    );
    assert_eq!(scene.store.claim_round(&request).await.unwrap(), round);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_block_is_found_after_everything_around_it_was_settled() {
    let scene = Scene::start().await;
    let shard = scene.policy.shard();
    let lost_blocks = async |older_than: Duration, limit: u32| {
        let lost = scene.store.lost_blocks(shard, older_than, limit).await;
        lost.unwrap()
            .iter()
            .map(|block| block.first_sequence)
            .collect::<Vec<_>>()
    };
    let settle = async |block: &Reservation| {
        let request = round_of(&scene, block, 4);
        scene.store.claim_round(&request).await.unwrap();
    };
    let mut blocks = Vec::new();
    for _ in 0..6 {
        blocks.push(scene.reserve(4).await);
    }
    for number in [0, 2, 4] {
        settle(&blocks[number]).await;
    }
    // Of this one a single sequence is left open, in its middle.
    for sequence in [12, 13, 15] {
        scene.claim(sequence).await;
    }
    assert_eq!(lost_blocks(Duration::from_mins(1), 10).await, [0; 0]);
    assert_eq!(lost_blocks(Duration::ZERO, 10).await, [4, 12, 20]);
    assert_eq!(lost_blocks(Duration::ZERO, 2).await, [4, 12]);
    settle(&blocks[1]).await;
    assert_eq!(lost_blocks(Duration::ZERO, 10).await, [12, 20]);
    settle(&blocks[3]).await;
    settle(&blocks[5]).await;
    assert_eq!(lost_blocks(Duration::ZERO, 10).await, [0; 0]);
    assert_eq!(
        scene
            .number("SELECT settled_through FROM evenhand.settlement")
            .await,
        23
    );
    // Young ones end the walk, whatever is behind them.
    scene.reserve(4).await;
    scene.database.move_clock(60_000_000).await;
    scene.reserve(4).await;
    assert_eq!(lost_blocks(Duration::from_secs(30), 10).await, [24]);
}
