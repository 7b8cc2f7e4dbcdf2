//! Rounds in which single tenants and teams have windows of their own.

use std::collections::BTreeMap;

use evenhand_policy::admission::{
    AdmissionOptions, AdmissionPolicy, BasePriority, DeferralReason, DeferredTask, Round, Task,
    TaskId, ValueClass, Windows, admit, admit_within,
};
use evenhand_policy::{TeamId, TenantId};
use proptest::prelude::*;

use crate::rounds::{
    OwnWindows, admitted, any_capacity, any_policy, any_tasks, any_windows, find, verdict,
};
use crate::support::tenant;

fn team(id: &str) -> TeamId {
    TeamId::try_from(id).expect("the id is well-formed")
}

/// A task of the tenant and the team that its id starts with: `ax1` is one of a in x.
fn task(id: &str, wait_ticks: u64) -> Task {
    Task {
        task_id: TaskId::try_from(id).expect("the id is well-formed"),
        tenant_id: tenant(&id[..1]),
        team_id: team(&id[1..2]),
        value: ValueClass::Standard,
        base_priority: BasePriority::MIN,
        wait_ticks,
        cost_micros: 1,
    }
}

fn admitted_ids(round: &Round) -> Vec<&str> {
    round.admitted().iter().map(TaskId::as_str).collect()
}

fn deferrals(round: &Round) -> Vec<(&str, DeferralReason)> {
    round
        .deferred()
        .iter()
        .map(|task| (task.task_id().as_str(), task.reason()))
        .collect()
}

/// For each tenant as many slots as it has tasks, and no limit for any team.
fn enough_for(tasks: &[Task]) -> OwnWindows {
    let mut own = OwnWindows::default();
    for task in tasks {
        let (slots, forced) = own.tenants.entry(task.tenant_id.clone()).or_default();
        *slots += 1;
        *forced += 1;
        own.teams.insert(task.team_id.clone(), u32::MAX);
    }
    own
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn without_windows_of_their_own_all_have_those_of_the_policy(
        tasks in any_tasks(),
        policy in any_policy(),
        capacity in any_capacity(),
    ) {
        let round = admit(&policy, &tasks, capacity);
        prop_assert_eq!(&admit_within(&policy, &Windows::default(), &tasks, capacity), &round);
        let (of_tenant, of_team) = (policy.per_tenant_window(), policy.per_team_window());
        let mut windows = Windows::default();
        for task in &tasks {
            let forced = policy.max_forced_per_tenant();
            windows = windows
                .with_tenant(task.tenant_id.clone(), of_tenant, forced)
                .with_team(task.team_id.clone(), of_team);
        }
        prop_assert_eq!(admit_within(&policy, &windows, &tasks, capacity), round);
    }

    #[test]
    fn every_task_is_admitted_or_deferred_for_the_first_reason_in_its_own_windows(
        tasks in any_tasks(),
        policy in any_policy(),
        own in any_windows(),
        capacity in any_capacity(),
    ) {
        let round = admit_within(&policy, &own.to_windows(), &tasks, capacity)
            .expect("no duplicates");
        let mut before = Vec::new();
        let mut deferred = Vec::new();
        for entry in round.ranked() {
            let task = find(&tasks, entry.task_id());
            match verdict(&policy, &own, capacity, &before, task) {
                None => before.push(task),
                Some(reason) => deferred.push((task.task_id.as_str(), reason)),
            }
        }
        prop_assert_eq!(admitted(&round, &tasks), before);
        prop_assert_eq!(deferrals(&round), deferred);
    }

    #[test]
    fn no_tenant_and_no_team_exceeds_its_window(
        tasks in any_tasks(),
        policy in any_policy(),
        own in any_windows(),
        capacity in any_capacity(),
    ) {
        let round = admit_within(&policy, &own.to_windows(), &tasks, capacity)
            .expect("no duplicates");
        prop_assert!(round.spent_micros() <= capacity);
        let mut forced: BTreeMap<&TenantId, u32> = BTreeMap::new();
        for task in admitted(&round, &tasks) {
            if policy.scoring().is_forced(task.wait_ticks) {
                *forced.entry(&task.tenant_id).or_default() += 1;
            }
        }
        for (tenant, share) in round.by_tenant() {
            let of_all = (policy.per_tenant_window(), policy.max_forced_per_tenant());
            let (window, allowance) = own.tenants.get(tenant).copied().unwrap_or(of_all);
            prop_assert!(share.count() <= window);
            prop_assert!(forced.get(tenant).is_none_or(|forced| *forced <= allowance));
        }
        for (team, share) in round.by_team() {
            let window = own.teams.get(team).copied().unwrap_or(policy.per_team_window());
            prop_assert!(share.count() <= window);
        }
    }

    #[test]
    fn with_windows_for_everything_only_the_capacity_defers(
        tasks in any_tasks(),
        policy in any_policy(),
        capacity in any_capacity(),
    ) {
        let windows = enough_for(&tasks).to_windows();
        let round = admit_within(&policy, &windows, &tasks, capacity).expect("no duplicates");
        let mut left = capacity;
        let mut fitting = Vec::new();
        for entry in round.ranked() {
            let task = find(&tasks, entry.task_id());
            if let Some(rest) = left.checked_sub(task.cost_micros) {
                left = rest;
                fitting.push(task);
            }
        }
        prop_assert_eq!(admitted(&round, &tasks), fitting);
        let mut reasons = round.deferred().iter().map(DeferredTask::reason);
        prop_assert!(reasons.all(|reason| reason == DeferralReason::Capacity));
    }
}

