//! From a selection to the settled end of at most one run.

use core::ops::ControlFlow;
use core::panic::AssertUnwindSafe;
use core::time::Duration;

use evenhand_store::{
    Claim, ClaimRequest, ClaimedRun, Failure, FailureOutcome, Lease, LeaseDuration, Retry, Run,
    RunQueue, StoreError, StoreErrorKind, WorkerName,
};
use futures::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::backoff::{Backoff, RetryPolicy, retry};
use crate::job::{HandlerError, Handlers, JobOutcome, RunContext};
use crate::lease::{ClockReading, HeldLease, LeaseKeeper};
use crate::metrics;
use crate::settle::{Completions, Ending};
use crate::tenant::{BoxError, RunEnd, RunReport, Selection, TenantOutcome};
use crate::text::{error_chain, panic_message};

/// How long a call on the store is still repeated after everything was asked to stop.
pub(crate) const SETTLE_AFTER_CANCEL: Duration = Duration::from_secs(5);

/// How runs are claimed, handled and settled. Every default is right for handlers that take seconds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExecutionOptions {
    /// Who works, for people who look at the record. By default made of host, process and a random number.
    pub worker: WorkerName,
    /// How long a claim lasts without a renewal; it is renewed at a third of that. 30 seconds by default.
    pub lease: LeaseDuration,
    /// How long a handler may go on after it was asked to stop. Then it is dropped and its run released. 15 seconds by
    /// default.
    pub grace: Duration,
    /// How long a run waits after a failed attempt that did not say it itself.
    pub backoff: Backoff,
    /// How claims, and the ends of runs, are repeated when the store does not answer.
    pub retry: RetryPolicy,
    /// How long a run waits whose kind has no handler here, so that a worker of another build can take it. 10 seconds
    /// by default.
    pub unknown_kind_delay: Duration,
}

impl Default for ExecutionOptions {
    fn default() -> Self {
        Self {
            worker: crate::host::worker_name(),
            lease: LeaseDuration::default(),
            grace: Duration::from_secs(15),
            backoff: Backoff::default(),
            retry: RetryPolicy::default(),
            unknown_kind_delay: Duration::from_secs(10),
        }
    }
}

/// A run that was claimed, and a monotonic time at which its lease still lives.
pub(crate) struct Claimed {
    run: ClaimedRun,
    ends: Instant,
}

impl Claimed {
    /// The run, as it was claimed.
    pub(crate) fn run(&self) -> &Run {
        &self.run.run
    }

    /// The sequence that it was claimed against.
    pub(crate) fn sequence(&self) -> u64 {
        self.run.lease.sequence
    }

    /// A run that was claimed for a `lease` at `asked_at` or later; an answer that was lost may have granted it already.
    pub(crate) fn new(
        run: ClaimedRun,
        lease: LeaseDuration,
        asked_at: Instant,
        reading: ClockReading,
    ) -> Self {
        let ends = asked_at + lease.get();
        let ends = ends.min(reading.alive_at(run.lease.expires_at));
        Self { run, ends }
    }
}

/// Claims and executes runs of one queue.
#[derive(Debug)]
pub(crate) struct Executor<Q> {
    queue: Q,
    handlers: Handlers,
    options: ExecutionOptions,
    // Without them each run is completed by a call of its own.
    completions: Option<Completions>,
}

impl<Q: RunQueue> Executor<Q> {
    pub(crate) fn new(queue: Q, handlers: Handlers, options: ExecutionOptions) -> Self {
        Self {
            queue,
            handlers,
            options,
            completions: None,
        }
    }

    /// The same executor, which hands in the runs that are done.
    pub(crate) fn with_completions(mut self, completions: Completions) -> Self {
        self.completions = Some(completions);
        self
    }

    pub(crate) fn with_options(self, options: ExecutionOptions) -> Self {
        Self { options, ..self }
    }

    pub(crate) fn queue(&self) -> &Q {
        &self.queue
    }

    pub(crate) fn lease_duration(&self) -> LeaseDuration {
        self.options.lease
    }

    /// Claims the run of the selection's sequence; breaks with the outcome if there is none.
    ///
    /// A sequence whose claim was refused for good is recorded as failed.
    pub(crate) async fn claim(
        &self,
        selection: &Selection,
        cancel: &CancellationToken,
    ) -> Result<ControlFlow<TenantOutcome, Claimed>, BoxError> {
        let mut request = ClaimRequest::new(
            selection.policy(),
            selection.sequence(),
            self.options.worker.clone(),
            self.options.lease,
        );
        request.takes_over = selection.takes_over();
        let span = tracing::debug_span!(
            "claim",
            shard = %request.shard,
            sequence = request.sequence,
            tenant = %request.tenant,
        );
        let asked = retry(self.options.retry, settle_time(cancel), || {
            self.queue.claim(&request)
        })
        .instrument(span)
        .await;
        match asked.result {
            Ok(Claim::Ran(run)) => Ok(ControlFlow::Continue(Claimed::new(
                *run,
                self.options.lease,
                asked.asked_at,
                selection.reading(),
            ))),
            Ok(Claim::Idle) => Ok(ControlFlow::Break(TenantOutcome::Idle)),
            Ok(Claim::Contended) => Ok(ControlFlow::Break(TenantOutcome::Contended)),
            Ok(_) => {
                Err("the queue answered a claim in a way that this build does not know".into())
            }
            Err(error) if error.kind() == StoreErrorKind::LeaseLost => {
                let report = RunReport::new(RunEnd::LeaseLost);
                Ok(ControlFlow::Break(TenantOutcome::Ran(report)))
            }
            Err(error) => {
                if !error.is_retryable() {
                    self.record_failed(&request, cancel).await;
                }
                Err(error.into())
            }
        }
    }

