//! What the pure function of admission says of a round's candidates.

use std::collections::BTreeMap;

use evenhand_policy::TenantId;
use evenhand_policy::admission::{
    AdmissionOptions, AdmissionPolicy, Task, TaskId, Windows, admit_within,
};
use evenhand_store::{LimitSubject, RoundRequest, Run, RunId, RunState, Timestamp};

use super::super::scene::{Must, team};
use super::case::Case;

/// The teams that may be limited.
pub(super) const TEAMS: [&str; 2] = ["x", "y"];

/// What a round is given to decide.
pub(super) struct Backlog {
    pub(super) runs: Vec<Run>,
    pub(super) now_tick: i64,
    /// The sequences whose end is not on record, in order.
    pub(super) open: Vec<u64>,
}

/// What a round should answer about open sequences.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) claimed: Vec<(u64, RunId)>,
    pub(super) contended: Vec<u64>,
}

impl Case {
    /// What the pure function says of the backlog.
    pub(super) fn expected(&self, asked: &RoundRequest, backlog: &Backlog) -> Expected {
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

pub(super) fn tick_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(3_600)
}
