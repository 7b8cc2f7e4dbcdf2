//! Who is served when: looks, rounds, permits, pauses, and the drain.

use core::future::Future;
use core::ops::ControlFlow;
use core::pin::pin;
use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::PoolId;
use evenhand_store::{ReservationStore, RunQueue, StoreError, StoreErrorKind};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::backoff::{RetryPolicy, around, retry};
use crate::execute::{Claimed, Executor, SETTLE_AFTER_CANCEL};
use crate::lease::LeaseKeeper;
use crate::look::Look;
use crate::lost::LostBlocks;
use crate::observe::{Observer, Origin};
use crate::order::TickError;
use crate::round::{Block, ClaimedRound, Rounded, Rounds};
use crate::serving::Serving;
use crate::settle::{Completions, Settler};
use crate::tenant::RunReport;
use crate::wait::Waiter;

/// What a dispatcher is told by its worker.
#[derive(Clone, Debug)]
pub(crate) struct DispatchOptions {
    pub(crate) pool: PoolId,
    pub(crate) concurrency: u32,
    pub(crate) poll_interval: Duration,
    pub(crate) grace: Duration,
    pub(crate) until_idle: bool,
}

/// What a dispatcher works with and shares with the tasks that it spawns.
pub(crate) struct Crew<S> {
    pub(crate) store: Arc<S>,
    pub(crate) executor: Executor<Arc<S>>,
    pub(crate) completions: Completions,
    pub(crate) keeper: Arc<LeaseKeeper>,
    pub(crate) rounds: Rounds<S>,
    pub(crate) waiter: Waiter<S>,
}

/// Makes one round at a time while looks promise something and permits are free.
///
/// Each run that a round claimed is a task of its own and holds a permit until the store knows how it ended.
pub(crate) struct Dispatcher<S> {
    crew: Arc<Crew<S>>,
    serving: Serving<S>,
    lost: Arc<LostBlocks>,
    observer: Arc<Observer>,
    options: DispatchOptions,
    drain: CancellationToken,
    // They abort what is under way when they are dropped.
    runs: JoinSet<RunReport>,
    rounds: JoinSet<Rounded>,
    settling: JoinSet<()>,
    // The length of the block under way, and whose it is.
    under_way: Option<(u32, Origin)>,
}

/// What to do before the next look.
enum Next {
    /// Nothing.
    Look,
    /// Let a poll interval pass: nothing came of the last look, and nothing is to be expected of one right away.
    Pause,
    /// Wait for work, for this long at most.
    Wait(Duration),
    /// There is nothing left to do.
    End,
}

