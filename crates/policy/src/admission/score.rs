//! The score of one task: the part of admission that all workers of a pool share.

use core::fmt;

use super::{BasePriority, ValueClass};

/// What a forced task's score is lifted by.
pub const FORCED_BONUS: u32 = 10_000;

/// The greatest weight of a value class.
pub const VALUE_WEIGHT_MAX: u32 = 1_000_000;

/// The most that a tick of waiting may add to a score.
pub const AGING_PER_TICK_MAX: u32 = 1_000_000;

/// The scores of unforced tasks in a queue span less than this, see [`Scoring::for_queue`].
pub const QUEUE_SPREAD_LIMIT: u64 = 10_000;

/// The weights of the value classes. Valid combinations are those that [`Scoring::new`] accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct ValueWeights {
    /// Of [`ValueClass::Critical`], 1000 by default.
    pub critical: u32,
    /// Of [`ValueClass::Standard`], 300 by default.
    pub standard: u32,
    /// Of [`ValueClass::Batch`], 100 by default.
    pub batch: u32,
}

impl Default for ValueWeights {
    fn default() -> Self {
        Self {
            critical: 1000,
            standard: 300,
            batch: 100,
        }
    }
}

impl ValueWeights {
    /// The weight of `class`.
    pub fn of(&self, class: ValueClass) -> u32 {
        match class {
            ValueClass::Critical => self.critical,
            ValueClass::Standard => self.standard,
            ValueClass::Batch => self.batch,
        }
    }
}

/// What a [`Scoring`] is made of; not yet checked.
///
/// With feature `serde` any field may be left out, and unknown ones are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct ScoringOptions {
    /// The weights of the value classes.
    pub value_weights: ValueWeights,
    /// What each tick of waiting adds to the score, 40 by default.
    pub aging_per_tick: u32,
    /// For how many ticks waiting adds to the score, 10 by default.
    pub max_aging_ticks: u32,
    /// From how many ticks of waiting on a task is forced, 12 by default.
    pub starvation_ticks: u32,
}

impl Default for ScoringOptions {
    fn default() -> Self {
        Self {
            value_weights: ValueWeights::default(),
            aging_per_tick: 40,
            max_aging_ticks: 10,
            starvation_ticks: 12,
        }
    }
}

/// Options were refused as a scoring, or a scoring for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdmissionPolicyError {
    /// A class weighs more than [`VALUE_WEIGHT_MAX`].
    #[error("value class {class} weighs {weight}, the most is {VALUE_WEIGHT_MAX}")]
    ValueWeightTooLarge {
        /// The class.
        class: ValueClass,
        /// Its weight.
        weight: u32,
    },
    /// A tick adds more than [`AGING_PER_TICK_MAX`].
    #[error("a tick of waiting adds {aging_per_tick}, the most is {AGING_PER_TICK_MAX}")]
    AgingTooLarge {
        /// What a tick adds.
        aging_per_tick: u32,
    },
    /// A class is not more than 100 above the next lower one, so that base priority alone could
    /// lift a task to it.
    #[error(
        "value class {higher} does not weigh more than {} above {lower}",
        BasePriority::MAX
    )]
    ValueGapTooSmall {
        /// The class that is worth more.
        higher: ValueClass,
        /// The class below it.
        lower: ValueClass,
    },
    /// Some unforced task would come before some forced one, or tie with it.
    #[error(
        "an unforced score can reach {largest_unforced}, the least forced one is {least_forced}"
    )]
    UnforcedReachesForced {
        /// The largest score of an unforced task.
        largest_unforced: Score,
        /// The least score of a forced task.
        least_forced: Score,
    },
    /// For a queue only: tasks would still age after they are forced.
    #[error(
        "a queue needs max_aging_ticks {max_aging_ticks} to be at most starvation_ticks {starvation_ticks}"
    )]
    AgingOutlastsStarvation {
        /// For how many ticks waiting adds to the score.
        max_aging_ticks: u32,
        /// From how many ticks of waiting on a task is forced.
        starvation_ticks: u32,
    },
    /// For a queue only: unforced scores span [`QUEUE_SPREAD_LIMIT`] or more.
    #[error(
        "a queue needs unforced scores to span less than {QUEUE_SPREAD_LIMIT}, these span {spread}"
    )]
    UnforcedSpreadTooLarge {
        /// The largest unforced score less the least.
        spread: u64,
    },
}

/// How tasks are scored, checked: value weights, aging, and when a task is forced.
///
/// It holds that base priority alone never lifts a task to the next class, and that every forced
/// task scores above every unforced one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Scoring {
    // The default options are valid, which a test asserts, so `Default` may be derived.
    options: ScoringOptions,
}

