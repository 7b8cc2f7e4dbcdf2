//! Policies to test with, and the plain algorithm to compare them with.

use std::collections::BTreeMap;

use evenhand_policy::{
    CYCLE_LENGTH_MAX, PolicyError, SchedulerShardId, TENANTS_MAX, TenantFairnessWeight, TenantId,
    WeightedFairnessPolicy,
};
use proptest::prelude::*;
use proptest::sample::SizeRange;

pub(crate) type Weights = Vec<(TenantId, u32)>;

pub(crate) fn tenant(id: &str) -> TenantId {
    TenantId::try_from(id).expect("the id is well-formed")
}

pub(crate) fn shard() -> SchedulerShardId {
    SchedulerShardId::try_from("primary-v1").expect("the id is well-formed")
}

pub(crate) fn compile(weights: &[(TenantId, u32)]) -> Result<WeightedFairnessPolicy, PolicyError> {
    let entry = |(tenant, weight): &(TenantId, u32)| {
        TenantFairnessWeight::new(tenant.clone(), *weight).expect("the weight is in range")
    };
    WeightedFairnessPolicy::new(shard(), weights.iter().map(entry))
}

/// `count` tenants whose bytewise order is their number's.
pub(crate) fn numbered(weights: impl IntoIterator<Item = u32>) -> Weights {
    let named = |(number, weight)| (tenant(&format!("tenant-{number:04}")), weight);
    weights.into_iter().enumerate().map(named).collect()
}

/// Smooth weighted round robin as its rule says it: every tenant competes in every step.
pub(crate) fn plain_cycle(weights: &[(TenantId, u32)]) -> Vec<TenantId> {
    let mut sorted = weights.to_vec();
    sorted.sort();
    let total: i64 = sorted.iter().map(|(_, weight)| i64::from(*weight)).sum();
    let mut credits = vec![0; sorted.len()];
    let step = |_| {
        let mut winner = 0;
        for (index, (_, weight)) in sorted.iter().enumerate() {
            credits[index] += i64::from(*weight);
            if credits[index] > credits[winner] {
                winner = index;
            }
        }
        // The compiled cycle keeps credits in 32 bits because of this.
        assert!(
            credits[winner] < 8 * total,
            "a credit of {} outgrew its proof",
            credits[winner]
        );
        credits[winner] -= total;
        sorted[winner].0.clone()
    };
    (0..total).map(step).collect()
}

fn any_tenant() -> impl Strategy<Value = TenantId> {
    "[A-Za-z0-9._:-]{1,6}".prop_filter_map("a dot name", |text| TenantId::try_from(text).ok())
}

/// Distinct tenants in arbitrary order, whose weights add up to at most `cycle_length_max`. A
/// tenant that is drawn twice counts once, so there can be fewer tenants than draws.
pub(crate) fn weights_within(
    draws: impl Into<SizeRange>,
    weight_max: u32,
    cycle_length_max: u32,
) -> impl Strategy<Value = Weights> {
    let drawn = proptest::collection::vec((any_tenant(), 1..=weight_max), draws);
    drawn
        .prop_map(move |drawn| trimmed(drawn.into_iter().collect(), cycle_length_max))
        .prop_shuffle()
}

/// Everything that a policy may be, up to 1,024 tenants and 4,096 slots.
pub(crate) fn any_weights() -> impl Strategy<Value = Weights> {
    prop_oneof![
        3 => weights_within(1..=8, 8, CYCLE_LENGTH_MAX),
        3 => weights_within(1..=40, 1024, CYCLE_LENGTH_MAX),
        2 => weights_within(1..=200, 90, CYCLE_LENGTH_MAX),
        2 => weights_within(1400, 6, CYCLE_LENGTH_MAX),
    ]
}

/// Cuts the last weight that fits no more, and leaves out those after it and those past the most
/// tenants.
fn trimmed(drawn: BTreeMap<TenantId, u32>, cycle_length_max: u32) -> Weights {
    let mut left = cycle_length_max;
    let mut weights = Vec::new();
    for (tenant, weight) in drawn.into_iter().take(TENANTS_MAX) {
        let weight = weight.min(left);
        left -= weight;
        if weight > 0 {
            weights.push((tenant, weight));
        }
    }
    weights
}
