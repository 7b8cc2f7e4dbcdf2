//! A block of sequences, and the runs that are claimed against it.

use core::fmt;

use std::sync::Arc;

use evenhand_policy::{SchedulerShardId, TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    LeaseDuration, ReadyTenants, Reservation, ReservationCount, ReservationStore, RoundLimits,
    RoundRequest, RunQueue, StoreError, Timestamp, WorkerName,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::backoff::{RetryPolicy, retry};
use crate::execute::{Claimed, settle_time};
use crate::lease::ClockReading;
use crate::metrics;
use crate::order::{Order, TickError};

/// A reserved block, and what is known of the store's clock since it was.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    policy: Arc<WeightedFairnessPolicy>,
    reservation: Reservation,
    reading: ClockReading,
}

impl Block {
    /// A block of the shard that `policy` names, in an answer to a request that was sent at `asked_at`.
    pub(crate) fn new(
        policy: Arc<WeightedFairnessPolicy>,
        reservation: Reservation,
        asked_at: Instant,
    ) -> Self {
        Self {
            policy,
            reservation,
            reading: ClockReading::new(asked_at, reservation.store_time),
        }
    }

    pub(crate) fn policy(&self) -> &WeightedFairnessPolicy {
        &self.policy
    }

    pub(crate) fn shard(&self) -> &SchedulerShardId {
        self.policy.shard()
    }

    /// The sequences, in order.
    pub(crate) fn sequences(&self) -> core::ops::RangeInclusive<u64> {
        self.reservation.sequences()
    }

    /// The store's clock when it answered the reservation.
    pub(crate) fn store_time(&self) -> Timestamp {
        self.reservation.store_time
    }

    pub(crate) fn first_sequence(&self) -> u64 {
        self.reservation.first_sequence
    }

    pub(crate) fn length(&self) -> u32 {
        self.reservation.count.get()
    }

    /// How many of its slots are those of the tenants that `is_ready` names.
    pub(crate) fn slots_of(&self, is_ready: impl Fn(&TenantId) -> bool) -> u64 {
        let cycle_length = self.policy.cycle_length();
        let tenants = self.policy.tenants().iter();
        let per_cycle: u64 = tenants
            .filter(|weighted| is_ready(weighted.tenant()))
            .map(|weighted| u64::from(weighted.weight()))
            .sum();
        let rest = self.reservation.sequences();
        let in_rest = rest
            .take(usize::try_from(self.length() % cycle_length).unwrap_or(usize::MAX))
            .filter(|sequence| is_ready(self.policy.tenant_for_sequence(*sequence)))
            .count();
        let in_cycles = u64::from(self.length() / cycle_length).saturating_mul(per_cycle);
        in_cycles.saturating_add(u64::try_from(in_rest).unwrap_or(u64::MAX))
    }
}

/// A block whose sequences have all ended, or begun a run.
pub(crate) struct ClaimedRound {
    pub(crate) block: Block,
    pub(crate) runs: Vec<Claimed>,
    /// The sequences whose tenant had ready runs that could not be claimed.
    pub(crate) contended: Vec<u64>,
    /// The sequences against which a run was claimed before, and not by this worker or too long ago.
    pub(crate) moved_on: Vec<u64>,
    /// Who was ready when the round was answered, and when that was, where the store told it along.
    pub(crate) ready: Option<(ReadyTenants, Instant)>,
}

impl ClaimedRound {
    /// How many sequences ran a run for this worker.
    pub(crate) fn ran(&self) -> u64 {
        count(self.runs.len())
    }

    /// How many sequences could not serve their tenant.
    pub(crate) fn contended(&self) -> u64 {
        count(self.contended.len())
    }

    /// How many sequences had been used before.
    pub(crate) fn moved_on(&self) -> u64 {
        count(self.moved_on.len())
    }

