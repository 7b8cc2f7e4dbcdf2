//! Windows of single tenants and teams, in place of the policy's.

use alloc::collections::BTreeMap;

use super::AdmissionPolicy;
use crate::{TeamId, TenantId};

/// The windows of those tenants and teams that have their own in one round, in place of the ones
/// that the [`AdmissionPolicy`] gives to all.
///
/// In a round over a block of sequences, a tenant may start as many tasks as the block gave it
/// slots, forced ones or not, and a limited team as many as it has permits. Whoever is not named
/// here has the policy's windows, and naming one again replaces what was said before.
///
/// # Examples
///
/// See [`admit_within`](super::admit_within).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows {
    tenants: BTreeMap<TenantId, TenantWindow>,
    teams: BTreeMap<TeamId, u32>,
}

impl Windows {
    /// These windows, and one for `tenant`: the round admits at most `tasks` tasks of it, and at
    /// most `forced` forced ones among them; 0 admits none.
    #[must_use]
    pub fn with_tenant(mut self, tenant: TenantId, tasks: u32, forced: u32) -> Self {
        self.tenants.insert(tenant, TenantWindow { tasks, forced });
        self
    }

    /// These windows, and one for `team`: the round admits at most `tasks` tasks of it, across
    /// tenants; 0 admits none.
    #[must_use]
    pub fn with_team(mut self, team: TeamId, tasks: u32) -> Self {
        self.teams.insert(team, tasks);
        self
    }

    /// What the round admits of `tenant`: its own window, or else the policy's.
    pub(super) fn of_tenant(&self, policy: &AdmissionPolicy, tenant: &TenantId) -> TenantWindow {
        self.tenants.get(tenant).copied().unwrap_or(TenantWindow {
            tasks: policy.per_tenant_window(),
            forced: policy.max_forced_per_tenant(),
        })
    }

    /// How many tasks the round admits of `team`: its own window, or else the policy's.
    pub(super) fn of_team(&self, policy: &AdmissionPolicy, team: &TeamId) -> u32 {
        self.teams
            .get(team)
            .copied()
            .unwrap_or(policy.per_team_window())
    }
}

/// How many tasks of one tenant a round admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TenantWindow {
    pub(super) tasks: u32,
    /// How many of them may be forced.
    pub(super) forced: u32,
}
