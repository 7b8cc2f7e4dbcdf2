//! Smooth weighted round robin, over classes of equal weight.
//!
//! The rule: in each step every tenant's credit grows by its weight, the largest credit wins, a tie
//! goes to the bytewise smallest tenant, and the winner pays the total of all weights. After as
//! many steps as the total, all credits are back at 0 and the order repeats; that is the cycle.
//! (The rule is the one of nginx's upstream balancer.)
//!
//! Tenants of equal weight win in order, over and over: their credits are equal but for those who
//! have already won in this lap and are one total behind. So each *class* of equal weights needs
//! one credit, that of its *head* (its first tenant that has not yet won in this lap), and only
//! heads compete. A cycle has at most 90 classes, because 1 + 2 + .. + 91 exceeds 4,096.
//!
//! # Keys
//!
//! A head's credit and index are one integer, `credit * 1024 + (1023 - index)`, so that the largest
//! key is the largest credit and, among equals, the smallest tenant: one branch-free pass finds the
//! winner.
//!
//! Keys fit an `i32`. With `W` the total and `n` the number of tenants, the credits sum to `W` just
//! before each selection, so the winner's is positive, and no credit ever falls to `-W`. Upwards,
//! let `B(m)` be the largest sum that `m` credits ever reach just before a selection; `B(n) = W`.
//! Take `m < n` tenants. Steps won by one of them do not raise their sum (they gain at most `W`
//! together and pay `W`), so look at the last step won by somebody else, if there was one: the
//! winner's credit was at least their mean, so their sum then was at most `B(m+1) * m/(m+1)`, and
//! they have gained at most `W` since. Hence `B(m)/m <= B(m+1)/(m+1) + W/m`, and
//! `B(1) <= W * (1/n + 1 + 1/2 + .. + 1/(n-1)) < 7.6 * W`. So every key is within
//! 8 * 4096 * 1024 = 2^25.

use alloc::vec;
use alloc::vec::Vec;

/// The low bits of a key hold a tenant's index, inverted.
const INDEX_MASK: u16 = 1023;
const INDEX_BITS: u32 = 10;

/// The cycle as compiled: which tenant owns each slot, and which slots each tenant owns.
///
/// Tenants are their indices in bytewise order.
#[derive(Debug)]
pub(crate) struct Cycle {
    owners: Vec<u16>,
    /// All slots, grouped by owner, ascending within each group.
    slots: Vec<u16>,
    /// Where each owner's group starts in `slots`, and at last where the last one ends.
    starts: Vec<u16>,
}

impl Cycle {
    /// Compiles the cycle of 1 to 1,024 weights of 1 to 1,024 each, 4,096 in total at most.
    ///
    /// # Panics
    ///
    /// If some tenant's slots are not its weight, which would be a bug in here: no such cycle may
    /// ever be used.
    pub(crate) fn compile(weights: &[u16]) -> Self {
        let owners = smooth_weighted_round_robin(weights);
        let counts = counts(&owners, weights.len());
        assert!(
            counts == weights,
            "the cycle gives some tenant another number of slots than its weight"
        );
        let (slots, starts) = slots_by_owner(&owners, &counts);
        Self {
            owners,
            slots,
            starts,
        }
    }

    /// The owner of each slot, in slot order.
    pub(crate) fn owners(&self) -> &[u16] {
        &self.owners
    }

    /// The slots of one tenant, ascending; empty for an index that is no tenant's.
    pub(crate) fn slots(&self, tenant: usize) -> &[u16] {
        let bound = |index: usize| {
            self.starts
                .get(index)
                .map_or(self.slots.len(), |start| usize::from(*start))
        };
        self.slots
            .get(bound(tenant)..bound(tenant.saturating_add(1)))
            .unwrap_or_default()
    }
}

/// A tenant's place: its class, and who heads the class once the tenant has won.
#[derive(Clone, Copy, Default)]
struct Place {
    class: u16,
    successor: u16,
}

/// The classes of equal weight.
struct Classes {
    /// One key a class, see the module.
    keys: Vec<i32>,
    /// What each key gains in a step: the weight of the class, as a credit.
    gains: Vec<i32>,
    /// One place a tenant.
    places: Vec<Place>,
}

