//! How evenly a round shared its capacity among tenants.

use alloc::collections::BTreeMap;
use core::num::NonZeroU64;

use crate::TenantId;

/// What a round admitted for one tenant or one team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Share {
    count: u32,
    micros: u64,
    micros_largest: u64,
}

impl Share {
    /// How many tasks were admitted.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// What they cost together.
    pub fn micros(&self) -> u64 {
        self.micros
    }

    /// What the most expensive of them costs.
    pub fn micros_largest(&self) -> u64 {
        self.micros_largest
    }

    /// Counts an admitted task. The count stays within a window and the micros within the capacity,
    /// so neither saturates.
    pub(super) fn add(&mut self, cost_micros: u64) {
        self.count = self.count.saturating_add(1);
        self.micros = self.micros.saturating_add(cost_micros);
        self.micros_largest = self.micros_largest.max(cost_micros);
    }
}

/// One admitted tenant's share against its allowance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TenantFairness {
    share: Share,
    even_share_micros: u64,
}

impl TenantFairness {
    /// What was admitted for the tenant.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Whether the tenant got at most an even share plus its own largest admitted task.
    ///
    /// Tasks are not divided, so no order of them can promise less.
    pub fn is_within_allowance(&self) -> bool {
        // Not as a sum, which could overflow.
        self.share.micros().saturating_sub(self.even_share_micros) <= self.share.micros_largest()
    }
}

/// Whether each admitted tenant got at most an even share of what was spent, plus its own largest
/// admitted task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairnessReport {
    even_share_micros: u64,
    tenants: BTreeMap<TenantId, TenantFairness>,
}

impl FairnessReport {
    pub(super) fn new(spent_micros: u64, by_tenant: &BTreeMap<TenantId, Share>) -> Self {
        let admitted = u64::try_from(by_tenant.len())
            .ok()
            .and_then(NonZeroU64::new);
        let even_share_micros =
            admitted.map_or(0, |admitted| spent_micros.div_ceil(admitted.get()));
        let fairness = |share: &Share| TenantFairness {
            share: *share,
            even_share_micros,
        };
        let tenants = by_tenant
            .iter()
            .map(|(tenant, share)| (tenant.clone(), fairness(share)))
            .collect();
        Self {
            even_share_micros,
            tenants,
        }
    }

    /// What was spent, divided by the number of admitted tenants, rounded up; 0 if none was
    /// admitted.
    pub fn even_share_micros(&self) -> u64 {
        self.even_share_micros
    }

    /// The admitted tenants, in bytewise order.
    pub fn tenants(&self) -> &BTreeMap<TenantId, TenantFairness> {
        &self.tenants
    }

    /// Whether every admitted tenant is within its allowance.
    pub fn is_fair(&self) -> bool {
        self.tenants
            .values()
            .all(TenantFairness::is_within_allowance)
    }
}

/// The largest less the smallest micros; 0 for no shares.
pub(super) fn max_deviation<'a>(shares: impl Iterator<Item = &'a Share> + Clone) -> u64 {
    let micros = shares.map(Share::micros);
    let largest = micros.clone().max().unwrap_or(0);
    largest.saturating_sub(micros.min().unwrap_or(0))
}
