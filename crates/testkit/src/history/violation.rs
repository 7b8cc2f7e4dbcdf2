//! What can be wrong with a history.

use evenhand_policy::TenantId;
use evenhand_store::{AttemptResult, Fence, ReservationId, RunId, StoreErrorKind};

/// One way in which a store broke its promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Sequences that nobody took.
    #[error("sequences {from}..{to} were skipped before reservation {id}")]
    Gap {
        /// The reservation after the gap.
        id: ReservationId,
        /// The first sequence that was skipped.
        from: u64,
        /// The sequence after the gap.
        to: u64,
    },
    /// Sequences that were taken twice.
    #[error(
        "reservation {id} starts at {first_sequence}, but everything before {expected} was taken"
    )]
    Overlap {
        /// The reservation that took them again.
        id: ReservationId,
        /// Where it starts.
        first_sequence: u64,
        /// Where it should have started.
        expected: u64,
    },
    /// One id with two reservations.
    #[error("id {id} has more than one reservation on record")]
    RepeatedId {
        /// The id.
        id: ReservationId,
    },
    /// An acknowledged reservation that is not on record.
    #[error("reservation {id} was acknowledged at {first_sequence} and is not on record")]
    ReservationLost {
        /// Its id.
        id: ReservationId,
        /// The sequence that was acknowledged.
        first_sequence: u64,
    },
    /// An acknowledged reservation that the record shows with other numbers, or that was answered differently before.
    #[error(
        "id {id} was answered {answered} + {answered_count}, on record is {recorded} + {recorded_count}"
    )]
    AnswersDiffer {
        /// The id.
        id: ReservationId,
        /// The first sequence of the answer.
        answered: u64,
        /// The count of the answer.
        answered_count: u32,
        /// The first sequence on record.
        recorded: u64,
        /// The count on record.
        recorded_count: u32,
    },
    /// A reservation that was asked for after another was acknowledged, and stands before it.
    #[error("{earlier} was acknowledged before {later} was asked for, but stands after it")]
    OutOfOrder {
        /// Acknowledged first.
        earlier: ReservationId,
        /// Asked for afterwards.
        later: ReservationId,
    },
    /// A call that was refused and took sequences all the same.
    #[error("id {id} was only ever refused ({kind}) and is on record")]
    RefusedButReserved {
        /// The id.
        id: ReservationId,
        /// How its last call was refused.
        kind: StoreErrorKind,
    },
    /// A tenant that was not selected for longer than its bound.
    #[error("{tenant} was selected at {from} and then at {to}, its bound is {bound}")]
    SelectionGap {
        /// The tenant.
        tenant: TenantId,
        /// A selection.
        from: u64,
        /// The next one.
        to: u64,
        /// Its starvation bound.
        bound: u32,
    },
    /// A whole cycle in which a tenant's slots were not its weight.
    #[error("{tenant} has {slots} slots on record in cycle {cycle}, its weight is {weight}")]
    CycleCount {
        /// The tenant.
        tenant: TenantId,
        /// Which cycle, from 0.
        cycle: u64,
        /// Its slots in it.
        slots: u64,
        /// Its weight.
        weight: u32,
    },
    /// An outcome of a sequence that was never reserved.
    #[error("sequence {sequence} has an outcome and was never reserved")]
    NotReserved {
        /// The sequence.
        sequence: u64,
    },
    /// Two outcomes of one sequence.
    #[error("sequence {sequence} has more than one outcome")]
    SettledTwice {
        /// The sequence.
        sequence: u64,
    },
    /// A run of a tenant that the cycle does not name for the sequence.
    #[error("sequence {sequence} belongs to {expected} and ran a run of {found}")]
    WrongTenant {
        /// The sequence.
        sequence: u64,
        /// Whose it is.
        expected: TenantId,
        /// Whose run it ran.
        found: TenantId,
    },
    /// A later attempt of a run whose fence is not greater.
    #[error("run {run} was claimed with fence {} after {}", .later.get(), .earlier.get())]
    FenceNotGrown {
        /// The run.
        run: RunId,
        /// The fence of an attempt.
        earlier: Fence,
        /// The fence of the next one.
        later: Fence,
    },
    /// A run with more than one completed attempt.
    #[error("run {run} was completed more than once")]
    CompletedTwice {
        /// The run.
        run: RunId,
    },
    /// An answer to a claim that the record does not show.
    #[error("sequence {sequence} was answered {answered}, on record is {recorded}")]
    ClaimDiffers {
        /// The sequence.
        sequence: u64,
        /// What the client was told.
        answered: String,
        /// What is on record.
        recorded: String,
    },
    /// An acknowledged end of an attempt that the record does not show.
    #[error("run {run} was {} by fence {} as its client saw it, which is not on record", .result.as_str(), .fence.get())]
    EndingLost {
        /// The run.
        run: RunId,
        /// Whose attempt.
        fence: Fence,
        /// The end that was acknowledged.
        result: AttemptResult,
    },
    /// An end of an attempt that was refused and counted all the same.
    #[error("run {run} is {} by fence {}, which was only ever refused", .result.as_str(), .fence.get())]
    RefusedButEnded {
        /// The run.
        run: RunId,
        /// Whose attempt.
        fence: Fence,
        /// The end that was refused.
        result: AttemptResult,
    },
}