impl<S: ReservationStore + RunQueue + 'static> Dispatcher<S> {
    pub(crate) fn new(
        crew: Arc<Crew<S>>,
        settler: Settler,
        serving: Serving<S>,
        lost: Arc<LostBlocks>,
        observer: Arc<Observer>,
        options: DispatchOptions,
        drain: CancellationToken,
    ) -> Self {
        let mut settling = JoinSet::new();
        settling.spawn(settler.run(Arc::clone(&crew.store)));
        Self {
            crew,
            serving,
            lost,
            observer,
            options,
            drain,
            runs: JoinSet::new(),
            rounds: JoinSet::new(),
            settling,
            under_way: None,
        }
    }

    /// Works until the drain, or until idle, and then waits for what is under way.
    ///
    /// # Errors
    ///
    /// Until idle only: when the store refuses for good to say whether anybody is ready.
    pub(crate) async fn run(mut self) -> Result<(), StoreError> {
        while !self.drain.is_cancelled() {
            let free = self.free();
            if free == 0 {
                self.rest(core::future::pending()).await;
                continue;
            }
            if self.crew.completions.are_worth_waiting_for(free) {
                let crew = Arc::clone(&self.crew);
                self.rest(crew.completions.call_over()).await;
                continue;
            }
            let next = if self.serving.is_doubtful() {
                self.find_active_shard().await?
            } else {
                self.look_and_act().await?
            };
            match next {
                Next::Look => {}
                Next::Pause => self.rest(tokio::time::sleep(self.poll_interval())).await,
                Next::Wait(longest) => {
                    let (crew, shard) = (Arc::clone(&self.crew), self.serving.shard().clone());
                    self.rest(async move { crew.waiter.wait(shard, longest).await })
                        .await;
                }
                Next::End => break,
            }
        }
        self.finish().await;
        Ok(())
    }

    /// How many permits are free.
    fn free(&mut self) -> u32 {
        while let Some(joined) = self.runs.try_join_next() {
            self.run_ended(joined);
        }
        let under_way = u32::try_from(self.runs.len()).unwrap_or(u32::MAX);
        self.options.concurrency.saturating_sub(under_way)
    }

    fn poll_interval(&self) -> Duration {
        around(self.options.poll_interval, fastrand::u64(..))
    }

    /// Looks who is ready, and makes a round for them.
    async fn look_and_act(&mut self) -> Result<Next, StoreError> {
        let look = match self.serving.recent_look() {
            Some(look) => look,
            None => match self.look().await? {
                ControlFlow::Continue(look) => look,
                ControlFlow::Break(next) => return Ok(next),
            },
        };
        self.observer.looked(self.serving.shard(), &look);
        let (free, served_nobody) = (self.free(), self.serving.has_served_nobody());
        if let Some(block) = self.lost_block(&look, free) {
            return Ok(self.settle(block, free).await);
        }
        if look.found_anybody() {
            if served_nobody {
                return Ok(Next::Pause);
            }
            return Ok(self.make_round(&look, free).await);
        }
        if self.options.until_idle && self.runs.is_empty() {
            return Ok(Next::End);
        }
        Ok(Next::Wait(look.wait(self.poll_interval())))
    }

    /// Asks the store who is ready; breaks with what to do if it does not say.
    async fn look(&mut self) -> Result<ControlFlow<Next, Look>, StoreError> {
        let crew = Arc::clone(&self.crew);
        let shard = self.serving.shard().clone();
        let Some(answer) = self.ask(|| crew.store.ready_tenants(&shard)).await else {
            return Ok(ControlFlow::Break(Next::Look));
        };
        let next = match answer {
            Ok(ready) => {
                let look = Look::new(ready, self.serving.order().policy());
                return Ok(ControlFlow::Continue(look));
            }
            Err(error) if self.serving.doubts_after(error.kind()) => Next::Look,
            Err(error) if self.options.until_idle && !error.is_retryable() => return Err(error),
            Err(error) => {
                self.observer.look_refused(&shard, &error);
                Next::Pause
            }
        };
        Ok(ControlFlow::Break(next))
    }

    /// Asks the store something that changes nothing, for as long as it takes; `None` if the drain begins first, since
    /// nobody has to wait for the answer then.
    async fn ask<T, F, Fut>(&self, operation: F) -> Option<Result<T, StoreError>>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, StoreError>>,
    {
        let asking = retry(RetryPolicy::unlimited(), core::future::pending(), operation);
        tokio::select! {
            biased;
            asked = asking => Some(asked.result),
            () = self.drain.cancelled() => None,
        }
    }

    /// A lost block that is to be settled now: the permits suffice for its ready slots, or they have not for too long.
    fn lost_block(&self, look: &Look, free: u32) -> Option<Block> {
        let concurrency = u64::from(self.options.concurrency);
        self.lost.take(self.serving.shard(), |block| {
            let slots = block.slots_of(|tenant| look.is_ready(tenant));
            u64::from(free) >= slots.min(concurrency)
        })
    }

    async fn settle(&mut self, block: Block, runs_max: u32) -> Next {
        self.under_way = Some((block.length(), Origin::Lost));
        let (crew, drain) = (Arc::clone(&self.crew), self.drain.clone());
        self.rounds
            .spawn(async move { crew.rounds.claim(block, runs_max, &drain).await });
        self.round_end().await
    }

    async fn make_round(&mut self, look: &Look, runs_max: u32) -> Next {
        let length_max = self.crew.store.round_length_max();
        let length = self.serving.block_length(look, runs_max, length_max);
        self.under_way = Some((length.get(), Origin::Own));
        let (crew, drain) = (Arc::clone(&self.crew), self.drain.clone());
        let order = Arc::clone(self.serving.order());
        self.rounds.spawn(async move {
            crew.rounds
                .reserve_and_claim(&order, length, runs_max, &drain)
                .await
        });
        self.round_end().await
    }

    /// Waits for the round under way; the drain waits for it elsewhere.
    async fn round_end(&mut self) -> Next {
        tokio::select! {
            biased;
            Some(joined) = self.rounds.join_next() => self.round_ended(joined),
            () = self.drain.cancelled() => Next::Look,
        }
    }

    fn round_ended(&mut self, joined: Result<Rounded, JoinError>) -> Next {
        let (length, origin) = self.under_way.take().unwrap_or((0, Origin::Own));
        match joined {
            Ok(Rounded::Unbegun) => Next::Look,
            Ok(Rounded::Claimed(round)) => self.claimed(round, origin),
            Ok(Rounded::NotReserved(error)) => self.not_reserved(&error),
            Ok(Rounded::NotClaimed(block, error)) => {
                self.observer.round_not_claimed(&block, origin, &error);
                self.refused(error.kind())
            }
            Err(error) => {
                let shard = self.serving.shard();
                self.observer
                    .round_panicked(shard, (length, origin), &error);
                Next::Pause
            }
        }
    }

    fn claimed(&mut self, mut round: ClaimedRound, origin: Origin) -> Next {
        self.observer.round_claimed(&round, origin);
        self.serving.keep_look(&mut round);
        self.lost.settled(&round.block);
        if origin == Origin::Own {
            self.serving.count_round(&round);
        }
        for claimed in round.runs {
            self.execute(claimed);
        }
        Next::Look
    }

    fn execute(&mut self, claimed: Claimed) {
        let (crew, drain) = (Arc::clone(&self.crew), self.drain.clone());
        self.runs
            .spawn(async move { crew.executor.execute(claimed, &crew.keeper, &drain).await });
    }

    fn not_reserved(&mut self, error: &TickError) -> Next {
        let exhausted = error.kind() == StoreErrorKind::SequenceExhausted;
        if exhausted && self.serving.shorten_blocks(error.request().count) {
            return Next::Look;
        }
        self.observer.round_not_reserved(error);
        self.refused(error.kind())
    }

    /// What to do after an answer of this kind.
    fn refused(&mut self, kind: StoreErrorKind) -> Next {
        if self.serving.doubts_after(kind) {
            Next::Look
        } else {
            Next::Pause
        }
    }

    /// Asks which shard of the pool is the active one, and moves over.
    async fn find_active_shard(&mut self) -> Result<Next, StoreError> {
        let (crew, pool) = (Arc::clone(&self.crew), self.options.pool.clone());
        let Some(answer) = self.ask(|| crew.store.active_policy(&pool)).await else {
            return Ok(Next::Look);
        };
        match answer {
            Ok(policy) => {
                let former = Arc::clone(self.serving.order().policy());
                if self.serving.move_over(policy) {
                    self.observer
                        .moved_over(&former, self.serving.order().policy());
                    Ok(Next::Look)
                } else {
                    // The store contradicts itself, or it was made active just now: not at once again.
                    Ok(Next::Pause)
                }
            }
            Err(error) if self.options.until_idle && !error.is_retryable() => Err(error),
            Err(error) => {
                self.observer.no_active_shard(&pool, &error);
                Ok(Next::Pause)
            }
        }
    }

    /// Waits until a run has ended, lost blocks were found, the drain begins or `pause` is over.
    async fn rest(&mut self, pause: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = self.drain.cancelled() => {}
            Some(joined) = self.runs.join_next() => self.run_ended(joined),
            () = self.lost.any() => {}
            () = pause => {}
        }
    }

    fn run_ended(&mut self, joined: Result<RunReport, JoinError>) {
        match joined {
            Ok(report) => self.observer.run_ended(report),
            Err(error) => self.observer.run_panicked(&error),
        }
    }

    /// Waits for what is under way: handlers have the grace period, and then their runs are released.
    async fn finish(&mut self) {
        self.observer.draining(self.runs.len());
        // A claim under way may take as long as a release, before its handlers have their grace.
        let patience = self.options.grace.saturating_add(2 * SETTLE_AFTER_CANCEL);
        let mut over = pin!(tokio::time::sleep(patience));
        while !(self.rounds.is_empty() && self.runs.is_empty()) {
            tokio::select! {
                biased;
                Some(joined) = self.rounds.join_next() => {
                    self.round_ended(joined);
                }
                Some(joined) = self.runs.join_next() => self.run_ended(joined),
                () = &mut over => return self.abort().await,
            }
        }
    }

    async fn abort(&mut self) {
        let (shard, under_way) = (self.serving.shard(), self.under_way.take());
        self.observer
            .drain_aborted(self.runs.len(), shard, under_way);
        self.rounds.shutdown().await;
        self.runs.shutdown().await;
        self.settling.shutdown().await;
    }
}
