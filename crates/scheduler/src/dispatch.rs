//! Who ticks when: looks, permits, ticks under way, and the drain.

use core::future::Future;
use core::ops::ControlFlow;
use core::pin::pin;
use core::time::Duration;

use std::sync::Arc;

use async_trait::async_trait;
use evenhand_store::{ReservationStore, RunQueue, StoreError};
use futures::FutureExt;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::backoff::{RetryPolicy, around, retry};
use crate::execute::{Executor, SETTLE_AFTER_CANCEL};
use crate::fair::{DurableFairScheduler, Tick, TickError, TickOutcome};
use crate::lease::LeaseKeeper;
use crate::look::Look;
use crate::report::WorkerReport;
use crate::tenant::{BoxError, Selection, TenantOutcome, TenantScheduler};

/// The tenant scheduler of a worker: its leases are renewed together, and the dispatcher hears of claims when they are
/// made, not when their runs have ended.
#[derive(Debug)]
pub(crate) struct WorkerTenants<Q> {
    pub(crate) executor: Executor<Q>,
    pub(crate) keeper: Arc<LeaseKeeper>,
    pub(crate) claims: Arc<Notify>,
}

#[async_trait]
impl<Q: RunQueue> TenantScheduler for WorkerTenants<Q> {
    async fn tick(
        &self,
        selection: &Selection,
        cancel: &CancellationToken,
    ) -> Result<TenantOutcome, BoxError> {
        let claimed = match self.executor.claim(selection, cancel).await? {
            ControlFlow::Continue(claimed) => claimed,
            ControlFlow::Break(outcome) => return Ok(outcome),
        };
        self.claims.notify_one();
        let report = self.executor.execute(claimed, &self.keeper, cancel).await;
        Ok(TenantOutcome::Ran(report))
    }
}

pub(crate) type WorkerScheduler<S> = DurableFairScheduler<Arc<S>, WorkerTenants<Arc<S>>>;

/// What a dispatcher is told by its worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchOptions {
    pub(crate) concurrency: usize,
    pub(crate) poll_interval: Duration,
    pub(crate) grace: Duration,
    pub(crate) until_idle: bool,
}

/// Spawns ticks while looks promise something and permits are free.
pub(crate) struct Dispatcher<S> {
    scheduler: Arc<WorkerScheduler<S>>,
    store: Arc<S>,
    keeper: Arc<LeaseKeeper>,
    claims: Arc<Notify>,
    options: DispatchOptions,
    drain: CancellationToken,
    // Aborts what is under way when it is dropped.
    ticks: JoinSet<Ticked>,
    // `None` when a look is due.
    look: Option<Look>,
    report: WorkerReport,
}

type Ticked = Result<Option<Tick>, TickError>;

