//! How many runs of one tenant or team may be running at once, across all replicas.

use evenhand_policy::{PoolId, TeamId, TenantId};

use crate::RunValueError;

/// Whose runs are limited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LimitSubject {
    /// The runs of one tenant.
    Tenant(TenantId),
    /// The runs of one team, whichever tenants they belong to.
    Team(TeamId),
}

impl LimitSubject {
    /// `tenant` or `team`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tenant(_) => "tenant",
            Self::Team(_) => "team",
        }
    }

    /// The name of the tenant or team.
    pub fn name(&self) -> &str {
        match self {
            Self::Tenant(tenant) => tenant.as_str(),
            Self::Team(team) => team.as_str(),
        }
    }
}

/// The most runs at once: 0 to 10,000. With 0 the tenant or team is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunsMax(u32);

impl RunsMax {
    /// The highest limit.
    pub const MAX: u32 = 10_000;

    /// Allows `runs` at once.
    ///
    /// # Errors
    ///
    /// When `runs` is above [`MAX`](Self::MAX).
    pub fn new(runs: u32) -> Result<Self, RunValueError> {
        if runs <= Self::MAX {
            Ok(Self(runs))
        } else {
            Err(RunValueError::RunsMax(runs))
        }
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// A limit, and how much of it is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunLimit {
    /// In which pool.
    pub pool: PoolId,
    /// Whose runs.
    pub subject: LimitSubject,
    /// The most runs at once.
    pub runs_max: RunsMax,
    /// How many are running now, expired leases that nobody has recovered included. Above the limit only after the
    /// limit was lowered, or set while they were running.
    pub running: u32,
}

impl RunLimit {
    /// A limit as a store shows it.
    pub fn new(pool: PoolId, subject: LimitSubject, runs_max: RunsMax, running: u32) -> Self {
        Self {
            pool,
            subject,
            runs_max,
            running,
        }
    }
}