impl Classes {
    #[expect(
        clippy::indexing_slicing,
        reason = "tenants are indices into weights, which is as long as places"
    )]
    fn new(weights: &[u16]) -> Self {
        let mut order: Vec<u16> = (0..=INDEX_MASK).take(weights.len()).collect();
        order.sort_by_key(|tenant| weights[usize::from(*tenant)]);
        let mut classes = Self {
            keys: Vec::new(),
            gains: Vec::new(),
            places: vec![Place::default(); weights.len()],
        };
        let same_weight = |a: &u16, b: &u16| weights[usize::from(*a)] == weights[usize::from(*b)];
        for (class, members) in (0..).zip(order.chunk_by(same_weight)) {
            let successors = members.iter().cycle().skip(1);
            for (tenant, successor) in members.iter().zip(successors) {
                classes.places[usize::from(*tenant)] = Place {
                    class,
                    successor: *successor,
                };
            }
            let head = members[0];
            classes.keys.push(i32::from(inverted(head)));
            classes.gains.push(credit(weights[usize::from(head)]));
        }
        classes
    }

    /// One step's gains; answers the largest key.
    fn advance(&mut self) -> i32 {
        let mut largest = i32::MIN;
        for (key, gain) in self.keys.iter_mut().zip(&self.gains) {
            #[expect(
                clippy::arithmetic_side_effects,
                reason = "keys are bounded, see the module"
            )]
            {
                *key += *gain;
            }
            largest = largest.max(*key);
        }
        largest
    }
}

fn smooth_weighted_round_robin(weights: &[u16]) -> Vec<u16> {
    let total: u16 = weights.iter().sum();
    let mut classes = Classes::new(weights);
    (0..total)
        .map(|_| {
            let key = classes.advance();
            let winner = index(key);
            #[expect(
                clippy::indexing_slicing,
                reason = "the winner is the head of a class, so it has a place and a key"
            )]
            {
                let Place { class, successor } = classes.places[usize::from(winner)];
                // Only a class that starts a new lap falls behind by the total: until then its new
                // head has not won yet.
                let lap = if successor <= winner {
                    credit(total)
                } else {
                    0
                };
                classes.keys[usize::from(class)] = key
                    .wrapping_sub(i32::from(inverted(winner)))
                    .wrapping_add(i32::from(inverted(successor)))
                    .wrapping_sub(lap);
            }
            winner
        })
        .collect()
}

/// An amount of credit as it is added to a key.
fn credit(amount: u16) -> i32 {
    i32::from(amount) << INDEX_BITS
}

/// `1023 - index`.
fn inverted(index: u16) -> u16 {
    !index & INDEX_MASK
}

/// The index in a key.
fn index(key: i32) -> u16 {
    let [low, high, ..] = key.to_le_bytes();
    inverted(u16::from_le_bytes([low, high]))
}

/// How many slots each tenant has, counted in the cycle itself.
fn counts(owners: &[u16], tenants: usize) -> Vec<u16> {
    let mut counts = vec![0_u16; tenants];
    for owner in owners {
        if let Some(count) = counts.get_mut(usize::from(*owner)) {
            *count = count.saturating_add(1);
        }
    }
    counts
}

/// Groups slots by owner: the slots, and where each group starts.
#[expect(
    clippy::indexing_slicing,
    reason = "the counts were counted in these owners, so all positions exist"
)]
fn slots_by_owner(owners: &[u16], counts: &[u16]) -> (Vec<u16>, Vec<u16>) {
    let mut starts = Vec::with_capacity(counts.len().saturating_add(1));
    let mut end = 0_u16;
    for count in counts {
        starts.push(end);
        end = end.saturating_add(*count);
    }
    let mut slots = vec![0; owners.len()];
    let mut next = starts.clone();
    for (slot, owner) in (0..).zip(owners) {
        let position = &mut next[usize::from(*owner)];
        slots[usize::from(*position)] = slot;
        *position = position.saturating_add(1);
    }
    starts.push(end);
    (slots, starts)
}