impl<S: ReservationStore + RunQueue + 'static> Dispatcher<S> {
    pub(crate) fn new(
        scheduler: WorkerScheduler<S>,
        store: Arc<S>,
        keeper: Arc<LeaseKeeper>,
        claims: Arc<Notify>,
        options: DispatchOptions,
        drain: CancellationToken,
    ) -> Self {
        Self {
            scheduler: Arc::new(scheduler),
            store,
            keeper,
            claims,
            options,
            drain,
            ticks: JoinSet::new(),
            look: None,
            report: WorkerReport::default(),
        }
    }

    /// Works until the drain, or until idle, and then waits for what is under way.
    ///
    /// # Errors
    ///
    /// Until idle only: when the store refuses for good to say whether anybody is ready.
    pub(crate) async fn run(mut self) -> Result<WorkerReport, StoreError> {
        while !self.drain.is_cancelled() {
            self.take_in();
            if self.ticks.len() >= self.options.concurrency {
                self.wait(core::future::pending(), false).await;
                continue;
            }
            match &self.look {
                None => self.look = Some(self.look_now().await?),
                Some(look) if look.is_open() => self.spawn(),
                Some(look) if look.was_fruitful() => self.look = None,
                Some(look) => {
                    let ending = self.options.until_idle && !look.found_anybody();
                    if ending && self.ticks.is_empty() {
                        break;
                    }
                    let pause = around(self.options.poll_interval, fastrand::u64(..));
                    self.wait(tokio::time::sleep(pause), ending).await;
                    self.look = None;
                }
            }
        }
        self.finish().await;
        Ok(self.report)
    }

    /// Looks who is ready, for as long as it takes the store to answer.
    async fn look_now(&mut self) -> Result<Look, StoreError> {
        let policy = self.scheduler.policy();
        let shard = policy.shard();
        let asking = retry(RetryPolicy::unlimited(), core::future::pending(), || {
            self.store.ready_tenants(shard)
        });
        let asked = tokio::select! {
            biased;
            asked = asking => asked,
            // A look changes nothing, so nobody has to wait for its answer.
            () = self.drain.cancelled() => return Ok(Look::new([], policy.cycle_length())),
        };
        let ready = match asked.result {
            Ok(ready) => ready.tenants,
            Err(error) if self.options.until_idle && !error.is_retryable() => return Err(error),
            Err(error) => {
                tracing::warn!(shard = %shard, error = %error, "nobody can tell who is ready");
                Vec::new()
            }
        };
        Ok(Look::new(ready, policy.cycle_length()))
    }

    fn spawn(&mut self) {
        let scheduler = Arc::clone(&self.scheduler);
        let drain = self.drain.clone();
        self.ticks
            .spawn(async move { scheduler.tick(&drain).await });
    }

    /// Takes note of all that has happened already.
    fn take_in(&mut self) {
        while let Some(joined) = self.ticks.try_join_next() {
            self.account(joined);
        }
        if self.claims.notified().now_or_never().is_some() {
            self.note_claim();
        }
    }

    /// Waits until a claim was made, a run has ended, the drain begins or `pause` is over; if `all`, also until nothing
    /// is under way any more.
    async fn wait(&mut self, pause: impl Future<Output = ()>, all: bool) {
        let full = self.ticks.len() >= self.options.concurrency;
        let mut pause = pin!(pause);
        loop {
            tokio::select! {
                biased;
                () = self.drain.cancelled() => return,
                () = self.claims.notified() => {
                    self.note_claim();
                    if !full {
                        return;
                    }
                }
                Some(joined) = self.ticks.join_next() => {
                    let run_ended = self.account(joined);
                    if run_ended || full || (all && self.ticks.is_empty()) {
                        return;
                    }
                }
                () = &mut pause => return,
            }
        }
    }

    fn note_claim(&mut self) {
        if let Some(look) = &mut self.look {
            look.claimed();
        }
    }

    /// Takes a tick's end into account, and answers whether a run ended with it.
    fn account(&mut self, joined: Result<Ticked, JoinError>) -> bool {
        let ticked = match joined {
            Ok(ticked) => ticked,
            Err(error) => {
                // Only a store that panics comes here.
                tracing::error!(error = %error, "a tick panicked");
                self.report.sequences.unknown += 1;
                self.close_look();
                return false;
            }
        };
        self.report.count(&ticked);
        match ticked {
            Ok(None) => false,
            Ok(Some(tick)) => match tick.outcome {
                TickOutcome::Ran(_) => true,
                TickOutcome::Idle | TickOutcome::Contended | TickOutcome::Failed(_) => {
                    if let Some(look) = &mut self.look {
                        look.missed(&tick.tenant);
                    }
                    false
                }
            },
            Err(error) => {
                tracing::warn!(
                    shard = %error.request().shard,
                    reservation = %error.request().id,
                    error = %error.kind(),
                    retries = error.retries(),
                    "no sequence was reserved"
                );
                self.close_look();
                false
            }
        }
    }

    fn close_look(&mut self) {
        if let Some(look) = &mut self.look {
            look.close();
        }
    }

    /// Waits for what is under way: handlers have the grace period, and then their runs are released.
    async fn finish(&mut self) {
        if !self.ticks.is_empty() {
            tracing::info!(ticks = self.ticks.len(), "draining");
        }
        // A claim under way may take as long as a release, before its handler has its grace.
        let patience = self.options.grace.saturating_add(2 * SETTLE_AFTER_CANCEL);
        let mut over = pin!(tokio::time::sleep(patience));
        loop {
            tokio::select! {
                biased;
                joined = self.ticks.join_next() => match joined {
                    Some(joined) => {
                        self.account(joined);
                    }
                    None => return,
                },
                () = &mut over => break,
            }
        }
        let (ticks, held) = (self.ticks.len(), self.keeper.held());
        tracing::error!(
            ticks,
            held,
            "the store does not answer; leases have to expire"
        );
        self.report.count_aborted(ticks, held);
        self.ticks.shutdown().await;
    }
}
