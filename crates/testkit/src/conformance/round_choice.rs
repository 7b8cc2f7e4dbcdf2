//! Which runs a round claims is what the pure function of admission admits among the same candidates.

use core::fmt;
use core::time::Duration;

use std::collections::{BTreeMap, BTreeSet};

use evenhand_policy::admission::{
    AdmissionOptions, AdmissionPolicy, BasePriority, Scoring, ScoringOptions, Task, TaskId,
    ValueClass, Windows, admit_within,
};
use evenhand_policy::{TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    ClaimedRun, CostMicros, LimitSubject, NewRun, PageSize, PolicyRegistration, PoolScoring,
    ReadyAt, Reservation, ReservationId, ReservationStore, Round, RoundLimits, RoundRequest, Run,
    RunFilter, RunId, RunQueue, RunState, RunsMax, SequenceOutcome,
};

use super::StoreUnderTest;
use super::optional::Method;
use super::rounds::claimed;
use super::scene::{
    Must, Scene, claim, policy, pool, request, round, run, team, worker, worker_of,
};

/// Long enough that a fact that starts in the middle of a tick ends within it.
const WAIT_TICK: Duration = Duration::from_hours(1);
/// How many backlogs grow at once, so that moving the clock costs little.
const POOLS: usize = 12;
const BATCHES: u64 = 25;
const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
const TEAMS: [&str; 2] = ["x", "y"];

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
        claimed_runs > 300 && deferred > 300,
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

/// What the store offers beside rounds.
#[derive(Clone, Copy)]
struct Offers {
    round_limits: bool,
    limits: bool,
}

/// One pool with a backlog, and a round in it.
struct Case {
    name: String,
    policy: WeightedFairnessPolicy,
    scoring: PoolScoring,
    block: Option<Reservation>,
    limits: BTreeMap<LimitSubject, u32>,
}

/// What a round is given to decide.
struct Backlog {
    runs: Vec<Run>,
    now_tick: i64,
    /// The sequences whose end is not on record, in order.
    open: Vec<u64>,
}

/// What a round should answer about open sequences.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    claimed: Vec<(u64, RunId)>,
    contended: Vec<u64>,
}

impl Case {
    async fn register<S: StoreUnderTest>(
        scene: &Scene<S>,
        random: &mut fastrand::Rng,
        name: &str,
    ) -> Self {
        let tenants = &TENANTS[..random.usize(1..=TENANTS.len())];
        let weights: Vec<_> = tenants
            .iter()
            .map(|name| (*name, random.u32(1..=4)))
            .collect();
        let policy = policy(name, &weights);
        // One scoring under which runs starve soon and age fast, beside the default one.
        let options = if random.bool() {
            ScoringOptions::default()
        } else {
            ScoringOptions {
                aging_per_tick: 150,
                max_aging_ticks: 3,
                starvation_ticks: 5,
                ..ScoringOptions::default()
            }
        };
        let scoring = Scoring::new(options).must("a scoring");
        let scoring = PoolScoring::new(scoring, WAIT_TICK).must("a scoring of a queue");
        let registration = PolicyRegistration::new(policy.clone())
            .in_pool(pool(name))
            .scored_by(scoring.clone());
        scene
            .store
            .register_policy(&registration)
            .await
            .must("a registration");
        Self {
            name: name.to_owned(),
            policy,
            scoring,
            block: None,
            limits: BTreeMap::new(),
        }
    }

    fn random_runs(&self, random: &mut fastrand::Rng) -> Vec<NewRun> {
        let mut runs = Vec::new();
        for weight in self.policy.tenants() {
            for _ in 0..random.u32(0..=4) {
                let mut run = run(weight.tenant().as_str());
                run.pool = pool(&self.name);
                run.value_class = random.choice(ValueClass::ALL).must("a class");
                // Few priorities and costs, so that scores and ticks tie.
                run.base_priority = BasePriority::new(30 * random.u32(0..3)).must("a priority");
                run.cost_micros = CostMicros::new(100 * random.u64(0..4)).must("a cost");
                if random.u32(..4) > 0 {
                    run.team = team(random.choice(TEAMS).must("a team"));
                }
                if random.u32(..8) == 0 {
                    run.ready_at = ReadyAt::After(1_000 * WAIT_TICK);
                }
                runs.push(run);
            }
        }
        runs
    }

