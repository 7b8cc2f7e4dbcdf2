//! Random pools, and whether their rounds are answered as they should be.

use core::fmt;
use core::time::Duration;

use std::collections::{BTreeMap, BTreeSet};

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_policy::admission::{BasePriority, Scoring, ScoringOptions, ValueClass};
use evenhand_store::{
    ClaimedRun, CostMicros, LimitSubject, NewRun, PageSize, PolicyRegistration, PoolScoring,
    ReadyAt, Reservation, ReservationId, ReservationStore, Round, RoundRequest, RunFilter,
    RunQueue, RunsMax, SequenceOutcome,
};

use super::super::StoreUnderTest;
use super::super::rounds::claimed;
use super::super::scene::{
    Must, Scene, claim, policy, pool, request, round, run, team, worker, worker_of,
};
use super::model::{Backlog, Expected, TEAMS, tick_of};

/// Long enough that a fact that starts in the middle of a tick ends within it.
pub(super) const WAIT_TICK: Duration = Duration::from_hours(1);
const TENANTS: [&str; 4] = ["a", "b", "c", "d"];

/// What the store offers beside rounds.
#[derive(Clone, Copy)]
pub(super) struct Offers {
    pub(super) round_limits: bool,
    pub(super) limits: bool,
}

/// One pool with a backlog, and a round in it.
pub(super) struct Case {
    name: String,
    pub(super) policy: WeightedFairnessPolicy,
    pub(super) scoring: PoolScoring,
    block: Option<Reservation>,
    pub(super) limits: BTreeMap<LimitSubject, u32>,
}

impl Case {
    pub(super) async fn register<S: StoreUnderTest>(
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

    pub(super) fn random_runs(&self, random: &mut fastrand::Rng) -> Vec<NewRun> {
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
                // Some are ready later than runs that are enqueued after them, and some are not ready at all.
                match random.u32(..8) {
                    0 | 1 => run.ready_at = ReadyAt::After(random.u32(1..=8) * WAIT_TICK),
                    2 => run.ready_at = ReadyAt::After(1_000 * WAIT_TICK),
                    _ => {}
                }
                runs.push(run);
            }
        }
        runs
    }

    /// Lets some runs be running already, limits whoever can be limited, and reserves the block, some of whose sequences
    /// have ended before its round.
    pub(super) async fn prepare<S: StoreUnderTest>(
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
    pub(super) async fn check<S: StoreUnderTest>(
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
