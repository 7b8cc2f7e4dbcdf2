//! The limits of one round, beside the scoring that the whole pool shares.

use super::{AdmissionPolicyError, Scoring, ScoringOptions};

/// What an [`AdmissionPolicy`] is made of; not yet checked.
///
/// With feature `serde` any field may be left out, and unknown ones are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct AdmissionOptions {
    /// How tasks are scored.
    pub scoring: ScoringOptions,
    /// How many tasks of one tenant a round admits, 2 by default; 0 admits none.
    pub per_tenant_window: u32,
    /// How many tasks of one team a round admits, 2 by default; 0 admits none.
    pub per_team_window: u32,
    /// How many forced tasks of one tenant a round admits, 1 by default; 0 admits none.
    pub max_forced_per_tenant: u32,
}

impl Default for AdmissionOptions {
    fn default() -> Self {
        Self {
            scoring: ScoringOptions::default(),
            per_tenant_window: 2,
            per_team_window: 2,
            max_forced_per_tenant: 1,
        }
    }
}

/// The policy of one round: how tasks are scored, and how many a tenant and a team may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdmissionPolicy {
    scoring: Scoring,
    per_tenant_window: u32,
    per_team_window: u32,
    max_forced_per_tenant: u32,
}

impl AdmissionPolicy {
    /// Checks `options`. Windows and the forced allowance may be any number.
    ///
    /// # Errors
    ///
    /// Those of [`Scoring::new`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use evenhand_policy::admission::{AdmissionOptions, AdmissionPolicy};
    /// let wide = AdmissionPolicy::new(AdmissionOptions { per_tenant_window: 8, ..Default::default() });
    /// assert_eq!(wide.expect("any window is valid").per_team_window(), 2);
    /// ```
    pub fn new(options: AdmissionOptions) -> Result<Self, AdmissionPolicyError> {
        let AdmissionOptions {
            scoring,
            per_tenant_window,
            per_team_window,
            max_forced_per_tenant,
        } = options;
        Ok(Self {
            scoring: Scoring::new(scoring)?,
            per_tenant_window,
            per_team_window,
            max_forced_per_tenant,
        })
    }

    /// How tasks are scored.
    pub fn scoring(&self) -> &Scoring {
        &self.scoring
    }

    /// How many tasks of one tenant a round admits.
    pub fn per_tenant_window(&self) -> u32 {
        self.per_tenant_window
    }

    /// How many tasks of one team a round admits.
    pub fn per_team_window(&self) -> u32 {
        self.per_team_window
    }

    /// How many forced tasks of one tenant a round admits.
    pub fn max_forced_per_tenant(&self) -> u32 {
        self.max_forced_per_tenant
    }
}

/// The policy of the default [`AdmissionOptions`].
impl Default for AdmissionPolicy {
    fn default() -> Self {
        let AdmissionOptions {
            scoring: _,
            per_tenant_window,
            per_team_window,
            max_forced_per_tenant,
        } = AdmissionOptions::default();
        Self {
            scoring: Scoring::default(),
            per_tenant_window,
            per_team_window,
            max_forced_per_tenant,
        }
    }
}
