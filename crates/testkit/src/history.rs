//! What clients saw, and whether it agrees with what the store has on record.
//!
//! A [`History`] notes every call that goes through it: when it was made, when it was answered, and what the answer was.
//! [`Evidence`] is what the store has on record of one shard. [`check`] holds the two against each other and against the
//! policy, and names every [`Violation`]. Without calls, the evidence is checked for itself.

mod attempts;
mod order;
mod storm;
#[cfg(test)]
mod tests;
mod violation;

use core::time::Duration;

use std::sync::{Mutex, MutexGuard, PoisonError};

use evenhand_policy::{SchedulerShardId, WeightedFairnessPolicy};
use evenhand_store::{
    AttemptResult, Claim, ClaimRequest, Failure, FailureOutcome, Lease, Reservation,
    ReservationStore, ReserveRequest, Round, RoundRequest, RunQueue, SequenceRecord, StoreError,
    StoreErrorKind,
};

pub use self::storm::{StormOptions, storm};
pub use self::violation::Violation;

/// The calls that clients made on one shard, in the order of one logical clock.
///
/// The clock counts invocations and answers, so "was answered before the other was asked for" can be told for any two
/// calls of one process. A call whose future is dropped stays on record as one with an unknown outcome.
#[derive(Debug, Default)]
pub struct History {
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    clock: u64,
    reserves: Vec<Call<ReserveRequest, Reservation>>,
    claims: Vec<Call<ClaimRequest, Claim>>,
    rounds: Vec<Call<RoundRequest, Round>>,
    endings: Vec<Call<Ending, ()>>,
}

/// One call, as its client saw it.
#[derive(Debug)]
struct Call<Q, A> {
    request: Q,
    invoked: u64,
    /// When the answer came, and what it was; `None` as long as the outcome is unknown.
    answered: Option<(u64, Result<A, StoreErrorKind>)>,
}

/// The end that a client asked for.
#[derive(Debug)]
struct Ending {
    lease: Lease,
    result: AttemptResult,
}

impl History {
    /// No calls yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves, and notes what the client saw.
    ///
    /// # Errors
    ///
    /// Those of [`ReservationStore::reserve`].
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the call is on record with an unknown outcome.
    pub async fn reserve<S: ReservationStore + ?Sized>(
        &self,
        store: &S,
        request: &ReserveRequest,
    ) -> Result<Reservation, StoreError> {
        let call = invoke(
            &mut self.calls(),
            |calls| &mut calls.reserves,
            request.clone(),
        );
        let answer = store.reserve(request).await;
        note(
            &mut self.calls(),
            |calls| &mut calls.reserves,
            call,
            &answer,
        );
        answer
    }

    /// Claims, and notes what the client saw.
    ///
    /// # Errors
    ///
    /// Those of [`RunQueue::claim`].
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the call is on record with an unknown outcome.
    pub async fn claim<S: RunQueue + ?Sized>(
        &self,
        store: &S,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let call = invoke(
            &mut self.calls(),
            |calls| &mut calls.claims,
            request.clone(),
        );
        let answer = store.claim(request).await;
        note(&mut self.calls(), |calls| &mut calls.claims, call, &answer);
        answer
    }

    /// Makes a round, and notes what the client saw.
    ///
    /// # Errors
    ///
    /// Those of [`RunQueue::claim_round`].
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the call is on record with an unknown outcome.
    pub async fn claim_round<S: RunQueue + ?Sized>(
        &self,
        store: &S,
        request: &RoundRequest,
    ) -> Result<Round, StoreError> {
        let call = invoke(
            &mut self.calls(),
            |calls| &mut calls.rounds,
            request.clone(),
        );
        let answer = store.claim_round(request).await;
        note(&mut self.calls(), |calls| &mut calls.rounds, call, &answer);
        answer
    }

    /// Completes, and notes what the client saw.
    ///
    /// # Errors
    ///
    /// Those of [`RunQueue::complete`].
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the call is on record with an unknown outcome.
    pub async fn complete<S: RunQueue + ?Sized>(
        &self,
        store: &S,
        lease: &Lease,
    ) -> Result<(), StoreError> {
        let call = self.ending(lease, AttemptResult::Completed);
        let answer = store.complete(lease).await;
        self.ended(call, &answer);
        answer
    }

    /// Fails, and notes what the client saw.
    ///
    /// # Errors
    ///
    /// Those of [`RunQueue::fail`].
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the call is on record with an unknown outcome.
    pub async fn fail<S: RunQueue + ?Sized>(
        &self,
        store: &S,
        lease: &Lease,
        failure: &Failure,
    ) -> Result<FailureOutcome, StoreError> {
        let call = self.ending(lease, AttemptResult::Failed);
        let answer = store.fail(lease, failure).await;
        self.ended(call, &answer);
        answer
    }

