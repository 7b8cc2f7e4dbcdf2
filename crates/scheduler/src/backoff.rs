//! How long to wait before asking again: for attempts at a run, and for calls on the store.

use core::future::Future;
use core::pin::pin;
use core::time::Duration;

use evenhand_store::{StoreError, StoreErrorKind};
use tokio::time::Instant;

/// Exponential backoff with full jitter: the wait before attempt `n + 1` is uniform between nothing and a ceiling that
/// doubles with every attempt, up to a cap.
///
/// Full jitter spreads callers that failed together better than any fixed wait with a little noise; see Marc Brooker,
/// "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
///
/// # Examples
///
/// ```
/// use core::time::Duration;
/// use evenhand_scheduler::Backoff;
///
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// assert_eq!(backoff.ceiling(1), Duration::from_secs(1));
/// assert_eq!(backoff.ceiling(4), Duration::from_secs(8));
/// assert_eq!(backoff.ceiling(50), Duration::from_secs(60));
/// // Half of the random range is half of the ceiling.
/// assert_eq!(backoff.delay(4, 1 << 63), Duration::from_secs(4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
}

impl Backoff {
    /// The ceiling after the first attempt is `base`, and no ceiling is above `cap`.
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap }
    }

    /// The longest wait after `attempt` attempts, of which the first is 1.
    pub fn ceiling(&self, attempt: u32) -> Duration {
        let doublings = 2_u32.saturating_pow(attempt.saturating_sub(1));
        self.base.saturating_mul(doublings).min(self.cap)
    }

    /// The wait after `attempt` attempts, for a `random` number that is uniform over all of `u64`.
    pub fn delay(&self, attempt: u32, random: u64) -> Duration {
        fraction(self.ceiling(attempt), random)
    }
}

impl Default for Backoff {
    /// For attempts at a run: from one second up to one hour.
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_hours(1))
    }
}

/// How often, and how patiently, a call is repeated that the store answered with *unavailable* or *outcome unknown*.
///
/// It is always the same request that is repeated, so that nothing happens twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// How long to wait between two calls.
    pub backoff: Backoff,
    /// How many times to repeat the call after the first time.
    pub retries_max: u32,
}

impl RetryPolicy {
    /// Repeats a call at most `retries_max` times.
    pub const fn new(backoff: Backoff, retries_max: u32) -> Self {
        Self {
            backoff,
            retries_max,
        }
    }

    /// Repeats a call for as long as its result is wanted, for callers that have nothing better to do than wait.
    pub fn unlimited() -> Self {
        Self {
            retries_max: u32::MAX,
            ..Self::default()
        }
    }
}

impl Default for RetryPolicy {
    /// At most 10 times, 50 milliseconds up to 5 seconds apart: about ten seconds in all, which a restarting server
    /// usually needs less of.
    fn default() -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        Self::new(backoff, 10)
    }
}

/// How a repeated call ended.
pub(crate) struct Retried<T> {
    pub(crate) result: Result<T, StoreError>,
    pub(crate) retries: u32,
    /// Whether any of the calls may have done its work without answering.
    pub(crate) unknown: bool,
    /// Before the first call that may have done the work: the last one, or an earlier one that got no answer.
    pub(crate) asked_at: Instant,
}

/// Calls `operation` until it succeeds, fails for good, has been repeated often enough, or `stop` resolves.
///
/// A call that is under way is never given up, only the waiting between two calls is.
pub(crate) async fn retry<T, F, Fut>(
    policy: RetryPolicy,
    stop: impl Future<Output = ()>,
    mut operation: F,
) -> Retried<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, StoreError>>,
{
    let mut stop = pin!(stop);
    let (mut retries, mut unknown, mut asked_at) = (0_u32, false, Instant::now());
    loop {
        if !unknown {
            asked_at = Instant::now();
        }
        let result = operation().await;
        let error = result.as_ref().err();
        unknown |= error.is_some_and(|error| error.kind() == StoreErrorKind::OutcomeUnknown);
        let again = error.filter(|error| error.is_retryable() && retries < policy.retries_max);
        let Some(error) = again else {
            return Retried {
                result,
                retries,
                unknown,
                asked_at,
            };
        };
        let delay = policy
            .backoff
            .delay(retries.saturating_add(1), fastrand::u64(..));
        tracing::debug!(error = %error.kind(), retries, ?delay, "the store is asked again");
        tokio::select! {
            biased;
            () = &mut stop => return Retried { result, retries, unknown, asked_at },
            () = tokio::time::sleep(delay) => retries = retries.saturating_add(1),
        }
    }
}

