//! What can be wrong with a store.

/// One mistake that the author of a store can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// An id is looked up before the shard is locked, so that two calls with one id both find nothing.
    LookupBeforeLock,
    /// The cursor is read before the shard is locked, so that two calls get the same sequences.
    CursorBeforeLock,
    /// The mark is read before the id is looked up, so that a row pruned in between looks as if it had never been.
    MarkBeforeLookup,
    /// An id is known only as long as its reservation is the newest.
    SecondAnswer,
    /// A refused call has moved the cursor already.
    GapOnFailure,
    /// The cursor is moved in one step and the row is written in another, so that a call dropped in between leaves a gap.
    GapOnDrop,
    /// A block moves the cursor by one.
    OverlappingBlocks,
    /// A reservation is acknowledged before it is certain, and now and then it is lost.
    LostAcknowledgement,
    /// The newest reservation of a shard is pruned like any other.
    PrunesNewest,
    /// Pruning begins at the wrong end.
    PrunesNewestFirst,
    /// The mark is moved to the cutoff, although ids were minted ahead of it.
    MarksTheCutoff,
    /// The time is that of a client, which does not follow the store's clock.
    ClientClock,
    /// Another policy takes the place of the registered one.
    RegisterOverwrites,
    /// A run is completed by whoever holds any lease of it.
    CompletionWithoutFence,
    /// A completion succeeds once, and its repetition is refused.
    RepetitionRefused,
    /// The tenant of a claim is not compared with the cycle.
    AnyTenant,
    /// A claim that is repeated gives the run to whoever asks.
    ClaimAnswersAnybody,
    /// A claim is answered to its worker alone, also when that one is gone.
    ClaimTakesOverNothing,
    /// Runs are enqueued one by one, so that a refused call leaves some behind.
    EnqueueOneByOne,
    /// A lost lease is renewed.
    RenewsLostLeases,
    /// A round hands its runs to the sequences of the block in order, whoever they belong to.
    IdleSlotsGivenAway,
    /// A round claims for every sequence, however few permits the worker has.
    RunsMaxIgnored,
    /// A round has no window for teams.
    TeamWindowIgnored,
    /// A round that is asked again claims again.
    RoundClaimsAnew,
    /// A round hands out what other workers hold.
    LostBlocksShared,
    /// A block is lost only if nothing of it is on record.
    HalfSettledBlocksForgotten,
    /// A limit is compared with what a claim asks for, and not with what is running.
    LimitWithoutRunning,
    /// What is running is counted before the claim locks anything, so that several claims find the same permit free.
    LimitCheckedTooEarly,
    /// A retired shard reserves on.
    ReservesWhenRetired,
    /// A shard is retired while a reservation is under way that found it active.
    RetiresWithoutLock,
    /// A cancellation ends the attempt of a running run at once.
    CancelTakesTheLease,
    /// Who waits for work sleeps as long as it may.
    SleepsThrough,
    /// Outcomes are pruned by their age alone, while a reservation still covers them.
    CoveredHistoryPruned,
    /// One refused lease refuses all that are completed together.
    OneRefusalRefusesAll,
    /// Completions are answered in the order of their runs.
    CompletionsSorted,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 35] = [
        Self::LookupBeforeLock,
        Self::CursorBeforeLock,
        Self::MarkBeforeLookup,
        Self::SecondAnswer,
        Self::GapOnFailure,
        Self::GapOnDrop,
        Self::OverlappingBlocks,
        Self::LostAcknowledgement,
        Self::PrunesNewest,
        Self::PrunesNewestFirst,
        Self::MarksTheCutoff,
        Self::ClientClock,
        Self::RegisterOverwrites,
        Self::CompletionWithoutFence,
        Self::RepetitionRefused,
        Self::AnyTenant,
        Self::ClaimAnswersAnybody,
        Self::ClaimTakesOverNothing,
        Self::EnqueueOneByOne,
        Self::RenewsLostLeases,
        Self::IdleSlotsGivenAway,
        Self::RunsMaxIgnored,
        Self::TeamWindowIgnored,
        Self::RoundClaimsAnew,
        Self::LostBlocksShared,
        Self::HalfSettledBlocksForgotten,
        Self::LimitWithoutRunning,
        Self::LimitCheckedTooEarly,
        Self::ReservesWhenRetired,
        Self::RetiresWithoutLock,
        Self::CancelTakesTheLease,
        Self::SleepsThrough,
        Self::CoveredHistoryPruned,
        Self::OneRefusalRefusesAll,
        Self::CompletionsSorted,
    ];
}
