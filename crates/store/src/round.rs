//! Rounds: a block of sequences, and the runs that are claimed against them in one call.

use core::time::Duration;

use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};

use crate::{
    Claim, ClaimRequest, ClaimedRun, LeaseDuration, Reservation, ReservationCount, RunQueue,
    StoreError, StoreErrorKind, WorkerName,
};

/// Limits of a round beside the slots that the block gave each tenant. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundLimits {
    /// How many runs of one team the round claims at most, across tenants.
    pub team_window: Option<u32>,
    /// How much the claimed runs may cost together, in micros.
    pub capacity_micros: Option<u64>,
}

impl RoundLimits {
    /// The same limits with a window for each team.
    #[must_use]
    pub fn with_team_window(mut self, runs: u32) -> Self {
        self.team_window = Some(runs);
        self
    }

    /// The same limits with a capacity.
    #[must_use]
    pub fn with_capacity_micros(mut self, micros: u64) -> Self {
        self.capacity_micros = Some(micros);
        self
    }

    /// Whether there is any limit.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Asks for runs against all sequences of a reservation, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RoundRequest {
    /// The policy of the shard that it was reserved in.
    pub policy: WeightedFairnessPolicy,
    /// The reservation's first sequence.
    pub first_sequence: u64,
    /// The reservation's length.
    pub count: ReservationCount,
    /// Who asks.
    pub worker: WorkerName,
    /// How long the leases last.
    pub lease: LeaseDuration,
    /// How many runs the round claims at most: the worker's free permits.
    pub runs_max: u32,
    /// Further limits.
    pub limits: RoundLimits,
}

impl RoundRequest {
    /// A round over `reservation` of the shard that `policy` names, of at most `runs_max` runs and without other limits.
    pub fn new(
        policy: &WeightedFairnessPolicy,
        reservation: &Reservation,
        worker: WorkerName,
        lease: LeaseDuration,
        runs_max: u32,
    ) -> Self {
        Self {
            policy: policy.clone(),
            first_sequence: reservation.first_sequence,
            count: reservation.count,
            worker,
            lease,
            runs_max,
            limits: RoundLimits::default(),
        }
    }

    /// The same round with further limits.
    #[must_use]
    pub fn within(mut self, limits: RoundLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Whose order.
    pub fn shard(&self) -> &SchedulerShardId {
        self.policy.shard()
    }

    /// The sequences of the block, in order.
    pub fn sequences(&self) -> core::ops::RangeInclusive<u64> {
        let more = u64::from(self.count.get()) - 1;
        self.first_sequence..=self.first_sequence.saturating_add(more)
    }
}

/// How the sequences of a block ended. Those that are named nowhere here were idle.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Round {
    /// The runs that were claimed for the caller, by sequence.
    pub claimed: Vec<ClaimedRun>,
    /// The sequences whose tenant had ready runs that could not be claimed, or could not be looked at.
    pub contended: Vec<u64>,
    /// The sequences that were claimed before, and whose run has ended since, or is another worker's.
    pub moved_on: Vec<u64>,
}

impl Round {
    /// A round of a store.
    pub fn new(claimed: Vec<ClaimedRun>, contended: Vec<u64>, moved_on: Vec<u64>) -> Self {
        Self {
            claimed,
            contended,
            moved_on,
        }
    }
}

/// A round made of one claim a sequence, for stores that have nothing better.
pub(crate) async fn one_by_one<Q: RunQueue + ?Sized>(
    queue: &Q,
    request: &RoundRequest,
) -> Result<Round, StoreError> {
    if !request.limits.is_none() {
        return Err(StoreError::new(
            StoreErrorKind::Unsupported,
            "this store claims one sequence at a time, which knows no limits of a round",
        ));
    }
    let mut round = Round::default();
    for sequence in request.sequences() {
        let (worker, lease) = (request.worker.clone(), request.lease);
        let claim = ClaimRequest::new(&request.policy, sequence, worker, lease);
        match queue.claim(&claim).await {
            Ok(Claim::Ran(claimed)) if fits(&round, request) => round.claimed.push(*claimed),
            Ok(Claim::Ran(claimed)) => {
                // Somebody became ready since the look, and no permit is left: for others to take at once.
                queue.release(&claimed.lease, Duration::ZERO).await?;
                round.contended.push(sequence);
            }
            Ok(Claim::Idle) => {}
            Ok(Claim::Contended) => round.contended.push(sequence),
            Err(error) if error.kind() == StoreErrorKind::LeaseLost => {
                round.moved_on.push(sequence);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(round)
}

fn fits(round: &Round, request: &RoundRequest) -> bool {
    u32::try_from(round.claimed.len()).is_ok_and(|runs| runs < request.runs_max)
}
