//! What a look at the queue allows, and how long nothing came of any.

use core::time::Duration;

use std::collections::BTreeSet;

use evenhand_policy::{TenantId, WeightedFairnessPolicy};
use evenhand_store::{ReadyTenants, ReservationCount};
use tokio::time::Instant;

/// Who was ready when the store was asked.
#[derive(Debug, Default)]
pub(crate) struct Look {
    ready: BTreeSet<TenantId>,
    /// How long after the answer the next run becomes ready, if one is known to.
    next_ready_in: Option<Duration>,
}

impl Look {
    /// What the store's answer says about the tenants of `policy`.
    pub(crate) fn new(answer: ReadyTenants, policy: &WeightedFairnessPolicy) -> Self {
        // The store's clock reaches a time that it named no later than this after its answer. A time that is over
        // already is no reason to ask again at once.
        let next_ready_in = answer.next_ready_at.and_then(|at| {
            let left = Duration::try_from(at.duration_since(answer.store_time)).ok()?;
            (!left.is_zero()).then_some(left)
        });
        let tenants = answer.tenants.into_iter();
        Self {
            ready: tenants.filter(|tenant| policy.contains(tenant)).collect(),
            next_ready_in,
        }
    }

    /// Whether it found anybody ready.
    pub(crate) fn found_anybody(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn is_ready(&self, tenant: &TenantId) -> bool {
        self.ready.contains(tenant)
    }

    /// How many tenants are ready.
    pub(crate) fn tenants(&self) -> usize {
        self.ready.len()
    }

    /// How many sequences to reserve for so many permits, at most `length_max`.
    pub(crate) fn block_length(
        &self,
        policy: &WeightedFairnessPolicy,
        permits: u32,
        length_max: ReservationCount,
    ) -> ReservationCount {
        let length = policy.block_length(&self.ready, permits);
        ReservationCount::new(length.min(length_max.get())).unwrap_or(ReservationCount::ONE)
    }

    /// How long to wait at most before the next look, if `longest` is the longest wait.
    pub(crate) fn wait(&self, longest: Duration) -> Duration {
        self.next_ready_in.map_or(longest, |left| left.min(longest))
    }
}

/// How long a look that came along with a round stands in for the next one.
///
/// That is about as old as any look is when it is used over a slow wire. A tenant that became ready meanwhile is not in it,
/// so slots of that tenant may find no permit left, as they may after any look; after a longer wait for permits that would
/// be more than chance.
const RECENT: Duration = Duration::from_millis(20);

/// The look that came along with the last round, if one did.
#[derive(Debug, Default)]
pub(crate) struct Recent(Option<(Look, Instant)>);

impl Recent {
    pub(crate) fn new(look: Look, at: Instant) -> Self {
        Self(Some((look, at)))
    }

    /// The look, if it is not too old and found somebody. That nobody is ready has to be seen again: runs which that round
    /// claimed may have enqueued others since.
    pub(crate) fn look(self) -> Option<Look> {
        let Self(kept) = self;
        kept.filter(|(look, at)| look.found_anybody() && at.elapsed() <= RECENT)
            .map(|(look, _)| look)
    }
}

/// How many sequences in a row have served nobody.
///
/// As long as these are less than a cycle, another worker may simply have been faster, or the block too short to reach
/// the ready tenants' slots. A whole cycle passes each of them, so whoever is ready cannot be served now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fruitless {
    sequences: u64,
}

impl Fruitless {
    /// Takes a block into account, and answers whether a whole cycle has served nobody. Then the count starts again.
    pub(crate) fn is_cycle_after(&mut self, length: u32, ran: u64, cycle_length: u32) -> bool {
        if ran > 0 {
            *self = Self::default();
            return false;
        }
        self.sequences = self.sequences.saturating_add(u64::from(length));
        let over = self.sequences >= u64::from(cycle_length);
        if over {
            *self = Self::default();
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenhand_policy::TenantFairnessWeight;
    use evenhand_store::Timestamp;

    const SECOND: Duration = Duration::from_secs(1);

    fn tenant(name: &str) -> TenantId {
        TenantId::try_from(name).unwrap()
    }

    fn policy() -> WeightedFairnessPolicy {
        let weights = [("a", 1), ("b", 3)]
            .map(|(name, weight)| TenantFairnessWeight::new(tenant(name), weight).unwrap());
        WeightedFairnessPolicy::new("s".parse().unwrap(), weights).unwrap()
    }

    fn look(ready: &[&str], next_ready_at: Option<i64>) -> Look {
        let ready = ready.iter().map(|name| tenant(name)).collect();
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let answer = ReadyTenants::new(ready, next_ready_at.map(at), at(10_000));
        Look::new(answer, &policy())
    }

    #[test]
    fn tenants_that_the_policy_does_not_know_are_not_ready() {
        assert!(!look(&["c"], None).found_anybody());
        assert!(look(&["a", "c"], None).found_anybody());
    }

    #[test]
    fn block_is_as_long_as_the_permits_suffice_and_the_store_likes() {
        let most = ReservationCount::MAX;
        assert_eq!(look(&["a"], None).block_length(&policy(), 2, most).get(), 8);
        let all = look(&["a", "b"], None);
        assert_eq!(all.block_length(&policy(), 5, most).get(), 5);
        let three = ReservationCount::new(3).unwrap();
        assert_eq!(all.block_length(&policy(), 5, three).get(), 3);
    }

    #[test]
    fn wait_ends_when_the_next_run_becomes_ready() {
        assert_eq!(look(&[], None).wait(SECOND), SECOND);
        assert_eq!(look(&[], Some(10_250)).wait(SECOND), SECOND / 4);
        assert_eq!(look(&[], Some(19_000)).wait(SECOND), SECOND);
        assert_eq!(look(&[], Some(9_000)).wait(SECOND), SECOND);
        assert_eq!(look(&[], Some(10_000)).wait(SECOND), SECOND);
    }

    #[test]
    fn cycle_that_served_nobody_is_noticed_across_blocks() {
        let mut fruitless = Fruitless::default();
        assert!(!fruitless.is_cycle_after(3, 0, 4));
        assert!(!fruitless.is_cycle_after(9, 1, 4));
        assert!(!fruitless.is_cycle_after(3, 0, 4));
        assert!(fruitless.is_cycle_after(1, 0, 4));
        assert!(!fruitless.is_cycle_after(3, 0, 4));
    }
}
