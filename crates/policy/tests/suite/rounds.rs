//! Tasks, policies and windows to test rounds with, and what a round must decide about them.

use std::collections::BTreeMap;

use evenhand_policy::admission::{
    AdmissionOptions, AdmissionPolicy, BasePriority, DeferralReason, Round, ScoringOptions, Task,
    TaskId, ValueClass, Windows,
};
use evenhand_policy::{TeamId, TenantId};
use proptest::collection::btree_map;
use proptest::prelude::*;
use proptest::sample::select;

/// The tenants of the tasks.
const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
/// The teams of the tasks.
const TEAMS: [&str; 3] = ["x", "y", "z"];

/// Windows that can be looked into: tasks and forced ones by tenant, tasks by team.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnWindows {
    pub(crate) tenants: BTreeMap<TenantId, (u32, u32)>,
    pub(crate) teams: BTreeMap<TeamId, u32>,
}

impl OwnWindows {
    pub(crate) fn to_windows(&self) -> Windows {
        let tenants = self.tenants.iter();
        let with_tenants = tenants.fold(Windows::default(), |windows, (tenant, window)| {
            windows.with_tenant(tenant.clone(), window.0, window.1)
        });
        let teams = self.teams.iter();
        teams.fold(with_tenants, |windows, (team, tasks)| {
            windows.with_team(team.clone(), *tasks)
        })
    }
}

/// Windows for some of the tenants and teams of the tasks.
pub(crate) fn any_windows() -> impl Strategy<Value = OwnWindows> {
    let tenant = select(TENANTS.to_vec())
        .prop_map(|tenant| TenantId::try_from(tenant).expect("well-formed"));
    let team = select(TEAMS.to_vec()).prop_map(|team| TeamId::try_from(team).expect("well-formed"));
    let tenants = btree_map(tenant, (0..6_u32, 0..4_u32), 0..=TENANTS.len());
    let teams = btree_map(team, prop_oneof![0..6_u32, Just(u32::MAX)], 0..=TEAMS.len());
    (tenants, teams).prop_map(|(tenants, teams)| OwnWindows { tenants, teams })
}

fn any_task_but_its_id()
-> impl Strategy<Value = (&'static str, &'static str, ValueClass, u32, u64, u64)> {
    (
        select(TENANTS.to_vec()),
        select(TEAMS.to_vec()),
        select(ValueClass::ALL.to_vec()),
        0..=100_u32,
        prop_oneof![9 => 0..20_u64, 1 => any::<u64>()],
        prop_oneof![9 => 0..400_u64, 1 => any::<u64>()],
    )
}

pub(crate) fn any_tasks() -> impl Strategy<Value = Vec<Task>> {
    let tasks = btree_map("[A-Za-z0-9]{1,3}", any_task_but_its_id(), 0..30);
    let task = |(id, (tenant, team, value, priority, wait_ticks, cost_micros)): (String, _)| Task {
        task_id: TaskId::try_from(id).expect("well-formed"),
        tenant_id: TenantId::try_from(tenant).expect("well-formed"),
        team_id: TeamId::try_from(team).expect("well-formed"),
        value,
        base_priority: BasePriority::new(priority).expect("0 to 100"),
        wait_ticks,
        cost_micros,
    };
    tasks
        .prop_map(move |tasks| tasks.into_iter().map(task).collect::<Vec<_>>())
        .prop_shuffle()
}

pub(crate) fn any_policy() -> impl Strategy<Value = AdmissionPolicy> {
    let scoring = (0..60_u32, 0..20_u32, 0..20_u32);
    let windows = (0..6_u32, 0..6_u32, 0..3_u32);
    (scoring, windows).prop_map(|(scoring, windows)| {
        let (aging_per_tick, max_aging_ticks, starvation_ticks) = scoring;
        let (per_tenant_window, per_team_window, max_forced_per_tenant) = windows;
        let scoring = ScoringOptions {
            aging_per_tick,
            max_aging_ticks,
            starvation_ticks,
            ..ScoringOptions::default()
        };
        let options = AdmissionOptions {
            scoring,
            per_tenant_window,
            per_team_window,
            max_forced_per_tenant,
        };
        AdmissionPolicy::new(options).expect("the default weights are far enough apart")
    })
}

pub(crate) fn any_capacity() -> impl Strategy<Value = u64> {
    prop_oneof![0..3000_u64, any::<u64>()]
}

/// What must happen to `task`, given only what was admitted before it.
pub(crate) fn verdict(
    policy: &AdmissionPolicy,
    own: &OwnWindows,
    capacity: u64,
    before: &[&Task],
    task: &Task,
) -> Option<DeferralReason> {
    let forced = |task: &Task| task.wait_ticks >= u64::from(policy.scoring().starvation_ticks());
    let of_tenant = |other: &&&Task| other.tenant_id == task.tenant_id;
    let count = |matching: usize| u32::try_from(matching).expect("few tasks");
    let tenant = count(before.iter().filter(of_tenant).count());
    let tenant_forced = count(
        before
            .iter()
            .filter(of_tenant)
            .filter(|other| forced(other))
            .count(),
    );
    let team = count(
        before
            .iter()
            .filter(|other| other.team_id == task.team_id)
            .count(),
    );
    let spent: u128 = before
        .iter()
        .map(|other| u128::from(other.cost_micros))
        .sum();
    let tenant_window = own.tenants.get(&task.tenant_id).copied();
    let (tenant_tasks, forced_allowance) =
        tenant_window.unwrap_or((policy.per_tenant_window(), policy.max_forced_per_tenant()));
    let team_window = own.teams.get(&task.team_id).copied();
    let team_tasks = team_window.unwrap_or(policy.per_team_window());
    let checks = [
        (
            forced(task) && tenant_forced >= forced_allowance,
            DeferralReason::ForcedAllowance,
        ),
        (tenant >= tenant_tasks, DeferralReason::TenantWindow),
        (team >= team_tasks, DeferralReason::TeamWindow),
        (
            spent + u128::from(task.cost_micros) > u128::from(capacity),
            DeferralReason::Capacity,
        ),
    ];
    checks
        .into_iter()
        .find_map(|(applies, reason)| applies.then_some(reason))
}

pub(crate) fn find<'a>(tasks: &'a [Task], id: &TaskId) -> &'a Task {
    tasks
        .iter()
        .find(|task| task.task_id == *id)
        .expect("a round speaks of its tasks")
}

pub(crate) fn admitted<'a>(round: &Round, tasks: &'a [Task]) -> Vec<&'a Task> {
    round.admitted().iter().map(|id| find(tasks, id)).collect()
}
