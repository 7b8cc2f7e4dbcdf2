//! Claims and the ends of attempts as the journal keeps them.

use core::time::Duration;

use evenhand_policy::{SchedulerShardId, TenantId};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    self as store, ClaimRequest, Failure, FailureOutcome, Fence, LeaseDuration, RecoveryReport,
    Renewal, Reservation, ReservationCount, ReservationId, ReservationStore as _, Retry, Round,
    RoundLimits, RoundRequest, RunId, RunQueue as _, StoreError, Timestamp, WorkerName,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::entry::{Change, at_once, text};
use crate::journal::corrupt;
use crate::runs::newer;

#[derive(Serialize, Deserialize)]
pub(crate) struct Claim {
    shard: SchedulerShardId,
    sequence: u64,
    tenant: TenantId,
    #[serde(with = "text")]
    worker: WorkerName,
    lease: Duration,
    takes_over: bool,
}

impl From<&ClaimRequest> for Claim {
    fn from(request: &ClaimRequest) -> Self {
        Self {
            shard: request.shard.clone(),
            sequence: request.sequence,
            tenant: request.tenant.clone(),
            worker: request.worker.clone(),
            lease: request.lease.get(),
            takes_over: request.takes_over,
        }
    }
}

impl Change for Claim {
    const NAME: &'static str = "claim";
    type Answer = store::Claim;

    fn apply(&self, machine: &MemoryStore) -> Result<store::Claim, StoreError> {
        let policy = at_once(machine.load_policy(&self.shard))?;
        let lease = LeaseDuration::new(self.lease).map_err(corrupt)?;
        let mut request = ClaimRequest::new(&policy, self.sequence, self.worker.clone(), lease);
        request.tenant = self.tenant.clone();
        request.takes_over = self.takes_over;
        at_once(machine.claim(&request))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ClaimRound {
    shard: SchedulerShardId,
    first_sequence: u64,
    count: u32,
    #[serde(with = "text")]
    worker: WorkerName,
    lease: Duration,
    runs_max: u32,
    team_window: Option<u32>,
    capacity_micros: Option<u64>,
}

impl From<&RoundRequest> for ClaimRound {
    fn from(request: &RoundRequest) -> Self {
        Self {
            shard: request.shard().clone(),
            first_sequence: request.first_sequence,
            count: request.count.get(),
            worker: request.worker.clone(),
            lease: request.lease.get(),
            runs_max: request.runs_max,
            team_window: request.limits.team_window,
            capacity_micros: request.limits.capacity_micros,
        }
    }
}

impl Change for ClaimRound {
    const NAME: &'static str = "claim_round";
    type Answer = Round;

    fn apply(&self, machine: &MemoryStore) -> Result<Round, StoreError> {
        let policy = at_once(machine.load_policy(&self.shard))?;
        let lease = LeaseDuration::new(self.lease).map_err(corrupt)?;
        let count = ReservationCount::new(self.count).map_err(corrupt)?;
        // A round is told the sequences of its reservation and nothing else of it.
        let (id, time) = (
            ReservationId::mint(Timestamp::UNIX_EPOCH),
            Timestamp::UNIX_EPOCH,
        );
        let block = Reservation::new(id, self.first_sequence, count, time, time);
        let worker = self.worker.clone();
        let mut limits = RoundLimits::default();
        limits.team_window = self.team_window;
        limits.capacity_micros = self.capacity_micros;
        let request = RoundRequest::new(&policy, &block, worker, lease, self.runs_max);
        at_once(machine.claim_round(&request.within(limits)))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct RecordFailed {
    pub(crate) shard: SchedulerShardId,
    pub(crate) sequence: u64,
}

impl Change for RecordFailed {
    const NAME: &'static str = "record_failed";
    type Answer = ();

    fn apply(&self, machine: &MemoryStore) -> Result<(), StoreError> {
        at_once(machine.record_failed(&self.shard, self.sequence))
    }
}

/// A lease, as the one who holds it names it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Lease {
    #[serde(with = "text")]
    run: Uuid,
    fence: u64,
    shard: SchedulerShardId,
    sequence: u64,
    #[serde(with = "text")]
    expires_at: Timestamp,
}

impl From<&store::Lease> for Lease {
    fn from(lease: &store::Lease) -> Self {
        Self {
            run: lease.run.as_uuid(),
            fence: lease.fence.get(),
            shard: lease.shard.clone(),
            sequence: lease.sequence,
            expires_at: lease.expires_at,
        }
    }
}

impl Lease {
    fn to_lease(&self) -> store::Lease {
        let (run, fence) = (RunId::new(self.run), Fence::new(self.fence));
        store::Lease::new(
            run,
            fence,
            self.shard.clone(),
            self.sequence,
            self.expires_at,
        )
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Renew {
    pub(crate) leases: Vec<Lease>,
    pub(crate) duration: Duration,
}

impl Change for Renew {
    const NAME: &'static str = "renew";
    type Answer = Vec<Renewal>;

    fn apply(&self, machine: &MemoryStore) -> Result<Vec<Renewal>, StoreError> {
        let leases: Vec<store::Lease> = self.leases.iter().map(Lease::to_lease).collect();
        let duration = LeaseDuration::new(self.duration).map_err(corrupt)?;
        at_once(machine.renew(&leases, duration))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Complete {
    pub(crate) lease: Lease,
}

impl Change for Complete {
    const NAME: &'static str = "complete";
    type Answer = ();

    fn apply(&self, machine: &MemoryStore) -> Result<(), StoreError> {
        at_once(machine.complete(&self.lease.to_lease()))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Fail {
    lease: Lease,
    error: String,
    /// `None` gives up.
    retry_after: Option<Duration>,
}

impl Fail {
    pub(crate) fn of(lease: &store::Lease, failure: &Failure) -> Result<Self, StoreError> {
        let retry_after = match failure.retry() {
            Retry::After(delay) => Some(delay),
            Retry::GiveUp => None,
            _ => return Err(newer("retry")),
        };
        Ok(Self {
            lease: lease.into(),
            error: failure.error().to_owned(),
            retry_after,
        })
    }
}

impl Change for Fail {
    const NAME: &'static str = "fail";
    type Answer = FailureOutcome;

    fn apply(&self, machine: &MemoryStore) -> Result<FailureOutcome, StoreError> {
        let retry = self.retry_after.map_or(Retry::GiveUp, Retry::After);
        let failure = Failure::new(self.error.clone(), retry);
        at_once(machine.fail(&self.lease.to_lease(), &failure))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Release {
    pub(crate) lease: Lease,
    pub(crate) delay: Duration,
}

impl Change for Release {
    const NAME: &'static str = "release";
    type Answer = ();

    fn apply(&self, machine: &MemoryStore) -> Result<(), StoreError> {
        at_once(machine.release(&self.lease.to_lease(), self.delay))
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Recover {
    pub(crate) limit: u32,
}

impl Change for Recover {
    const NAME: &'static str = "recover";
    type Answer = RecoveryReport;

    fn apply(&self, machine: &MemoryStore) -> Result<RecoveryReport, StoreError> {
        at_once(machine.recover(self.limit))
    }
}