/// A wait of `interval` on average, between half of it and one and a half, so that replicas do not move in step.
pub(crate) fn around(interval: Duration, random: u64) -> Duration {
    (interval / 2).saturating_add(fraction(interval, random))
}

/// `random / 2^64` of `whole`, in integers. A `whole` beyond 584 years counts as 584 years.
fn fraction(whole: Duration, random: u64) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
    let part = (u128::from(nanos) * u128::from(random)) >> 64;
    Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_within_nothing_and_the_ceiling() {
        let backoff = Backoff::default();
        for attempt in [0, 1, 2, 12, 13, 33, u32::MAX] {
            let ceiling = backoff.ceiling(attempt);
            assert_eq!(backoff.delay(attempt, 0), Duration::ZERO);
            assert!(backoff.delay(attempt, u64::MAX) < ceiling);
            assert!(
                backoff.delay(attempt, u64::MAX) > ceiling.saturating_sub(Duration::from_nanos(2))
            );
        }
    }

    #[test]
    fn ceilings_double_up_to_the_cap() {
        let backoff = Backoff::default();
        let seconds: Vec<u64> = (1..=14).map(|n| backoff.ceiling(n).as_secs()).collect();
        assert_eq!(
            seconds,
            [
                1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600
            ]
        );
    }

    #[test]
    fn a_cap_below_the_base_wins() {
        let backoff = Backoff::new(Duration::from_secs(9), Duration::from_secs(2));
        assert_eq!(backoff.ceiling(1), Duration::from_secs(2));
    }

    #[test]
    fn the_longest_duration_does_not_overflow() {
        let backoff = Backoff::new(Duration::MAX, Duration::MAX);
        assert!(backoff.delay(u32::MAX, u64::MAX) <= Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn jittered_intervals_keep_their_mean() {
        let second = Duration::from_secs(1);
        assert_eq!(around(second, 0), Duration::from_millis(500));
        assert_eq!(around(second, 1 << 63), second);
        assert!(around(second, u64::MAX) < Duration::from_millis(1_500));
    }

    /// When the call is known to be asked that ended with success after these refusals, one second apart.
    async fn asked_after(refusals: &[StoreErrorKind]) -> Duration {
        let started = Instant::now();
        let mut refusals = refusals.iter();
        let policy = RetryPolicy::new(Backoff::new(Duration::ZERO, Duration::ZERO), 10);
        let asked = retry(policy, core::future::pending(), || {
            let refusal = refusals.next();
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                refusal.map_or(Ok(()), |kind| Err(StoreError::new(*kind, "injected")))
            }
        })
        .await;
        assert!(asked.result.is_ok());
        asked.asked_at - started
    }

    #[tokio::test(start_paused = true)]
    async fn only_calls_that_may_have_done_their_work_count() {
        use StoreErrorKind::{OutcomeUnknown, Unavailable};
        for (refusals, expected) in [
            (&[][..], 0..1),
            (&[Unavailable, Unavailable], 2..3),
            (&[Unavailable, OutcomeUnknown, Unavailable], 1..2),
            (&[OutcomeUnknown], 0..1),
        ] {
            let asked = asked_after(refusals).await.as_secs();
            assert!(expected.contains(&asked), "{asked} after {refusals:?}");
        }
    }
}
