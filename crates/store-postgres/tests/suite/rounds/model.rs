//! What the pure function says about a block and a backlog.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenhand_policy::admission::{
    AdmissionOptions, AdmissionPolicy, BasePriority, Task, TaskId, ValueClass, Windows,
    admit_within,
};
use evenhand_policy::{TeamId, TenantId, WeightedFairnessPolicy};
use proptest::prelude::*;
use uuid::Uuid;

use crate::scene::tenant_id;

/// The tick at which the clock of these tests stands still.
pub(super) const NOW_TICK: i64 = 1_900_000_000;

pub(super) const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
pub(super) const TEAMS: [&str; 3] = ["blue", "green", "red"];

#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) id: u128,
    pub(super) tenant: usize,
    pub(super) team: usize,
    pub(super) class: ValueClass,
    pub(super) priority: u32,
    /// Negative for a run that is not ready yet.
    pub(super) waited: i64,
    pub(super) cost: u32,
}

/// A limit of a tenant or team: how many permits are free, and how many runs are above it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permits {
    pub(super) free: usize,
    pub(super) excess: usize,
}

/// A backlog, and a block of sequences to settle.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) first_sequence: u32,
    pub(super) count: u32,
    pub(super) runs: Vec<Queued>,
    pub(super) runs_max: u32,
    pub(super) team_window: Option<u32>,
    pub(super) capacity: Option<u32>,
    pub(super) tenant_permits: [Option<Permits>; TENANTS.len()],
    pub(super) team_permits: [Option<Permits>; TEAMS.len()],
    /// Offsets whose end is on record: looking at their tenant failed.
    pub(super) failed: BTreeSet<u32>,
}

/// How a block is to end: the runs by sequence, and the sequences that are contended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) claimed: BTreeMap<i64, Uuid>,
    pub(super) contended: BTreeSet<i64>,
}

fn queued() -> impl Strategy<Value = Queued> {
    let classes = prop::sample::select(ValueClass::ALL.to_vec());
    let priority = prop::sample::select(vec![0_u32, 50, 100]);
    (
        any::<u128>(),
        0..TENANTS.len(),
        0..TEAMS.len(),
        classes,
        priority,
        -2_i64..18,
        0_u32..10,
    )
        .prop_map(|(id, tenant, team, class, priority, waited, cost)| Queued {
            id,
            tenant,
            team,
            class,
            priority,
            waited,
            cost,
        })
}

fn permits() -> impl Strategy<Value = Option<Permits>> {
    // Free permits while others are in excess are taken away first.
    let permits = (0_usize..5, prop_oneof![4 => Just(0_usize), 1 => 1_usize..4])
        .prop_map(|(free, excess)| Permits { free, excess });
    prop::option::weighted(0.3, permits)
}

/// A block of one of these lengths, and what it meets.
pub(super) fn case(counts: impl Strategy<Value = u32>) -> impl Strategy<Value = Case> {
    let limits = (
        prop::option::weighted(0.4, 0_u32..4),
        prop::option::weighted(0.4, 0_u32..60),
        prop_oneof![2 => Just([None; TENANTS.len()]), 1 => [(); TENANTS.len()].map(|()| permits())],
        prop_oneof![2 => Just([None; TEAMS.len()]), 1 => [(); TEAMS.len()].map(|()| permits())],
    );
    let failed = prop_oneof![
        3 => Just(BTreeSet::new()),
        1 => prop::collection::btree_set(0_u32..40, 0..12),
    ];
    (
        0_u32..16,
        counts,
        prop::collection::vec(queued(), 0..60),
        prop_oneof![1 => 0_u32..4, 3 => 0_u32..40],
        limits,
        failed,
    )
        .prop_map(
            |(first_sequence, count, runs, runs_max, limits, failed)| Case {
                first_sequence,
                count,
                runs,
                runs_max,
                team_window: limits.0,
                capacity: limits.1,
                tenant_permits: limits.2,
                team_permits: limits.3,
                failed: failed.into_iter().filter(|at| *at < count).collect(),
            },
        )
}

impl Permits {
    fn usable(self) -> usize {
        // What is free is taken away while anything is in excess.
        self.free.saturating_sub(self.excess)
    }
}

