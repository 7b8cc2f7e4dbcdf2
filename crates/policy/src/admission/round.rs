//! One round: rank, then walk the ranking once.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;

use super::share::max_deviation;
use super::windows::TenantWindow;
use super::{AdmissionPolicy, FairnessReport, Score, Share, Task, TaskId, Windows};
use crate::{TeamId, TenantId};

/// Decides one round: which of `tasks` start now, within `capacity_micros`.
///
/// Tasks are ranked by score, highest first, ties by task id bytewise, and walked once in that
/// order. A task is deferred for the first [`DeferralReason`] that applies, and then takes nothing
/// away from those behind it: smaller ones may still fit.
///
/// # Errors
///
/// [`AdmissionError::DuplicateTask`] if two tasks have the same id.
///
/// # Examples
///
/// See [the module](super).
pub fn admit<'a>(
    policy: &AdmissionPolicy,
    tasks: impl IntoIterator<Item = &'a Task>,
    capacity_micros: u64,
) -> Result<Round, AdmissionError> {
    admit_within(policy, &Windows::default(), tasks, capacity_micros)
}

/// Decides one round as [`admit`] does, with windows of their own for the tenants and teams that
/// `windows` names; all others have the policy's.
///
/// The ranking, the checks, their order and the reasons are the same.
///
/// # Errors
///
/// [`AdmissionError::DuplicateTask`] if two tasks have the same id.
///
/// # Examples
///
/// A round over a block of three sequences, in which tenant `a` has two slots and `b` one:
///
/// ```
/// # use evenhand_policy::TeamId;
/// use evenhand_policy::TenantId;
/// use evenhand_policy::admission::{AdmissionPolicy, DeferralReason, Windows, admit_within};
/// # use evenhand_policy::admission::{BasePriority, Task, TaskId, ValueClass};
///
/// # fn main() -> Result<(), Box<dyn core::error::Error>> {
/// # let task = |id: &str, tenant: &str| -> Result<Task, Box<dyn core::error::Error>> {
/// #     Ok(Task {
/// #         task_id: TaskId::try_from(id)?,
/// #         tenant_id: TenantId::try_from(tenant)?,
/// #         team_id: TeamId::try_from(tenant)?,
/// #         value: ValueClass::Standard,
/// #         base_priority: BasePriority::MIN,
/// #         wait_ticks: 20,
/// #         cost_micros: 0,
/// #     })
/// # };
/// // All of them have waited for so long that they are forced.
/// let tasks = [task("a1", "a")?, task("a2", "a")?, task("b1", "b")?, task("b2", "b")?];
/// let windows = Windows::default()
///     .with_tenant(TenantId::try_from("a")?, 2, 2)
///     .with_tenant(TenantId::try_from("b")?, 1, 1);
/// let round = admit_within(&AdmissionPolicy::default(), &windows, &tasks, 0)?;
/// assert_eq!(round.admitted().len(), 3);
/// let deferred = &round.deferred()[0];
/// assert_eq!(deferred.task_id().as_str(), "b2");
/// assert_eq!(deferred.reason(), DeferralReason::ForcedAllowance);
/// # Ok(())
/// # }
/// ```
pub fn admit_within<'a>(
    policy: &AdmissionPolicy,
    windows: &Windows,
    tasks: impl IntoIterator<Item = &'a Task>,
    capacity_micros: u64,
) -> Result<Round, AdmissionError> {
    let ranking = rank(policy, tasks)?;
    let mut round = Round {
        capacity_left_micros: capacity_micros,
        ..Round::default()
    };
    let mut forced_by_tenant = BTreeMap::new();
    for (task, ranked) in ranking {
        let forced = forced_by_tenant.entry(&task.tenant_id).or_insert(0_u32);
        let tenant_window = windows.of_tenant(policy, &task.tenant_id);
        let team_window = windows.of_team(policy, &task.team_id);
        let forced_admitted = ranked.forced.then_some(*forced);
        if let Some(reason) = round.deferral(task, forced_admitted, tenant_window, team_window) {
            round.deferred.push(DeferredTask {
                task_id: task.task_id.clone(),
                reason,
            });
        } else {
            *forced = forced.saturating_add(u32::from(ranked.forced));
            round.take(task);
        }
        round.ranked.push(ranked);
    }
    Ok(round)
}

/// The tasks in the order in which the round looks at them.
fn rank<'a>(
    policy: &AdmissionPolicy,
    tasks: impl IntoIterator<Item = &'a Task>,
) -> Result<Vec<(&'a Task, RankedTask)>, AdmissionError> {
    let mut seen = BTreeSet::new();
    let mut ranking = Vec::new();
    for task in tasks {
        if !seen.insert(&task.task_id) {
            return Err(AdmissionError::DuplicateTask {
                task_id: task.task_id.clone(),
            });
        }
        let score = policy
            .scoring()
            .score(task.value, task.base_priority, task.wait_ticks);
        let forced = policy.scoring().is_forced(task.wait_ticks);
        ranking.push((
            task,
            RankedTask {
                task_id: task.task_id.clone(),
                score,
                forced,
            },
        ));
    }
    // Ties go to the smaller task id, so that the answer does not depend on the input's order.
    ranking.sort_unstable_by(|(_, a), (_, b)| {
        (Reverse(a.score), &a.task_id).cmp(&(Reverse(b.score), &b.task_id))
    });
    Ok(ranking)
}

