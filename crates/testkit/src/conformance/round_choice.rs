//! Which runs a round claims is what the pure function of admission admits among the same candidates.

mod case;
mod model;

use core::time::Duration;

use evenhand_policy::admission::BasePriority;
use evenhand_store::{CostMicros, NewRun, RoundLimits, RunQueue};

use self::case::{Case, Offers, WAIT_TICK};
use super::StoreUnderTest;
use super::optional::Method;
use super::rounds::claimed;
use super::scene::{Must, Scene, round, run};

/// How many backlogs grow at once, so that moving the clock costs little.
const POOLS: usize = 12;
const BATCHES: u64 = 25;

pub(super) async fn random_rounds_claim_what_is_admitted<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    let offers = Offers {
        round_limits: scene.offers([Method::RoundLimits]).await,
        limits: scene.offers([Method::Limits]).await,
    };
    to_the_middle_of_a_tick(&scene).await;
    let (mut claimed_runs, mut deferred) = (0, 0);
    for batch in 0..BATCHES {
        let mut random = fastrand::Rng::with_seed(batch);
        let mut cases = Vec::new();
        for number in 0..POOLS {
            cases
                .push(Case::register(&scene, &mut random, &format!("pool-{batch}-{number}")).await);
        }
        for _ in 0..random.usize(1..=4) {
            let backlog: Vec<NewRun> = cases
                .iter()
                .flat_map(|case| case.random_runs(&mut random))
                .collect();
            scene.store.enqueue_many(&backlog).await.must("a backlog");
            scene.advance(random.u32(1..=6) * WAIT_TICK).await;
        }
        for case in &mut cases {
            case.prepare(&scene, &mut random, offers).await;
            let (claimed, contended) = case.check(&scene, &mut random, offers).await;
            claimed_runs += claimed;
            deferred += contended;
        }
    }
    // A generator that gave every round nothing to decide would prove nothing.
    assert!(
        claimed_runs > 300 && deferred > 150,
        "{claimed_runs} claimed, {deferred} contended"
    );
}

pub(super) async fn a_round_looks_at_64_runs_beyond_the_window<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::RoundLimits]).await {
        return;
    }
    let mut costly = run("a");
    costly.cost_micros = CostMicros::new(100).must("a cost");
    costly.base_priority = BasePriority::MAX;
    let mut cheap = run("a");
    cheap.cost_micros = CostMicros::new(1).must("a cost");
    scene
        .store
        .enqueue_many(&vec![costly.clone(); 64])
        .await
        .must("what does not fit");
    let limits = RoundLimits::default().with_capacity_micros(10);
    let ask = async |count: u32| {
        let block = scene.reserve(count).await;
        let asked = round(&scene.policy, &block, "conformance", count).within(limits);
        scene.store.claim_round(&asked).await.must("a round")
    };

    let first = scene.enqueue(&cheap).await;
    let answer = ask(1).await;
    assert_eq!(
        claimed(&answer),
        [(0, first)],
        "one run beyond 64 others is looked at"
    );
    scene.enqueue(&costly).await;
    let second = scene.enqueue(&cheap).await;
    let answer = ask(1).await;
    assert_eq!(
        (answer.claimed.len(), &answer.contended[..]),
        (0, &[1][..]),
        "one more is not"
    );
    // The rest of the cycle is one slot of `b` and one of `a`; then come two of `a`.
    ask(1).await;
    assert_eq!(ask(1).await.claimed, []);
    let answer = ask(2).await;
    assert_eq!(
        claimed(&answer),
        [(4, second)],
        "a window of two reaches one further"
    );
    assert_eq!(answer.contended, [5]);
}

async fn to_the_middle_of_a_tick<S: StoreUnderTest>(scene: &Scene<S>) {
    let now = scene.now().await.as_second().rem_euclid(3_600);
    let half = 1_800;
    let missing = (half - now).rem_euclid(3_600);
    scene
        .advance(Duration::from_secs(missing.unsigned_abs()))
        .await;
}
