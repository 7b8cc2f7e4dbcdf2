//! Runs: units of a tenant's work, as they are enqueued and as the store shows them.

use core::fmt;
use core::time::Duration;

use evenhand_policy::admission::{BasePriority, ValueClass};
use evenhand_policy::{PoolId, TeamId, TenantId};
use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use crate::{IdempotencyKey, RunKind};

/// The name of a run; a UUIDv7 that the store gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Uuid);

impl RunId {
    /// The run that this UUID names.
    pub fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The UUID.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Proof of whose right to a run is the current one: each claim of a run has a greater fence than the one before.
///
/// Pass it to whatever a handler writes to, so that a late write of an earlier attempt can be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The fence with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// A value of a run is outside its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunValueError {
    /// More attempts than a run may have, or none.
    #[error("a run has 1 to {most} attempts, not {0}", most = AttemptsMax::MAX)]
    AttemptsMax(u32),
    /// The cost is above the limit.
    #[error("a run costs at most {most} micros, not {0}", most = CostMicros::MAX)]
    Cost(u64),
    /// The timeout is outside its bounds.
    #[error("a run's timeout is 1 millisecond to 7 days, not {0:?}")]
    Timeout(Duration),
    /// The lease is outside its bounds.
    #[error("a lease is 1 second to 1 hour, not {0:?}")]
    Lease(Duration),
    /// The limit is above the highest one.
    #[error("a limit is at most {most} runs at once, not {0}", most = crate::RunsMax::MAX)]
    RunsMax(u32),
}

/// How many attempts a run has before it is dead: 1 to 1,000, 20 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptsMax(u32);

impl AttemptsMax {
    /// The most attempts.
    pub const MAX: u32 = 1_000;

    /// Allows `attempts`.
    ///
    /// # Errors
    ///
    /// When `attempts` is 0 or above [`MAX`](Self::MAX).
    pub fn new(attempts: u32) -> Result<Self, RunValueError> {
        if (1..=Self::MAX).contains(&attempts) {
            Ok(Self(attempts))
        } else {
            Err(RunValueError::AttemptsMax(attempts))
        }
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for AttemptsMax {
    fn default() -> Self {
        Self(20)
    }
}

/// What a run costs, in millionths of a unit that the application chooses; 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CostMicros(u64);

impl CostMicros {
    /// The largest cost, 10^15 micros, so that the sums of any round fit.
    pub const MAX: u64 = 1_000_000_000_000_000;

    /// A cost of `micros`.
    ///
    /// # Errors
    ///
    /// When `micros` is above [`MAX`](Self::MAX).
    pub fn new(micros: u64) -> Result<Self, RunValueError> {
        if micros <= Self::MAX {
            Ok(Self(micros))
        } else {
            Err(RunValueError::Cost(micros))
        }
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// How long one attempt may take: 1 millisecond to 7 days, 5 minutes by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunTimeout(Duration);

impl RunTimeout {
    /// The longest timeout.
    pub const MAX: Duration = Duration::from_hours(7 * 24);

    /// Allows an attempt `timeout`, which is cut to whole milliseconds.
    ///
    /// # Errors
    ///
    /// When it is below a millisecond or above [`MAX`](Self::MAX).
    pub fn new(timeout: Duration) -> Result<Self, RunValueError> {
        if (Duration::from_millis(1)..=Self::MAX).contains(&timeout) {
            let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            Ok(Self(Duration::from_millis(millis)))
        } else {
            Err(RunValueError::Timeout(timeout))
        }
    }

    /// The duration, in whole milliseconds.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl Default for RunTimeout {
    fn default() -> Self {
        Self(Duration::from_mins(5))
    }
}

/// The JSON that a handler gets: at most 256 KiB as text, 127 levels of arrays and objects, and numbers of ±1e308.
///
/// Strings and keys hold no NUL, which PostgreSQL cannot keep. Within these limits a value is read back equal from its
/// bytes; a store may write a number in another way, so that the float `1e16` becomes the integer `10000000000000000`.
///
/// # Examples
///
/// ```
/// use evenhand_store::{Payload, PayloadError};
/// use serde_json::json;
///
/// assert!(Payload::new(json!({"invoice": 7, "amounts": [1e308]})).is_ok());
/// assert_eq!(Payload::new(json!(f64::MAX)), Err(PayloadError::NumberTooLarge));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Payload(Value);

/// Why a value is not a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The text of the JSON is too long.
    #[error("the payload has {0} bytes, the limit is {most}", most = Payload::LENGTH_MAX)]
    TooLong(usize),
    /// Arrays and objects are nested too deep.
    #[error("the payload is nested deeper than {most} levels", most = Payload::LEVELS_MAX)]
    TooDeep,
    /// A number is too far from zero.
    #[error(
        "the payload holds a number outside of -{most:e} to {most:e}; write it as a string",
        most = Payload::NUMBER_MAX
    )]
    NumberTooLarge,
    /// A string or a key holds the character NUL.
    #[error("the payload holds the character NUL")]
    Nul,
}

impl Payload {
    /// The longest text of a payload, in bytes.
    pub const LENGTH_MAX: usize = 256 * 1024;

