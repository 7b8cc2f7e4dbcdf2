//! The contract between Evenhand's scheduler and the place where its order is kept.
//!
//! Two traits make a store. [`ReservationStore`] keeps the durable order of one or more shards: it binds a policy to a
//! shard and hands out contiguous sequences, each exactly once, whatever fails. [`RunQueue`] keeps the work: it claims
//! at most one run against each sequence, under a lease whose fence only grows.
//!
//! A service author rarely needs this crate directly. A store author implements both traits and then proves them with
//! the conformance suite of `evenhand-testkit`; [`MemoryStore`](memory::MemoryStore) (feature `memory`) is the model that
//! the suite compares with.
//!
//! # What every store promises
//!
//! 1. Register is idempotent for byte-identical policies; anything else under a known shard is refused and changes
//!    nothing.
//! 2. Sequences of a shard are contiguous from 0: no gap, no overlap, no repeat, whatever fails.
//! 3. The same id always returns the same first sequence and count; with another digest or count, or under another
//!    shard while its row is kept, it is refused. Concurrent calls with one id agree.
//! 4. An acknowledged reservation is never lost. If A was acknowledged before B was asked for, A's sequence is smaller.
//! 5. A refused or failed call consumes nothing. A block that does not fit before the end of the range is refused whole.
//! 6. An unknown id that is more than [`CLOCK_SKEW_MAX`] ahead of the store (of its clock or its newest row, whichever
//!    is later) is *clock skew*; an unknown id not later than the shard's mark, which is the greatest own time of any
//!    id that was really pruned, is *expired*, for ever. Known ids are answered whatever the clocks say.
//! 7. Pruning goes oldest first, steps over rows that others hold, is one transaction of at most one batch, and never
//!    touches policy, cursor or the newest reservation of a shard.
//! 8. Dropping a call's future at any point leaves no lock, no open transaction and no half-made change behind.
//! 9. At most one run is ever claimed against one sequence; asking again gives the same run, fence and lease while it
//!    lives. Complete and fail, repeated with the same fence, succeed. A fence only grows. A stale fence changes nothing
//!    and is answered with *lease lost*.

mod control;
mod error;
mod forward;
mod health;
mod history;
mod limit;
#[cfg(feature = "memory")]
pub mod memory;
mod name;
mod registration;
mod reservation;
mod reservation_id;
mod retention;
mod round;
mod run;
mod run_queue;
mod run_view;
mod standing;

pub use control::{Cancellation, Controlled};
pub use error::{StoreError, StoreErrorKind};
pub use health::{Backlog, StoreHealth};
pub use history::{
    HistoryReport, HistoryRetentionPolicy, TenantHistory, TenantHistoryRequest,
    TenantHistorySummary, TenantTurn,
};
pub use jiff::Timestamp;
pub use limit::{LimitSubject, RunLimit, RunsMax};
pub use name::{IdempotencyKey, NameError, RunKind, WorkerName};
pub use registration::{PolicyRegistration, PoolScoring, PoolScoringError, Registered};
pub use reservation::{
    CLOCK_SKEW_MAX, Cursor, InvalidCount, Reservation, ReservationCount, ReservationStore,
    ReserveRequest, SEQUENCE_MAX,
};
pub use reservation_id::{NotUuidV7, ReservationId, ReservationIdMint};
pub use retention::{InvalidRetention, RetentionReport, SchedulerFairnessRetentionPolicy};
pub use round::{Round, RoundLimits, RoundRequest};
pub use run::{
    AttemptsMax, CostMicros, Fence, NewRun, Payload, PayloadError, ReadyAt, Run, RunId, RunState,
    RunTimeout, RunValueError,
};
pub use run_queue::{
    Claim, ClaimRequest, ClaimedRun, Enqueued, Failure, FailureOutcome, Lease, LeaseDuration,
    ReadyTenants, RecoveryReport, Renewal, Retry, RunQueue, WaitRequest,
};
pub use run_view::{
    AttemptRecord, AttemptResult, PageSize, RunCounts, RunFilter, RunPage, SequenceOutcome,
    SequenceRecord,
};
pub use standing::{Retirement, ShardStanding, UnservedRuns};
