//! Runs as the journal keeps them.

use core::time::Duration;

use evenhand_policy::admission::{BasePriority, ValueClass};
use evenhand_policy::{PoolId, TeamId, TenantId};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    AttemptsMax, CostMicros, Enqueued, NewRun, Payload, ReadyAt, RunKind, RunQueue as _,
    RunTimeout, StoreError, StoreErrorKind, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::entry::{Change, at_once, text};
use crate::journal::corrupt;

#[derive(Serialize, Deserialize)]
pub(crate) struct Enqueue {
    runs: Vec<Spec>,
}

#[derive(Serialize, Deserialize)]
struct Spec {
    pool: PoolId,
    tenant: TenantId,
    team: TeamId,
    #[serde(with = "text")]
    kind: RunKind,
    payload: Value,
    value_class: ValueClass,
    base_priority: BasePriority,
    cost_micros: u64,
    ready: Ready,
    attempts_max: u32,
    timeout: Duration,
    idempotency_key: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ready {
    Now,
    At(#[serde(with = "text")] Timestamp),
    After(Duration),
}

impl Change for Enqueue {
    const NAME: &'static str = "enqueue";
    type Answer = Vec<Enqueued>;

    fn apply(&self, machine: &MemoryStore) -> Result<Vec<Enqueued>, StoreError> {
        let runs = self.runs.iter().map(Spec::to_run);
        let runs = runs.collect::<Result<Vec<NewRun>, StoreError>>()?;
        at_once(machine.enqueue_many(&runs))
    }
}

impl Enqueue {
    pub(crate) fn of(runs: &[NewRun]) -> Result<Self, StoreError> {
        let runs = runs.iter().map(Spec::of).collect::<Result<_, _>>()?;
        Ok(Self { runs })
    }
}

impl Spec {
    fn of(run: &NewRun) -> Result<Self, StoreError> {
        let ready = match run.ready_at {
            ReadyAt::Now => Ready::Now,
            ReadyAt::At(time) => Ready::At(time),
            ReadyAt::After(delay) => Ready::After(delay),
            _ => return Err(newer("ready time")),
        };
        let key = run.idempotency_key.as_ref();
        Ok(Self {
            pool: run.pool.clone(),
            tenant: run.tenant.clone(),
            team: run.team.clone(),
            kind: run.kind.clone(),
            payload: run.payload.as_value().clone(),
            value_class: run.value_class,
            base_priority: run.base_priority,
            cost_micros: run.cost_micros.get(),
            ready,
            attempts_max: run.attempts_max.get(),
            timeout: run.timeout.get(),
            idempotency_key: key.map(ToString::to_string),
        })
    }

    fn to_run(&self) -> Result<NewRun, StoreError> {
        let payload = Payload::new(self.payload.clone()).map_err(corrupt)?;
        let mut run = NewRun::new(self.tenant.clone(), self.kind.clone(), payload);
        run.pool = self.pool.clone();
        run.team = self.team.clone();
        run.value_class = self.value_class;
        run.base_priority = self.base_priority;
        run.cost_micros = CostMicros::new(self.cost_micros).map_err(corrupt)?;
        run.ready_at = match self.ready {
            Ready::Now => ReadyAt::Now,
            Ready::At(time) => ReadyAt::At(time),
            Ready::After(delay) => ReadyAt::After(delay),
        };
        run.attempts_max = AttemptsMax::new(self.attempts_max).map_err(corrupt)?;
        run.timeout = RunTimeout::new(self.timeout).map_err(corrupt)?;
        let key = self.idempotency_key.as_ref();
        run.idempotency_key = key.map(|key| key.parse()).transpose().map_err(corrupt)?;
        Ok(run)
    }
}

/// The contract has grown since this journal's lines were laid out.
pub(crate) fn newer(what: &str) -> StoreError {
    let message = format!("the journal has no form for this {what}");
    StoreError::new(StoreErrorKind::Unsupported, message)
}
