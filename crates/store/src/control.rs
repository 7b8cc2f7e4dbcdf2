//! What operators do with single runs: cancel, queue again, discard.

use crate::RunState;

/// What became of a request to cancel a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancellation {
    /// The run was queued and is cancelled now.
    Cancelled,
    /// The run is running. Its worker is told with its next renewal, and asks the handler to stop; unless the run
    /// completes first, it is cancelled when its attempt ends.
    Requested,
    /// The run had ended before, in this state.
    Ended(RunState),
    /// There is no such run (any more).
    NotFound,
}

/// What became of a request about a run that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Controlled {
    /// It was done.
    Done,
    /// The run is in this state, which does not allow it. Nothing was changed.
    Refused(RunState),
    /// There is no such run (any more).
    NotFound,
}
