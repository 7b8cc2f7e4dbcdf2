//! What every worker does beside its rounds, for all of them: leases, lost blocks, runs that nobody serves.

use core::convert::Infallible;
use core::time::Duration;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenhand_policy::{PoolId, TenantId, WeightedFairnessPolicy};
use evenhand_store::{ReservationStore, RunQueue, StoreErrorKind};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backoff::around;
use crate::lost::LostBlocks;
use crate::observe::Observer;
use crate::retention::WorkerRetention;
use crate::round::Block;

/// How many expired leases one call takes back.
const RECOVER_LIMIT: u32 = 100;

/// How many lost blocks one call names.
const LOST_LIMIT: u32 = 100;

/// How often, on average, a worker asks which runs nobody serves.
const UNSERVED_INTERVAL: Duration = Duration::from_mins(1);

/// How often, on average, a worker asks the store how it is.
const HEALTH_INTERVAL: Duration = Duration::from_secs(15);

/// Which of its duties a worker has.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each duty is switched by itself"
)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Duties {
    pub(crate) recovery: bool,
    pub(crate) lost_blocks: bool,
    pub(crate) unserved_warnings: bool,
    pub(crate) health: bool,
    pub(crate) retention: WorkerRetention,
}

impl Default for Duties {
    fn default() -> Self {
        Self {
            recovery: true,
            lost_blocks: true,
            unserved_warnings: true,
            health: true,
            retention: WorkerRetention::default(),
        }
    }
}

/// The duties of one worker. No failure of one ends another, nor the worker.
pub(crate) struct Background<S> {
    pub(crate) store: Arc<S>,
    pub(crate) lease: Duration,
    pub(crate) duties: Duties,
    pub(crate) served: watch::Receiver<Arc<WeightedFairnessPolicy>>,
    pub(crate) lost: Arc<LostBlocks>,
    pub(crate) observer: Arc<Observer>,
}

impl<S: ReservationStore + RunQueue> Background<S> {
    /// Does all of it, for ever.
    pub(crate) async fn run(&self) -> Infallible {
        let retention = self.duties.retention;
        tokio::select! {
            biased;
            never = self.keep_recovering() => never,
            never = self.keep_finding_lost_blocks() => never,
            never = self.keep_finding_unserved() => never,
            never = self.keep_watching() => never,
            never = retention.keep_pruning_reservations(&self.store, &self.observer) => never,
            never = retention.keep_pruning_history(&self.store, &self.observer) => never,
        }
    }

    async fn keep_recovering(&self) -> Infallible {
        loop {
            self.third_of_a_lease().await;
            self.recover().await;
        }
    }

    /// Takes back all expired leases there are, batch by batch.
    pub(crate) async fn recover(&self) {
        if !self.duties.recovery {
            return;
        }
        loop {
            match self.store.recover(RECOVER_LIMIT).await {
                Ok(report) => {
                    self.observer.recovered(report);
                    if report.requeued.saturating_add(report.dead) < RECOVER_LIMIT {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %error, "expired leases could not be taken back");
                    return;
                }
            }
        }
    }

    async fn keep_finding_lost_blocks(&self) -> Infallible {
        while self.duties.lost_blocks && self.find_lost_blocks().await {
            self.third_of_a_lease().await;
        }
        core::future::pending().await
    }

    /// Finds the blocks that nobody has claimed against for a lease, and answers whether to do so again.
    async fn find_lost_blocks(&self) -> bool {
        let policy = Arc::clone(&self.served.borrow());
        self.lost.begin_pass();
        let asked_at = Instant::now();
        let shard = policy.shard();
        match self.store.lost_blocks(shard, self.lease, LOST_LIMIT).await {
            Ok(found) => {
                let found = found.into_iter();
                self.lost.end_pass(
                    found.map(|reservation| Block::new(Arc::clone(&policy), reservation, asked_at)),
                );
                true
            }
            Err(error) if error.kind() == StoreErrorKind::Unsupported => false,
            Err(error) => {
                tracing::warn!(shard = %shard, error = %error, "lost blocks could not be found");
                true
            }
        }
    }

    /// Counts the runs that no active shard serves, now and then and after each change of policy.
    async fn keep_finding_unserved(&self) -> Infallible {
        let mut served = self.served.clone();
        let mut known = BTreeSet::new();
        if self.duties.unserved_warnings {
            loop {
                tokio::select! {
                    biased;
                    Ok(()) = served.changed() => {}
                    () = tokio::time::sleep(around(UNSERVED_INTERVAL, fastrand::u64(..))) => {}
                }
                if !self.find_unserved(&mut known).await {
                    break;
                }
            }
        }
        core::future::pending().await
    }

    async fn find_unserved(&self, known: &mut BTreeSet<(PoolId, TenantId)>) -> bool {
        match self.store.unserved().await {
            Ok(unserved) => {
                let tenants = unserved.iter();
                let tenants: BTreeSet<_> = tenants
                    .map(|runs| (runs.pool.clone(), runs.tenant.clone()))
                    .collect();
                let pools = known.iter().map(|(pool, _)| pool.to_string());
                let pools: Vec<String> = pools.collect();
                self.observer.unserved(&unserved, &pools, tenants != *known);
                *known = tenants;
                true
            }
            Err(error) if error.kind() == StoreErrorKind::Unsupported => false,
            Err(error) => {
                tracing::warn!(error = %error, "runs that nobody serves could not be counted");
                true
            }
        }
    }

    /// Asks the store how it is, for the gauges.
    async fn keep_watching(&self) -> Infallible {
        if self.duties.health {
            loop {
                tokio::time::sleep(around(HEALTH_INTERVAL, fastrand::u64(..))).await;
                if !self.watch().await {
                    break;
                }
            }
        }
        core::future::pending().await
    }

    async fn watch(&self) -> bool {
        let policy = Arc::clone(&self.served.borrow());
        match self.store.health(policy.shard()).await {
            Ok(health) => {
                // What was asked before a move is nobody's any more.
                if self.served.borrow().shard() == policy.shard() {
                    self.observer.health(&policy, &health);
                }
                true
            }
            Err(error) if error.kind() == StoreErrorKind::Unsupported => false,
            Err(error) => {
                tracing::debug!(error = %error, "the store does not say how it is");
                true
            }
        }
    }

    /// A third of a lease on average, so that what is gone is found within one.
    async fn third_of_a_lease(&self) {
        tokio::time::sleep(around(self.lease / 3, fastrand::u64(..))).await;
    }
}
