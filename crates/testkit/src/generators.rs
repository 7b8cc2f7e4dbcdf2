//! Bounded inputs for property tests: whatever these strategies generate is valid, and the limits are within reach.

use core::time::Duration;

use evenhand_policy::admission::{
    AdmissionOptions, AdmissionPolicy, BasePriority, ScoringOptions, Task, TaskId, ValueClass,
    ValueWeights,
};
use evenhand_policy::{
    CYCLE_LENGTH_MAX, PoolId, SchedulerShardId, TENANTS_MAX, TeamId, TenantFairnessWeight,
    TenantId, WEIGHT_MAX, WeightedFairnessPolicy,
};
use evenhand_store::{
    AttemptsMax, CostMicros, IdempotencyKey, NewRun, Payload, ReadyAt, ReservationCount, RunKind,
    RunTimeout,
};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// Any text of the grammar that all ids share.
pub fn id_text() -> impl Strategy<Value = String> {
    "[A-Za-z0-9._:-]{1,128}".prop_filter("dot names are no ids", |text| text != "." && text != "..")
}

/// Any tenant.
pub fn tenant_id() -> impl Strategy<Value = TenantId> {
    id_text().prop_filter_map("no tenant id", |text| TenantId::try_from(text).ok())
}

/// Any team.
pub fn team_id() -> impl Strategy<Value = TeamId> {
    id_text().prop_filter_map("no team id", |text| TeamId::try_from(text).ok())
}

/// Any pool.
pub fn pool_id() -> impl Strategy<Value = PoolId> {
    id_text().prop_filter_map("no pool id", |text| PoolId::try_from(text).ok())
}

/// Any shard.
pub fn shard_id() -> impl Strategy<Value = SchedulerShardId> {
    id_text().prop_filter_map("no shard id", |text| SchedulerShardId::try_from(text).ok())
}

/// Policies of at most 8 tenants, whose weights are at most 16: small enough to look at every cycle of many.
pub fn policy() -> impl Strategy<Value = WeightedFairnessPolicy> {
    policy_within(8, 16)
}

/// Policies all the way to 1,024 tenants and 4,096 slots.
pub fn policy_to_the_limits() -> impl Strategy<Value = WeightedFairnessPolicy> {
    prop_oneof![
        3 => policy_within(TENANTS_MAX, 4),
        2 => policy_within(64, WEIGHT_MAX),
        1 => policy_within(4, WEIGHT_MAX),
    ]
}

/// Policies of 1 to `tenants_max` tenants with weights of 1 to `weight_max`; weights that do not fit into the longest
/// cycle are cut.
fn policy_within(
    tenants_max: usize,
    weight_max: u32,
) -> impl Strategy<Value = WeightedFairnessPolicy> {
    let tenants = btree_set("[A-Za-z0-9._:-]{3,12}", 1..=tenants_max);
    let weights = vec(1..=weight_max, tenants_max);
    (shard_id(), tenants, weights).prop_filter_map("no policy", |(shard, tenants, weights)| {
        let mut slots_left = CYCLE_LENGTH_MAX;
        let mut tenants_left = u32::try_from(tenants.len()).ok()?;
        let mut fitted = Vec::with_capacity(tenants.len());
        for (tenant, weight) in tenants.into_iter().zip(weights) {
            tenants_left -= 1;
            // Each tenant that is still to come needs at least one slot.
            let weight = weight.min(slots_left - tenants_left);
            slots_left -= weight;
            fitted.push(TenantFairnessWeight::new(TenantId::try_from(tenant).ok()?, weight).ok()?);
        }
        WeightedFairnessPolicy::new(shard, fitted).ok()
    })
}

/// Block lengths, mostly short, now and then as long as a block may be.
pub fn reservation_count() -> impl Strategy<Value = ReservationCount> {
    let most = ReservationCount::MAX.get();
    prop_oneof![8 => 1..=64_u32, 1 => 1..=most, 1 => Just(most)]
        .prop_filter_map("no count", |count| ReservationCount::new(count).ok())
}

/// Any value class.
pub fn value_class() -> impl Strategy<Value = ValueClass> {
    select(ValueClass::ALL.to_vec())
}

/// Any base priority.
pub fn base_priority() -> impl Strategy<Value = BasePriority> {
    (0..=BasePriority::MAX.get())
        .prop_filter_map("no priority", |priority| BasePriority::new(priority).ok())
}

/// Payloads: JSON of some depth, without NUL and well below the limit.
pub fn payload() -> impl Strategy<Value = Payload> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[^\0]{0,12}".prop_map(Value::from),
    ];
    let json = leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec(("[^\0]{0,6}", inner), 0..4).prop_map(|entries| json!(
                entries
                    .into_iter()
                    .collect::<serde_json::Map<String, Value>>()
            )),
        ]
    });
    json.prop_filter_map("no payload", |value| Payload::new(value).ok())
}

