//! What a process notes about the jobs that it runs, and about itself.

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::peer::Outcome;

/// The jobs that were run. They do nothing, so a job's start is its end.
#[derive(Debug)]
pub(crate) struct Runs {
    keep_order: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    jobs: i64,
    first: Option<u64>,
    last: Option<u64>,
    order: Vec<(u64, String)>,
}

impl Runs {
    pub(crate) fn new(keep_order: bool) -> Self {
        Self {
            keep_order,
            inner: Mutex::default(),
        }
    }

    pub(crate) fn note(&self, tenant: String) {
        let mut inner = self.lock();
        let now = wall_micros();
        inner.first.get_or_insert(now);
        inner.last = Some(now);
        inner.jobs += 1;
        if self.keep_order {
            inner.order.push((now, tenant));
        }
    }

    pub(crate) fn jobs(&self) -> i64 {
        self.lock().jobs
    }

    /// The wall clock in microseconds at the first start and at the last end.
    pub(crate) fn span(&self) -> (Option<u64>, Option<u64>) {
        let inner = self.lock();
        (inner.first, inner.last)
    }

    /// A line for each job, in the order of their starts.
    pub(crate) fn lines(&self) -> Outcome<String> {
        let mut text = String::new();
        for (micros, tenant) in &self.lock().order {
            writeln!(text, "{micros} {tenant}")?;
        }
        Ok(text)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing here leaves the numbers half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the process has used so far.
pub(crate) fn usage() -> Outcome<Usage> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?)
}

/// The processor time of the process, in the kernel and outside.
pub(crate) fn cpu(usage: &Usage) -> Outcome<Duration> {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(u64::try_from(micros)?))
}

/// The most memory that the process has had.
pub(crate) fn rss_max_bytes(usage: &Usage) -> i64 {
    // macOS counts bytes, everybody else KiB.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    usage.max_rss() * unit
}

fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}