/// Tasks were refused as a round.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// Two tasks have the same id.
    #[error("task {task_id} is given more than once")]
    DuplicateTask {
        /// The id.
        task_id: TaskId,
    },
}

/// Why a task was not admitted: the first that applies, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeferralReason {
    /// It is forced, and its tenant has used up its forced allowance of this round.
    ForcedAllowance,
    /// Its tenant's window is full.
    TenantWindow,
    /// Its team's window is full.
    TeamWindow,
    /// It costs more than the capacity that is left.
    Capacity,
}

impl DeferralReason {
    /// The reason's stable name: `forced_allowance`, `tenant_window`, `team_window` or `capacity`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ForcedAllowance => "forced_allowance",
            Self::TenantWindow => "tenant_window",
            Self::TeamWindow => "team_window",
            Self::Capacity => "capacity",
        }
    }
}

impl fmt::Display for DeferralReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A task's place in the ranking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedTask {
    task_id: TaskId,
    score: Score,
    forced: bool,
}

impl RankedTask {
    /// The task.
    pub fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    /// Its score.
    pub fn score(&self) -> Score {
        self.score
    }

    /// Whether it has waited for `starvation_ticks` or longer.
    pub fn is_forced(&self) -> bool {
        self.forced
    }
}

/// A task that was not admitted, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredTask {
    task_id: TaskId,
    reason: DeferralReason,
}

impl DeferredTask {
    /// The task.
    pub fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    /// Why it was not admitted.
    pub fn reason(&self) -> DeferralReason {
        self.reason
    }
}

/// What a round decided. Every task is either admitted or deferred.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Round {
    ranked: Vec<RankedTask>,
    admitted: Vec<TaskId>,
    deferred: Vec<DeferredTask>,
    spent_micros: u64,
    capacity_left_micros: u64,
    by_tenant: BTreeMap<TenantId, Share>,
    by_team: BTreeMap<TeamId, Share>,
}

impl Round {
    /// All tasks, in the order in which the round looked at them.
    pub fn ranked(&self) -> &[RankedTask] {
        &self.ranked
    }

    /// The tasks that may start, in the order of the ranking.
    pub fn admitted(&self) -> &[TaskId] {
        &self.admitted
    }

    /// The tasks that may not, in the order of the ranking.
    pub fn deferred(&self) -> &[DeferredTask] {
        &self.deferred
    }

    /// What the admitted tasks cost together; never more than the capacity.
    pub fn spent_micros(&self) -> u64 {
        self.spent_micros
    }

    /// What was admitted for each tenant for which anything was.
    pub fn by_tenant(&self) -> &BTreeMap<TenantId, Share> {
        &self.by_tenant
    }

    /// What was admitted for each team for which anything was.
    pub fn by_team(&self) -> &BTreeMap<TeamId, Share> {
        &self.by_team
    }

    /// The largest less the smallest micros among admitted tenants; 0 if none was.
    pub fn max_tenant_deviation(&self) -> u64 {
        max_deviation(self.by_tenant.values())
    }

    /// How evenly the round shared what it spent.
    pub fn fairness(&self) -> FairnessReport {
        FairnessReport::new(self.spent_micros, &self.by_tenant)
    }

    /// Why `task` must be deferred, if it must. `forced_admitted` is how many forced tasks of its
    /// tenant were admitted so far, given only if the task is forced itself.
    fn deferral(
        &self,
        task: &Task,
        forced_admitted: Option<u32>,
        tenant_window: TenantWindow,
        team_window: u32,
    ) -> Option<DeferralReason> {
        let tenant_admitted = self.by_tenant.get(&task.tenant_id).map_or(0, Share::count);
        let team_admitted = self.by_team.get(&task.team_id).map_or(0, Share::count);
        if forced_admitted.is_some_and(|admitted| admitted >= tenant_window.forced) {
            Some(DeferralReason::ForcedAllowance)
        } else if tenant_admitted >= tenant_window.tasks {
            Some(DeferralReason::TenantWindow)
        } else if team_admitted >= team_window {
            Some(DeferralReason::TeamWindow)
        } else if task.cost_micros > self.capacity_left_micros {
            Some(DeferralReason::Capacity)
        } else {
            None
        }
    }

    /// Admits `task`, which costs no more than the capacity left; so nothing here saturates.
    fn take(&mut self, task: &Task) {
        self.admitted.push(task.task_id.clone());
        self.spent_micros = self.spent_micros.saturating_add(task.cost_micros);
        self.capacity_left_micros = self.capacity_left_micros.saturating_sub(task.cost_micros);
        self.by_tenant
            .entry(task.tenant_id.clone())
            .or_default()
            .add(task.cost_micros);
        self.by_team
            .entry(task.team_id.clone())
            .or_default()
            .add(task.cost_micros);
    }
}
