//! One error for every store, and the kinds that callers branch on.

use core::error::Error;
use core::fmt;

use std::borrow::Cow;

/// What went wrong, in the terms that a caller acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The shard or pool is bound to something else. Name a new shard for a new policy.
    PolicyConflict,
    /// No policy is registered under this shard. Register it first.
    PolicyNotFound,
    /// The id already names another reservation. Mint a new id.
    ReservationConflict,
    /// The id is not later than the newest pruned one, so whether it was used can no longer be told. Mint a new id.
    Expired,
    /// The id is too far ahead of the store's clock. Mint ids from the store's clock.
    ClockSkew,
    /// The sequences that were asked for do not fit before the end of the range.
    SequenceExhausted,
    /// The shard was retired in favour of another. Move to its successor.
    Retired,
    /// The shard waits for the active one of its pool to be retired in its favour. Retire that one, or wait.
    Pending,
    /// The store contradicts itself, so nothing was changed. An operator has to look.
    Corrupt,
    /// The lease was lost: another attempt owns the run, or the run has ended.
    LeaseLost,
    /// A limit of the store would be exceeded.
    LimitReached,
    /// The idempotency key already names a run with other content.
    RunConflict,
    /// The request contradicts itself or what is on record.
    Invalid,
    /// This store does not offer the method.
    Unsupported,
    /// The store could not be reached or was too busy; nothing was changed. Ask again later.
    Unavailable,
    /// The request was sent and no answer came. Ask again with the same id, key or fence to learn the outcome.
    OutcomeUnknown,
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PolicyConflict => "policy conflict",
            Self::PolicyNotFound => "policy not found",
            Self::ReservationConflict => "reservation conflict",
            Self::Expired => "expired",
            Self::ClockSkew => "clock skew",
            Self::SequenceExhausted => "sequence exhausted",
            Self::Retired => "retired",
            Self::Pending => "pending",
            Self::Corrupt => "corrupt",
            Self::LeaseLost => "lease lost",
            Self::LimitReached => "limit reached",
            Self::RunConflict => "run conflict",
            Self::Invalid => "invalid",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::OutcomeUnknown => "outcome unknown",
        })
    }
}

/// Why a call on a store did not succeed.
///
/// Branch on [`kind`](Self::kind), never on the text. The source, where there is one, is the driver's own error.
#[derive(Debug, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error of this kind; `message` is a lowercase fragment that names what was refused.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The same error with the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What callers branch on.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same request, with the same id, key or fence, may be sent again as it is.
    ///
    /// True for *unavailable* and *outcome unknown*; every other kind answers the same way again.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unavailable | StoreErrorKind::OutcomeUnknown
        )
    }
}
