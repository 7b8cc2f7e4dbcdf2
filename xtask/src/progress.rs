//! What a command says on stderr while it works, so that its answer on stdout stays clean.

use std::time::Instant;

/// Says what comes next, and how long the command has been running.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    start: Instant,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Says that `step` begins.
    pub(crate) fn step(&self, step: &str) {
        eprintln!("[{:6.1} s] {step}", self.start.elapsed().as_secs_f64());
    }
}
