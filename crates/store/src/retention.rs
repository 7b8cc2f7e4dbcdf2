//! How long reservations are kept as evidence, and what a pruning pass did.

use core::time::Duration;

use jiff::Timestamp;

/// How long reservations are kept, and how many one pass may delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerFairnessRetentionPolicy {
    window: Duration,
    batch: u32,
}

/// A window or batch outside its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRetention {
    /// The window is not between one hour and 366 days.
    #[error("a retention window is 1 hour to 366 days, not {0:?}")]
    Window(Duration),
    /// The batch is not between 1 and 10,000 rows.
    #[error("a retention batch is 1 to 10000 rows, not {0}")]
    Batch(u32),
}

impl SchedulerFairnessRetentionPolicy {
    /// The shortest window, which leaves every caller time to repeat its id.
    pub const WINDOW_MIN: Duration = Duration::from_hours(1);
    /// The longest window.
    pub const WINDOW_MAX: Duration = Duration::from_hours(366 * 24);
    /// The largest batch, in rows.
    pub const BATCH_MAX: u32 = 10_000;

    /// Keeps reservations for `window` and deletes at most `batch` rows a pass.
    ///
    /// # Errors
    ///
    /// When either is outside its bounds.
    ///
    /// # Examples
    ///
    /// ```
    /// use core::time::Duration;
    /// use evenhand_store::SchedulerFairnessRetentionPolicy;
    ///
    /// assert!(SchedulerFairnessRetentionPolicy::new(Duration::from_hours(24), 1_000).is_ok());
    /// assert!(SchedulerFairnessRetentionPolicy::new(Duration::from_mins(59), 1_000).is_err());
    /// ```
    pub fn new(window: Duration, batch: u32) -> Result<Self, InvalidRetention> {
        if !(Self::WINDOW_MIN..=Self::WINDOW_MAX).contains(&window) {
            return Err(InvalidRetention::Window(window));
        }
        if !(1..=Self::BATCH_MAX).contains(&batch) {
            return Err(InvalidRetention::Batch(batch));
        }
        Ok(Self { window, batch })
    }

    /// How long reservations are kept.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// How many rows one pass may delete.
    pub fn batch(&self) -> u32 {
        self.batch
    }
}

/// What one pruning pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionReport {
    /// Reservations before this time were to be deleted.
    pub cutoff: Timestamp,
    /// How many were.
    pub deleted: u32,
    /// Whether a reservation before the cutoff that may be deleted is left, so that another pass has work.
    pub more: bool,
}

impl RetentionReport {
    /// A report of a store.
    pub fn new(cutoff: Timestamp, deleted: u32, more: bool) -> Self {
        Self {
            cutoff,
            deleted,
            more,
        }
    }
}
