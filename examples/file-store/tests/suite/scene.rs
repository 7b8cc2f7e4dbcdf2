//! What the tests begin with.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    NewRun, Payload, PolicyRegistration, ReservationCount, ReservationId, ReservationStore,
    ReserveRequest, RunKind, Timestamp,
};
use file_store::FileStore;
use tempfile::TempDir;

/// A folder with one journal, and the clock that its handles share.
pub(crate) struct Scene {
    folder: TempDir,
    clock: Arc<Mutex<Timestamp>>,
}

impl Scene {
    pub(crate) fn start() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            clock: Arc::new(Mutex::new(Timestamp::now())),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("test.journal")
    }

    /// Another independent handle.
    pub(crate) fn open(&self) -> FileStore {
        let clock = Arc::clone(&self.clock);
        let now = move || *clock.lock().expect("nobody panics with the clock in hand");
        FileStore::open_with_clock(self.path(), now).expect("a journal")
    }

    pub(crate) fn set_clock(&self, change: impl FnOnce(Timestamp) -> Timestamp) {
        let mut clock = self
            .clock
            .lock()
            .expect("nobody panics with the clock in hand");
        *clock = change(*clock);
    }

    /// Another handle, on a journal that has the policy registered.
    pub(crate) async fn registered(&self, policy: &WeightedFairnessPolicy) -> FileStore {
        let store = self.open();
        let registration = PolicyRegistration::new(policy.clone());
        store.register_policy(&registration).await.unwrap();
        store
    }
}

/// Three turns for `large`, one for `small`: the policy of the program.
pub(crate) fn policy() -> WeightedFairnessPolicy {
    let weights = [("large", 3), ("small", 1)].map(|(tenant, weight)| {
        TenantFairnessWeight::new(TenantId::try_from(tenant).unwrap(), weight).unwrap()
    });
    WeightedFairnessPolicy::new(SchedulerShardId::try_from("primary-v1").unwrap(), weights).unwrap()
}

pub(crate) fn run(tenant: &str) -> NewRun {
    let (tenant, kind) = (TenantId::try_from(tenant), RunKind::try_from("print"));
    NewRun::new(tenant.unwrap(), kind.unwrap(), Payload::default())
}

pub(crate) fn request(policy: &WeightedFairnessPolicy, count: u32) -> ReserveRequest {
    let count = ReservationCount::new(count).unwrap();
    ReserveRequest::new(policy, ReservationId::mint(Timestamp::now()), count)
}