    /// Lets some runs be running already, limits whoever can be limited, and reserves the block, some of whose sequences
    /// have ended before its round.
    async fn prepare<S: StoreUnderTest>(
        &mut self,
        scene: &Scene<S>,
        random: &mut fastrand::Rng,
        offers: Offers,
    ) {
        let earlier = self.reserve(scene, random.u32(1..=4)).await;
        self.limit(scene, random, offers).await;
        for sequence in earlier.sequences().filter(|_| random.bool()) {
            self.claim(scene, sequence, "earlier").await;
        }
        self.limit(scene, random, offers).await;
        let block = self
            .reserve(scene, random.u32(1..=2 * self.policy.cycle_length()))
            .await;
        if random.bool() {
            for sequence in block.sequences() {
                match random.u32(..12) {
                    0 => self.claim(scene, sequence, "conformance").await,
                    1 => self.claim(scene, sequence, "another").await,
                    2 => {
                        let shard = self.policy.shard();
                        let answer = scene.store.record_failed(shard, sequence).await;
                        answer.must("the record of a failure");
                    }
                    _ => {}
                }
            }
        }
        self.block = Some(block);
    }

    async fn reserve<S: StoreUnderTest>(&self, scene: &Scene<S>, count: u32) -> Reservation {
        let id = ReservationId::mint(scene.now().await);
        let answer = scene.store.reserve(&request(&self.policy, id, count)).await;
        answer.must("a reservation")
    }

    async fn claim<S: StoreUnderTest>(&self, scene: &Scene<S>, sequence: u64, by: &str) {
        let mut asked = claim(&self.policy, sequence);
        asked.worker = worker(by);
        scene.store.claim(&asked).await.must("a single claim");
    }

    async fn limit<S: StoreUnderTest>(
        &mut self,
        scene: &Scene<S>,
        random: &mut fastrand::Rng,
        offers: Offers,
    ) {
        let tenants = self.policy.tenants().iter();
        let tenants = tenants.map(|weight| LimitSubject::Tenant(weight.tenant().clone()));
        let teams = TEAMS.into_iter().map(|name| LimitSubject::Team(team(name)));
        for subject in tenants.chain(teams).collect::<Vec<_>>() {
            if offers.limits && random.u32(..6) == 0 {
                let runs_max = random.u32(0..=3);
                self.limits.insert(subject.clone(), runs_max);
                let runs_max = Some(RunsMax::new(runs_max).must("a limit"));
                let answer = scene
                    .store
                    .set_limit(&pool(&self.name), &subject, runs_max)
                    .await;
                answer.must("a limit");
            }
        }
    }

    /// Makes the round, twice, and compares; the answer is how many runs it claimed and how many sequences it left.
    async fn check<S: StoreUnderTest>(
        &self,
        scene: &Scene<S>,
        random: &mut fastrand::Rng,
        offers: Offers,
    ) -> (usize, usize) {
        let block = self.block.must("the block");
        let runs_max = match random.u32(..3) {
            0 => random.u32(0..=3),
            _ => block.count.get() + 1,
        };
        let mut asked = round(&self.policy, &block, "conformance", runs_max);
        if offers.round_limits && random.u32(..3) == 0 {
            asked.limits.team_window = Some(random.u32(0..=3));
        }
        if offers.round_limits && random.u32(..3) == 0 {
            asked.limits.capacity_micros = Some(100 * random.u64(0..12));
        }
        let before = self.settled(scene, &block).await;
        let backlog = self.backlog(scene, &block, &before).await;
        let expected = self.expected(&asked, &backlog);
        let answer = scene.store.claim_round(&asked).await.must("a round");
        self.assert_answer(&asked, &answer, &before, &expected, &backlog);
        let again = scene
            .store
            .claim_round(&asked)
            .await
            .must("the round again");
        assert_eq!(
            again, answer,
            "{self}: asking again was answered differently"
        );
        (expected.claimed.len(), expected.contended.len())
    }

