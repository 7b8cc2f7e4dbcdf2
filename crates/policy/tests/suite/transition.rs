//! How long a tenant waits across a change of policy, compared with every point where the old order
//! may end.

use evenhand_policy::{
    TenantId, TransitionBound, WeightedFairnessPolicy, transition_bound, transition_bounds,
};
use proptest::prelude::*;

use crate::support::{compile, numbered, tenant};

/// Two policies over the same names; a weight of 0 leaves a tenant out of one of them.
fn any_succession() -> impl Strategy<Value = (WeightedFairnessPolicy, WeightedFairnessPolicy)> {
    let weight = || prop_oneof![1 => Just(0_u32), 3 => 1..=3_u32, 1 => 4..=12_u32];
    let weights = proptest::collection::vec((weight(), weight()), 1..=8);
    weights.prop_filter_map("a policy has a tenant", |weights| {
        let policy = |weights: Vec<u32>| {
            let mut weights = numbered(weights);
            weights.retain(|(_, weight)| *weight > 0);
            compile(&weights).ok()
        };
        let (old, new) = weights.into_iter().unzip();
        Some((policy(old)?, policy(new)?))
    })
}

/// How many reservations it takes until the new order first selects a tenant.
enum Wait {
    /// Counted from its last selection by the old order.
    SinceSelection(usize),
    /// Counted from the start of the old order, which did not select it.
    SinceStart(usize),
}

/// What `tenant` waits if the old order ends after `end` sequences.
fn wait(
    old: &WeightedFairnessPolicy,
    new: &WeightedFairnessPolicy,
    tenant: &TenantId,
    end: u64,
) -> Wait {
    let by_old = (0..end).map(|sequence| old.tenant_for_sequence(sequence) == tenant);
    let by_old: Vec<bool> = by_old.collect();
    let first_by_new = new.cycle().iter().position(|selected| selected == tenant);
    let first_by_new = by_old.len() + first_by_new.expect("in the new policy");
    match by_old.iter().rposition(|is_selected| *is_selected) {
        Some(last) => Wait::SinceSelection(first_by_new - last),
        None => Wait::SinceStart(first_by_new + 1),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_bound_is_the_longest_wait_over_all_ends_of_the_old_order(
        (old, new) in any_succession(),
    ) {
        // In the second cycle every slot has its predecessors, so later ends repeat these.
        let ends = 0..=u64::from(2 * old.cycle_length());
        for (tenant, bound) in transition_bounds(&old, &new) {
            let bound = bound.maximum_reservations_until_selection();
            let bound = usize::try_from(bound).expect("fits");
            let mut longest = 0;
            for end in ends.clone() {
                match wait(&old, &new, tenant, end) {
                    Wait::SinceSelection(waited) => longest = longest.max(waited),
                    Wait::SinceStart(waited) => prop_assert!(waited <= bound),
                }
            }
            prop_assert_eq!(longest, bound);
        }
    }

    #[test]
    fn every_bound_is_below_the_sum_of_both_starvation_bounds((old, new) in any_succession()) {
        for (tenant, bound) in transition_bounds(&old, &new) {
            let of_policy = |policy: &WeightedFairnessPolicy| {
                let bound = policy.starvation_bound(tenant).expect("in both policies");
                bound.maximum_reservations_until_selection()
            };
            prop_assert_eq!(bound.sum_of_bounds(), of_policy(&old) + of_policy(&new));
            prop_assert!(bound.maximum_reservations_until_selection() < bound.sum_of_bounds());
            prop_assert!(bound.maximum_reservations_until_selection() >= of_policy(&old));
        }
    }

    #[test]
    fn there_are_bounds_for_exactly_the_tenants_of_both((old, new) in any_succession()) {
        let one_by_one: Vec<(TenantId, TransitionBound)> = numbered([1; 8])
            .into_iter()
            .filter(|(tenant, _)| old.contains(tenant) && new.contains(tenant))
            .map(|(tenant, _)| {
                let bound = transition_bound(&old, &new, &tenant).expect("in both policies");
                (tenant, bound)
            })
            .collect();
        let all: Vec<_> = transition_bounds(&old, &new)
            .map(|(tenant, bound)| (tenant.clone(), bound))
            .collect();
        prop_assert_eq!(all, one_by_one);
    }
}

fn numbers(bound: Option<TransitionBound>) -> (u32, u32) {
    let bound = bound.expect("the tenant is in both policies");
    (
        bound.maximum_reservations_until_selection(),
        bound.sum_of_bounds(),
    )
}

#[test]
fn the_wait_is_the_largest_gap_of_the_old_cycle_and_the_way_into_the_new_one() {
    let [often, rare] = ["tenant-0000", "tenant-0001"].map(tenant);
    // A A B A, and after it A B or B A B B.
    let old = compile(&numbered([3, 1])).expect("two tenants");
    let even = compile(&numbered([1, 1])).expect("two tenants");
    let swapped = compile(&numbered([1, 3])).expect("two tenants");
    assert_eq!(numbers(transition_bound(&old, &even, &often)), (2, 4));
    assert_eq!(numbers(transition_bound(&old, &even, &rare)), (5, 6));
    assert_eq!(numbers(transition_bound(&old, &swapped, &often)), (3, 6));
    assert_eq!(numbers(transition_bound(&old, &swapped, &rare)), (4, 6));
}

#[test]
fn a_tenant_of_one_policy_alone_has_no_bound() {
    let old = compile(&[(tenant("a"), 1), (tenant("b"), 1)]).expect("two tenants");
    let new = compile(&[(tenant("b"), 1), (tenant("c"), 1)]).expect("two tenants");
    for stranger in ["a", "c", "d"] {
        assert_eq!(transition_bound(&old, &new, &tenant(stranger)), None);
    }
    assert!(
        transition_bounds(&old, &new)
            .map(|(tenant, _)| tenant.as_str())
            .eq(["b"])
    );
}

#[test]
fn a_lone_tenant_never_waits_and_the_last_of_many_waits_for_all_of_them_twice() {
    let alone = compile(&numbered([7])).expect("one tenant");
    let first = tenant("tenant-0000");
    assert_eq!(numbers(transition_bound(&alone, &alone, &first)), (1, 2));
    let many = compile(&numbered([1; 1024])).expect("1024 slots");
    let last = tenant("tenant-1023");
    assert_eq!(numbers(transition_bound(&many, &many, &last)), (2047, 2048));
    assert_eq!(
        numbers(transition_bound(&many, &many, &first)),
        (1024, 2048)
    );
}
