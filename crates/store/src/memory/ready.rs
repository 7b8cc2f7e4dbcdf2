//! From when a run is ready, counted in wait ticks.

use core::time::Duration;

use jiff::Timestamp;

use crate::ReadyAt;

/// The wait tick of its pool in which `time` lies.
pub(super) fn tick_of(time: Timestamp, wait_tick: Duration) -> i128 {
    time.as_nanosecond().div_euclid(nanos(wait_tick))
}

/// How many whole ticks a run has waited; `None` as long as it is not ready.
pub(super) fn wait_ticks(
    clock: Timestamp,
    ready_at: Timestamp,
    wait_tick: Duration,
) -> Option<u64> {
    u64::try_from(tick_of(clock, wait_tick) - tick_of(ready_at, wait_tick)).ok()
}

/// The time from which a run counts as waiting: now, or a later time rounded up to a whole tick since the Unix epoch.
///
/// A run with a later time so becomes ready exactly when its tick begins, never before the time that was asked for.
pub(super) fn ready_time(clock: Timestamp, ready_at: ReadyAt, wait_tick: Duration) -> Timestamp {
    let asked = match ready_at {
        ReadyAt::Now => clock,
        ReadyAt::At(time) => time,
        ReadyAt::After(delay) => clock.saturating_add(delay).unwrap_or(Timestamp::MAX),
    };
    if asked <= clock {
        clock
    } else {
        rounded_up(asked, wait_tick)
    }
}

fn rounded_up(time: Timestamp, wait_tick: Duration) -> Timestamp {
    let time = time.as_nanosecond();
    let missing = time.saturating_neg().rem_euclid(nanos(wait_tick));
    Timestamp::from_nanosecond(time.saturating_add(missing)).unwrap_or(Timestamp::MAX)
}

fn nanos(wait_tick: Duration) -> i128 {
    // A wait tick is at most a day, so its nanoseconds fit.
    i128::try_from(wait_tick.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(250);

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn a_later_time_is_rounded_up_to_a_whole_tick() {
        let clock = at(1_000_010);
        let nanosecond = Duration::from_nanos(1);
        for (asked, ready) in [
            (at(1_000_011), at(1_000_250)),
            (at(1_000_250), at(1_000_250)),
            (at(1_000_250) + nanosecond, at(1_000_500)),
        ] {
            assert_eq!(ready_time(clock, ReadyAt::At(asked), TICK), ready);
        }
        assert_eq!(
            ready_time(clock, ReadyAt::After(Duration::from_millis(1)), TICK),
            at(1_000_250)
        );
    }

    #[test]
    fn now_and_earlier_times_are_the_clock_itself() {
        let clock = at(1_000_010);
        for ready_at in [
            ReadyAt::Now,
            ReadyAt::At(at(0)),
            ReadyAt::At(clock),
            ReadyAt::After(Duration::ZERO),
        ] {
            assert_eq!(ready_time(clock, ready_at, TICK), clock);
        }
    }

    #[test]
    fn a_time_beyond_the_calendar_is_its_end() {
        let ready_at = ReadyAt::After(Duration::MAX);
        assert_eq!(ready_time(at(0), ready_at, TICK), Timestamp::MAX);
    }

    #[test]
    fn ticks_are_counted_from_the_epoch_and_rounded_down() {
        assert_eq!(tick_of(at(0), TICK), 0);
        assert_eq!(tick_of(at(249), TICK), 0);
        assert_eq!(tick_of(at(250), TICK), 1);
        assert_eq!(tick_of(at(-1), TICK), -1);
    }
}
