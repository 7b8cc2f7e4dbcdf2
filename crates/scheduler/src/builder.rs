//! How a worker is set up.

use core::time::Duration;

use evenhand_policy::PoolId;
use evenhand_store::{LeaseDuration, PoolScoring, WorkerName};

use crate::backoff::Backoff;
use crate::job::{Handler, Job};
use crate::retention::WorkerRetention;
use crate::worker::Worker;

/// Sets a [`Worker`] up. Every default is right for handlers that take seconds.
#[derive(Debug)]
#[must_use]
pub struct WorkerBuilder<S> {
    worker: Worker<S>,
}

impl<S> WorkerBuilder<S> {
    pub(crate) fn new(worker: Worker<S>) -> Self {
        Self { worker }
    }

    /// The most runs that one worker works on at a time.
    pub const CONCURRENCY_MAX: usize = 4_096;

    /// Handles the jobs of type `J`.
    ///
    /// # Panics
    ///
    /// When there is a handler for this kind already.
    pub fn on<J: Job>(mut self, handler: impl Handler<J>) -> Self {
        self.worker.handlers = self.worker.handlers.on(handler);
        self
    }

    /// Works on up to this many runs at a time: 16 by default. A number outside of 1 to
    /// [`CONCURRENCY_MAX`](Self::CONCURRENCY_MAX) is moved to the nearer end.
    pub fn concurrency(mut self, runs: usize) -> Self {
        let runs = runs.clamp(1, Self::CONCURRENCY_MAX);
        self.worker.concurrency = u32::try_from(runs).unwrap_or(u32::MAX);
        self
    }

    /// Claims at most this many runs of one team in each round, across its tenants. No limit by default.
    ///
    /// A store that claims one sequence at a time knows no limits of a round, and refuses them.
    pub fn team_window(mut self, runs: u32) -> Self {
        self.worker.limits = self.worker.limits.with_team_window(runs);
        self
    }

    /// Claims runs that cost at most this much together in each round, in micros. No limit by default.
    ///
    /// A store that claims one sequence at a time knows no limits of a round, and refuses them.
    pub fn capacity_micros(mut self, micros: u64) -> Self {
        self.worker.limits = self.worker.limits.with_capacity_micros(micros);
        self
    }

    /// Serves this pool instead of the pool `default`.
    pub fn pool(mut self, pool: PoolId) -> Self {
        self.worker.pool = pool;
        self
    }

    /// Ranks the pool's runs by this scoring. The first registration of a pool decides.
    pub fn scoring(mut self, scoring: PoolScoring) -> Self {
        self.worker.scoring = scoring;
        self
    }

    /// Goes by this name in the record of attempts, instead of one made of host, process and a random number.
    ///
    /// No two workers that live at the same time may share a name: one would be given what the other has claimed.
    pub fn name(mut self, name: WorkerName) -> Self {
        self.worker.execution.worker = name;
        self
    }

    /// How long a claim lasts without a renewal, and so how long a run waits whose worker is gone. 30 seconds by default.
    pub fn lease(mut self, lease: LeaseDuration) -> Self {
        self.worker.execution.lease = lease;
        self
    }

    /// How long to wait, on average, when nobody is ready or nobody can be served, unless the store wakes the worker
    /// earlier. One second by default.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.worker.poll_interval = interval;
        self
    }

    /// How long handlers may go on after a shutdown. 15 seconds by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.worker.execution.grace = grace;
        self
    }

    /// How long a run waits after a failed attempt: from one second up to one hour by default.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.worker.execution.backoff = backoff;
        self
    }

    /// How long a run waits whose kind has no handler here. 10 seconds by default.
    pub fn unknown_kind_delay(mut self, delay: Duration) -> Self {
        self.worker.execution.unknown_kind_delay = delay;
        self
    }

    /// Whether to take back expired leases in the background. On by default; somebody has to.
    pub fn recovery(mut self, on: bool) -> Self {
        self.worker.duties.recovery = on;
        self
    }

    /// Whether to settle the blocks of workers that are gone. On by default; as long as nobody does, the tenants whose
    /// slots these are get less than their shares.
    pub fn lost_blocks(mut self, on: bool) -> Self {
        self.worker.duties.lost_blocks = on;
        self
    }

    /// Whether to look for queued runs that no active shard serves, every minute: they are warned about while that
    /// changes, and counted in the metrics. On by default.
    pub fn unserved_warnings(mut self, on: bool) -> Self {
        self.worker.duties.unserved_warnings = on;
        self
    }

    /// Whether to ask the store every 15 seconds how it is, for the metrics that say how long tenants wait and how old
    /// evidence and snapshots are. On by default; a store that does not offer it is asked once.
    pub fn health(mut self, on: bool) -> Self {
        self.worker.duties.health = on;
        self
    }

    /// What to prune in the background, and how long to keep it. On by default, with the defaults of
    /// [`WorkerRetention`].
    pub fn retention(mut self, retention: WorkerRetention) -> Self {
        self.worker.duties.retention = retention;
        self
    }

    /// The worker. It does nothing before it is run.
    pub fn build(self) -> Worker<S> {
        self.worker
    }
}
