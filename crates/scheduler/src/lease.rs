//! Leases while their runs are worked on: renewed together, and given up before somebody else can have them.

use core::convert::Infallible;
use core::time::Duration;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenhand_store::{Lease, LeaseDuration, Renewal, RunQueue, Timestamp};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Keeps every lease that one worker holds.
///
/// All that is known of a lease is measured on the monotonic clock, from before the request was sent that granted it.
/// So whatever the network did, the worker gives up before the store does.
#[derive(Debug)]
pub(crate) struct LeaseKeeper {
    duration: LeaseDuration,
    kept: Mutex<Kept>,
    hurry: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    next_key: u64,
    by_key: BTreeMap<u64, (Lease, watch::Sender<Standing>)>,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    good_until: Instant,
    lost: bool,
    stop_requested: bool,
}

/// What the store's clock showed after a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReading {
    asked_at: Instant,
    store_time: Timestamp,
}

impl ClockReading {
    /// The store's clock showed `store_time` at `asked_at` or later.
    pub(crate) fn new(asked_at: Instant, store_time: Timestamp) -> Self {
        Self {
            asked_at,
            store_time,
        }
    }

    /// A monotonic time at which a lease that ends at `expires_at` still lives, whenever it was granted: a claim may be
    /// the repetition of one that somebody else made long ago.
    ///
    /// The store's clock reaches `expires_at` no sooner than this.
    pub(crate) fn alive_at(self, expires_at: Timestamp) -> Instant {
        let left = expires_at.duration_since(self.store_time);
        // A lease that is over already has no time left.
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
        self.asked_at + left
    }
}

impl LeaseKeeper {
    pub(crate) fn new(duration: LeaseDuration) -> Self {
        Self {
            duration,
            kept: Mutex::default(),
            hurry: Notify::new(),
        }
    }

    /// Keeps a lease that the store does not end before `ends`, until the answer is dropped.
    pub(crate) fn hold(&self, lease: Lease, ends: Instant) -> HeldLease<'_> {
        // A claim that had to be repeated may have little of its lease left.
        if ends < Instant::now() + self.duration.get() / 2 {
            self.hurry.notify_one();
        }
        let (sender, standing) = watch::channel(Standing {
            good_until: self.give_up_before(ends),
            lost: false,
            stop_requested: false,
        });
        let mut kept = self.lock();
        let key = kept.next_key;
        kept.next_key += 1;
        kept.by_key.insert(key, (lease, sender));
        HeldLease {
            keeper: self,
            key,
            standing,
        }
    }

    /// Renews all leases in one call, at every third of their duration and when one is short, for ever.
    pub(crate) async fn keep(&self, queue: &impl RunQueue) -> Infallible {
        let interval = self.duration.get() / 3;
        let mut pause = interval;
        loop {
            tokio::select! {
                biased;
                () = self.hurry.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            let renewed = self.renew(queue, interval).await;
            pause = if renewed { interval } else { self.margin() };
        }
    }

    async fn renew(&self, queue: &impl RunQueue, patience: Duration) -> bool {
        let (keys, leases): (Vec<u64>, Vec<Lease>) = {
            let kept = self.lock();
            kept.by_key
                .iter()
                .map(|(key, (lease, _))| (*key, lease.clone()))
                .unzip()
        };
        if leases.is_empty() {
            return true;
        }
        let ends = Instant::now() + self.duration.get();
        // A call that hangs must not keep the next one from being made.
        let answer = tokio::time::timeout(patience, queue.renew(&leases, self.duration)).await;
        let renewals = match answer {
            Ok(Ok(renewals)) => renewals,
            Ok(Err(error)) => {
                tracing::warn!(leases = leases.len(), error = %error.kind(), "leases were not renewed");
                return false;
            }
            Err(_elapsed) => {
                tracing::warn!(leases = leases.len(), "leases were not renewed in time");
                return false;
            }
        };
        let good_until = self.give_up_before(ends);
        let kept = self.lock();
        for (key, renewal) in keys.iter().zip(renewals) {
            let Some((_, standing)) = kept.by_key.get(key) else {
                continue;
            };
            match renewal {
                Renewal::Renewed(_) => standing.send_modify(|now| now.good_until = good_until),
                Renewal::StopRequested(_) => standing.send_modify(|now| {
                    now.good_until = good_until;
                    now.stop_requested = true;
                }),
                // A kind of answer that this build does not know is no right to go on.
                Renewal::Lost | _ => standing.send_modify(|now| now.lost = true),
            }
        }
        true
    }

    /// A handler needs a moment to stop, so a lease counts as over a tenth before its end.
    fn give_up_before(&self, ends: Instant) -> Instant {
        ends.checked_sub(self.margin()).unwrap_or(ends)
    }

    fn margin(&self) -> Duration {
        self.duration.get() / 10
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics between two changes that belong together.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that is renewed for as long as this value lives.
#[derive(Debug)]
pub(crate) struct HeldLease<'a> {
    keeper: &'a LeaseKeeper,
    key: u64,
    standing: watch::Receiver<Standing>,
}

impl HeldLease<'_> {
    /// Resolves when the run must not be worked on any longer: the store said so, or the lease is about to end.
    pub(crate) async fn lost(&self) {
        self.over(|standing| standing.lost).await;
    }

    /// Resolves when the store has said that somebody cancelled the run.
    pub(crate) async fn stop_requested(&self) {
        let mut standing = self.standing.clone();
        if standing.wait_for(|now| now.stop_requested).await.is_err() {
            // Nobody keeps the lease any more, and nobody will ask.
            core::future::pending::<()>().await;
        }
    }

    /// Whether the store has said that somebody cancelled the run.
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.standing.borrow().stop_requested
    }

    /// Resolves when the lease is about to end. Until then it is worth asking the store how a call ended, even if a
    /// renewal was refused: the run may simply be done.
    pub(crate) async fn expired(&self) {
        self.over(|_| false).await;
    }

    async fn over(&self, early: fn(Standing) -> bool) {
        let mut standing = self.standing.clone();
        loop {
            let now = *standing.borrow_and_update();
            if early(now) {
                return;
            }
            tokio::select! {
                biased;
                changed = standing.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = tokio::time::sleep_until(now.good_until) => return,
            }
        }
    }
}

impl Drop for HeldLease<'_> {
    fn drop(&mut self) {
        self.keeper.lock().by_key.remove(&self.key);
    }
}
