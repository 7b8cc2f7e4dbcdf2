//! One round of admission: which of the competing tasks may start now, and why the others may not.
//!
//! A round is a pure function of a policy, the tasks, a capacity and, for tenants and teams that
//! have their own, windows. Each task gets a score from its value class, its base priority and how
//! long it has waited; tasks are ranked by score, ties by task id; the ranking is walked once, and
//! every task is either admitted or deferred with a [`DeferralReason`]. Neither the order in which
//! the tasks are given nor anything outside of the arguments changes the answer.
//!
//! * [`Scoring`] is the part that a whole pool shares: it says which of two tasks comes first.
//! * [`AdmissionPolicy`] adds the limits of one round: windows, and how many *forced* tasks (those
//!   at or past `starvation_ticks`) a tenant may start.
//! * [`Windows`] are the limits of single tenants and teams, in place of the policy's.
//! * [`admit`] decides a [`Round`], [`admit_within`] one in which some have windows of their own;
//!   [`Round::fairness`] reports how evenly it shared the capacity.
//!
//! # Examples
//!
//! ```
//! use evenhand_policy::admission::{AdmissionPolicy, BasePriority, Task, TaskId, ValueClass, admit};
//! use evenhand_policy::{TeamId, TenantId};
//!
//! # fn main() -> Result<(), Box<dyn core::error::Error>> {
//! let task = Task {
//!     task_id: TaskId::try_from("nightly-report")?,
//!     tenant_id: TenantId::try_from("tenant-a")?,
//!     team_id: TeamId::try_from("analytics")?,
//!     value: ValueClass::Batch,
//!     base_priority: BasePriority::new(5)?,
//!     wait_ticks: 3,
//!     cost_micros: 400,
//! };
//! let round = admit(&AdmissionPolicy::default(), [&task], 1_000)?;
//! assert_eq!(round.ranked()[0].score().get(), 100 + 5 + 3 * 40);
//! assert_eq!(round.admitted(), [task.task_id]);
//! assert_eq!(round.spent_micros(), 400);
//! # Ok(())
//! # }
//! ```

mod limits;
mod round;
mod score;
mod share;
mod task;
mod windows;

pub use limits::{AdmissionOptions, AdmissionPolicy};
pub use round::{
    AdmissionError, DeferralReason, DeferredTask, RankedTask, Round, admit, admit_within,
};
pub use score::{
    AGING_PER_TICK_MAX, AdmissionPolicyError, FORCED_BONUS, QUEUE_SPREAD_LIMIT, Score, Scoring,
    ScoringOptions, VALUE_WEIGHT_MAX, ValueWeights,
};
pub use share::{FairnessReport, Share, TenantFairness};
pub use task::{BasePriority, BasePriorityError, Task, TaskId, ValueClass, ValueClassError};
pub use windows::Windows;
