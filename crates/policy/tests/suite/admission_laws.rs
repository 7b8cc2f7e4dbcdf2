//! Laws of a round, over arbitrary tasks and policies.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use evenhand_policy::admission::{RankedTask, Share, Task, TaskId, TenantFairness, admit};
use proptest::prelude::*;

use crate::rounds::{OwnWindows, admitted, any_capacity, any_policy, any_tasks, find, verdict};

fn micros_by<'a, Id: Ord>(
    admitted: &[&'a Task],
    id: fn(&'a Task) -> &'a Id,
) -> BTreeMap<&'a Id, (u32, u64)> {
    let mut amounts = BTreeMap::new();
    for task in admitted {
        let (count, micros) = amounts.entry(id(task)).or_insert((0, 0));
        *count += 1;
        *micros += task.cost_micros;
    }
    amounts
}

fn amounts<Id: Ord>(shares: &BTreeMap<Id, Share>) -> BTreeMap<&Id, (u32, u64)> {
    let amount = |share: &Share| (share.count(), share.micros());
    shares
        .iter()
        .map(|(id, share)| (id, amount(share)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_order_of_the_input_changes_nothing(
        (tasks, shuffled) in any_tasks()
            .prop_flat_map(|tasks| (Just(tasks.clone()), Just(tasks).prop_shuffle())),
        policy in any_policy(),
        capacity in any_capacity(),
    ) {
        prop_assert_eq!(admit(&policy, &tasks, capacity), admit(&policy, &shuffled, capacity));
    }

    #[test]
    fn tasks_are_ranked_by_score_then_id_and_forced_ones_come_first(
        tasks in any_tasks(),
        policy in any_policy(),
    ) {
        let round = admit(&policy, &tasks, 1000).expect("no duplicates");
        let ranked = round.ranked();
        let place = |task: &RankedTask| (Reverse(task.score()), task.task_id().clone());
        prop_assert!(ranked.is_sorted_by_key(place));
        prop_assert!(ranked.is_sorted_by_key(|task| !task.is_forced()));
        for entry in ranked {
            let task = find(&tasks, entry.task_id());
            let score = policy.scoring().score(task.value, task.base_priority, task.wait_ticks);
            prop_assert_eq!(entry.score(), score);
            prop_assert_eq!(entry.is_forced(), policy.scoring().is_forced(task.wait_ticks));
        }
    }

    #[test]
    fn every_task_is_admitted_or_deferred_for_the_first_reason_that_applies(
        tasks in any_tasks(),
        policy in any_policy(),
        capacity in any_capacity(),
    ) {
        let round = admit(&policy, &tasks, capacity).expect("no duplicates");
        let mut before = Vec::new();
        let mut deferred = Vec::new();
        for entry in round.ranked() {
            let task = find(&tasks, entry.task_id());
            match verdict(&policy, &OwnWindows::default(), capacity, &before, task) {
                None => before.push(task),
                Some(reason) => deferred.push((&task.task_id, reason)),
            }
        }
        prop_assert_eq!(admitted(&round, &tasks), before);
        let actual = round.deferred().iter().map(|task| (task.task_id(), task.reason()));
        prop_assert_eq!(actual.collect::<Vec<_>>(), deferred);
        let spoken_of: BTreeSet<&TaskId> = round.ranked().iter().map(RankedTask::task_id).collect();
        prop_assert_eq!(spoken_of.len(), tasks.len());
        prop_assert_eq!(round.admitted().len() + round.deferred().len(), tasks.len());
    }

    #[test]
    fn windows_allowance_and_capacity_are_never_exceeded(
        tasks in any_tasks(),
        policy in any_policy(),
        capacity in any_capacity(),
    ) {
        let round = admit(&policy, &tasks, capacity).expect("no duplicates");
        prop_assert!(round.spent_micros() <= capacity);
        let (tenant_window, team_window) = (policy.per_tenant_window(), policy.per_team_window());
        prop_assert!(round.by_tenant().values().all(|share| share.count() <= tenant_window));
        prop_assert!(round.by_team().values().all(|share| share.count() <= team_window));
        let admitted = admitted(&round, &tasks);
        for tenant in round.by_tenant().keys() {
            let of_tenant = admitted.iter().filter(|task| task.tenant_id == *tenant);
            let is_forced = |task: &&&Task| policy.scoring().is_forced(task.wait_ticks);
            let forced = of_tenant.filter(is_forced).count();
            prop_assert!(forced <= usize::try_from(policy.max_forced_per_tenant()).expect("fits"));
        }
    }

    #[test]
    fn shares_deviation_and_fairness_follow_from_the_admitted_tasks(
        tasks in any_tasks(),
        policy in any_policy(),
        capacity in any_capacity(),
    ) {
        let round = admit(&policy, &tasks, capacity).expect("no duplicates");
        let admitted = admitted(&round, &tasks);
        let by_tenant = micros_by(&admitted, |task| &task.tenant_id);
        prop_assert_eq!(amounts(round.by_tenant()), by_tenant.clone());
        prop_assert_eq!(amounts(round.by_team()), micros_by(&admitted, |task| &task.team_id));
        let spent: u64 = by_tenant.values().map(|(_, micros)| micros).sum();
        prop_assert_eq!(round.spent_micros(), spent);

        let micros = by_tenant.values().map(|(_, micros)| *micros);
        let deviation = micros.clone().max().unwrap_or(0) - micros.min().unwrap_or(0);
        prop_assert_eq!(round.max_tenant_deviation(), deviation);

        let report = round.fairness();
        prop_assert_eq!(report.tenants().len(), by_tenant.len());
        for (tenant, fairness) in report.tenants() {
            let of_tenant = admitted.iter().filter(|task| task.tenant_id == *tenant);
            let largest = of_tenant.map(|task| task.cost_micros).max().expect("admitted");
            let tenants = u64::try_from(by_tenant.len()).expect("fits");
            let even_share = round.spent_micros().div_ceil(tenants);
            let allowance = u128::from(even_share) + u128::from(largest);
            let (_, micros) = by_tenant[tenant];
            prop_assert_eq!(fairness.is_within_allowance(), u128::from(micros) <= allowance);
        }
        let all_within = report.tenants().values().all(TenantFairness::is_within_allowance);
        prop_assert_eq!(report.is_fair(), all_within);
    }
}
