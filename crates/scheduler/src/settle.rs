//! Completions of one worker, made together.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use std::sync::Arc;

use evenhand_store::{Lease, RunQueue, StoreError, StoreErrorKind};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::Instrument;

/// The most completions of one call, so that a call holds its runs and permits for some milliseconds only.
const TOGETHER_MAX: usize = 256;

/// A call that takes longer does not keep the next one from being made.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where runs that are done are handed in.
#[derive(Clone, Debug)]
pub(crate) struct Completions {
    asks: mpsc::UnboundedSender<Asked>,
    coming: Arc<Coming>,
}

/// Makes the calls for what is handed in: for a run that ends alone at once, and for those that end while a call is under
/// way together in the next one. There is no timer; the call under way is the window.
#[derive(Debug)]
pub(crate) struct Settler {
    asked: mpsc::UnboundedReceiver<Asked>,
    coming: Arc<Coming>,
}

#[derive(Debug)]
struct Asked {
    lease: Lease,
    answer: oneshot::Sender<(Result<(), StoreError>, Ending)>,
}

/// The permits that are about to come back, because their runs are done.
#[derive(Debug, Default)]
struct Coming {
    /// Runs that are handed in and not answered, less those of a call that takes too long.
    handed_in: AtomicUsize,
    /// Runs that are answered and about to end.
    ending: AtomicUsize,
    call_over: Notify,
}

/// The runs of one call, for as long as they count as handed in.
#[derive(Debug)]
struct InCall {
    coming: Arc<Coming>,
    runs: AtomicUsize,
}

impl InCall {
    fn new(coming: &Arc<Coming>, runs: usize) -> Self {
        Self {
            coming: Arc::clone(coming),
            runs: AtomicUsize::new(runs),
        }
    }

    /// The call is over, or takes too long; once is enough.
    fn is_over(&self) {
        let runs = self.runs.swap(0, Ordering::Relaxed);
        self.coming.handed_in.fetch_sub(runs, Ordering::Relaxed);
    }
}

/// Says that a run which the store has answered is about to end, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Ending(Arc<Coming>);

impl Ending {
    fn new(coming: &Arc<Coming>) -> Self {
        coming.ending.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(coming))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Completions {
    /// A place to hand runs in, and who has to [run](Settler::run) for that.
    pub(crate) fn new() -> (Self, Settler) {
        let (asks, asked) = mpsc::unbounded_channel();
        let coming = Arc::new(Coming::default());
        let settler = Settler {
            asked,
            coming: Arc::clone(&coming),
        };
        (Self { asks, coming }, settler)
    }

    /// Completes the run of this lease. The caller is about to end once it has the answer, and keeps the [`Ending`] until
    /// then.
    pub(crate) async fn complete(&self, lease: &Lease) -> Result<Ending, StoreError> {
        let (answer, answered) = oneshot::channel();
        let lease = lease.clone();
        self.coming.handed_in.fetch_add(1, Ordering::Relaxed);
        // If nobody takes it, nobody answers.
        let _ = self.asks.send(Asked { lease, answer });
        let (result, ending) = answered.await.map_err(|_| {
            // Asked again it would most likely panic again.
            StoreError::new(StoreErrorKind::Corrupt, "the store panicked")
        })?;
        result.map(|()| ending)
    }

    /// Whether it is worth waiting for [permits to come back](Self::call_over) before a round for `free` permits is made:
    /// runs that are handed in bring more of them, or some have just been answered.
    ///
    /// Otherwise rounds as small as the number of runs that happened to be first would cost as much as large ones. It is
    /// never for long: no call holds a round up for more than a second, and once one has brought its permits, only even
    /// more runs are worth waiting for.
    pub(crate) fn are_worth_waiting_for(&self, free: u32) -> bool {
        let free = usize::try_from(free).unwrap_or(usize::MAX);
        let coming = &self.coming;
        coming.ending.load(Ordering::Relaxed) > 0 || coming.handed_in.load(Ordering::Relaxed) > free
    }

    /// Resolves when a call was answered, or is not worth waiting for any more.
    pub(crate) async fn call_over(&self) {
        self.coming.call_over.notified().await;
    }
}

impl Settler {
    /// Makes calls until nobody can hand anything in any more.
    pub(crate) async fn run<Q: RunQueue + 'static>(mut self, queue: Arc<Q>) {
        let mut calls = JoinSet::new();
        while let Some(first) = self.asked.recv().await {
            let together = self.with_those_that_end_too(first).await;
            let in_call = Arc::new(InCall::new(&self.coming, together.len()));
            let span = tracing::debug_span!("complete_many", runs = together.len());
            let call = complete(Arc::clone(&queue), together, Arc::clone(&in_call));
            calls.spawn(call.instrument(span));
            tokio::select! {
                biased;
                Some(ended) = calls.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(error = %error, "a completion panicked");
                    }
                }
                () = tokio::time::sleep(PATIENCE) => {}
            }
            in_call.is_over();
            self.coming.call_over.notify_one();
        }
    }

    /// Runs that end at the same moment come along: as long as others end while everybody else gets a turn.
    async fn with_those_that_end_too(&mut self, first: Asked) -> Vec<Asked> {
        let mut together = vec![first];
        loop {
            let before = together.len();
            tokio::task::yield_now().await;
            while together.len() < TOGETHER_MAX
                && let Ok(next) = self.asked.try_recv()
            {
                together.push(next);
            }
            if together.len() == before {
                return together;
            }
        }
    }
}

async fn complete<Q: RunQueue>(queue: Arc<Q>, together: Vec<Asked>, in_call: Arc<InCall>) {
    let (leases, answers): (Vec<_>, Vec<_>) = together
        .into_iter()
        .map(|asked| (asked.lease, asked.answer))
        .unzip();
    let results = match queue.complete_many(&leases).await {
        Ok(results) => results,
        Err(error) => {
            tracing::debug!(runs = leases.len(), error = %error, "runs were not completed");
            let failed = || StoreError::new(error.kind(), "the call for several runs failed");
            leases.iter().map(|_| Err(failed())).collect()
        }
    };
    // All of them at once, so that nobody takes the first permit that comes back for all that do.
    let answers: Vec<_> = answers
        .into_iter()
        .zip(results)
        .map(|(answer, result)| (answer, (result, Ending::new(&in_call.coming))))
        .collect();
    in_call.is_over();
    for (answer, ended) in answers {
        // Whoever is gone does not want to know.
        let _ = answer.send(ended);
    }
}
