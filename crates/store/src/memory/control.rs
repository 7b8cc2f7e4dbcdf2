//! What operators do with single runs: cancel, queue again, discard.

use jiff::Timestamp;

use super::queue::Queue;
use crate::{Cancellation, Controlled, RunId, RunState};

impl Queue {
    pub(super) fn cancel(&mut self, clock: Timestamp, id: RunId) -> Cancellation {
        let Some(row) = self.rows.get_mut(&id) else {
            return Cancellation::NotFound;
        };
        match row.run.state {
            RunState::Queued => {
                row.end(clock, RunState::Cancelled);
                Cancellation::Cancelled
            }
            RunState::Running => {
                row.stop_requested = true;
                Cancellation::Requested
            }
            ended @ (RunState::Done | RunState::Dead | RunState::Cancelled) => {
                Cancellation::Ended(ended)
            }
        }
    }

    pub(super) fn requeue(&mut self, clock: Timestamp, id: RunId) -> Controlled {
        self.control(id, |queue| {
            if let Some(row) = queue.rows.get_mut(&id) {
                row.run.attempt = 0;
                row.run.finished_at = None;
                row.run.last_error = None;
                row.requeue(clock);
            }
        })
    }

    pub(super) fn discard(&mut self, id: RunId) -> Controlled {
        self.control(id, |queue| queue.forget(id))
    }

    /// Does something with a run that is dead or cancelled; all others refuse it.
    fn control(&mut self, id: RunId, act: impl FnOnce(&mut Self)) -> Controlled {
        match self.rows.get(&id).map(|row| row.run.state) {
            None => Controlled::NotFound,
            Some(RunState::Dead | RunState::Cancelled) => {
                act(self);
                Controlled::Done
            }
            Some(other) => Controlled::Refused(other),
        }
    }
}
