//! The policy of one shard: weights in, an exact order and its bounds out.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::num::{NonZeroU32, NonZeroU64};

use crate::bounds::{SlotSet, block_length};
use crate::canonical;
use crate::cycle::Cycle;
use crate::{
    CanonicalError, PolicyDigest, SchedulerShardId, StarvationBound, TenantFairnessWeight, TenantId,
};

/// The most tenants that a policy may have.
pub const TENANTS_MAX: usize = 1024;

/// The longest cycle, in slots: the most that the weights may add up to.
pub const CYCLE_LENGTH_MAX: u32 = 4096;

/// The immutable weights of one shard, and the cycle compiled from them.
///
/// Each tenant's slots in every cycle are its weight, exactly, spread by smooth weighted round
/// robin: in each step every tenant's credit grows by its weight, the largest credit wins, a tie
/// goes to the bytewise smallest tenant, and the winner pays the total. Nothing depends on the
/// order in which the weights were given.
///
/// Cheap to clone. With feature `serde` it is read (through [`new`](Self::new), unknown fields
/// refused) and written as `{"shard": .., "tenants": [{"tenant_id": .., "weight": ..}, ..]}`.
///
/// # Examples
///
/// ```
/// # use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
/// # fn main() -> Result<(), Box<dyn core::error::Error>> {
/// let tenant_a = TenantId::try_from("tenant-a")?;
/// let tenant_b = TenantId::try_from("tenant-b")?;
/// let policy = WeightedFairnessPolicy::new(
///     SchedulerShardId::try_from("primary-v1")?,
///     [TenantFairnessWeight::new(tenant_a, 3)?, TenantFairnessWeight::new(tenant_b, 1)?],
/// )?;
/// let cycle: Vec<&str> = policy.cycle().iter().map(TenantId::as_str).collect();
/// assert_eq!(cycle, ["tenant-a", "tenant-a", "tenant-b", "tenant-a"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct WeightedFairnessPolicy {
    inner: Arc<Inner>,
}

/// The slots of one cycle, in order.
///
/// Not an iterator itself: a call of the name `cycle` whose result is iterated looks endless to readers and linters, and
/// this one ends.
#[derive(Clone, Copy)]
pub struct CycleSlots<'a> {
    policy: &'a WeightedFairnessPolicy,
}

impl<'a> CycleSlots<'a> {
    /// The tenant of each slot, from slot 0 to the last, once.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a TenantId> + Clone {
        let policy = self.policy;
        let owners = policy.inner.cycle.owners().iter();
        owners.map(|owner| policy.tenant(*owner))
    }
}

impl fmt::Debug for CycleSlots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

struct Inner {
    shard: SchedulerShardId,
    tenants: Vec<TenantFairnessWeight>,
    cycle: Cycle,
    cycle_length: NonZeroU32,
    cycle_sha256: [u8; 32],
    // Computed when it is first asked for: at the limits it costs about as much as all the rest.
    #[cfg(feature = "std")]
    digest: std::sync::OnceLock<PolicyDigest>,
    bounds: Vec<StarvationBound>,
}

/// Weights were refused as a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// There is no tenant.
    #[error("a policy has at least one tenant")]
    NoTenants,
    /// There are more than [`TENANTS_MAX`] tenants.
    #[error("a policy has at most {TENANTS_MAX} tenants")]
    TooManyTenants,
    /// A tenant is given more than once, with whatever weights.
    #[error("tenant {tenant} is given more than once")]
    DuplicateTenant {
        /// The bytewise smallest such tenant.
        tenant: TenantId,
    },
    /// The weights add up to more than [`CYCLE_LENGTH_MAX`].
    #[error("the weights add up to {length}, the longest cycle has {CYCLE_LENGTH_MAX} slots")]
    CycleTooLong {
        /// What the weights add up to.
        length: u32,
    },
}