    /// How many arrays and objects may stand inside each other: as many as `serde_json` reads.
    pub const LEVELS_MAX: usize = 127;

    /// How far from zero a number may be: a round number that every double can hold.
    pub const NUMBER_MAX: f64 = 1e308;

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// When its text is longer than [`LENGTH_MAX`](Self::LENGTH_MAX), when it has more levels than
    /// [`LEVELS_MAX`](Self::LEVELS_MAX), when a number in it is farther from zero than
    /// [`NUMBER_MAX`](Self::NUMBER_MAX), or when a string or a key in it holds NUL.
    pub fn new(value: Value) -> Result<Self, PayloadError> {
        // First, because writing the text recurses as deep as the value goes.
        let payload = Self::kept(value)?;
        let length = payload.0.to_string().len();
        if length > Self::LENGTH_MAX {
            return Err(PayloadError::TooLong(length));
        }
        Ok(payload)
    }

    /// Checks a value that a store has kept, whatever the length of its text.
    ///
    /// The store has measured the text as it writes it itself, and some numbers are longer here.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new), except for the length.
    pub fn kept(value: Value) -> Result<Self, PayloadError> {
        check(&value, Self::LEVELS_MAX)?;
        Ok(Self(value))
    }

    /// The value.
    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// The value, taken out.
    pub fn into_value(self) -> Value {
        self.0
    }
}

/// Refuses what is nested deeper than `levels`, and what no store can keep.
fn check(value: &Value, levels: usize) -> Result<(), PayloadError> {
    let inside = || levels.checked_sub(1).ok_or(PayloadError::TooDeep);
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::INFINITY);
            if number.abs() <= Payload::NUMBER_MAX {
                Ok(())
            } else {
                Err(PayloadError::NumberTooLarge)
            }
        }
        Value::String(text) => refuse_nul(text),
        Value::Array(values) => {
            let levels = inside()?;
            values.iter().try_for_each(|value| check(value, levels))
        }
        Value::Object(entries) => {
            let levels = inside()?;
            entries.iter().try_for_each(|(key, value)| {
                refuse_nul(key)?;
                check(value, levels)
            })
        }
    }
}

fn refuse_nul(text: &str) -> Result<(), PayloadError> {
    if text.contains('\0') {
        Err(PayloadError::Nul)
    } else {
        Ok(())
    }
}

/// When a run becomes ready.
///
/// A time in the future is rounded up to the next wait tick of the pool, so that waits are exact; a time in the past
/// means now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadyAt {
    /// At once.
    #[default]
    Now,
    /// At this time of the store's clock.
    At(Timestamp),
    /// This long after the store's clock at the call.
    After(Duration),
}

/// A run to enqueue. Make it with [`new`](Self::new), then set the fields that differ from their defaults.
///
/// # Examples
///
/// ```
/// use evenhand_policy::admission::ValueClass;
/// use evenhand_policy::TenantId;
/// use evenhand_store::{NewRun, Payload, RunKind};
///
/// let mut run = NewRun::new(
///     TenantId::try_from("tenant-a")?,
///     RunKind::try_from("invoice.send")?,
///     Payload::new(serde_json::json!({"invoice": 7}))?,
/// );
/// run.value_class = ValueClass::Critical;
/// run.idempotency_key = Some("invoice-7".parse()?);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NewRun {
    /// The pool that it is served from.
    pub pool: PoolId,
    /// Whose run it is.
    pub tenant: TenantId,
    /// The team within the tenant; the tenant's own name by default.
    pub team: TeamId,
    /// Which handler it is for.
    pub kind: RunKind,
    /// What the handler gets.
    pub payload: Payload,
    /// Its value class; standard by default.
    pub value_class: ValueClass,
    /// Its base priority; 0 by default.
    pub base_priority: BasePriority,
    /// What it costs; nothing by default.
    pub cost_micros: CostMicros,
    /// When it becomes ready; at once by default.
    pub ready_at: ReadyAt,
    /// How many attempts it has; 20 by default.
    pub attempts_max: AttemptsMax,
    /// How long an attempt may take; 5 minutes by default.
    pub timeout: RunTimeout,
    /// The caller's own name for it. While the run's row is kept, the same key and content give that run again, and
    /// other content is refused. The content is every other field but `ready_at`.
    pub idempotency_key: Option<IdempotencyKey>,
}

