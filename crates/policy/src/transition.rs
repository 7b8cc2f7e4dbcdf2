//! How long a tenant can wait across a change of policy, when one shard succeeds another.

use crate::{StarvationBound, TenantId, WeightedFairnessPolicy};

/// How long one tenant can wait for its first selection by a successor's order.
///
/// A shard is bound to its policy for ever, so other weights mean another shard: the old order ends
/// after whichever slot it has reached, and the order of the successor begins at its sequence 0.
/// The bound counts sequences of both orders, one after the other, as [`StarvationBound`] does
/// within one: from the tenant's last selection by the old order, its first by the new one is at
/// most this many further on.
///
/// It is exact. At worst the old order ends just before the slot that would have closed the
/// tenant's largest gap; that takes the old starvation bound less the selection itself. Then come
/// the slots up to the tenant's first one in the new cycle, wherever the old order ended. Some end
/// point of the old order makes a tenant wait that long, and none longer.
///
/// A tenant that the old order did not select at all, because it ended before the tenant's first
/// slot, has no last selection to count from. Counted from the start of the old order, the
/// selecting sequence included, it waits within the bound too.
///
/// Like every bound here it says nothing about time. And it speaks of two orders: if the successor
/// is itself succeeded before it has selected the tenant, the wait goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransitionBound {
    maximum: u32,
    sum_of_bounds: u32,
}

impl TransitionBound {
    fn new(old: StarvationBound, new: StarvationBound, first_slot_in_new: u32) -> Self {
        // Each is at most the length of a cycle: nothing here saturates.
        let [old, new] = [old, new].map(StarvationBound::maximum_reservations_until_selection);
        Self {
            maximum: old.saturating_add(first_slot_in_new),
            sum_of_bounds: old.saturating_add(new),
        }
    }

    /// The largest number of reservations, the selecting one included, from the tenant's last
    /// selection by the old order to its first by the new one.
    pub fn maximum_reservations_until_selection(self) -> u32 {
        self.maximum
    }

    /// The tenant's starvation bounds in both policies, added up: what can be promised without a
    /// look at the new cycle.
    ///
    /// Always above [`maximum_reservations_until_selection`], because the gap around the end of a
    /// cycle holds all slots before the tenant's first one.
    ///
    /// [`maximum_reservations_until_selection`]: Self::maximum_reservations_until_selection
    pub fn sum_of_bounds(self) -> u32 {
        self.sum_of_bounds
    }
}

/// How long `tenant` can wait when the shard of `old` is succeeded by the shard of `new`; `None`
/// unless it is in both policies.
///
/// # Examples
///
/// ```
/// # use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
/// # fn main() -> Result<(), Box<dyn core::error::Error>> {
/// use evenhand_policy::transition_bound;
///
/// # let a = TenantId::try_from("a")?;
/// # let b = TenantId::try_from("b")?;
/// # let policy = |shard, weight| -> Result<_, Box<dyn core::error::Error>> {
/// #     let weights = [TenantFairnessWeight::new(a.clone(), weight)?, TenantFairnessWeight::new(b.clone(), 1)?];
/// #     Ok(WeightedFairnessPolicy::new(SchedulerShardId::try_from(shard)?, weights)?)
/// # };
/// # let old = policy("primary-v1", 3)?;
/// # let new = policy("primary-v2", 1)?;
/// // The old cycle is a a b a, the new one is a b. At worst the old order ends as `a a b | a a a`,
/// // just before b's next slot, and the new one goes on with `a b`.
/// let bound = transition_bound(&old, &new, &b).expect("b is in both policies");
/// assert_eq!(bound.maximum_reservations_until_selection(), 5);
/// assert_eq!(bound.sum_of_bounds(), 4 + 2);
/// # Ok(())
/// # }
/// ```
pub fn transition_bound(
    old: &WeightedFairnessPolicy,
    new: &WeightedFairnessPolicy,
    tenant: &TenantId,
) -> Option<TransitionBound> {
    Some(TransitionBound::new(
        old.starvation_bound(tenant)?,
        new.starvation_bound(tenant)?,
        new.next_slot_of(tenant, 0)?,
    ))
}

/// The [`transition_bound`] of every tenant that is in both policies, in bytewise order.
///
/// # Examples
///
/// ```
/// # use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
/// # fn main() -> Result<(), Box<dyn core::error::Error>> {
/// use evenhand_policy::transition_bounds;
///
/// # let policy = |shard: &str, weights: &[(&str, u32)]| -> Result<_, Box<dyn core::error::Error>> {
/// #     let weights = weights.iter().map(|(tenant, weight)| -> Result<_, Box<dyn core::error::Error>> {
/// #         Ok(TenantFairnessWeight::new(TenantId::try_from(*tenant)?, *weight)?)
/// #     });
/// #     let weights = weights.collect::<Result<Vec<_>, _>>()?;
/// #     Ok(WeightedFairnessPolicy::new(SchedulerShardId::try_from(shard)?, weights)?)
/// # };
/// let old = policy("primary-v1", &[("a", 3), ("b", 1)])?;
/// let new = policy("primary-v2", &[("b", 1), ("c", 2)])?;
/// // The cycles are a a b a and c b c.
/// let bounds: Vec<_> = transition_bounds(&old, &new)
///     .map(|(tenant, bound)| (tenant.as_str(), bound.maximum_reservations_until_selection()))
///     .collect();
/// assert_eq!(bounds, [("b", 5)]);
/// # Ok(())
/// # }
/// ```
pub fn transition_bounds<'a>(
    old: &'a WeightedFairnessPolicy,
    new: &'a WeightedFairnessPolicy,
) -> impl Iterator<Item = (&'a TenantId, TransitionBound)> {
    old.tenants().iter().filter_map(move |entry| {
        let tenant = entry.tenant();
        Some((tenant, transition_bound(old, new, tenant)?))
    })
}
