//! What can be read off a compiled cycle: the starvation bound, and how long a block may be.

use alloc::vec::Vec;

/// The longest block, in sequences.
pub const BLOCK_LENGTH_MAX: u32 = 1 << 20;

/// How long one tenant can wait for its next selection, as computed from the cycle.
///
/// It counts sequences of the shard's order: from any sequence that selected the tenant, the next
/// one that does is at most this many further on. It says nothing about time, nor about whether the
/// tenant's run then succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StarvationBound(u32);

impl StarvationBound {
    /// The bound of a tenant with these slots, ascending and at least one, in a cycle of this
    /// length.
    pub(crate) fn of_slots(slots: &[u16], cycle_length: u32) -> Self {
        let within = slots
            .array_windows()
            .map(|[from, to]| u32::from(from.abs_diff(*to)));
        let span = slots
            .first()
            .zip(slots.last())
            .map(|(first, last)| u32::from(first.abs_diff(*last)));
        let around_the_end = span.map(|span| cycle_length.saturating_sub(span));
        Self(within.chain(around_the_end).max().unwrap_or(cycle_length))
    }

    /// The largest number of reservations, the selecting one included, until the tenant is selected
    /// again.
    ///
    /// At least 1; exactly the cycle's length for a tenant of weight 1.
    pub fn maximum_reservations_until_selection(self) -> u32 {
        self.0
    }
}

/// The largest length such that no window of the endless cycle holds more than `permits` of the
/// slots in `ready`.
///
/// A window holds too many exactly if it reaches from some ready slot to the one `permits` places
/// further on, so the answer is the least such distance.
pub(crate) fn block_length(ready: &SlotSet, permits: u32, cycle_length: u32) -> u32 {
    let slots = ready.to_vec();
    let Some(ready_per_cycle) =
        core::num::NonZeroU64::new(u64::try_from(slots.len()).unwrap_or(u64::MAX))
    else {
        return BLOCK_LENGTH_MAX;
    };
    let whole_cycles = u64::from(permits) / ready_per_cycle;
    let steps = usize::try_from(u64::from(permits) % ready_per_cycle).unwrap_or(0);
    let remainder = if steps == 0 {
        0
    } else {
        least_distance(&slots, steps, cycle_length)
    };
    let length = whole_cycles
        .saturating_mul(u64::from(cycle_length))
        .saturating_add(u64::from(remainder));
    u32::try_from(length).map_or(BLOCK_LENGTH_MAX, |length| length.min(BLOCK_LENGTH_MAX))
}

/// The least distance from a slot to the one `steps` places further on, around the end of the
/// cycle, for `0 < steps < slots.len()`.
fn least_distance(slots: &[u16], steps: usize, cycle_length: u32) -> u32 {
    let later = slots.iter().cycle().skip(steps);
    let distance = |(from, to): (&u16, &u16)| {
        let apart = u32::from(from.abs_diff(*to));
        if from < to {
            apart
        } else {
            cycle_length.saturating_sub(apart)
        }
    };
    slots.iter().zip(later).map(distance).min().unwrap_or(0)
}

const WORDS: usize = 64;

/// A set of slots: one bit for each of the 4,096 that a cycle may have.
pub(crate) struct SlotSet([u64; WORDS]);

impl SlotSet {
    pub(crate) fn new() -> Self {
        Self([0; WORDS])
    }

    pub(crate) fn insert(&mut self, slots: &[u16]) {
        for slot in slots {
            let (word, bit) = (usize::from(*slot) / 64, u32::from(*slot) % 64);
            if let Some(word) = self.0.get_mut(word) {
                *word |= 1_u64.rotate_left(bit);
            }
        }
    }

    /// The slots, ascending.
    fn to_vec(&self) -> Vec<u16> {
        let mut slots = Vec::new();
        for (first, word) in (0_u16..).step_by(64).zip(self.0) {
            let mut rest = word;
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest ^= 1_u64.rotate_left(bit);
                slots.push(first.saturating_add(u16::try_from(bit).unwrap_or(0)));
            }
        }
        slots
    }
}
