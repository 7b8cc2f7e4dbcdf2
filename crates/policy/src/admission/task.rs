//! The tasks that compete in a round.

use core::fmt;
use core::str::FromStr;

use crate::id::define_id;
use crate::{TeamId, TenantId};

define_id! {
    /// The name of one task, unique within its round.
    TaskId, Task
}

/// How much a task is worth to its owner; the domain is closed.
///
/// Its text, in both directions and also through serde, is `critical`, `standard` or `batch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[expect(
    clippy::exhaustive_enums,
    reason = "every scoring gives each of the three classes a weight"
)]
pub enum ValueClass {
    /// Worth the least.
    Batch,
    /// In between.
    Standard,
    /// Worth the most.
    Critical,
}

impl ValueClass {
    /// All classes, from the one that is worth most.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Standard, Self::Batch];

    /// The class as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }
}

impl fmt::Display for ValueClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text was refused as a [`ValueClass`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a value class is critical, standard or batch")]
pub struct ValueClassError(());

impl FromStr for ValueClass {
    type Err = ValueClassError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|class| class.as_str() == text)
            .ok_or(ValueClassError(()))
    }
}

/// A priority within a value class, 0 to 100, higher first.
///
/// Alone it never lifts a task to or over the next class: the gaps between classes are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "u32", into = "u32")
)]
pub struct BasePriority(u32);

impl BasePriority {
    /// The lowest priority: 0, which is also the default.
    pub const MIN: Self = Self(0);

    /// The highest priority: 100.
    pub const MAX: Self = Self(100);

    /// Checks a priority.
    ///
    /// # Errors
    ///
    /// [`BasePriorityError`] if it is above 100.
    pub fn new(priority: u32) -> Result<Self, BasePriorityError> {
        if priority <= Self::MAX.0 {
            Ok(Self(priority))
        } else {
            Err(BasePriorityError { priority })
        }
    }

    /// The priority as a number, 0 to 100.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for BasePriority {
    type Error = BasePriorityError;

    fn try_from(priority: u32) -> Result<Self, Self::Error> {
        Self::new(priority)
    }
}

impl From<BasePriority> for u32 {
    fn from(priority: BasePriority) -> Self {
        priority.get()
    }
}

impl fmt::Display for BasePriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A base priority above 100 was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("base priority {priority} is above {}", BasePriority::MAX)]
pub struct BasePriorityError {
    priority: u32,
}

/// One task that competes in a round. Every combination of its values is valid.
///
/// With feature `serde` it is read from its field names, all of them required, unknown ones
/// refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct Task {
    /// Its name, unique within the round.
    pub task_id: TaskId,
    /// The tenant whose window, forced allowance and share it counts against.
    pub tenant_id: TenantId,
    /// The team whose window it counts against, across tenants.
    pub team_id: TeamId,
    /// Its value class.
    pub value: ValueClass,
    /// Its priority within the class.
    pub base_priority: BasePriority,
    /// How long it has waited, in wait ticks.
    pub wait_ticks: u64,
    /// What it costs, in millionths of the unit of the capacity; 0 is a cost.
    pub cost_micros: u64,
}