/// What the pure function says, with windows counted by walking the sequences one by one.
pub(super) fn expected(case: &Case, policy: &WeightedFairnessPolicy) -> Ends {
    let ready = ready(case);
    let sequences: Vec<u32> = (case.first_sequence..case.first_sequence + case.count)
        .filter(|sequence| !case.failed.contains(&(sequence - case.first_sequence)))
        .collect();
    let tenant_of = |sequence: u32| policy.tenant_for_sequence(sequence.into());
    let windows = windows(
        case,
        &ready,
        sequences.iter().map(|sequence| tenant_of(*sequence)),
    );
    let mut admitted = admitted(case, &ready, &windows);
    let mut ends = Ends::default();
    let mut claimed: BTreeMap<&TenantId, usize> = BTreeMap::new();
    for sequence in sequences {
        let tenant = tenant_of(sequence);
        let claimed = claimed.entry(tenant).or_default();
        if let Some(id) = admitted.get_mut(tenant).and_then(VecDeque::pop_front) {
            ends.claimed.insert(sequence.into(), id);
            *claimed += 1;
        } else if *claimed < ready.get(tenant).map_or(0, Vec::len) {
            ends.contended.insert(sequence.into());
        }
    }
    ends
}

/// The ready runs of each tenant, best first. The ids of these tasks sort like ready tick and run id.
fn ready(case: &Case) -> BTreeMap<TenantId, Vec<Task>> {
    let mut ready: BTreeMap<TenantId, Vec<Task>> = BTreeMap::new();
    for run in case.runs.iter().filter(|run| run.waited >= 0) {
        let id = Uuid::from_u128(run.id);
        let task = Task {
            task_id: TaskId::try_from(format!("{:020}.{id}", NOW_TICK - run.waited)).unwrap(),
            tenant_id: tenant_id(TENANTS[run.tenant]),
            team_id: TeamId::try_from(TEAMS[run.team]).unwrap(),
            value: run.class,
            base_priority: BasePriority::new(run.priority).unwrap(),
            wait_ticks: u64::try_from(run.waited).unwrap(),
            cost_micros: run.cost.into(),
        };
        ready.entry(task.tenant_id.clone()).or_default().push(task);
    }
    let scoring = *AdmissionPolicy::default().scoring();
    for tasks in ready.values_mut() {
        tasks.sort_by_key(|task| {
            let score = scoring.score(task.value, task.base_priority, task.wait_ticks);
            (Reverse(score), task.task_id.clone())
        });
    }
    ready
}

/// How many runs each tenant is given at most.
fn windows<'a>(
    case: &Case,
    ready: &BTreeMap<TenantId, Vec<Task>>,
    turns: impl Iterator<Item = &'a TenantId>,
) -> BTreeMap<&'a TenantId, usize> {
    let permits_of = |tenant: &TenantId| {
        let number = TENANTS.iter().position(|name| *name == tenant.as_str());
        case.tenant_permits[number.unwrap()].map_or(usize::MAX, Permits::usable)
    };
    let mut windows = BTreeMap::new();
    let mut left = case.runs_max;
    for tenant in turns {
        let runs = ready.get(tenant).map_or(0, Vec::len);
        let window = windows.entry(tenant).or_default();
        if left > 0 && *window < runs.min(permits_of(tenant)) {
            *window += 1;
            left -= 1;
        }
    }
    windows
}

/// The runs that the pure function admits, of each tenant in the order of the ranking.
fn admitted(
    case: &Case,
    ready: &BTreeMap<TenantId, Vec<Task>>,
    windows: &BTreeMap<&TenantId, usize>,
) -> BTreeMap<TenantId, VecDeque<Uuid>> {
    let team_window = case.team_window.unwrap_or(u32::MAX);
    let mut within = Windows::default();
    for (team, permits) in TEAMS.iter().zip(case.team_permits) {
        if let Some(permits) = permits {
            let permits = u32::try_from(permits.usable()).unwrap();
            within = within.with_team(TeamId::try_from(*team).unwrap(), team_window.min(permits));
        }
    }
    let mut candidates = Vec::new();
    for (tenant, tasks) in ready {
        let window = windows.get(tenant).copied().unwrap_or(0);
        if window > 0 {
            candidates.extend(tasks.iter().take(window + 64).cloned());
        }
        let window = u32::try_from(window).unwrap();
        within = within.with_tenant(tenant.clone(), window, window);
    }
    let admission = AdmissionPolicy::new(AdmissionOptions {
        per_team_window: team_window,
        ..AdmissionOptions::default()
    });
    let capacity = case.capacity.map_or(u64::MAX, u64::from);
    let round = admit_within(&admission.unwrap(), &within, &candidates, capacity).unwrap();
    let mut admitted: BTreeMap<TenantId, VecDeque<Uuid>> = BTreeMap::new();
    for task_id in round.admitted() {
        let task = candidates.iter().find(|task| task.task_id == *task_id);
        let (_, id) = task_id.as_str().split_once('.').unwrap();
        let tenant = task.unwrap().tenant_id.clone();
        admitted
            .entry(tenant)
            .or_default()
            .push_back(id.parse().unwrap());
    }
    admitted
}