impl WeightedFairnessPolicy {
    /// Compiles the policy of `shard`.
    ///
    /// At most one tenant more than [`TENANTS_MAX`] is taken from `weights`.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NoTenants`], [`PolicyError::TooManyTenants`],
    /// [`PolicyError::DuplicateTenant`] or [`PolicyError::CycleTooLong`], checked in this order.
    ///
    /// # Panics
    ///
    /// If the compiled cycle gave some tenant another number of slots than its weight. That would
    /// be a bug in this crate; it is checked each time, because every promise rests on it.
    pub fn new(
        shard: SchedulerShardId,
        weights: impl IntoIterator<Item = TenantFairnessWeight>,
    ) -> Result<Self, PolicyError> {
        let mut tenants: Vec<_> = weights
            .into_iter()
            .take(TENANTS_MAX.saturating_add(1))
            .collect();
        if tenants.len() > TENANTS_MAX {
            return Err(PolicyError::TooManyTenants);
        }
        tenants.sort_unstable_by(|a, b| a.tenant().cmp(b.tenant()));
        if let Some([duplicate, _]) = tenants
            .array_windows()
            .find(|[a, b]| a.tenant() == b.tenant())
        {
            return Err(PolicyError::DuplicateTenant {
                tenant: duplicate.tenant().clone(),
            });
        }
        let cycle_length = cycle_length(&tenants)?;
        let slots: Vec<u16> = tenants.iter().map(TenantFairnessWeight::slots).collect();
        let cycle = Cycle::compile(&slots);
        let bound = |tenant| StarvationBound::of_slots(cycle.slots(tenant), cycle_length.get());
        let bounds = (0..tenants.len()).map(bound).collect();
        let cycle_sha256 = canonical::cycle_sha256(cycle.owners());
        let inner = Inner {
            shard,
            tenants,
            cycle,
            cycle_length,
            cycle_sha256,
            #[cfg(feature = "std")]
            digest: std::sync::OnceLock::new(),
            bounds,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Reads the policy that wrote these [canonical bytes](Self::canonical_bytes), for `shard`.
    ///
    /// The answer is the same policy, byte for byte: it writes the same bytes again and has the
    /// same cycle.
    ///
    /// # Errors
    ///
    /// * [`CanonicalError::UnknownAlgorithm`] if the bytes name an algorithm or version that this
    ///   build does not have;
    /// * [`CanonicalError::OtherCycle`] if this build compiles these weights to another cycle than
    ///   the bytes' author;
    /// * [`CanonicalError::Tenant`], [`CanonicalError::Weight`], [`CanonicalError::Policy`] if what
    ///   they hold is no policy;
    /// * [`CanonicalError::NotCanonical`] if a policy is not written as these bytes.
    pub fn from_canonical_bytes(
        shard: SchedulerShardId,
        bytes: &[u8],
    ) -> Result<Self, CanonicalError> {
        let contents = canonical::read(bytes)?;
        let policy = Self::new(shard, contents.tenants).map_err(CanonicalError::Policy)?;
        if policy.inner.cycle_sha256 != contents.cycle_sha256 {
            return Err(CanonicalError::OtherCycle);
        }
        let canonical = policy.canonical_bytes();
        if canonical == bytes {
            Ok(policy)
        } else {
            Err(CanonicalError::NotCanonical {
                offset: canonical::first_difference(bytes, &canonical),
            })
        }
    }

    /// The shard that this policy is for.
    pub fn shard(&self) -> &SchedulerShardId {
        &self.inner.shard
    }

    /// The tenants and their weights, in bytewise order of the tenants.
    pub fn tenants(&self) -> &[TenantFairnessWeight] {
        &self.inner.tenants
    }

    /// Whether `tenant` has slots in this policy.
    pub fn contains(&self, tenant: &TenantId) -> bool {
        self.position(tenant).is_some()
    }

    /// The weight of `tenant`, if it is in this policy.
    pub fn weight_of(&self, tenant: &TenantId) -> Option<u32> {
        self.inner
            .tenants
            .get(self.position(tenant)?)
            .map(TenantFairnessWeight::weight)
    }

    /// The number of slots in the cycle, which is the sum of the weights: 1 to
    /// [`CYCLE_LENGTH_MAX`].
    pub fn cycle_length(&self) -> u32 {
        self.inner.cycle_length.get()
    }

    /// The cycle as compiled: the tenant of each slot.
    pub fn cycle(&self) -> CycleSlots<'_> {
        CycleSlots { policy: self }
    }

    /// The tenant of `slot`, if the cycle has such a slot.
    pub fn tenant_for_slot(&self, slot: u32) -> Option<&TenantId> {
        let owner = self.inner.cycle.owners().get(usize::try_from(slot).ok()?)?;
        Some(self.tenant(*owner))
    }

    /// The slot of `sequence`: `sequence mod cycle_length`, always.
    pub fn slot_for_sequence(&self, sequence: u64) -> u32 {
        let slot = sequence % NonZeroU64::from(self.inner.cycle_length);
        u32::try_from(slot).unwrap_or_default()
    }

    /// The tenant that `sequence` selects. Every sequence selects exactly one.
    pub fn tenant_for_sequence(&self, sequence: u64) -> &TenantId {
        let slot = usize::try_from(self.slot_for_sequence(sequence)).unwrap_or_default();
        #[expect(
            clippy::indexing_slicing,
            reason = "a slot is less than the cycle's length"
        )]
        self.tenant(self.inner.cycle.owners()[slot])
    }

    /// The slots of `tenant`, ascending, if it is in this policy; as many as its weight.
    pub fn slots_of(
        &self,
        tenant: &TenantId,
    ) -> Option<impl ExactSizeIterator<Item = u32> + Clone> {
        let slots = self.inner.cycle.slots(self.position(tenant)?);
        Some(slots.iter().copied().map(u32::from))
    }

    /// The number of the slot in which `tenant` is selected first, looking from `from_slot` on,
    /// `from_slot` itself included, and going around the end of the cycle to its start.
    ///
    /// So the answer may be smaller than `from_slot`. A `from_slot` outside of the cycle is taken
    /// modulo its length. `None` if the tenant is not in this policy.
    ///
    /// # Examples
    ///
    /// ```
    /// # use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
    /// # fn main() -> Result<(), Box<dyn core::error::Error>> {
    /// # let a = TenantId::try_from("a")?;
    /// # let b = TenantId::try_from("b")?;
    /// # let policy = WeightedFairnessPolicy::new(
    /// #     SchedulerShardId::try_from("primary-v1")?,
    /// #     [TenantFairnessWeight::new(a, 3)?, TenantFairnessWeight::new(b.clone(), 1)?],
    /// # )?;
    /// // The cycle is a a b a.
    /// assert_eq!(policy.next_slot_of(&b, 0), Some(2));
    /// assert_eq!(policy.next_slot_of(&b, 2), Some(2));
    /// assert_eq!(policy.next_slot_of(&b, 3), Some(2), "in the next cycle");
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_slot_of(&self, tenant: &TenantId, from_slot: u32) -> Option<u32> {
        let slots = self.inner.cycle.slots(self.position(tenant)?);
        let from_slot = from_slot % self.inner.cycle_length;
        let later = slots.partition_point(|slot| u32::from(*slot) < from_slot);
        slots.get(later).or(slots.first()).copied().map(u32::from)
    }

    /// How long `tenant` can wait for its next selection, if it is in this policy: the largest
    /// circular gap between its slots in the cycle as compiled.
    pub fn starvation_bound(&self, tenant: &TenantId) -> Option<StarvationBound> {
        self.inner.bounds.get(self.position(tenant)?).copied()
    }

    /// The largest block length, up to [`BLOCK_LENGTH_MAX`](crate::BLOCK_LENGTH_MAX), such that no
    /// window of that length, anywhere in the endless cycle, holds more than `permits` slots of the
    /// tenants in `ready`.
    ///
    /// A worker that has `permits` free permits and knows which tenants have ready runs can reserve
    /// a block of this length wherever it starts, and will have a permit for each of its ready
    /// slots. The block may be longer than a cycle.
    ///
    /// Tenants that are not in this policy count for nothing, and a tenant named twice counts once.
    /// If no tenant of this policy is ready, every window will do, and the answer is
    /// `BLOCK_LENGTH_MAX`; otherwise it is at least `permits`, and 0 only if `permits` is.
    pub fn block_length<'a>(
        &self,
        ready: impl IntoIterator<Item = &'a TenantId>,
        permits: u32,
    ) -> u32 {
        let mut slots = SlotSet::new();
        for tenant in ready.into_iter().filter_map(|tenant| self.position(tenant)) {
            slots.insert(self.inner.cycle.slots(tenant));
        }
        block_length(&slots, permits, self.cycle_length())
    }

    /// The canonical bytes of this policy: RFC 8785 JSON of the algorithm's name and version, the
    /// SHA-256 of the compiled cycle, and the ordered tenants with their weights. The shard is not
    /// inside.
    ///
    /// `cycle_sha256` is over the cycle's slots in order, each written as the index of its tenant
    /// in [`tenants`](Self::tenants), two bytes, big-endian.
    ///
    /// # Examples
    ///
    /// ```
    /// # use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
    /// # fn main() -> Result<(), Box<dyn core::error::Error>> {
    /// # let shard = SchedulerShardId::try_from("primary-v1")?;
    /// # let policy = WeightedFairnessPolicy::new(
    /// #     shard.clone(),
    /// #     [TenantFairnessWeight::new(TenantId::try_from("a")?, 1)?],
    /// # )?;
    /// let bytes = policy.canonical_bytes();
    /// assert!(bytes.starts_with(br#"{"algorithm":"smooth-weighted-round-robin","algorithm_version":1,"#));
    /// assert_eq!(WeightedFairnessPolicy::from_canonical_bytes(shard, &bytes)?, policy);
    /// # Ok(())
    /// # }
    /// ```
    pub fn canonical_bytes(&self) -> Vec<u8> {
        canonical::write(&self.inner.tenants, &self.inner.cycle_sha256)
    }

    /// The digest of the [canonical bytes](Self::canonical_bytes).
    ///
    /// With feature `std` it is computed once for a policy and all its clones, without it at each
    /// call.
    pub fn digest(&self) -> PolicyDigest {
        let compute = || PolicyDigest::of_canonical_bytes(&self.canonical_bytes());
        #[cfg(feature = "std")]
        return *self.inner.digest.get_or_init(compute);
        #[cfg(not(feature = "std"))]
        compute()
    }

    /// The index of `tenant` in bytewise order.
    fn position(&self, tenant: &TenantId) -> Option<usize> {
        self.inner
            .tenants
            .binary_search_by(|entry| entry.tenant().cmp(tenant))
            .ok()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "owners of slots are indices into the tenants that were compiled"
    )]
    fn tenant(&self, owner: u16) -> &TenantId {
        self.inner.tenants[usize::from(owner)].tenant()
    }
}

/// Two policies are equal if shard, tenants and weights are; all else is computed from those.
impl PartialEq for WeightedFairnessPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.shard() == other.shard() && self.tenants() == other.tenants()
    }
}

impl Eq for WeightedFairnessPolicy {}

impl fmt::Debug for WeightedFairnessPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the cycle, which may have thousands of slots and follows from the rest.
        f.debug_struct("WeightedFairnessPolicy")
            .field("shard", self.shard())
            .field("tenants", &self.tenants())
            .field("cycle_length", &self.cycle_length())
            .field("digest", &self.digest())
            .finish_non_exhaustive()
    }
}

/// The sum of the weights.
fn cycle_length(tenants: &[TenantFairnessWeight]) -> Result<NonZeroU32, PolicyError> {
    // At most 1,024 weights of at most 1,024: the sum cannot reach u32::MAX.
    let length = tenants
        .iter()
        .fold(0_u32, |sum, tenant| sum.saturating_add(tenant.weight()));
    if length > CYCLE_LENGTH_MAX {
        return Err(PolicyError::CycleTooLong { length });
    }
    NonZeroU32::new(length).ok_or(PolicyError::NoTenants)
}