#[test]
fn a_tenant_starts_as_many_tasks_as_its_block_gave_it_slots() {
    // By default a round admits two tasks of a tenant and a team, one of them forced.
    let policy = AdmissionPolicy::default();
    let tasks = ["ax1", "ax2", "ax3", "ax4", "by1", "by2"].map(|id| task(id, 12));
    let windows = Windows::default()
        .with_tenant(tenant("a"), 3, 3)
        .with_team(team("x"), u32::MAX);
    let round = admit_within(&policy, &windows, &tasks, 100).expect("no duplicates");
    assert_eq!(admitted_ids(&round), ["ax1", "ax2", "ax3", "by1"]);
    let of_policy = DeferralReason::ForcedAllowance;
    assert_eq!(deferrals(&round), [("ax4", of_policy), ("by2", of_policy)]);
}

#[test]
fn the_forced_allowance_of_a_tenant_is_beside_its_window() {
    let windows = |tasks, forced| Windows::default().with_tenant(tenant("a"), tasks, forced);
    let tasks = [task("ax1", 12), task("ay1", 12), task("az1", 0)];
    let policy = AdmissionPolicy::default();
    let round = |windows| admit_within(&policy, &windows, &tasks, 100).expect("no duplicates");
    assert_eq!(admitted_ids(&round(windows(3, 1))), ["ax1", "az1"]);
    assert_eq!(
        deferrals(&round(windows(3, 1))),
        [("ay1", DeferralReason::ForcedAllowance)]
    );
    assert_eq!(
        deferrals(&round(windows(1, 3))),
        ["ay1", "az1"].map(|id| (id, DeferralReason::TenantWindow))
    );
}

#[test]
fn the_window_of_a_team_holds_across_tenants() {
    let policy = AdmissionPolicy::new(AdmissionOptions {
        per_team_window: u32::MAX,
        ..AdmissionOptions::default()
    })
    .expect("any window is valid");
    let tasks = ["ax1", "bx1", "cx1", "cy1", "dy1", "dy2"].map(|id| task(id, 0));
    let windows = Windows::default().with_team(team("x"), 1);
    let round = admit_within(&policy, &windows, &tasks, 100).expect("no duplicates");
    assert_eq!(admitted_ids(&round), ["ax1", "cy1", "dy1", "dy2"]);
    assert_eq!(
        deferrals(&round),
        ["bx1", "cx1"].map(|id| (id, DeferralReason::TeamWindow))
    );
}

#[test]
fn a_window_of_0_admits_none_and_the_last_word_counts() {
    let tasks = ["ax1", "by1", "cz1"].map(|id| task(id, 0));
    let windows = Windows::default()
        .with_tenant(tenant("a"), 5, 5)
        .with_tenant(tenant("a"), 0, 0)
        .with_team(team("y"), 5)
        .with_team(team("y"), 0);
    let policy = AdmissionPolicy::default();
    let round = admit_within(&policy, &windows, &tasks, 100).expect("no duplicates");
    assert_eq!(
        deferrals(&round),
        [
            ("ax1", DeferralReason::TenantWindow),
            ("by1", DeferralReason::TeamWindow)
        ]
    );
    let once = Windows::default()
        .with_team(team("y"), 0)
        .with_tenant(tenant("a"), 0, 0);
    assert_eq!(windows, once);
}

#[test]
fn a_duplicate_task_is_refused_whatever_the_windows() {
    let windows = Windows::default().with_tenant(tenant("a"), 0, 0);
    let tasks = [task("ax1", 0), task("ax1", 3)];
    let refused = admit_within(&AdmissionPolicy::default(), &windows, &tasks, 10);
    assert_eq!(
        refused.expect_err("twice").to_string(),
        "task ax1 is given more than once"
    );
}