    async fn settled<S: StoreUnderTest>(
        &self,
        scene: &Scene<S>,
        block: &Reservation,
    ) -> BTreeMap<u64, SequenceOutcome> {
        let (shard, first, count) = (self.policy.shard(), block.first_sequence, block.count.get());
        let records = scene
            .store
            .sequences(shard, first, count)
            .await
            .must("the outcomes");
        let outcome = |record: evenhand_store::SequenceRecord| (record.sequence, record.outcome);
        records.into_iter().map(outcome).collect()
    }

    async fn backlog<S: StoreUnderTest>(
        &self,
        scene: &Scene<S>,
        block: &Reservation,
        settled: &BTreeMap<u64, SequenceOutcome>,
    ) -> Backlog {
        let mut filter = RunFilter::default();
        filter.pool = Some(pool(&self.name));
        let page = scene
            .store
            .runs(&filter, None, PageSize::new(PageSize::MAX))
            .await;
        let page = page.must("the runs");
        assert_eq!(page.next, None, "the backlog is longer than a page");
        Backlog {
            runs: page.runs,
            now_tick: tick_of(scene.now().await),
            open: block
                .sequences()
                .filter(|sequence| !settled.contains_key(sequence))
                .collect(),
        }
    }

    /// What the pure function says of the backlog.
    fn expected(&self, asked: &RoundRequest, backlog: &Backlog) -> Expected {
        let mut ready = backlog.ready_by_tenant();
        let windows = self.windows(asked, backlog, &ready);
        let mut tasks = Vec::new();
        for (tenant, runs) in &ready {
            // No backlog here is so long that a run lies more than 64 beyond the window.
            if windows.get(tenant).is_some_and(|window| *window > 0) {
                tasks.extend(runs.iter().map(|run| backlog.task(run)));
            }
        }
        let mut own_windows = Windows::default();
        for (tenant, window) in windows {
            own_windows = own_windows.with_tenant(tenant, window, window);
        }
        for name in TEAMS {
            let permits = self.permits(&LimitSubject::Team(team(name)), backlog);
            let window = permits.min(asked.limits.team_window.unwrap_or(u32::MAX));
            own_windows = own_windows.with_team(team(name), window);
        }
        let policy = AdmissionPolicy::new(AdmissionOptions {
            scoring: self.scoring.scoring().options(),
            per_team_window: asked.limits.team_window.unwrap_or(u32::MAX),
            ..AdmissionOptions::default()
        })
        .must("an admission policy");
        let capacity = asked.limits.capacity_micros.unwrap_or(u64::MAX);
        let decided = admit_within(&policy, &own_windows, &tasks, capacity).must("a decision");
        let mut admitted: BTreeMap<&TenantId, Vec<RunId>> = BTreeMap::new();
        for task_id in decided.admitted() {
            let run = backlog.run_of(task_id);
            let of_tenant = ready.get_mut(&run.spec.tenant).must("its tenant");
            of_tenant.retain(|ready| ready.id != run.id);
            admitted.entry(&run.spec.tenant).or_default().push(run.id);
        }
        let mut expected = Expected::default();
        for sequence in &backlog.open {
            let tenant = self.policy.tenant_for_sequence(*sequence);
            let runs = admitted.entry(tenant).or_default();
            if !runs.is_empty() {
                expected.claimed.push((*sequence, runs.remove(0)));
            } else if ready.get(tenant).is_some_and(|left| !left.is_empty()) {
                expected.contended.push(*sequence);
            }
        }
        expected
    }

    /// How many sequences of the round each tenant may use.
    fn windows(
        &self,
        asked: &RoundRequest,
        backlog: &Backlog,
        ready: &BTreeMap<TenantId, Vec<&Run>>,
    ) -> BTreeMap<TenantId, u32> {
        let mut windows: BTreeMap<TenantId, u32> = BTreeMap::new();
        let mut left = asked.runs_max;
        for sequence in &backlog.open {
            let tenant = self.policy.tenant_for_sequence(*sequence);
            let ready = ready.get(tenant).map_or(0, Vec::len);
            let permits = self.permits(&LimitSubject::Tenant(tenant.clone()), backlog);
            let most = u32::try_from(ready).must("a number").min(permits);
            let window = windows.entry(tenant.clone()).or_default();
            if left > 0 && *window < most {
                *window += 1;
                left -= 1;
            }
        }
        windows
    }