impl NewRun {
    /// A run of `tenant` in the pool `default`, with every default.
    pub fn new(tenant: TenantId, kind: RunKind, payload: Payload) -> Self {
        Self {
            pool: PoolId::default(),
            team: TeamId::from(tenant.clone()),
            tenant,
            kind,
            payload,
            value_class: ValueClass::Standard,
            base_priority: BasePriority::default(),
            cost_micros: CostMicros::default(),
            ready_at: ReadyAt::Now,
            attempts_max: AttemptsMax::default(),
            timeout: RunTimeout::default(),
            idempotency_key: None,
        }
    }
}

/// Where a run is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunState {
    /// Waits for its ready time or for a slot of its tenant.
    Queued,
    /// Claimed, under a lease.
    Running,
    /// Completed.
    Done,
    /// Out of attempts, or given up: the dead letter.
    Dead,
    /// Cancelled before it was done.
    Cancelled,
}

impl RunState {
    /// The state's name in SQL and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A run as the store keeps it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Run {
    /// Its name.
    pub id: RunId,
    /// What was enqueued; its `ready_at` is the time from which it now counts as waiting.
    pub spec: NewRun,
    /// Where it is in its life.
    pub state: RunState,
    /// The time from which it counts as waiting. An expired lease keeps it; a failed attempt sets it anew.
    pub ready_at: Timestamp,
    /// How many attempts were counted so far, the current one included.
    pub attempt: u32,
    /// The fence of its newest claim, 0 before the first.
    pub fence: Fence,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// When it ended as done, dead or cancelled.
    pub finished_at: Option<Timestamp>,
    /// What its newest failed attempt said, at most [`Failure::ERROR_MAX`](crate::Failure::ERROR_MAX) bytes.
    pub last_error: Option<String>,
}

/// What a store has to know to show a run.
impl Run {
    /// A run as it is right after `spec` was enqueued.
    pub fn queued(id: RunId, spec: NewRun, ready_at: Timestamp, enqueued_at: Timestamp) -> Self {
        Self {
            id,
            spec,
            state: RunState::Queued,
            ready_at,
            attempt: 0,
            fence: Fence::new(0),
            enqueued_at,
            finished_at: None,
            last_error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn payload_limits_hold_on_both_sides() {
        // A JSON string of n characters has n + 2 bytes of text.
        let fits = "x".repeat(Payload::LENGTH_MAX - 2);
        assert!(Payload::new(json!(fits)).is_ok());
        let longer = "x".repeat(Payload::LENGTH_MAX - 1);
        assert_eq!(
            Payload::new(json!(longer)),
            Err(PayloadError::TooLong(Payload::LENGTH_MAX + 1))
        );
        for value in [json!("a\0b"), json!({"\0": 1}), json!([{"k": ["\0"]}])] {
            assert_eq!(Payload::new(value), Err(PayloadError::Nul));
        }
    }

    #[test]
    fn payloads_have_127_levels_and_numbers_of_1e308() {
        let arrays = |levels| (0..levels).fold(json!(0), |inner, _| json!([inner]));
        let objects = |levels| (0..levels).fold(json!(0), |inner, _| json!({"a": inner}));
        assert!(Payload::new(arrays(127)).is_ok());
        assert!(Payload::new(objects(127)).is_ok());
        assert_eq!(Payload::new(arrays(128)), Err(PayloadError::TooDeep));
        assert_eq!(Payload::new(objects(128)), Err(PayloadError::TooDeep));
        for number in [1e308, -1e308, 5e-324] {
            assert!(Payload::new(json!([number])).is_ok());
        }
        for number in [1e308_f64.next_up(), 1.1e308, -1.1e308, f64::MAX, f64::MIN] {
            let refused = Payload::new(json!({"n": number})).unwrap_err();
            assert_eq!(refused, PayloadError::NumberTooLarge);
        }
        assert_eq!(
            PayloadError::TooDeep.to_string(),
            "the payload is nested deeper than 127 levels"
        );
        assert_eq!(
            PayloadError::NumberTooLarge.to_string(),
            "the payload holds a number outside of -1e308 to 1e308; write it as a string"
        );
    }

    #[test]
    fn run_values_are_bounded_on_both_sides() {
        assert!(AttemptsMax::new(0).is_err());
        assert!(AttemptsMax::new(1).is_ok());
        assert!(AttemptsMax::new(1_000).is_ok());
        assert!(AttemptsMax::new(1_001).is_err());
        assert!(CostMicros::new(CostMicros::MAX).is_ok());
        assert!(CostMicros::new(CostMicros::MAX + 1).is_err());
        assert!(RunTimeout::new(Duration::from_micros(999)).is_err());
        assert!(RunTimeout::new(Duration::from_millis(1)).is_ok());
        assert!(RunTimeout::new(RunTimeout::MAX).is_ok());
        assert!(RunTimeout::new(RunTimeout::MAX + Duration::from_millis(1)).is_err());
    }
}
