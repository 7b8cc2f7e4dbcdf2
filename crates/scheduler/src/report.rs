//! What a worker did, in numbers.

use crate::tenant::RunEnd;

/// What a worker did from its start to its end.
///
/// `ran` is the sum of `completed`, `failed`, `released`, `cancelled`, `lease_lost` and `left`.
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
    /// Of those that ran, attempts that ended because somebody cancelled the run.
    pub cancelled: u64,
    /// Of those that ran, attempts that lost their lease to another.
    pub lease_lost: u64,
    /// Of those that ran, attempts whose end the store was not told, so that their leases have to expire.
    pub left: u64,
    /// Blocks that the worker reserved and claimed against.
    pub blocks: u64,
    /// Blocks of workers that are gone, settled by this one. It counts the runs that these gave it, not their sequences.
    pub blocks_settled: u64,
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
    /// A run was claimed against it, by somebody else or so long before the answer came that its lease is over.
    pub moved_on: u64,
    /// It may have been reserved, or was, but the worker does not know how it ended. It is lost until somebody settles
    /// it.
    pub unknown: u64,
}

impl SequenceCounts {
    /// How many sequences were consumed for certain, and how they ended is known.
    pub fn consumed(&self) -> u64 {
        self.ran + self.idle + self.contended + self.moved_on
    }
}

impl WorkerReport {
    /// Counts the end of an attempt whose claim was counted before.
    pub(crate) fn count_end(&mut self, end: RunEnd) {
        match end {
            RunEnd::Completed => self.completed += 1,
            RunEnd::Requeued(_) => self.failed += 1,
            RunEnd::Dead => {
                self.failed += 1;
                self.dead += 1;
            }
            RunEnd::Released => self.released += 1,
            RunEnd::Cancelled => self.cancelled += 1,
            RunEnd::LeaseLost => self.lease_lost += 1,
            RunEnd::Unsettled(_) => self.left += 1,
        }
    }
}