    /// Releases, and notes what the client saw.
    ///
    /// # Errors
    ///
    /// Those of [`RunQueue::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the call is on record with an unknown outcome.
    pub async fn release<S: RunQueue + ?Sized>(
        &self,
        store: &S,
        lease: &Lease,
        delay: Duration,
    ) -> Result<(), StoreError> {
        let call = self.ending(lease, AttemptResult::Released);
        let answer = store.release(lease, delay).await;
        self.ended(call, &answer);
        answer
    }

    /// How many calls are on record.
    pub fn calls_len(&self) -> usize {
        let calls = self.calls();
        calls.reserves.len() + calls.claims.len() + calls.rounds.len() + calls.endings.len()
    }

    /// How many calls had an unknown outcome: no answer came, or it said so.
    pub fn unknown_len(&self) -> usize {
        let calls = self.calls();
        unanswered(&calls.reserves)
            + unanswered(&calls.claims)
            + unanswered(&calls.rounds)
            + unanswered(&calls.endings)
    }

    fn ending(&self, lease: &Lease, result: AttemptResult) -> usize {
        let ending = Ending {
            lease: lease.clone(),
            result,
        };
        invoke(&mut self.calls(), |calls| &mut calls.endings, ending)
    }

    fn ended<A>(&self, call: usize, answer: &Result<A, StoreError>) {
        let answer = answer.as_ref().map(|_| ());
        note(&mut self.calls(), |calls| &mut calls.endings, call, &answer);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

fn unanswered<Q, A>(calls: &[Call<Q, A>]) -> usize {
    calls.iter().filter(|call| call.answered.is_none()).count()
}

fn invoke<Q, A>(
    calls: &mut Calls,
    of_kind: impl FnOnce(&mut Calls) -> &mut Vec<Call<Q, A>>,
    request: Q,
) -> usize {
    let invoked = calls.tick();
    let of_kind = of_kind(calls);
    of_kind.push(Call {
        request,
        invoked,
        answered: None,
    });
    of_kind.len() - 1
}

/// Notes an answer, unless it says that the outcome is unknown.
fn note<Q, A: Clone, E: core::borrow::Borrow<StoreError>>(
    calls: &mut Calls,
    of_kind: impl FnOnce(&mut Calls) -> &mut Vec<Call<Q, A>>,
    call: usize,
    answer: &Result<A, E>,
) {
    let answered = calls.tick();
    let answer = match answer {
        Ok(answer) => Ok(answer.clone()),
        Err(error) => Err(error.borrow().kind()),
    };
    if !matches!(answer, Err(StoreErrorKind::OutcomeUnknown)) {
        of_kind(calls)[call].answered = Some((answered, answer));
    }
}

/// What a store has on record of one shard whose reservations were never pruned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Evidence {
    /// The policy that the shard is bound to.
    pub policy: WeightedFairnessPolicy,
    /// All reservations, in order.
    pub reservations: Vec<Reservation>,
    /// How the sequences that were looked at ended, in order.
    pub sequences: Vec<SequenceRecord>,
}

impl Evidence {
    /// Evidence that was collected elsewhere.
    pub fn new(
        policy: WeightedFairnessPolicy,
        reservations: Vec<Reservation>,
        sequences: Vec<SequenceRecord>,
    ) -> Self {
        Self {
            policy,
            reservations,
            sequences,
        }
    }

    /// Reads everything that the store has on record of the shard, page by page.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn read<S: ReservationStore + RunQueue + ?Sized>(
        store: &S,
        shard: &SchedulerShardId,
    ) -> Result<Self, StoreError> {
        const PAGE: u32 = 1_000;
        let policy = store.load_policy(shard).await?;
        let (mut reservations, mut from_sequence) = (Vec::new(), 0);
        loop {
            let page = store.reservations(shard, from_sequence, PAGE).await?;
            let Some(last) = page.last() else { break };
            from_sequence = last.sequences().end() + 1;
            reservations.extend(page);
        }
        let (mut sequences, mut from_sequence) = (Vec::new(), 0);
        loop {
            let page = store.sequences(shard, from_sequence, PAGE).await?;
            let Some(last) = page.last() else { break };
            from_sequence = last.sequence + 1;
            sequences.extend(page);
        }
        Ok(Self::new(policy, reservations, sequences))
    }
}

/// Holds what clients saw against what the store has on record, and both against the policy.
///
/// # Errors
///
/// Every violation that was found, in no particular order.
pub fn check(history: &History, evidence: &Evidence) -> Result<(), Vec<Violation>> {
    let calls = history.calls();
    let mut violations = Vec::new();
    order::check_rows(evidence, &mut violations);
    order::check_selections(evidence, &mut violations);
    order::check_answers(&calls.reserves, evidence, &mut violations);
    attempts::check_records(evidence, &mut violations);
    attempts::check_claims(&calls.claims, evidence, &mut violations);
    attempts::check_rounds(&calls.rounds, evidence, &mut violations);
    attempts::check_endings(&calls.endings, evidence, &mut violations);
    if violations.is_empty() {
        Ok(())
    } else {
        Err(violations)
    }
}
