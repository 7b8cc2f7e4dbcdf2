//! Blocks whose workers are gone, between those who find them and the one who settles them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenhand_policy::SchedulerShardId;
use tokio::sync::Notify;

use crate::round::Block;

/// The lost blocks of the shard that a worker serves, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LostBlocks {
    found: Mutex<Found>,
    any: Notify,
}

#[derive(Debug, Default)]
struct Found {
    blocks: VecDeque<Lost>,
    // What was answered for since the store was asked last: its answer may be older.
    settled: BTreeSet<u64>,
}

#[derive(Debug)]
struct Lost {
    block: Block,
    // Nobody settled it between two passes.
    overdue: bool,
}

impl LostBlocks {
    /// The store is about to be asked.
    pub(crate) fn begin_pass(&self) {
        self.lock().settled.clear();
    }

    /// The store's answer. Blocks that it does not name any more were settled by others.
    pub(crate) fn end_pass(&self, blocks: impl IntoIterator<Item = Block>) {
        let mut found = self.lock();
        let before: BTreeSet<u64> = found.sequences().collect();
        let Found {
            blocks: all,
            settled,
        } = &mut *found;
        *all = blocks
            .into_iter()
            .filter(|block| !settled.contains(&block.first_sequence()))
            .map(|block| Lost {
                overdue: before.contains(&block.first_sequence()),
                block,
            })
            .collect();
        if !all.is_empty() {
            self.any.notify_one();
        }
    }

    /// Takes the oldest block of the shard if it is overdue, or if it `suits`.
    pub(crate) fn take(
        &self,
        shard: &SchedulerShardId,
        suits: impl FnOnce(&Block) -> bool,
    ) -> Option<Block> {
        let mut found = self.lock();
        // What was lost in a shard that is retired stays so.
        found.blocks.retain(|lost| lost.block.shard() == shard);
        let oldest = found.blocks.front()?;
        if !oldest.overdue && !suits(&oldest.block) {
            return None;
        }
        found.blocks.pop_front().map(|lost| lost.block)
    }

    /// This worker knows how the block's sequences ended, so it must not ask again: it would be given the runs that it
    /// works on already.
    pub(crate) fn settled(&self, block: &Block) {
        let mut found = self.lock();
        let first = block.first_sequence();
        found
            .blocks
            .retain(|lost| lost.block.first_sequence() != first);
        found.settled.insert(first);
    }

    /// Resolves when some were found.
    pub(crate) async fn any(&self) {
        self.any.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        // Nothing panics between two changes that belong together.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Found {
    fn sequences(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.iter().map(|lost| lost.block.first_sequence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use evenhand_policy::{TenantFairnessWeight, WeightedFairnessPolicy};
    use evenhand_store::{Reservation, ReservationCount, ReservationId, Timestamp};
    use tokio::time::Instant;

    fn shard(name: &str) -> SchedulerShardId {
        name.parse().unwrap()
    }

    fn block(of_shard: &str, first_sequence: u64) -> Block {
        let weight = TenantFairnessWeight::new("a".parse().unwrap(), 1).unwrap();
        let policy = WeightedFairnessPolicy::new(shard(of_shard), [weight]).unwrap();
        let (now, one) = (Timestamp::UNIX_EPOCH, ReservationCount::ONE);
        let id = ReservationId::mint(now);
        let reservation = Reservation::new(id, first_sequence, one, now, now);
        Block::new(Arc::new(policy), reservation, Instant::now())
    }

    fn pass(lost: &LostBlocks, sequences: &[u64]) {
        lost.begin_pass();
        lost.end_pass(sequences.iter().map(|first| block("s", *first)));
    }

    fn take(lost: &LostBlocks, suits: bool) -> Option<u64> {
        lost.take(&shard("s"), |_| suits)
            .map(|block| block.first_sequence())
    }

    #[test]
    fn block_that_does_not_suit_waits_until_it_is_found_again() {
        let lost = LostBlocks::default();
        pass(&lost, &[3, 5]);
        assert_eq!(take(&lost, false), None);
        assert_eq!(take(&lost, true), Some(3));
        pass(&lost, &[5, 7]);
        assert_eq!(take(&lost, false), Some(5));
        assert_eq!(take(&lost, false), None);
    }

    #[test]
    fn block_that_is_not_found_again_was_settled_by_others() {
        let lost = LostBlocks::default();
        pass(&lost, &[3]);
        pass(&lost, &[]);
        assert_eq!(take(&lost, true), None);
    }

    #[test]
    fn block_that_was_settled_here_is_not_taken_whatever_an_older_answer_says() {
        let lost = LostBlocks::default();
        pass(&lost, &[3]);
        lost.settled(&block("s", 3));
        assert_eq!(take(&lost, true), None);
        lost.begin_pass();
        lost.settled(&block("s", 5));
        lost.end_pass([block("s", 5), block("s", 7)]);
        assert_eq!(take(&lost, true), Some(7));
        assert_eq!(take(&lost, true), None);
    }

    #[test]
    fn blocks_of_a_shard_that_is_not_served_any_more_are_forgotten() {
        let lost = LostBlocks::default();
        lost.begin_pass();
        lost.end_pass([block("former", 3), block("s", 9)]);
        assert_eq!(take(&lost, true), Some(9));
        assert_eq!(take(&lost, true), None);
    }
}