    fn permits(&self, subject: &LimitSubject, backlog: &Backlog) -> u32 {
        self.limits.get(subject).map_or(u32::MAX, |runs_max| {
            runs_max.saturating_sub(backlog.running(subject))
        })
    }

    fn assert_answer(
        &self,
        asked: &RoundRequest,
        answer: &Round,
        before: &BTreeMap<u64, SequenceOutcome>,
        expected: &Expected,
        backlog: &Backlog,
    ) {
        let is_new = |claimed: &&ClaimedRun| !before.contains_key(&claimed.lease.sequence);
        let pair = |claimed: &ClaimedRun| (claimed.lease.sequence, claimed.run.id);
        let found = Expected {
            claimed: answer.claimed.iter().filter(is_new).map(pair).collect(),
            contended: answer
                .contended
                .iter()
                .copied()
                .filter(|sequence| !before.contains_key(sequence))
                .collect(),
        };
        assert_eq!(
            found, *expected,
            "{self} at tick {} with runs_max {}, {:?} and {:?}, among {:#?}",
            backlog.now_tick, asked.runs_max, asked.limits, self.limits, backlog.runs,
        );
        let mut sequences = claimed(answer);
        sequences.sort_unstable();
        assert_eq!(sequences, claimed(answer), "{self}: not by sequence");
        for (sequence, outcome) in before {
            let is_claimed = sequences.iter().any(|(claimed, _)| claimed == sequence);
            let is_moved_on = answer.moved_on.contains(sequence);
            let is_contended = answer.contended.contains(sequence);
            let by = worker_of(outcome);
            let is_own = by == Some(&asked.worker);
            let has_nothing = by.is_none() && *outcome != SequenceOutcome::Idle;
            let ended = (is_own, by.is_some() && !is_own, has_nothing);
            assert_eq!(
                (is_claimed, is_moved_on, is_contended),
                ended,
                "{self}: {outcome:?}"
            );
        }
        assert_eq!(
            answer.moved_on.iter().collect::<BTreeSet<_>>().len(),
            answer.moved_on.len(),
        );
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Backlog {
    /// The ready runs of each tenant. The pure function ranks them.
    fn ready_by_tenant(&self) -> BTreeMap<TenantId, Vec<&Run>> {
        let mut ready: BTreeMap<TenantId, Vec<&Run>> = BTreeMap::new();
        for run in &self.runs {
            if run.state == RunState::Queued && tick_of(run.ready_at) <= self.now_tick {
                ready.entry(run.spec.tenant.clone()).or_default().push(run);
            }
        }
        ready
    }

    fn running(&self, subject: &LimitSubject) -> u32 {
        let is_counted = |run: &&Run| {
            run.state == RunState::Running
                && match subject {
                    LimitSubject::Tenant(tenant) => run.spec.tenant == *tenant,
                    LimitSubject::Team(team) => run.spec.team == *team,
                    _ => false,
                }
        };
        u32::try_from(self.runs.iter().filter(is_counted).count()).must("a number")
    }

    fn task(&self, run: &Run) -> Task {
        let waited = self.now_tick - tick_of(run.ready_at);
        Task {
            task_id: task_id(run),
            tenant_id: run.spec.tenant.clone(),
            team_id: run.spec.team.clone(),
            value: run.spec.value_class,
            base_priority: run.spec.base_priority,
            wait_ticks: u64::try_from(waited).must("a ready run"),
            cost_micros: run.spec.cost_micros.get(),
        }
    }

    fn run_of(&self, name: &TaskId) -> &Run {
        let run = self.runs.iter().find(|run| task_id(run) == *name);
        run.must("the run of a task")
    }
}

/// A name that sorts as ties are decided: by ready tick, then by run id.
fn task_id(run: &Run) -> TaskId {
    let name = format!("{:012}:{}", tick_of(run.ready_at), run.id);
    TaskId::try_from(name).must("a task id")
}

async fn to_the_middle_of_a_tick<S: StoreUnderTest>(scene: &Scene<S>) {
    let now = scene.now().await.as_second().rem_euclid(3_600);
    let half = 1_800;
    let missing = (half - now).rem_euclid(3_600);
    scene
        .advance(Duration::from_secs(missing.unsigned_abs()))
        .await;
}

fn tick_of(time: evenhand_store::Timestamp) -> i64 {
    time.as_second().div_euclid(3_600)
}
