//! What a worker did, in numbers.

use crate::fair::{Tick, TickError, TickOutcome};
use crate::tenant::{RunEnd, RunReport};

/// What a worker did from its start to its end.
///
/// `ran` is the sum of `completed`, `failed`, `released`, `lease_lost` and `left`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Runs that were claimed, each attempt counted.
    pub ran: u64,
    /// Of these, runs that are done.
    pub completed: u64,
    /// Of these, attempts that failed.
    pub failed: u64,
    /// Of the failed ones, those whose run is in the dead letter.
    pub dead: u64,
    /// Of those that ran, attempts that were put back uncounted.
    pub released: u64,
    /// Of those that ran, attempts that lost their lease to another.
    pub lease_lost: u64,
    /// Of those that ran, attempts whose end the store was not told, so that their leases have to expire.
    pub left: u64,
    /// How the sequences ended that the worker reserved.
    pub sequences: SequenceCounts,
}

/// Sequences by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceCounts {
    /// A run was claimed against it.
    pub ran: u64,
    /// Its tenant had no ready run.
    pub idle: u64,
    /// Its tenant had ready runs that could not be claimed.
    pub contended: u64,
    /// Its tenant could not be looked at.
    pub failed: u64,
    /// It may have been reserved, but no answer came before the worker's end. It counts as lost.
    pub unknown: u64,
}

impl SequenceCounts {
    /// How many sequences were consumed for certain.
    pub fn consumed(&self) -> u64 {
        self.ran + self.idle + self.contended + self.failed
    }
}

impl WorkerReport {
    pub(crate) fn count(&mut self, ticked: &Result<Option<Tick>, TickError>) {
        let tick = match ticked {
            Ok(Some(tick)) => tick,
            Ok(None) => return,
            Err(error) => {
                if error.may_have_reserved() {
                    self.sequences.unknown += 1;
                }
                return;
            }
        };
        match &tick.outcome {
            TickOutcome::Ran(report) => self.count_run(*report),
            TickOutcome::Idle => self.sequences.idle += 1,
            TickOutcome::Contended => self.sequences.contended += 1,
            TickOutcome::Failed(_) => self.sequences.failed += 1,
        }
    }

    /// Counts ticks that were ended by force; `held` of them had claimed a run.
    pub(crate) fn count_aborted(&mut self, ticks: usize, held: usize) {
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        let held = u64::try_from(held).unwrap_or(u64::MAX).min(ticks);
        self.ran += held;
        self.left += held;
        self.sequences.ran += held;
        self.sequences.unknown += ticks - held;
    }

    fn count_run(&mut self, report: RunReport) {
        self.sequences.ran += 1;
        self.ran += 1;
        match report.end {
            RunEnd::Completed => self.completed += 1,
            RunEnd::Requeued(_) => self.failed += 1,
            RunEnd::Dead => {
                self.failed += 1;
                self.dead += 1;
            }
            RunEnd::Released => self.released += 1,
            RunEnd::LeaseLost => self.lease_lost += 1,
            RunEnd::Unsettled(_) => self.left += 1,
        }
    }
}
