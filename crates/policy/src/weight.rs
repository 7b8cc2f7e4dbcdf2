//! One tenant's weight.

use crate::TenantId;

/// The greatest weight of a tenant; the least is 1.
pub const WEIGHT_MAX: u32 = 1024;

/// A tenant and its weight: the number of slots that the tenant has in every cycle.
///
/// With feature `serde` it is read and written as `{"tenant_id": .., "weight": ..}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TenantFairnessWeight {
    tenant: TenantId,
    weight: u16,
}

impl TenantFairnessWeight {
    /// Gives `tenant` a weight of 1 to [`WEIGHT_MAX`].
    ///
    /// # Errors
    ///
    /// [`WeightError`] if the weight is 0 or above [`WEIGHT_MAX`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use evenhand_policy::{TenantFairnessWeight, TenantId};
    /// let tenant = TenantId::try_from("tenant-a")?;
    /// assert_eq!(TenantFairnessWeight::new(tenant.clone(), 3).expect("3 is a weight").weight(), 3);
    /// assert!(TenantFairnessWeight::new(tenant, 0).is_err());
    /// # Ok::<(), evenhand_policy::IdError>(())
    /// ```
    pub fn new(tenant: TenantId, weight: u32) -> Result<Self, WeightError> {
        match u16::try_from(weight) {
            Ok(slots @ 1..) if weight <= WEIGHT_MAX => Ok(Self {
                tenant,
                weight: slots,
            }),
            Ok(_) | Err(_) => Err(WeightError { tenant, weight }),
        }
    }

    /// The tenant.
    pub fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Its weight, 1 to [`WEIGHT_MAX`].
    pub fn weight(&self) -> u32 {
        u32::from(self.weight)
    }

    /// The weight as the cycle stores counts.
    pub(crate) fn slots(&self) -> u16 {
        self.weight
    }
}

/// A weight outside of 1 to [`WEIGHT_MAX`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tenant {tenant} has weight {weight}, which is not in 1 to {WEIGHT_MAX}")]
pub struct WeightError {
    tenant: TenantId,
    weight: u32,
}

impl WeightError {
    /// The tenant whose weight was refused.
    pub fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// The weight that was refused.
    pub fn weight(&self) -> u32 {
        self.weight
    }
}