    /// Works on a claimed run until the store knows how its attempt ended, or until the lease is lost.
    pub(crate) async fn execute(
        &self,
        claimed: Claimed,
        keeper: &LeaseKeeper,
        cancel: &CancellationToken,
    ) -> RunReport {
        let Claimed { run: claimed, ends } = claimed;
        let lease = claimed.lease.clone();
        let tenant = claimed.run.spec.tenant.clone();
        let span = tracing::info_span!(
            "run",
            shard = %lease.shard,
            sequence = lease.sequence,
            tenant = %tenant,
            run = %lease.run,
            kind = %claimed.run.spec.kind,
            attempt = claimed.run.attempt,
        );
        let kind = self.handlers.known_kind(&claimed.run.spec.kind);
        async {
            let held = keeper.hold(lease.clone(), ends);
            let began = Instant::now();
            let verdict = self.handle(claimed, &held, cancel).await;
            metrics::handled(kind, verdict.as_str(), began.elapsed());
            let settling = tracing::debug_span!(
                "complete",
                shard = %lease.shard,
                sequence = lease.sequence,
                tenant = %tenant,
                verdict = verdict.as_str(),
            );
            let settled = self.settle(&lease, verdict, &held, cancel);
            // Until the run has ended.
            let (end, _ending) = settled.instrument(settling).await;
            tell(end);
            metrics::run_ended(kind, end);
            RunReport::of(lease.run, end)
        }
        .instrument(span)
        .await
    }

    /// Runs the handler, and decides what its end means for the run.
    async fn handle(
        &self,
        claimed: ClaimedRun,
        held: &HeldLease<'_>,
        cancel: &CancellationToken,
    ) -> Verdict {
        let stop = cancel.child_token();
        // What the handler spawned learns that the handler is gone, however it went.
        let _stop_on_drop = stop.clone().drop_guard();
        let context = RunContext::new(claimed, stop.clone());
        let timeout = context.run().spec.timeout.get();
        let Some(handler) = self.handlers.start(&context) else {
            tracing::warn!("no handler for this kind of run; it is put back");
            return Verdict::Release(self.options.unknown_kind_delay);
        };
        tokio::select! {
            biased;
            handled = AssertUnwindSafe(handler).catch_unwind() => match handled {
                Ok(Ok(outcome)) => {
                    self.judge(outcome, cancel.is_cancelled() || held.is_stop_requested())
                }
                Ok(Err(error)) => self.judge_error(error, context.run()),
                Err(panic) => {
                    let error = format!("the handler panicked: {}", panic_message(&*panic));
                    self.fail_with_backoff(error, context.run())
                }
            },
            () = held.lost() => Verdict::LeaseLost,
            () = tokio::time::sleep(timeout) => {
                self.fail_with_backoff(format!("timed out after {timeout:?}"), context.run())
            }
            () = over(cancel, self.options.grace) => Verdict::Release(Duration::ZERO),
            () = self.stop_when_requested(held, &stop) => Verdict::Release(Duration::ZERO),
        }
    }

    /// Resolves a grace period after the handler was asked to stop because its run was cancelled.
    async fn stop_when_requested(&self, held: &HeldLease<'_>, stop: &CancellationToken) {
        held.stop_requested().await;
        tracing::info!("the run was cancelled; its handler is asked to stop");
        stop.cancel();
        tokio::time::sleep(self.options.grace).await;
    }

    fn judge(&self, outcome: JobOutcome, asked_to_stop: bool) -> Verdict {
        match outcome {
            JobOutcome::Done => Verdict::Complete,
            JobOutcome::RetryAfter(delay) => {
                let error = "the handler asked for another attempt";
                failed(Failure::new(error, Retry::After(delay)))
            }
            JobOutcome::GiveUp(reason) => failed(Failure::new(reason, Retry::GiveUp)),
            JobOutcome::Release if asked_to_stop => Verdict::Release(Duration::ZERO),
            // Nobody asked it to stop, so it would be claimed again at once, and without end.
            JobOutcome::Release => Verdict::Release(self.options.backoff.ceiling(1)),
        }
    }

