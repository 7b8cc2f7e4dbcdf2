//! Which shard of its pool a worker serves, and how it moves from one to the next.

use std::sync::Arc;

use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{ReservationCount, ReservationStore, StoreErrorKind};
use tokio::sync::watch;

use crate::look::{Fruitless, Look, Recent};
use crate::order::Order;
use crate::round::ClaimedRound;

/// The shard that a worker serves now.
#[derive(Debug)]
pub(crate) struct Serving<S> {
    order: Arc<Order<Arc<S>>>,
    // Tells the background.
    served: watch::Sender<Arc<WeightedFairnessPolicy>>,
    // The store has said that this is not the pool's active shard.
    doubtful: bool,
    fruitless: Fruitless,
    served_nobody: bool,
    recent: Recent,
    length_max: ReservationCount,
}

impl<S: ReservationStore> Serving<S> {
    /// Serves the shard of this order; `active` says whether it is known to be the active one of its pool.
    pub(crate) fn new(order: Order<Arc<S>>, active: bool) -> Self {
        Self {
            served: watch::Sender::new(Arc::clone(order.policy())),
            order: Arc::new(order),
            doubtful: !active,
            fruitless: Fruitless::default(),
            served_nobody: false,
            recent: Recent::default(),
            length_max: ReservationCount::MAX,
        }
    }

    pub(crate) fn order(&self) -> &Arc<Order<Arc<S>>> {
        &self.order
    }

    pub(crate) fn shard(&self) -> &SchedulerShardId {
        self.order.shard()
    }

    /// Follows which policy is served.
    pub(crate) fn served(&self) -> watch::Receiver<Arc<WeightedFairnessPolicy>> {
        self.served.subscribe()
    }

    /// Whether to ask for the pool's active shard before anything else.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Takes note of a refusal, and answers whether it says that another shard is to be served.
    pub(crate) fn doubts_after(&mut self, kind: StoreErrorKind) -> bool {
        let elsewhere = matches!(kind, StoreErrorKind::Retired | StoreErrorKind::Pending);
        self.doubtful |= elsewhere;
        elsewhere
    }

    /// Serves the shard of this policy from now on. Answers `false` if it was served before.
    pub(crate) fn move_over(&mut self, policy: WeightedFairnessPolicy) -> bool {
        self.doubtful = false;
        if policy.shard() == self.shard() {
            return false;
        }
        let order = self.order.succeeded_by(policy);
        self.served.send_replace(Arc::clone(order.policy()));
        self.order = Arc::new(order);
        self.fruitless = Fruitless::default();
        self.served_nobody = false;
        self.recent = Recent::default();
        self.length_max = ReservationCount::MAX;
        true
    }

    /// How many sequences the next round is over.
    pub(crate) fn block_length(
        &self,
        look: &Look,
        permits: u32,
        length_max: ReservationCount,
    ) -> ReservationCount {
        let length_max = length_max.min(self.length_max);
        look.block_length(self.order.policy(), permits, length_max)
    }

    /// A block of this length does not fit before the end of the range, a shorter one may. Answers `false` if there is
    /// no shorter one.
    pub(crate) fn shorten_blocks(&mut self, length: ReservationCount) -> bool {
        match ReservationCount::new(length.get() / 2) {
            Ok(shorter) => {
                self.length_max = shorter;
                true
            }
            Err(_) => false,
        }
    }

    /// Takes a round of its own into account.
    pub(crate) fn count_round(&mut self, round: &ClaimedRound) {
        let cycle_length = self.order.policy().cycle_length();
        let length = round.block.length();
        self.served_nobody = self
            .fruitless
            .is_cycle_after(length, round.ran(), cycle_length);
    }

    /// Keeps the look that the store told along with a round.
    pub(crate) fn keep_look(&mut self, round: &mut ClaimedRound) {
        let told = round.ready.take();
        let told = told.filter(|_| round.block.shard() == self.shard() && round.ran() > 0);
        self.recent = told.map_or_else(Recent::default, |(ready, at)| {
            Recent::new(Look::new(ready, self.order.policy()), at)
        });
    }

    /// A look that is as good as a new one, if there is one. It is used once.
    pub(crate) fn recent_look(&mut self) -> Option<Look> {
        core::mem::take(&mut self.recent).look()
    }

    /// Whether a whole cycle's worth of sequences had served nobody when the store was asked who is ready.
    ///
    /// If somebody is all the same, nobody can serve them now. If not, another worker has.
    pub(crate) fn has_served_nobody(&mut self) -> bool {
        core::mem::take(&mut self.served_nobody)
    }
}
