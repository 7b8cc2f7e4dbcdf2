//! Exact weighted fairness, planned before anything runs.
//!
//! Weights go in; out come the one repeating order in which tenants are selected, and for every
//! tenant a bound on how long it can wait for its next selection. There is no I/O here, no clock
//! and no randomness, so that every replica, test and planner that holds the same weights computes
//! the same answers, bit for bit.
//!
//! * [`WeightedFairnessPolicy`] compiles weights into a cycle: each tenant's slots in every cycle
//!   are its weight.
//! * [`StarvationBound`] is read off the cycle as compiled, never estimated from a ratio.
//! * [`TransitionBound`] is its like for a change of policy: from a tenant's last selection by the
//!   old order to its first by the successor's.
//! * [`WeightedFairnessPolicy::canonical_bytes`] and [`PolicyDigest`] are how two processes find
//!   out whether they hold the same policy.
//! * [`admission`] decides one round over tasks that compete for a capacity.
//!
//! The crate is `no_std` and needs `alloc`. The feature `std` (on by default) keeps a policy's
//! digest once it was computed, and switches on `std` in the dependencies. The feature `serde`
//! reads and writes ids, weights and policies through the same checks as their constructors.
//!
//! # Examples
//!
//! ```
//! # use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
//! # fn main() -> Result<(), Box<dyn core::error::Error>> {
//! let tenant_a = TenantId::try_from("tenant-a")?;
//! let tenant_b = TenantId::try_from("tenant-b")?;
//! let policy = WeightedFairnessPolicy::new(
//!     SchedulerShardId::try_from("primary-v1")?,
//!     [TenantFairnessWeight::new(tenant_a, 3)?, TenantFairnessWeight::new(tenant_b.clone(), 1)?],
//! )?;
//! let bound = policy.starvation_bound(&tenant_b).expect("tenant-b is in this policy");
//! assert!(bound.maximum_reservations_until_selection() <= 4);
//! # Ok(())
//! # }
//! ```

#![no_std]
#![warn(
    clippy::alloc_instead_of_core,
    clippy::arithmetic_side_effects,
    clippy::float_arithmetic,
    clippy::indexing_slicing,
    clippy::std_instead_of_alloc
)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod admission;
mod bounds;
mod canonical;
mod cycle;
mod digest;
mod id;
mod policy;
mod transition;
mod weight;
#[cfg(feature = "serde")]
mod wire;

pub use bounds::{BLOCK_LENGTH_MAX, StarvationBound};
pub use canonical::CanonicalError;
pub use digest::{DigestError, PolicyDigest};
pub use id::{
    ID_LENGTH_MAX, IdDefect, IdError, IdKind, PoolId, SchedulerShardId, TeamId, TenantId,
};
pub use policy::{CYCLE_LENGTH_MAX, CycleSlots, PolicyError, TENANTS_MAX, WeightedFairnessPolicy};
pub use transition::{TransitionBound, transition_bound, transition_bounds};
pub use weight::{TenantFairnessWeight, WEIGHT_MAX, WeightError};