    fn judge_error(&self, error: HandlerError, run: &Run) -> Verdict {
        match error {
            HandlerError::Undecodable(error) => {
                // The decoder quotes what it reads, and a payload has no place in logs.
                tracing::info!("the payload does not decode; the error is kept with the run");
                let error = format!("the payload does not decode: {error}");
                Verdict::Fail(Failure::new(error, Retry::GiveUp))
            }
            HandlerError::Failed(error) => self.fail_with_backoff(error_chain(&*error), run),
        }
    }

    fn fail_with_backoff(&self, error: String, run: &Run) -> Verdict {
        let delay = self.options.backoff.delay(run.attempt, fastrand::u64(..));
        failed(Failure::new(error, Retry::After(delay)))
    }

    /// Tells the store, repeating the call with the same fence for as long as the lease lives.
    async fn settle(
        &self,
        lease: &Lease,
        verdict: Verdict,
        held: &HeldLease<'_>,
        cancel: &CancellationToken,
    ) -> (RunEnd, Option<Ending>) {
        let stop = async {
            tokio::select! {
                biased;
                () = held.expired() => {}
                () = settle_time(cancel) => {}
            }
        };
        let queue = &self.queue;
        let patience = RetryPolicy::new(self.options.retry.backoff, u32::MAX);
        let mut ending = None;
        let settled = match &verdict {
            Verdict::LeaseLost => Ok(RunEnd::LeaseLost),
            Verdict::Complete => {
                let asked = retry(patience, stop, || self.complete(lease)).await;
                asked.result.map(|completed| {
                    ending = completed;
                    RunEnd::Completed
                })
            }
            Verdict::Release(delay) => {
                let asked = retry(patience, stop, || queue.release(lease, *delay)).await;
                // Whatever ends the attempt of a cancelled run, unless it is done, the store does not queue it again.
                let end = if held.is_stop_requested() {
                    RunEnd::Cancelled
                } else {
                    RunEnd::Released
                };
                asked.result.map(|()| end)
            }
            Verdict::Fail(failure) => {
                let asked = retry(patience, stop, || queue.fail(lease, failure)).await;
                asked.result.map(|outcome| match outcome {
                    FailureOutcome::Requeued(at) => RunEnd::Requeued(at),
                    FailureOutcome::Cancelled => RunEnd::Cancelled,
                    FailureOutcome::Dead | _ => RunEnd::Dead,
                })
            }
        };
        let end = settled.unwrap_or_else(|error| {
            if error.kind() == StoreErrorKind::LeaseLost {
                RunEnd::LeaseLost
            } else {
                RunEnd::Unsettled(error.kind())
            }
        });
        (end, ending)
    }

    async fn complete(&self, lease: &Lease) -> Result<Option<Ending>, StoreError> {
        match &self.completions {
            Some(completions) => completions.complete(lease).await.map(Some),
            None => self.queue.complete(lease).await.map(|()| None),
        }
    }

    async fn record_failed(&self, request: &ClaimRequest, cancel: &CancellationToken) {
        let asked = retry(self.options.retry, settle_time(cancel), || {
            self.queue.record_failed(&request.shard, request.sequence)
        })
        .await;
        if let Err(error) = asked.result {
            tracing::warn!(
                shard = %request.shard,
                sequence = request.sequence,
                error = %error.kind(),
                "the failed sequence could not be recorded; it counts as lost"
            );
        }
    }
}

/// What is to be said about an attempt.
enum Verdict {
    Complete,
    Fail(Failure),
    Release(Duration),
    LeaseLost,
}

impl Verdict {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Fail(_) => "fail",
            Self::Release(_) => "release",
            Self::LeaseLost => "lease_lost",
        }
    }
}

fn failed(failure: Failure) -> Verdict {
    tracing::info!(error = failure.error(), "the attempt failed");
    Verdict::Fail(failure)
}

fn tell(end: RunEnd) {
    match end {
        RunEnd::Completed => tracing::debug!("the run is done"),
        RunEnd::Requeued(at) => tracing::info!(ready_at = %at, "the run is tried again"),
        RunEnd::Dead => tracing::warn!("the run is in the dead letter"),
        RunEnd::Released => tracing::info!("the run is put back"),
        RunEnd::Cancelled => tracing::info!("the run is cancelled"),
        RunEnd::LeaseLost => tracing::warn!("the lease was lost; another attempt decides"),
        RunEnd::Unsettled(kind) => {
            tracing::error!(error = %kind, "the store was not told how the attempt ended");
        }
    }
}

/// Resolves `after` the cancellation.
async fn over(cancel: &CancellationToken, after: Duration) {
    cancel.cancelled().await;
    tokio::time::sleep(after).await;
}

/// How long calls may be repeated: without end, until everything is asked to stop.
pub(crate) fn settle_time(cancel: &CancellationToken) -> impl Future<Output = ()> + '_ {
    over(cancel, SETTLE_AFTER_CANCEL)
}
