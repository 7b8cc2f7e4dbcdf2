//! Laws of the cycle and of what is read off it, over arbitrary policies.

use std::collections::{BTreeMap, BTreeSet};

use evenhand_policy::{BLOCK_LENGTH_MAX, TenantId, WeightedFairnessPolicy};
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::support::{
    Weights, any_weights, compile, numbered, plain_cycle, tenant, weights_within,
};

/// From each of the tenant's slots, walks on to its next one; the longest such walk.
fn longest_walk(cycle: &[TenantId], tenant: &TenantId) -> usize {
    let owned = |slot: usize| cycle[slot % cycle.len()] == *tenant;
    let walk = |slot: usize| {
        (1..=cycle.len())
            .find(|steps| owned(slot + steps))
            .expect("comes around")
    };
    (0..cycle.len())
        .filter(|slot| owned(*slot))
        .map(walk)
        .max()
        .expect("has a slot")
}

/// The most slots of ready tenants in any window of this length.
fn fullest_window(
    policy: &WeightedFairnessPolicy,
    ready: &BTreeSet<TenantId>,
    length: u32,
) -> usize {
    let cycle: Vec<bool> = policy
        .cycle()
        .iter()
        .map(|tenant| ready.contains(tenant))
        .collect();
    let window = |start: usize| {
        cycle
            .iter()
            .cycle()
            .skip(start)
            .take(usize::try_from(length).expect("fits"))
    };
    let count = |start| window(start).filter(|is_ready| **is_ready).count();
    (0..cycle.len())
        .map(count)
        .max()
        .expect("a cycle has slots")
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "so that it can be handed to prop_flat_map"
)]
fn some_ready(
    weights: Weights,
) -> impl Strategy<Value = (WeightedFairnessPolicy, BTreeSet<TenantId>)> {
    let tenants: Vec<TenantId> = weights.iter().map(|(tenant, _)| tenant.clone()).collect();
    let policy = compile(&weights).expect("the weights are within the limits");
    let ready = subsequence(tenants.clone(), 0..=tenants.len());
    ready.prop_map(move |ready| (policy.clone(), ready.into_iter().collect()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_cycle_is_that_of_the_plain_algorithm_and_counts_are_exact(weights in any_weights()) {
        let policy = compile(&weights).expect("the weights are within the limits");
        let cycle: Vec<TenantId> = policy.cycle().iter().cloned().collect();
        let mut counts = BTreeMap::new();
        for tenant in &cycle {
            *counts.entry(tenant.clone()).or_insert(0) += 1;
        }
        prop_assert_eq!(counts, weights.iter().cloned().collect());
        prop_assert_eq!(cycle, plain_cycle(&weights));
    }

    #[test]
    fn every_bound_is_the_longest_walk_between_two_selections(weights in any_weights()) {
        let policy = compile(&weights).expect("the weights are within the limits");
        let cycle: Vec<TenantId> = policy.cycle().iter().cloned().collect();
        // All tenants of small policies; of large ones enough for the test to stay short.
        for (tenant, weight) in weights.iter().take(64) {
            let bound = policy.starvation_bound(tenant).expect("in the policy");
            let bound = bound.maximum_reservations_until_selection();
            prop_assert_eq!(usize::try_from(bound).expect("fits"), longest_walk(&cycle, tenant));
            prop_assert!(bound >= policy.cycle_length().div_ceil(*weight));
        }
    }

    #[test]
    fn nothing_depends_on_the_order_in_which_weights_are_given(
        (weights, shuffled) in any_weights()
            .prop_flat_map(|weights| (Just(weights.clone()), Just(weights).prop_shuffle())),
    ) {
        let one = compile(&weights).expect("the weights are within the limits");
        let other = compile(&shuffled).expect("the weights are within the limits");
        prop_assert_eq!(&one, &other);
        prop_assert!(one.cycle().iter().eq(other.cycle().iter()));
        prop_assert_eq!(one.canonical_bytes(), other.canonical_bytes());
        prop_assert_eq!(one.digest(), other.digest());
    }

    #[test]
    fn slots_and_sequences_agree_with_the_cycle(
        weights in any_weights(),
        lap in 0..u64::from(u32::MAX),
    ) {
        let policy = compile(&weights).expect("the weights are within the limits");
        let mut slots: BTreeMap<&TenantId, Vec<u32>> = BTreeMap::new();
        for (slot, tenant) in (0..).zip(policy.cycle().iter()) {
            slots.entry(tenant).or_default().push(slot);
            prop_assert_eq!(policy.tenant_for_slot(slot), Some(tenant));
            let sequence = lap * u64::from(policy.cycle_length()) + u64::from(slot);
            prop_assert_eq!(policy.slot_for_sequence(sequence), slot);
            prop_assert_eq!(policy.tenant_for_sequence(sequence), tenant);
        }
        prop_assert_eq!(policy.tenant_for_slot(policy.cycle_length()), None);
        for (tenant, weight) in &weights {
            prop_assert_eq!(policy.weight_of(tenant), Some(*weight));
            let of_tenant = policy.slots_of(tenant).expect("in the policy");
            prop_assert!(of_tenant.eq(slots[tenant].iter().copied()));
        }
    }

    #[test]
    fn the_next_slot_is_the_first_that_a_walk_meets(
        weights in weights_within(1..=20, 20, 200),
        laps in 0..1000_u32,
    ) {
        let policy = compile(&weights).expect("the weights are within the limits");
        let length = policy.cycle_length();
        for from_slot in 0..length {
            for (tenant, _) in &weights {
                let mut walk = (from_slot..from_slot + length).map(|slot| slot % length);
                let met = walk.find(|slot| policy.tenant_for_slot(*slot) == Some(tenant));
                prop_assert_eq!(policy.next_slot_of(tenant, from_slot), met);
                prop_assert_eq!(policy.next_slot_of(tenant, from_slot + laps * length), met);
            }
        }
    }

    #[test]
    fn a_block_is_the_longest_whose_every_window_fits_the_permits(
        (policy, ready) in weights_within(1..=8, 8, 40).prop_flat_map(some_ready),
        permits in 0..100_u32,
    ) {
        let length = policy.block_length(&ready, permits);
        if ready.is_empty() {
            prop_assert_eq!(length, BLOCK_LENGTH_MAX);
        } else {
            let permits = usize::try_from(permits).expect("fits");
            prop_assert!(fullest_window(&policy, &ready, length) <= permits);
            prop_assert!(fullest_window(&policy, &ready, length + 1) > permits);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_block_of_a_large_policy_is_the_longest_too(
        (policy, ready) in weights_within(100, 8, 300).prop_flat_map(some_ready),
        permits in 0..500_u32,
    ) {
        prop_assume!(!ready.is_empty());
        let length = policy.block_length(&ready, permits);
        let permits = usize::try_from(permits).expect("fits");
        prop_assert!(fullest_window(&policy, &ready, length) <= permits);
        prop_assert!(fullest_window(&policy, &ready, length + 1) > permits);
    }
}

#[test]
fn a_block_may_be_longer_than_a_cycle_but_not_than_the_longest_block() {
    let policy = compile(&numbered([3, 1])).expect("two tenants");
    let rare = [tenant("tenant-0001")];
    // Its slot is one of four, so any window of 4 * permits holds exactly that many.
    assert_eq!(policy.block_length(&rare, 1), 4);
    assert_eq!(policy.block_length(&rare, 25), 100);
    assert_eq!(
        policy.block_length(&rare, BLOCK_LENGTH_MAX / 4 - 1),
        BLOCK_LENGTH_MAX - 4
    );
    assert_eq!(
        policy.block_length(&rare, BLOCK_LENGTH_MAX / 4),
        BLOCK_LENGTH_MAX
    );
    assert_eq!(policy.block_length(&rare, u32::MAX), BLOCK_LENGTH_MAX);
    let longest_cycle = compile(&numbered([1024; 4])).expect("4096 slots");
    assert_eq!(
        longest_cycle.block_length(&rare, u32::MAX),
        BLOCK_LENGTH_MAX
    );
}

#[test]
fn a_block_ignores_strangers_and_repetition() {
    let policy = compile(&numbered([3, 1])).expect("two tenants");
    let (often, rare, stranger) = (
        tenant("tenant-0000"),
        tenant("tenant-0001"),
        tenant("stranger"),
    );
    assert_eq!(policy.block_length([&rare, &stranger, &rare], 1), 4);
    assert_eq!(
        policy.block_length([&often, &rare], 7),
        7,
        "every slot is ready"
    );
    assert_eq!(
        policy.block_length([&stranger], 0),
        BLOCK_LENGTH_MAX,
        "nothing of this policy is ready"
    );
    assert_eq!(policy.block_length([], 0), BLOCK_LENGTH_MAX);
    assert_eq!(
        policy.block_length([&often], 0),
        0,
        "no window holds a slot without a permit"
    );
}

#[test]
fn a_lone_tenant_is_selected_by_every_sequence() {
    for weight in [1, 7, 1024] {
        let policy = compile(&numbered([weight])).expect("one tenant");
        let alone = tenant("tenant-0000");
        let bound = policy.starvation_bound(&alone).expect("in the policy");
        assert_eq!(bound.maximum_reservations_until_selection(), 1);
        assert_eq!(policy.block_length([&alone], 5), 5);
    }
}

#[test]
fn the_worst_set_of_weights_has_90_classes_and_the_cycle_of_the_plain_algorithm() {
    let weights = numbered(1..=90);
    let policy = compile(&weights).expect("4095 slots");
    assert_eq!(policy.cycle_length(), 4095);
    assert!(policy.cycle().iter().eq(plain_cycle(&weights).iter()));
}
