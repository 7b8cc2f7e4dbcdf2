//! Rounds: a block of sequences, and the runs that are claimed against them in one call.

use core::time::Duration;

use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};

use crate::{
    AttemptResult, Claim, ClaimRequest, ClaimedRun, LeaseDuration, ReadyTenants, Reservation,
    ReservationCount, RunQueue, SequenceOutcome, SequenceRecord, StoreError, StoreErrorKind,
    WorkerName,
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
///
/// Rounds are equal when they say the same of their sequences; what is ready beside them is of the moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Round {
    /// The runs that were claimed for the caller, by sequence.
    pub claimed: Vec<ClaimedRun>,
    /// The sequences whose tenant had ready runs that could not be claimed, or could not be looked at.
    pub contended: Vec<u64>,
    /// The sequences that were claimed before, and whose attempt has ended since, or is another worker's.
    pub moved_on: Vec<u64>,
    /// Which tenants had ready runs when the round had been claimed, where the store told it along; it spares the worker
    /// a [look](RunQueue::ready_tenants).
    pub ready: Option<ReadyTenants>,
}

impl Round {
    /// A round of a store.
    pub fn new(claimed: Vec<ClaimedRun>, contended: Vec<u64>, moved_on: Vec<u64>) -> Self {
        Self {
            claimed,
            contended,
            moved_on,
            ready: None,
        }
    }

    /// The same round, with what was ready when it had been claimed.
    #[must_use]
    pub fn with_ready(mut self, ready: ReadyTenants) -> Self {
        self.ready = Some(ready);
        self
    }
}

impl PartialEq for Round {
    fn eq(&self, other: &Self) -> bool {
        (&self.claimed, &self.contended, &self.moved_on)
            == (&other.claimed, &other.contended, &other.moved_on)
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
    let (shard, first) = (request.shard(), request.first_sequence);
    let records = queue.sequences(shard, first, request.count.get()).await?;
    let mut records = records.into_iter().peekable();
    let mut round = Round::default();
    let mut runs_left = request.runs_max;
    for sequence in request.sequences() {
        if let Some(record) = records.next_if(|record| record.sequence == sequence) {
            answer_again(queue, request, &record, &mut round).await?;
            continue;
        }
        match queue.claim(&claim(request, sequence)).await {
            Ok(Claim::Ran(claimed)) if runs_left > 0 => {
                runs_left -= 1;
                round.claimed.push(*claimed);
            }
            Ok(Claim::Ran(claimed)) => {
                // Somebody became ready since the look, and no permit is left: for others to take at once.
                queue.release(&claimed.lease, Duration::ZERO).await?;
                round.contended.push(sequence);
            }
            Ok(Claim::Idle) => {}
            Ok(Claim::Contended) => round.contended.push(sequence),
            // Somebody settled the sequence since the records were read.
            Err(error) => match record_of(queue, request, sequence).await? {
                Some(record) => answer_again(queue, request, &record, &mut round).await?,
                None => return Err(error),
            },
        }
    }
    Ok(round)
}

/// Adds to a round what is on record of one of its sequences.
async fn answer_again<Q: RunQueue + ?Sized>(
    queue: &Q,
    request: &RoundRequest,
    record: &SequenceRecord,
    round: &mut Round,
) -> Result<(), StoreError> {
    let sequence = record.sequence;
    let attempt = match &record.outcome {
        SequenceOutcome::Ran(attempt) => attempt,
        SequenceOutcome::Contended | SequenceOutcome::Failed => {
            round.contended.push(sequence);
            return Ok(());
        }
        SequenceOutcome::Idle => return Ok(()),
    };
    if attempt.worker != request.worker {
        round.moved_on.push(sequence);
        return Ok(());
    }
    match queue.claim(&claim(request, sequence)).await {
        Ok(Claim::Ran(claimed)) => round.claimed.push(*claimed),
        Err(error) if error.kind() != StoreErrorKind::LeaseLost => return Err(error),
        // The round may have put the run back itself, for want of a permit.
        _ if matches!(attempt.ended, Some((AttemptResult::Released, _))) => {
            round.contended.push(sequence);
        }
        _ => round.moved_on.push(sequence),
    }
    Ok(())
}

async fn record_of<Q: RunQueue + ?Sized>(
    queue: &Q,
    request: &RoundRequest,
    sequence: u64,
) -> Result<Option<SequenceRecord>, StoreError> {
    let records = queue.sequences(request.shard(), sequence, 1).await?;
    Ok(records
        .into_iter()
        .find(|record| record.sequence == sequence))
}

fn claim(request: &RoundRequest, sequence: u64) -> ClaimRequest {
    let (worker, lease) = (request.worker.clone(), request.lease);
    ClaimRequest::new(&request.policy, sequence, worker, lease)
}
