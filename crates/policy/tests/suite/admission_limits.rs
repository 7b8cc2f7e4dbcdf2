//! Which scorings are refused, on both sides of each limit, and rounds at the extremes.

use evenhand_policy::admission::{
    AGING_PER_TICK_MAX, AdmissionOptions, AdmissionPolicy, AdmissionPolicyError, BasePriority,
    DeferralReason, Scoring, ScoringOptions, Task, TaskId, VALUE_WEIGHT_MAX, ValueClass,
    ValueWeights, admit,
};
use evenhand_policy::{IdKind, TeamId};
use proptest::prelude::*;

use crate::support::tenant;

fn task(id: &str, tenant_id: &str, cost_micros: u64) -> Task {
    Task {
        task_id: TaskId::try_from(id).expect("well-formed"),
        tenant_id: tenant(tenant_id),
        team_id: TeamId::try_from("team").expect("well-formed"),
        value: ValueClass::Standard,
        base_priority: BasePriority::MIN,
        wait_ticks: 0,
        cost_micros,
    }
}

fn weights(critical: u32, standard: u32, batch: u32) -> Result<Scoring, AdmissionPolicyError> {
    let value_weights = ValueWeights {
        critical,
        standard,
        batch,
    };
    Scoring::new(ScoringOptions {
        value_weights,
        ..ScoringOptions::default()
    })
}

fn wide() -> AdmissionOptions {
    AdmissionOptions {
        per_tenant_window: 100,
        per_team_window: 100,
        ..AdmissionOptions::default()
    }
}

#[test]
fn the_defaults_are_valid_and_fit_a_queue() {
    assert_eq!(
        Scoring::new(ScoringOptions::default()),
        Ok(Scoring::default())
    );
    assert_eq!(
        AdmissionPolicy::new(AdmissionOptions::default()),
        Ok(AdmissionPolicy::default())
    );
    let policy = AdmissionPolicy::default();
    let windows = [
        policy.per_tenant_window(),
        policy.per_team_window(),
        policy.max_forced_per_tenant(),
    ];
    assert_eq!(windows, [2, 2, 1]);
    let scoring = policy.scoring();
    assert_eq!(
        scoring.value_weights(),
        ValueWeights {
            critical: 1000,
            standard: 300,
            batch: 100
        }
    );
    let ticks = [
        scoring.aging_per_tick(),
        scoring.max_aging_ticks(),
        scoring.starvation_ticks(),
    ];
    assert_eq!(ticks, [40, 10, 12]);
    assert!(scoring.is_queue_ordered());
}

#[test]
fn classes_are_more_than_100_apart() {
    assert!(weights(301, 200, 99).is_ok());
    let refused = |higher, lower| Err(AdmissionPolicyError::ValueGapTooSmall { higher, lower });
    assert_eq!(
        weights(300, 200, 99),
        refused(ValueClass::Critical, ValueClass::Standard)
    );
    assert_eq!(
        weights(301, 200, 100),
        refused(ValueClass::Standard, ValueClass::Batch)
    );
    assert_eq!(
        weights(100, 300, 1000),
        refused(ValueClass::Critical, ValueClass::Standard)
    );
}

#[test]
fn priority_alone_never_reaches_the_next_class() {
    let scoring = weights(202, 101, 0).expect("gaps of 101");
    let best_batch = scoring.rank(ValueClass::Batch, BasePriority::MAX);
    assert!(best_batch < scoring.rank(ValueClass::Standard, BasePriority::MIN));
}

#[test]
fn weights_and_aging_are_bounded() {
    let (most, more) = (VALUE_WEIGHT_MAX, VALUE_WEIGHT_MAX + 1);
    assert!(weights(most, most - 101, most - 202).is_ok());
    let refused = AdmissionPolicyError::ValueWeightTooLarge {
        class: ValueClass::Critical,
        weight: more,
    };
    assert_eq!(weights(more, most - 101, most - 202), Err(refused));
    let aging = |aging_per_tick| {
        Scoring::new(ScoringOptions {
            aging_per_tick,
            ..ScoringOptions::default()
        })
    };
    assert!(aging(AGING_PER_TICK_MAX).is_ok());
    let refused = AdmissionPolicyError::AgingTooLarge {
        aging_per_tick: AGING_PER_TICK_MAX + 1,
    };
    assert_eq!(aging(AGING_PER_TICK_MAX + 1), Err(refused));
}

