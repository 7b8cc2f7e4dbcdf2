//! Within a tenant the best ready run comes first: the highest score, then the earliest ready tick, then the smallest id.

use core::cmp::Reverse;
use core::time::Duration;

use evenhand_policy::admission::{BasePriority, Scoring, ValueClass};
use evenhand_store::{
    Claim, NewRun, PolicyRegistration, PoolScoring, ReadyAt, ReservationStore, RunId, RunQueue,
    Timestamp,
};

use super::StoreUnderTest;
use super::scene::{Must, Scene, claim, policy, pool, ran, request, run, tenant};

/// Long enough that a fact that starts in the middle of a tick ends within it.
const WAIT_TICK: Duration = Duration::from_hours(1);
/// How late a run of a random backlog becomes ready at most.
const DELAY_TICKS_MAX: u32 = 6;

/// A run that waits, as this file's own naive order sees it.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: RunId,
    value_class: ValueClass,
    base_priority: BasePriority,
    ready_tick: i64,
}

impl Waiting {
    /// The default scoring, written out.
    fn score(&self, now_tick: i64) -> i64 {
        let value = match self.value_class {
            ValueClass::Critical => 1_000,
            ValueClass::Standard => 300,
            ValueClass::Batch => 100,
        };
        let wait_ticks = now_tick - self.ready_tick;
        let forced = if wait_ticks >= 12 { 10_000 } else { 0 };
        value + i64::from(self.base_priority.get()) + wait_ticks.min(10) * 40 + forced
    }
}

pub(super) async fn random_backlogs_are_claimed_in_the_order_of_scores<S: StoreUnderTest>() {
    for seed in 1..=3 {
        let scene = slow_scene::<S>().await;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut waiting: Vec<Waiting> = Vec::new();
        for _ in 0..14 {
            let backlog: Vec<NewRun> = (0..random.usize(0..4))
                .map(|_| random_run(&mut random))
                .collect();
            for enqueued in scene.store.enqueue_many(&backlog).await.must("a backlog") {
                let run = scene.run(enqueued.run).await;
                waiting.push(Waiting {
                    id: run.id,
                    value_class: run.spec.value_class,
                    base_priority: run.spec.base_priority,
                    ready_tick: tick_of(run.ready_at),
                });
            }
            scene.advance(WAIT_TICK).await;
        }
        // So that the last of them is ready too.
        scene.advance(DELAY_TICKS_MAX * WAIT_TICK).await;
        for sequence in scene.sequences_of("a", waiting.len()).await {
            if random.bool() {
                scene.advance(WAIT_TICK).await;
            }
            let now_tick = tick_of(scene.now().await);
            let best = waiting
                .iter()
                .max_by_key(|run| {
                    (
                        run.score(now_tick),
                        Reverse(run.ready_tick),
                        Reverse(run.id),
                    )
                })
                .copied()
                .must("a run that waits");
            let claimed = ran(scene.claim(sequence).await).run.id;
            assert_eq!(
                claimed, best.id,
                "with seed {seed} at tick {now_tick} the best of {waiting:#?} is {best:?}"
            );
            waiting.retain(|run| run.id != claimed);
        }
    }
}

pub(super) async fn a_forced_run_comes_before_a_better_one<S: StoreUnderTest>() {
    let scene = slow_scene::<S>().await;
    let mut least = run("a");
    least.value_class = ValueClass::Batch;
    let mut best = run("a");
    best.value_class = ValueClass::Critical;
    best.base_priority = BasePriority::MAX;
    let starved = scene.enqueue(&least).await;
    scene.advance(11 * WAIT_TICK).await;
    let first = scene.enqueue(&best).await;
    scene.enqueue(&best).await;
    assert_eq!(
        scene.claimed("a").await.run.id,
        first,
        "after 11 ticks nothing is forced yet"
    );
    scene.advance(WAIT_TICK).await;
    assert_eq!(
        scene.claimed("a").await.run.id,
        starved,
        "after 12 ticks the run is forced"
    );
}

