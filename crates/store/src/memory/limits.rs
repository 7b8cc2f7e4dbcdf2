//! Limits: how many runs of a tenant or team may be running at once.

use evenhand_policy::PoolId;

use super::queue::{Queue, Row};
use crate::{LimitSubject, RunLimit, RunState, RunsMax};

impl Queue {
    pub(super) fn set_limit(
        &mut self,
        pool: &PoolId,
        subject: &LimitSubject,
        runs_max: Option<RunsMax>,
    ) {
        let limited = (pool.clone(), subject.clone());
        match runs_max {
            Some(runs_max) => self.limits.insert(limited, runs_max),
            None => self.limits.remove(&limited),
        };
    }

    /// The limits of the pool, in the order of their subjects: tenants before teams, each by name.
    pub(super) fn limits(&self, pool: &PoolId) -> Vec<RunLimit> {
        self.limits
            .iter()
            .filter(|((limited_pool, _), _)| limited_pool == pool)
            .map(|((_, subject), runs_max)| {
                let running = self.running(pool, subject);
                RunLimit::new(pool.clone(), subject.clone(), *runs_max, running)
            })
            .collect()
    }

    /// How many more runs may be claimed; `None` without a limit.
    ///
    /// What is running is counted anew each time, so there is nothing that could leak.
    pub(super) fn permits(&self, pool: &PoolId, subject: LimitSubject) -> Option<u32> {
        let limited = (pool.clone(), subject);
        let runs_max = self.limits.get(&limited)?.get();
        Some(runs_max.saturating_sub(self.running(pool, &limited.1)))
    }

    fn running(&self, pool: &PoolId, subject: &LimitSubject) -> u32 {
        let is_counted = |row: &&Row| {
            let spec = &row.run.spec;
            row.run.state == RunState::Running
                && spec.pool == *pool
                && match subject {
                    LimitSubject::Tenant(tenant) => spec.tenant == *tenant,
                    LimitSubject::Team(team) => spec.team == *team,
                }
        };
        let running = self.rows.values().filter(is_counted).count();
        u32::try_from(running).unwrap_or(u32::MAX)
    }
}