/// When a run becomes ready: mostly now, else within the next hour.
pub fn ready_at() -> impl Strategy<Value = ReadyAt> {
    prop_oneof![
        3 => Just(ReadyAt::Now),
        1 => (0..3_600_000_u64).prop_map(|millis| ReadyAt::After(Duration::from_millis(millis))),
    ]
}

/// Runs of these tenants in the pool `default`, every other field anything that it may be.
///
/// # Panics
///
/// When there are no tenants.
pub fn new_run(tenants: Vec<TenantId>) -> impl Strategy<Value = NewRun> {
    let limits = (
        0..=CostMicros::MAX,
        1..=AttemptsMax::MAX,
        1..=RunTimeout::MAX.as_secs() * 1_000,
        option::weighted(0.3, "[ -~]{1,255}"),
    );
    let class = (value_class(), base_priority(), ready_at());
    (
        select(tenants),
        team_id(),
        "[!-~]{1,128}",
        payload(),
        class,
        limits,
    )
        .prop_filter_map(
            "no run",
            |(tenant, team, kind, payload, (value_class, base_priority, ready_at), limits)| {
                let (cost, attempts, timeout, key) = limits;
                let mut run = NewRun::new(tenant, RunKind::try_from(kind).ok()?, payload);
                run.team = team;
                run.value_class = value_class;
                run.base_priority = base_priority;
                run.ready_at = ready_at;
                run.cost_micros = CostMicros::new(cost).ok()?;
                run.attempts_max = AttemptsMax::new(attempts).ok()?;
                run.timeout = RunTimeout::new(Duration::from_millis(timeout)).ok()?;
                run.idempotency_key = key.map(IdempotencyKey::try_from).transpose().ok()?;
                Some(run)
            },
        )
}

/// At most `runs_max` runs of these tenants, each without a key, so that all of them are enqueued.
///
/// # Panics
///
/// When there are no tenants.
pub fn backlog(tenants: Vec<TenantId>, runs_max: usize) -> impl Strategy<Value = Vec<NewRun>> {
    let without_key = new_run(tenants).prop_map(|mut run| {
        run.idempotency_key = None;
        run
    });
    vec(without_key, 0..=runs_max)
}

/// Policies of a round, with any windows and any scoring that is accepted.
pub fn admission_policy() -> impl Strategy<Value = AdmissionPolicy> {
    let weights = (0..400_u32, 101..400_u32, 101..400_u32).prop_map(|(batch, gap, gap_above)| {
        let standard = batch + gap;
        ValueWeights {
            critical: standard + gap_above,
            standard,
            batch,
        }
    });
    let scoring = (weights, 0..200_u32, 0..20_u32, 0..24_u32);
    (scoring, 0..6_u32, 0..6_u32, 0..4_u32).prop_filter_map("no scoring", |(scoring, a, b, c)| {
        let (value_weights, aging_per_tick, max_aging_ticks, starvation_ticks) = scoring;
        AdmissionPolicy::new(AdmissionOptions {
            scoring: ScoringOptions {
                value_weights,
                aging_per_tick,
                max_aging_ticks,
                starvation_ticks,
            },
            per_tenant_window: a,
            per_team_window: b,
            max_forced_per_tenant: c,
        })
        .ok()
    })
}

/// At most `tasks_max` tasks of a few tenants and teams, each with a name of its own.
pub fn tasks(tasks_max: usize) -> impl Strategy<Value = Vec<Task>> {
    let names = btree_set("[A-Za-z0-9._:-]{3,8}", 0..=tasks_max);
    let fields = (
        select(["a", "b", "c", "d"].to_vec()),
        select(["x", "y", "z"].to_vec()),
        value_class(),
        base_priority(),
        prop_oneof![9 => 0..30_u64, 1 => any::<u64>()],
        prop_oneof![9 => 0..1_000_u64, 1 => any::<u64>()],
    );
    (names, vec(fields, tasks_max)).prop_filter_map("no task", |(names, fields)| {
        names
            .into_iter()
            .zip(fields)
            .map(
                |(name, (tenant, team, value, base_priority, wait_ticks, cost_micros))| {
                    Some(Task {
                        task_id: TaskId::try_from(name).ok()?,
                        tenant_id: TenantId::try_from(tenant).ok()?,
                        team_id: TeamId::try_from(team).ok()?,
                        value,
                        base_priority,
                        wait_ticks,
                        cost_micros,
                    })
                },
            )
            .collect()
    })
}