pub(super) async fn a_run_is_ready_from_its_tick_on<S: StoreUnderTest>() {
    let scene = slow_scene::<S>().await;
    let before = scene.now().await;
    let mut past = run("a");
    past.ready_at = ReadyAt::At(before - Duration::from_hours(24));
    let now = scene.run(scene.enqueue(&past).await).await;
    let after = scene.now().await;
    assert!(
        before <= now.ready_at && now.ready_at <= after,
        "a time in the past means now"
    );
    assert_eq!(scene.claimed("a").await.run.id, now.id);

    let asked = whole_millis(scene.now().await) + 3 * WAIT_TICK;
    for ready_at in [ReadyAt::At(asked), ReadyAt::After(3 * WAIT_TICK)] {
        let mut later = run("a");
        later.ready_at = ready_at;
        let run = scene.run(scene.enqueue(&later).await).await;
        assert!(
            asked <= run.ready_at,
            "the run would be ready before it was asked for"
        );
        assert!(
            run.ready_at < asked + WAIT_TICK,
            "the run would be ready a tick too late"
        );
        assert_eq!(
            tick_start(tick_of(run.ready_at)),
            run.ready_at,
            "it is not on a whole tick"
        );
        // In the tick before, and then at its own.
        scene.advance(3 * WAIT_TICK).await;
        assert_eq!(
            scene.claim(scene.sequence_of("a").await).await,
            Claim::Idle,
            "it is early"
        );
        let ready = scene
            .store
            .ready_tenants(scene.policy.shard())
            .await
            .must("the tenants");
        assert_eq!(ready.tenants, []);
        scene.advance(WAIT_TICK).await;
        let ready = scene
            .store
            .ready_tenants(scene.policy.shard())
            .await
            .must("the tenants");
        assert_eq!(ready.tenants, [tenant("a")]);
        assert_eq!(scene.claimed("a").await.run.id, run.id);
        scene.under_test.set_clock_back(4 * WAIT_TICK).await;
    }
}

pub(super) async fn ready_tenants_are_those_with_ready_runs<S: StoreUnderTest>() {
    let scene = slow_scene::<S>().await;
    let shard = scene.policy.shard();
    let ready = scene.store.ready_tenants(shard).await.must("the tenants");
    assert_eq!(ready.tenants, [], "nobody has runs");
    let mut later = run("a");
    later.ready_at = ReadyAt::After(WAIT_TICK);
    let backlog = [later, run("b"), run("b"), run("stranger")];
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    let before = scene.now().await;
    let ready = scene.store.ready_tenants(shard).await.must("the tenants");
    assert_eq!(
        ready.tenants,
        [tenant("b")],
        "only tenants of the policy with ready runs"
    );
    assert!(before <= ready.store_time && ready.store_time <= scene.now().await);
    scene.claimed("b").await;
    scene.advance(2 * WAIT_TICK).await;
    let ready = scene.store.ready_tenants(shard).await.must("the tenants");
    assert_eq!(
        ready.tenants,
        [tenant("a"), tenant("b")],
        "in bytewise order"
    );
    scene.claimed("b").await;
    let ready = scene.store.ready_tenants(shard).await.must("the tenants");
    assert_eq!(
        ready.tenants,
        [tenant("a")],
        "a running run makes nobody ready"
    );
}