#[test]
fn every_unforced_score_is_below_every_forced_one() {
    // Aging is used up at 10 of 12 ticks: it adds 400 to both sides, so only the weights and the
    // bonus count.
    assert!(weights(9_999, 300, 100).is_ok());
    let refused = weights(10_000, 300, 100).expect_err("a tie");
    let AdmissionPolicyError::UnforcedReachesForced {
        largest_unforced,
        least_forced,
    } = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(
        (largest_unforced.get(), least_forced.get()),
        (10_500, 10_500)
    );
    // If starvation comes first, the forced tick itself still adds its aging.
    let value_weights = ValueWeights {
        critical: 10_039,
        ..ValueWeights::default()
    };
    let options = ScoringOptions {
        value_weights,
        starvation_ticks: 5,
        ..ScoringOptions::default()
    };
    assert!(Scoring::new(options).is_ok());
    let value_weights = ValueWeights {
        critical: 10_040,
        ..ValueWeights::default()
    };
    assert!(
        Scoring::new(ScoringOptions {
            value_weights,
            ..options
        })
        .is_err()
    );
    // If everything is forced, nothing is unforced.
    assert!(
        Scoring::new(ScoringOptions {
            value_weights,
            starvation_ticks: 0,
            ..options
        })
        .is_ok()
    );
}

#[test]
fn a_queue_needs_aging_to_end_before_tasks_are_forced() {
    let aging = |max_aging_ticks| {
        let options = ScoringOptions {
            max_aging_ticks,
            ..ScoringOptions::default()
        };
        Scoring::new(options)
            .expect("a round takes any")
            .for_queue()
    };
    assert!(aging(12).is_ok());
    let refused = AdmissionPolicyError::AgingOutlastsStarvation {
        max_aging_ticks: 13,
        starvation_ticks: 12,
    };
    assert_eq!(aging(13), Err(refused));
}

#[test]
fn a_queue_needs_unforced_scores_to_span_less_than_10000() {
    let aging = |aging_per_tick| {
        let options = ScoringOptions {
            aging_per_tick,
            ..ScoringOptions::default()
        };
        Scoring::new(options).expect("a round takes any")
    };
    // 1000 + 100 - 100 without aging, and ten ticks of it.
    assert!(aging(899).is_queue_ordered());
    let refused = AdmissionPolicyError::UnforcedSpreadTooLarge { spread: 10_000 };
    assert_eq!(aging(900).for_queue(), Err(refused));
    assert!(!aging(900).is_queue_ordered());
}

#[test]
fn base_priority_is_0_to_100() {
    assert_eq!(BasePriority::new(100), Ok(BasePriority::MAX));
    assert_eq!(BasePriority::default().get(), 0);
    let refused = BasePriority::new(101).expect_err("above 100");
    assert_eq!(refused.to_string(), "base priority 101 is above 100");
}

#[test]
fn a_malformed_task_id_says_that_it_is_one() {
    assert_eq!(
        TaskId::try_from("a/b").expect_err("a slash").kind(),
        IdKind::Task
    );
}

#[test]
fn a_duplicate_task_is_refused_by_name() {
    let tasks = [task("t1", "a", 1), task("t2", "a", 1), task("t1", "b", 2)];
    let refused = admit(&AdmissionPolicy::default(), &tasks, 10).expect_err("twice");
    assert_eq!(refused.to_string(), "task t1 is given more than once");
}

#[test]
fn a_round_without_tasks_is_fair_and_spends_nothing() {
    let round = admit(&AdmissionPolicy::default(), [], 10).expect("no duplicates");
    assert_eq!((round.spent_micros(), round.max_tenant_deviation()), (0, 0));
    assert!(round.fairness().is_fair());
    assert_eq!(round.fairness().even_share_micros(), 0);
}