impl Scoring {
    /// Checks `options`.
    ///
    /// # Errors
    ///
    /// [`AdmissionPolicyError::ValueWeightTooLarge`], [`AdmissionPolicyError::AgingTooLarge`],
    /// [`AdmissionPolicyError::ValueGapTooSmall`] or
    /// [`AdmissionPolicyError::UnforcedReachesForced`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use evenhand_policy::admission::{AdmissionPolicyError, Scoring, ScoringOptions, ValueWeights};
    /// let tied = ValueWeights { standard: 200, ..ValueWeights::default() };
    /// let refused = Scoring::new(ScoringOptions { value_weights: tied, ..ScoringOptions::default() });
    /// assert!(matches!(refused, Err(AdmissionPolicyError::ValueGapTooSmall { .. })));
    /// ```
    pub fn new(options: ScoringOptions) -> Result<Self, AdmissionPolicyError> {
        use AdmissionPolicyError as Error;

        let weight = |class| options.value_weights.of(class);
        if let Some(class) = ValueClass::ALL
            .into_iter()
            .find(|class| weight(*class) > VALUE_WEIGHT_MAX)
        {
            return Err(Error::ValueWeightTooLarge {
                class,
                weight: weight(class),
            });
        }
        if options.aging_per_tick > AGING_PER_TICK_MAX {
            return Err(Error::AgingTooLarge {
                aging_per_tick: options.aging_per_tick,
            });
        }
        for [higher, lower] in ValueClass::ALL.array_windows() {
            if weight(*higher).saturating_sub(weight(*lower)) <= BasePriority::MAX.get() {
                return Err(Error::ValueGapTooSmall {
                    higher: *higher,
                    lower: *lower,
                });
            }
        }
        let scoring = Self { options };
        let least_forced = scoring.score(
            ValueClass::Batch,
            BasePriority::MIN,
            u64::from(options.starvation_ticks),
        );
        match scoring.largest_unforced() {
            Some(largest_unforced) if largest_unforced >= least_forced => {
                Err(Error::UnforcedReachesForced {
                    largest_unforced,
                    least_forced,
                })
            }
            Some(_) | None => Ok(scoring),
        }
    }

    /// Checks what only a queue needs, which finds the best of many waiting runs without looking at
    /// all of them: all forced tasks have the same age bonus, and the scores of unforced ones span
    /// less than [`QUEUE_SPREAD_LIMIT`].
    ///
    /// # Errors
    ///
    /// [`AdmissionPolicyError::AgingOutlastsStarvation`] or
    /// [`AdmissionPolicyError::UnforcedSpreadTooLarge`].
    pub fn for_queue(self) -> Result<Self, AdmissionPolicyError> {
        use AdmissionPolicyError as Error;

        let ScoringOptions {
            max_aging_ticks,
            starvation_ticks,
            ..
        } = self.options;
        if max_aging_ticks > starvation_ticks {
            return Err(Error::AgingOutlastsStarvation {
                max_aging_ticks,
                starvation_ticks,
            });
        }
        let least_unforced = u64::from(self.value_weights().batch);
        let spread = self
            .largest_unforced()
            .map_or(0, |largest| largest.get().saturating_sub(least_unforced));
        if spread >= QUEUE_SPREAD_LIMIT {
            return Err(Error::UnforcedSpreadTooLarge { spread });
        }
        Ok(self)
    }

    /// Whether [`for_queue`](Self::for_queue) accepts this scoring.
    pub fn is_queue_ordered(&self) -> bool {
        self.for_queue().is_ok()
    }

    /// The options that this scoring was made of.
    pub fn options(&self) -> ScoringOptions {
        self.options
    }

    /// The weights of the value classes.
    pub fn value_weights(&self) -> ValueWeights {
        self.options.value_weights
    }

    /// What each tick of waiting adds to the score.
    pub fn aging_per_tick(&self) -> u32 {
        self.options.aging_per_tick
    }

    /// For how many ticks waiting adds to the score.
    pub fn max_aging_ticks(&self) -> u32 {
        self.options.max_aging_ticks
    }

    /// From how many ticks of waiting on a task is forced.
    pub fn starvation_ticks(&self) -> u32 {
        self.options.starvation_ticks
    }

    /// The part of the score that waiting does not change: value weight plus base priority.
    pub fn rank(&self, class: ValueClass, priority: BasePriority) -> u32 {
        // At most VALUE_WEIGHT_MAX + 100: never saturates.
        self.value_weights()
            .of(class)
            .saturating_add(priority.get())
    }

    /// Whether a task that has waited so long is forced.
    pub fn is_forced(&self, wait_ticks: u64) -> bool {
        wait_ticks >= u64::from(self.starvation_ticks())
    }

    /// The score: rank, plus aging for the ticks waited (`max_aging_ticks` at most), plus
    /// [`FORCED_BONUS`] if forced.
    pub fn score(&self, class: ValueClass, priority: BasePriority, wait_ticks: u64) -> Score {
        let aging_ticks = wait_ticks.min(u64::from(self.max_aging_ticks()));
        let bonus = if self.is_forced(wait_ticks) {
            FORCED_BONUS
        } else {
            0
        };
        // At most (2^32 - 1) * AGING_PER_TICK_MAX plus about a million, which is below 2^53: never
        // saturates.
        let aging = aging_ticks.saturating_mul(u64::from(self.aging_per_tick()));
        Score(
            aging
                .saturating_add(u64::from(self.rank(class, priority)))
                .saturating_add(u64::from(bonus)),
        )
    }

    /// The largest score of an unforced task; none if every task is forced.
    fn largest_unforced(&self) -> Option<Score> {
        let wait_ticks = self.starvation_ticks().checked_sub(1)?;
        Some(self.score(
            ValueClass::Critical,
            BasePriority::MAX,
            u64::from(wait_ticks),
        ))
    }
}

/// A task's score: higher comes first. Always below 2^53, so it is exact also where numbers are
/// floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Score(u64);

impl Score {
    /// The score as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
