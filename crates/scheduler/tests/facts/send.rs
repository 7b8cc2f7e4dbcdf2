//! Futures that a caller may want to spawn are Send, over any store behind a pointer.

use std::sync::Arc;

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{
    DurableFairScheduler, QueueTenantScheduler, SchedulerOptions, TenantScheduler, Worker,
    WorkerBuilder, os_signals,
};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{ReservationStore, ReserveRequest, RunQueue};
use tokio_util::sync::CancellationToken;

fn is_send<T: Send>(_: &T) {}
fn is_shared<T: Send + Sync + 'static>() {}

// Only compiled: what it asserts are types.
#[expect(dead_code, reason = "compiling it is the proof")]
fn futures_are_send(
    store: Arc<dyn ReservationStore>,
    tenants: Arc<dyn TenantScheduler>,
    worker: &Worker<MemoryStore>,
    policy: WeightedFairnessPolicy,
    request: ReserveRequest,
    cancel: &CancellationToken,
) {
    is_send(&worker.run_until(core::future::pending::<()>()));
    is_send(&worker.run_until_idle());
    is_send(&os_signals());
    is_send(&async move {
        let scheduler =
            DurableFairScheduler::register(store, policy, tenants, SchedulerOptions::default())
                .await;
        if let Ok(scheduler) = scheduler {
            let _ = scheduler.tick(cancel).await;
            let _ = scheduler.settle(request, cancel).await;
        }
    });
}

#[test]
fn schedulers_can_be_shared_between_threads() {
    is_shared::<Worker<MemoryStore>>();
    is_shared::<WorkerBuilder<MemoryStore>>();
    is_shared::<QueueTenantScheduler<Arc<dyn RunQueue>>>();
    is_shared::<DurableFairScheduler<Arc<dyn ReservationStore>, Arc<dyn TenantScheduler>>>();
}
