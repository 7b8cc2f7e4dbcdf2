//! The ids of reservations, and how they are minted from the store's clock.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use jiff::Timestamp;
use uuid::{NoContext, Uuid};

/// The name of one reservation: a UUIDv7 that its caller mints, and repeats to learn what became of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(Uuid);

/// The text or UUID is not of version 7.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version 7 UUID")]
pub struct NotUuidV7(String);

impl ReservationId {
    /// A new random id whose own time is `time`, in milliseconds since the Unix epoch (0 for earlier times).
    pub fn mint(time: Timestamp) -> Self {
        let millis = u64::try_from(time.as_millisecond()).unwrap_or(0);
        let nanos = u32::try_from(millis % 1000).unwrap_or(0) * 1_000_000;
        Self(Uuid::new_v7(uuid::Timestamp::from_unix(
            NoContext,
            millis / 1000,
            nanos,
        )))
    }

    /// The UUID.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }

    /// The id's own time, in milliseconds since the Unix epoch.
    pub fn unix_millis(self) -> u64 {
        let (high, low, _, _) = self.0.as_fields();
        (u64::from(high) << 16) | u64::from(low)
    }
}

impl TryFrom<Uuid> for ReservationId {
    type Error = NotUuidV7;

    fn try_from(uuid: Uuid) -> Result<Self, NotUuidV7> {
        let is_v7 = uuid.get_version_num() == 7 && uuid.get_variant() == uuid::Variant::RFC4122;
        if is_v7 {
            Ok(Self(uuid))
        } else {
            Err(NotUuidV7(uuid.to_string()))
        }
    }
}

impl FromStr for ReservationId {
    type Err = NotUuidV7;

    fn from_str(text: &str) -> Result<Self, NotUuidV7> {
        Uuid::parse_str(text)
            .map_err(|_| NotUuidV7(text.to_owned()))
            .and_then(Self::try_from)
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Mints ids from the store's clock as last reported, plus the monotonic time that has passed since.
///
/// So the wall clock of a client does not matter. The caller passes its monotonic clock in as the time since any fixed
/// origin of its own.
///
/// # Examples
///
/// ```
/// use core::time::Duration;
/// use evenhand_store::{ReservationIdMint, Timestamp};
///
/// let store_time: Timestamp = "2026-05-01T12:00:00Z".parse()?;
/// let mint = ReservationIdMint::new(store_time, Duration::from_secs(10));
/// let id = mint.mint(Duration::from_secs(12));
/// assert_eq!(id.unix_millis(), u64::try_from(store_time.as_millisecond())? + 2_000);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReservationIdMint {
    store_time: Timestamp,
    reported_at: Duration,
}

impl ReservationIdMint {
    /// A mint for a store whose clock showed `store_time` at the monotonic time `now`.
    pub fn new(store_time: Timestamp, now: Duration) -> Self {
        Self {
            store_time,
            reported_at: now,
        }
    }

    /// Takes over what the store reported last.
    pub fn observe(&mut self, store_time: Timestamp, now: Duration) {
        *self = Self::new(store_time, now);
    }

    /// A new id for the monotonic time `now`.
    pub fn mint(&self, now: Duration) -> ReservationId {
        let elapsed = now.saturating_sub(self.reported_at);
        ReservationId::mint(
            self.store_time
                .saturating_add(elapsed)
                .unwrap_or(self.store_time),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_keeps_its_own_time_and_survives_text() {
        let time = Timestamp::from_millisecond(1_777_000_123_456).unwrap();
        let id = ReservationId::mint(time);
        assert_eq!(id.unix_millis(), 1_777_000_123_456);
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn other_versions_are_refused() {
        for text in [
            "",
            "67e55044-10b1-426f-9247-bb680e5fe0c8",
            "00000000-0000-0000-0000-000000000000",
            "01890a5d-ac96-774b-0cce-b302099a8057",
        ] {
            assert!(text.parse::<ReservationId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_is_followed() {
        let early = Timestamp::from_second(1_000_000).unwrap();
        let mut mint =
            ReservationIdMint::new(Timestamp::from_second(2_000_000).unwrap(), Duration::ZERO);
        mint.observe(early, Duration::from_secs(1));
        assert_eq!(
            mint.mint(Duration::from_secs(1)).unix_millis(),
            1_000_000_000
        );
        // A monotonic clock that is read out of order never mints into the past of the report.
        assert_eq!(mint.mint(Duration::ZERO).unix_millis(), 1_000_000_000);
    }
}