pub(super) async fn the_next_ready_time_is_that_of_an_idle_tenant<S: StoreUnderTest>() {
    let scene = slow_scene::<S>().await;
    let next = async || {
        let ready = scene.store.ready_tenants(scene.policy.shard()).await;
        let ready = ready.must("the tenants");
        (ready.tenants, ready.next_ready_at)
    };
    let later = |owner: &str, ticks: u32| {
        let mut later = run(owner);
        later.ready_at = ReadyAt::After(ticks * WAIT_TICK);
        later
    };
    assert_eq!(next().await, (vec![], None), "nobody has runs");
    scene.enqueue(&later("stranger", 1)).await;
    assert_eq!(
        next().await,
        (vec![], None),
        "nobody of the policy has runs"
    );
    let third = scene.enqueue(&later("a", 3)).await;
    let third = scene.run(third).await.ready_at;
    scene.enqueue(&later("a", 5)).await;
    assert_eq!(next().await, (vec![], Some(third)));
    let second = scene.enqueue(&later("b", 2)).await;
    let second = scene.run(second).await.ready_at;
    assert_eq!(next().await, (vec![], Some(second)));
    let now = scene.enqueue(&run("b")).await;
    assert_eq!(
        next().await,
        (vec![tenant("b")], Some(third)),
        "who is ready needs no waking"
    );
    assert_eq!(scene.claimed("b").await.run.id, now);
    assert_eq!(next().await, (vec![], Some(second)));
    scene.advance(3 * WAIT_TICK).await;
    assert_eq!(next().await, (vec![tenant("b")], Some(third)));
    scene.advance(WAIT_TICK).await;
    assert_eq!(next().await, (vec![tenant("a"), tenant("b")], None));
}

pub(super) async fn registration_ranks_what_is_already_queued<S: StoreUnderTest>() {
    let scene = slow_scene::<S>().await;
    let mut early = run("a");
    early.pool = pool("later");
    let mut prior = early.clone();
    prior.base_priority = BasePriority::new(50).must("a priority");
    // By the default tick of a second the early run has waited for 4 ticks, worth 160.
    let early = scene.enqueue(&early).await;
    scene.advance(Duration::from_secs(4)).await;
    let prior = scene.enqueue(&prior).await;
    let later = policy("later", &[("a", 1)]);
    let registration = PolicyRegistration::new(later.clone())
        .in_pool(pool("later"))
        .scored_by(slow_scoring());
    scene
        .store
        .register_policy(&registration)
        .await
        .must("the registration");
    let asked = request(&later, scene.request(1).await.id, 2);
    scene.store.reserve(&asked).await.must("two sequences");
    for (sequence, expected) in [(0, prior), (1, early)] {
        let claimed = scene
            .store
            .claim(&claim(&later, sequence))
            .await
            .must("a claim");
        assert_eq!(
            ran(claimed).run.id,
            expected,
            "by the slow tick only priority counts"
        );
    }
}

/// A scene whose pool counts waits in hours, in the middle of one.
async fn slow_scene<S: StoreUnderTest>() -> Scene<S> {
    let policy = policy("scene", &[("a", 3), ("b", 1)]);
    let scene = Scene::registered(PolicyRegistration::new(policy).scored_by(slow_scoring())).await;
    let now = scene.now().await;
    let next_tick = tick_start(tick_of(now) + 1);
    let to_next_tick = Duration::try_from(next_tick.duration_since(now)).must("a duration");
    scene.advance(to_next_tick + WAIT_TICK / 2).await;
    scene
}

fn slow_scoring() -> PoolScoring {
    PoolScoring::new(Scoring::default(), WAIT_TICK).must("a scoring")
}

fn random_run(random: &mut fastrand::Rng) -> NewRun {
    let mut run = run("a");
    run.value_class = random.choice(ValueClass::ALL).must("a class");
    // Few priorities, so that scores and ticks tie.
    run.base_priority = BasePriority::new(40 * random.u32(0..3)).must("a priority");
    // Some are ready later than runs that are enqueued after them.
    if random.u32(..3) == 0 {
        run.ready_at = ReadyAt::After(random.u32(1..=DELAY_TICKS_MAX) * WAIT_TICK);
    }
    run
}

fn tick_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(3_600)
}

fn tick_start(tick: i64) -> Timestamp {
    Timestamp::from_second(tick * 3_600).must("a time")
}

fn whole_millis(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).must("the same time")
}