#[test]
fn the_largest_costs_do_not_overflow() {
    let policy = AdmissionPolicy::new(wide()).expect("valid");
    let tasks = [
        task("t1", "a", u64::MAX - 1),
        task("t2", "b", u64::MAX),
        task("t3", "b", 1),
        task("t4", "b", 1),
    ];
    let round = admit(&policy, &tasks, u64::MAX).expect("no duplicates");
    assert_eq!(round.spent_micros(), u64::MAX);
    assert_eq!(round.max_tenant_deviation(), u64::MAX - 2);
    assert!(round.fairness().is_fair());
    let reasons: Vec<_> = round
        .deferred()
        .iter()
        .map(|task| (task.task_id().as_str(), task.reason()))
        .collect();
    assert_eq!(
        reasons,
        [
            ("t2", DeferralReason::Capacity),
            ("t4", DeferralReason::Capacity)
        ]
    );
}

#[test]
fn a_tenant_with_more_than_an_even_share_and_one_task_is_reported() {
    let policy = AdmissionPolicy::new(wide()).expect("valid");
    let tasks = [
        task("t1", "a", 100),
        task("t2", "a", 100),
        task("t3", "a", 100),
        task("t4", "b", 1),
    ];
    let report = |count| {
        admit(&policy, &tasks[count..], 1000)
            .expect("no duplicates")
            .fairness()
    };
    // 301 in two halves is 151 each: a has 300, its allowance is 251.
    let unfair = report(0);
    assert_eq!(unfair.even_share_micros(), 151);
    assert!(!unfair.is_fair());
    assert!(!unfair.tenants()["a"].is_within_allowance());
    assert!(unfair.tenants()["b"].is_within_allowance());
    let share = unfair.tenants()["a"].share();
    assert_eq!(
        (share.count(), share.micros(), share.micros_largest()),
        (3, 300, 100)
    );
    // 201 in two halves is 101 each: a has 200, its allowance is 201.
    assert!(report(1).is_fair());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn scores_are_exact_and_a_scoring_is_refused_exactly_when_it_must_be(
        (critical, standard, batch) in prop_oneof![
            any::<(u32, u32, u32)>(),
            (0..12_000_u32, 0..800_u32, 0..500_u32),
        ],
        aging_per_tick in prop_oneof![any::<u32>(), 0..200_u32],
        max_aging_ticks in prop_oneof![any::<u32>(), 0..20_u32],
        starvation_ticks in prop_oneof![any::<u32>(), 0..20_u32],
        wait_ticks in prop_oneof![any::<u64>(), 0..25_u64],
        priority in 0..=100_u32,
    ) {
        let value_weights = ValueWeights { critical, standard, batch };
        let options = ScoringOptions {
            value_weights,
            aging_per_tick,
            max_aging_ticks,
            starvation_ticks,
        };
        let score = |weight: u32, priority: u32, wait: u64| {
            let aging = u128::from(wait.min(max_aging_ticks.into())) * u128::from(aging_per_tick);
            let bonus = if wait >= starvation_ticks.into() { 10_000 } else { 0 };
            u128::from(weight) + u128::from(priority) + aging + bonus
        };
        let starved = u64::from(starvation_ticks);
        let in_bounds =
            critical.max(standard).max(batch) <= 1_000_000 && aging_per_tick <= 1_000_000;
        let gaps = critical > standard.saturating_add(100) && standard > batch.saturating_add(100);
        let forced_first =
            starved == 0 || score(critical, 100, starved - 1) < score(batch, 0, starved);
        let scoring = Scoring::new(options);
        prop_assert_eq!(scoring.is_ok(), in_bounds && gaps && forced_first);
        if let Ok(scoring) = scoring {
            let priority_checked = BasePriority::new(priority).expect("0 to 100");
            for (class, weight) in ValueClass::ALL.into_iter().zip([critical, standard, batch]) {
                let actual = scoring.score(class, priority_checked, wait_ticks).get();
                prop_assert_eq!(u128::from(actual), score(weight, priority, wait_ticks));
                prop_assert!(actual < 1 << 53);
            }
        }
    }
}
