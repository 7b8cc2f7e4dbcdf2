//! Every limit of the contract's values, on both sides.

use core::time::Duration;

use evenhand_policy::admission::{Scoring, ScoringOptions, ValueWeights};
use evenhand_store::{
    Failure, IdempotencyKey, InvalidRetention, LeaseDuration, NameError, PageSize, PoolScoring,
    PoolScoringError, Reservation, ReservationCount, ReservationId, Retry, RunKind, SEQUENCE_MAX,
    SchedulerFairnessRetentionPolicy, StoreError, StoreErrorKind, Timestamp, WorkerName,
};

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn a_reservation_takes_one_to_two_to_the_twenty_sequences() {
    assert!(ReservationCount::new(0).is_err());
    assert_eq!(ReservationCount::new(1).unwrap(), ReservationCount::ONE);
    assert_eq!(
        ReservationCount::new(1 << 20).unwrap(),
        ReservationCount::MAX
    );
    let error = ReservationCount::new((1 << 20) + 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a reservation takes 1 to 1048576 sequences, not 1048577"
    );
}

#[test]
fn the_last_block_of_the_range_ends_with_it() {
    let id = ReservationId::mint(Timestamp::UNIX_EPOCH);
    let count = ReservationCount::new(10).unwrap();
    let time = Timestamp::UNIX_EPOCH;
    let last = Reservation::new(id, SEQUENCE_MAX - 9, count, time, time);
    assert_eq!(*last.sequences().end(), SEQUENCE_MAX);
    assert_eq!(last.sequences().count(), 10);
}

#[test]
fn retention_is_bounded_on_both_sides() {
    let new = SchedulerFairnessRetentionPolicy::new;
    let (hour, year) = (Duration::from_hours(1), Duration::from_hours(366 * 24));
    for (window, batch) in [(hour, 1), (year, 10_000)] {
        let policy = new(window, batch).unwrap();
        assert_eq!((policy.window(), policy.batch()), (window, batch));
    }
    for window in [Duration::from_millis(3_599_999), year + MILLISECOND] {
        assert_eq!(new(window, 1), Err(InvalidRetention::Window(window)));
    }
    for batch in [0, 10_001] {
        assert_eq!(new(hour, batch), Err(InvalidRetention::Batch(batch)));
    }
}

#[test]
fn a_lease_lasts_a_second_to_an_hour() {
    let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
    for duration in [second, hour] {
        assert_eq!(LeaseDuration::new(duration).unwrap().get(), duration);
    }
    for duration in [Duration::from_millis(999), hour + MILLISECOND] {
        assert!(LeaseDuration::new(duration).is_err(), "{duration:?}");
    }
    let uneven = LeaseDuration::new(second + Duration::from_micros(1_500)).unwrap();
    assert_eq!(uneven.get(), second + MILLISECOND);
}

#[test]
fn a_wait_tick_is_whole_milliseconds_up_to_a_day() {
    let day = Duration::from_hours(24);
    for tick in [Duration::from_millis(100), day] {
        assert_eq!(
            PoolScoring::new(Scoring::default(), tick)
                .unwrap()
                .wait_tick(),
            tick
        );
    }
    let uneven = Duration::from_micros(100_500);
    for tick in [Duration::from_millis(99), uneven, day + MILLISECOND] {
        let refused = PoolScoring::new(Scoring::default(), tick);
        assert_eq!(refused, Err(PoolScoringError::WaitTick(tick)));
    }
}

#[test]
fn a_scoring_that_cannot_order_a_queue_is_refused() {
    let second = Duration::from_secs(1);
    let scoring = |max_aging_ticks, critical| {
        let value_weights = ValueWeights {
            critical,
            ..ValueWeights::default()
        };
        let options = ScoringOptions {
            value_weights,
            max_aging_ticks,
            ..Default::default()
        };
        PoolScoring::new(Scoring::new(options).unwrap(), second)
    };
    assert!(
        scoring(12, 1_000).is_ok(),
        "aging may last until starvation begins"
    );
    assert!(matches!(
        scoring(13, 1_000),
        Err(PoolScoringError::Scoring(_))
    ));
}

#[test]
fn names_are_printable_and_bounded() {
    for (length, fits) in [(0, false), (1, true), (128, true), (129, false)] {
        let text = "x".repeat(length);
        assert_eq!(
            RunKind::try_from(text.as_str()).is_ok(),
            fits,
            "a kind of {length} bytes"
        );
        assert_eq!(
            WorkerName::try_from(text).is_ok(),
            fits,
            "a worker's name of {length} bytes"
        );
    }
    for (length, fits) in [(0, false), (1, true), (255, true), (256, false)] {
        let text = "~".repeat(length);
        assert_eq!(
            text.parse::<IdempotencyKey>().is_ok(),
            fits,
            "a key of {length} bytes"
        );
    }
    let error = RunKind::try_from("a\tb").unwrap_err();
    assert_eq!(
        error,
        NameError::NotPrintable {
            what: "run kind",
            character: '\t',
            index: 1
        }
    );
    assert!(RunKind::try_from("gr\u{fc}n").is_err());
}

#[test]
fn a_failures_text_is_cut_between_characters() {
    let long = format!("{}\u{1f642}", "x".repeat(Failure::ERROR_MAX - 1));
    let failure = Failure::new(long, Retry::GiveUp);
    assert_eq!(failure.error().len(), Failure::ERROR_MAX - 1);
    assert_eq!(Failure::new("a\0b", Retry::GiveUp).error(), "a\u{fffd}b");
}

#[test]
fn a_page_is_moved_within_its_bounds() {
    let sizes = [0, 1, 1_000, 1_001].map(|runs| PageSize::new(runs).get());
    assert_eq!(sizes, [1, 1, 1_000, 1_000]);
    assert_eq!(PageSize::default().get(), 100);
}

#[test]
fn only_errors_that_may_be_asked_again_are_retryable() {
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::OutcomeUnknown] {
        assert!(StoreError::new(kind, "no answer").is_retryable(), "{kind}");
    }
    for kind in [
        StoreErrorKind::Expired,
        StoreErrorKind::LeaseLost,
        StoreErrorKind::Corrupt,
    ] {
        assert!(!StoreError::new(kind, "refused").is_retryable(), "{kind}");
    }
    let error = StoreError::new(StoreErrorKind::Expired, "too old").with_source("the cause");
    assert_eq!(error.to_string(), "expired: too old");
    let source = core::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "the cause");
}
