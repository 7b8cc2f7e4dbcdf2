//! Binding a policy to its shard, and a shard to its pool.

use core::time::Duration;

use evenhand_policy::admission::{AdmissionPolicyError, Scoring};
use evenhand_policy::{PoolId, WeightedFairnessPolicy};
use jiff::Timestamp;

use crate::{ShardStanding, UnservedRuns};

/// How the runs of one pool are ranked, by every worker alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolScoring {
    scoring: Scoring,
    wait_tick: Duration,
}

/// Why a scoring cannot order a queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolScoringError {
    /// The claim's order would not be exact.
    #[error("the scoring cannot order a queue")]
    Scoring(#[source] AdmissionPolicyError),
    /// The wait tick is not a whole number of milliseconds between 100 milliseconds and a day.
    #[error("wait tick is {0:?}, it must be whole milliseconds from 100 milliseconds to one day")]
    WaitTick(Duration),
}

impl PoolScoring {
    /// The shortest wait tick.
    pub const WAIT_TICK_MIN: Duration = Duration::from_millis(100);
    /// The longest wait tick.
    pub const WAIT_TICK_MAX: Duration = Duration::from_hours(24);

    /// A scoring whose waits are counted in `wait_tick`s of the store's clock.
    ///
    /// # Errors
    ///
    /// When [`Scoring::for_queue`] refuses the scoring, or when the tick is not whole milliseconds within
    /// [`WAIT_TICK_MIN`](Self::WAIT_TICK_MIN) and [`WAIT_TICK_MAX`](Self::WAIT_TICK_MAX).
    pub fn new(scoring: Scoring, wait_tick: Duration) -> Result<Self, PoolScoringError> {
        let scoring = scoring.for_queue().map_err(PoolScoringError::Scoring)?;
        let whole = wait_tick.subsec_nanos().is_multiple_of(1_000_000);
        if !whole || !(Self::WAIT_TICK_MIN..=Self::WAIT_TICK_MAX).contains(&wait_tick) {
            return Err(PoolScoringError::WaitTick(wait_tick));
        }
        Ok(Self { scoring, wait_tick })
    }

    /// The score of a single run.
    pub fn scoring(&self) -> &Scoring {
        &self.scoring
    }

    /// How long one wait tick lasts, by the store's clock.
    pub fn wait_tick(&self) -> Duration {
        self.wait_tick
    }
}

impl Default for PoolScoring {
    /// The defaults of [`Scoring`], waiting counted in seconds.
    fn default() -> Self {
        Self {
            scoring: Scoring::default(),
            wait_tick: Duration::from_secs(1),
        }
    }
}

/// What is bound when a shard is registered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PolicyRegistration {
    /// The policy; it names its shard.
    pub policy: WeightedFairnessPolicy,
    /// The pool that the shard serves, at once if no shard does yet; else it waits for that one to be retired.
    pub pool: PoolId,
    /// How the pool's runs are ranked. The first registration of a pool decides; later ones must agree.
    pub scoring: PoolScoring,
}

impl PolicyRegistration {
    /// Binds `policy` to the pool `default`, ranked by the default scoring.
    pub fn new(policy: WeightedFairnessPolicy) -> Self {
        Self {
            policy,
            pool: PoolId::default(),
            scoring: PoolScoring::default(),
        }
    }

    /// The same registration for another pool.
    #[must_use]
    pub fn in_pool(mut self, pool: PoolId) -> Self {
        self.pool = pool;
        self
    }

    /// The same registration with another scoring.
    #[must_use]
    pub fn scored_by(mut self, scoring: PoolScoring) -> Self {
        self.scoring = scoring;
        self
    }
}

/// The answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registered {
    /// Whether this call created the binding; `false` when it was there already.
    pub created: bool,
    /// Where the shard is in its life.
    pub standing: ShardStanding,
    /// Queued runs in the shard's pool whose tenants the policy does not know: they would wait for ever under it.
    pub unserved: Vec<UnservedRuns>,
    /// The store's clock.
    pub store_time: Timestamp,
}

impl Registered {
    /// An answer of a store.
    pub fn new(
        created: bool,
        standing: ShardStanding,
        unserved: Vec<UnservedRuns>,
        store_time: Timestamp,
    ) -> Self {
        Self {
            created,
            standing,
            unserved,
            store_time,
        }
    }
}