    /// How many sequences found their tenant without ready runs.
    pub(crate) fn idle(&self) -> u64 {
        let others = [self.ran(), self.contended(), self.moved_on()];
        others
            .iter()
            .fold(u64::from(self.block.length()), |left, other| {
                left.saturating_sub(*other)
            })
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// How a round ended.
pub(crate) enum Rounded {
    /// It was not begun, because the drain was first.
    Unbegun,
    /// No block was reserved, or nobody knows whether it was.
    NotReserved(TickError),
    /// The block is there and has no end on record: it is lost until somebody settles it.
    NotClaimed(Block, StoreError),
    /// All is well.
    Claimed(ClaimedRound),
}

/// Makes the rounds of one worker.
pub(crate) struct Rounds<S> {
    pub(crate) store: Arc<S>,
    pub(crate) worker: WorkerName,
    pub(crate) lease: LeaseDuration,
    pub(crate) limits: RoundLimits,
    pub(crate) retry: RetryPolicy,
}

impl<S> fmt::Debug for Rounds<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rounds")
            .field("worker", &self.worker)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl<S: ReservationStore + RunQueue> Rounds<S> {
    /// Reserves a block under one new id, and then claims at most `runs_max` runs against its sequences.
    ///
    /// The length is fixed before the call, so that the same request can be sent until it is answered.
    pub(crate) async fn reserve_and_claim(
        &self,
        order: &Order<Arc<S>>,
        length: ReservationCount,
        runs_max: u32,
        drain: &CancellationToken,
    ) -> Rounded {
        if drain.is_cancelled() {
            return Rounded::Unbegun;
        }
        match order.reserve(order.mint_request(length), drain).await {
            Ok(reserved) => {
                let block = Block {
                    policy: Arc::clone(order.policy()),
                    reservation: reserved.reservation,
                    reading: reserved.reading,
                };
                self.claim(block, runs_max, drain).await
            }
            Err(error) => Rounded::NotReserved(error),
        }
    }

    /// Claims at most `runs_max` runs against the sequences of a block, whoever reserved it.
    pub(crate) async fn claim(
        &self,
        block: Block,
        runs_max: u32,
        drain: &CancellationToken,
    ) -> Rounded {
        let span = tracing::debug_span!(
            "claim",
            shard = %block.shard(),
            first_sequence = block.first_sequence(),
            count = block.length(),
            runs_max,
            ran = tracing::field::Empty,
        );
        let asking = self.ask(block, runs_max, drain);
        let rounded = asking.instrument(span.clone()).await;
        if let Rounded::Claimed(round) = &rounded {
            span.record("ran", round.ran());
        }
        rounded
    }

    async fn ask(&self, block: Block, runs_max: u32, drain: &CancellationToken) -> Rounded {
        let (worker, lease) = (self.worker.clone(), self.lease);
        let request = RoundRequest::new(&block.policy, &block.reservation, worker, lease, runs_max)
            .within(self.limits);
        let asked = retry(self.retry, settle_time(drain), || {
            self.store.claim_round(&request)
        })
        .await;
        metrics::retried("claim", asked.retries);
        let round = match asked.result {
            Ok(round) => round,
            Err(error) => return Rounded::NotClaimed(block, error),
        };
        let claimed = round.claimed.into_iter();
        let (lease, asked_at) = (self.lease, asked.asked_at);
        let runs = claimed.map(|run| Claimed::new(run, lease, asked_at, block.reading));
        Rounded::Claimed(ClaimedRound {
            runs: runs.collect(),
            contended: round.contended,
            moved_on: round.moved_on,
            ready: round.ready.map(|ready| (ready, Instant::now())),
            block,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenhand_policy::TenantFairnessWeight;
    use evenhand_store::{ReservationId, Timestamp};

    #[test]
    fn slots_of_a_block_are_those_that_its_sequences_name() {
        let weights = [("a", 3), ("b", 1), ("c", 3)].map(|(tenant, weight)| {
            TenantFairnessWeight::new(tenant.parse().unwrap(), weight).unwrap()
        });
        let policy = WeightedFairnessPolicy::new("s".parse().unwrap(), weights).unwrap();
        for (first, count) in [(0, 1), (5, 7), (3, 20), (6, 14), (2, 6)] {
            let now = Timestamp::UNIX_EPOCH;
            let count = ReservationCount::new(count).unwrap();
            let reservation = Reservation::new(ReservationId::mint(now), first, count, now, now);
            let block = Block {
                policy: Arc::new(policy.clone()),
                reservation,
                reading: ClockReading::new(origin(), now),
            };
            let is_ready = |tenant: &TenantId| tenant.as_str() != "c";
            let one_by_one = reservation
                .sequences()
                .filter(|sequence| is_ready(policy.tenant_for_sequence(*sequence)));
            let expected = u64::try_from(one_by_one.count()).unwrap();
            assert_eq!(block.slots_of(is_ready), expected, "{first} {count:?}");
        }
    }

    fn origin() -> Instant {
        Instant::now()
    }
}
