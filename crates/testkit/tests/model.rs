//! Generated policies, blocks and backlogs, run through the model of every store.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::time::Duration;

use std::collections::BTreeMap;

use evenhand_policy::admission::admit;
use evenhand_policy::{TenantId, WeightedFairnessPolicy};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{
    Claim, ClaimRequest, LeaseDuration, PolicyRegistration, ReservationCount, ReservationId,
    ReservationStore, ReserveRequest, RoundRequest, RunQueue, RunState, Timestamp,
};
use evenhand_testkit::generators::{
    admission_policy, backlog, policy, policy_to_the_limits, reservation_count, tasks,
};
use evenhand_testkit::history::{Evidence, History, check};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn policy_and_backlog()
-> impl Strategy<Value = (WeightedFairnessPolicy, Vec<evenhand_store::NewRun>)> {
    policy().prop_flat_map(|policy| {
        let tenants = policy
            .tenants()
            .iter()
            .map(|weight| weight.tenant().clone())
            .collect();
        (Just(policy), backlog(tenants, 24))
    })
}

fn start(policy: &WeightedFairnessPolicy) -> (tokio::runtime::Runtime, MemoryStore) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let store = MemoryStore::new(Timestamp::from_second(1_777_636_800).unwrap());
    runtime
        .block_on(store.register_policy(&PolicyRegistration::new(policy.clone())))
        .unwrap();
    (runtime, store)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blocks_of_any_policy_leave_sound_evidence(
        policy in policy(),
        counts in proptest::collection::vec(1..=40_u32, 1..12),
    ) {
        let (runtime, store) = start(&policy);
        let history = History::new();
        for count in &counts {
            let count = ReservationCount::new(*count).unwrap();
            let id = ReservationId::mint(store.clock());
            let request = ReserveRequest::new(&policy, id, count);
            runtime.block_on(history.reserve(&store, &request)).unwrap();
        }
        let evidence = runtime.block_on(Evidence::read(&store, policy.shard())).unwrap();
        prop_assert_eq!(check(&history, &evidence), Ok(()));
        let taken: u64 = counts.iter().copied().map(u64::from).sum();
        let cursor = runtime.block_on(store.cursor(policy.shard())).unwrap();
        prop_assert_eq!(cursor.next_sequence, Some(taken));
    }

    #[test]
    fn every_ready_run_is_claimed_in_a_slot_of_its_tenant((policy, backlog) in policy_and_backlog()) {
        let (runtime, store) = start(&policy);
        runtime.block_on(store.enqueue_many(&backlog)).unwrap();
        // Past every ready time that is generated.
        store.advance(Duration::from_hours(2));
        let mut expected: BTreeMap<TenantId, usize> = BTreeMap::new();
        for run in &backlog {
            *expected.entry(run.tenant.clone()).or_default() += 1;
        }
        let history = History::new();
        let mut claimed: BTreeMap<TenantId, usize> = BTreeMap::new();
        // Whoever has a run is selected at least once in every cycle.
        for _ in 0..=backlog.len() {
            let count = ReservationCount::new(policy.cycle_length()).unwrap();
            let request = ReserveRequest::new(&policy, ReservationId::mint(store.clock()), count);
            let reservation = runtime.block_on(history.reserve(&store, &request)).unwrap();
            for sequence in reservation.sequences() {
                let worker = "model".parse().unwrap();
                let request = ClaimRequest::new(&policy, sequence, worker, LeaseDuration::default());
                if let Claim::Ran(claim) = runtime.block_on(history.claim(&store, &request)).unwrap() {
                    *claimed.entry(claim.run.spec.tenant.clone()).or_default() += 1;
                    runtime.block_on(history.complete(&store, &claim.lease)).unwrap();
                    let run = runtime.block_on(store.run(claim.run.id)).unwrap().unwrap();
                    prop_assert_eq!(run.state, RunState::Done);
                }
            }
        }
        prop_assert_eq!(claimed, expected);
        let evidence = runtime.block_on(Evidence::read(&store, policy.shard())).unwrap();
        prop_assert_eq!(check(&history, &evidence), Ok(()));
    }

    #[test]
    fn rounds_run_every_ready_run_of_any_backlog((policy, backlog) in policy_and_backlog(), permits in 1..=8_u32) {
        let (runtime, store) = start(&policy);
        runtime.block_on(store.enqueue_many(&backlog)).unwrap();
        store.advance(Duration::from_hours(2));
        let history = History::new();
        let mut left = backlog.len();
        // While anybody is ready, a block of the right length serves at least one run within a cycle.
        let rounds_max = (backlog.len() + 1) * usize::try_from(policy.cycle_length()).unwrap();
        for _ in 0..rounds_max {
            let ready = runtime.block_on(store.ready_tenants(policy.shard())).unwrap().tenants;
            if ready.is_empty() {
                break;
            }
            let count = policy.block_length(&ready, permits).min(64);
            let count = ReservationCount::new(count).unwrap();
            let request = ReserveRequest::new(&policy, ReservationId::mint(store.clock()), count);
            let block = runtime.block_on(history.reserve(&store, &request)).unwrap();
            let (worker, lease) = ("model".parse().unwrap(), LeaseDuration::default());
            let request = RoundRequest::new(&policy, &block, worker, lease, permits);
            let round = runtime.block_on(history.claim_round(&store, &request)).unwrap();
            prop_assert!(round.contended.is_empty(), "a block of this length needs no more permits");
            for claimed in round.claimed {
                runtime.block_on(history.complete(&store, &claimed.lease)).unwrap();
                left -= 1;
            }
        }
        prop_assert_eq!(left, 0);
        let evidence = runtime.block_on(Evidence::read(&store, policy.shard())).unwrap();
        prop_assert_eq!(check(&history, &evidence), Ok(()));
    }

    #[test]
    fn generated_rounds_are_admitted_within_their_capacity(
        policy in admission_policy(),
        tasks in tasks(12),
        capacity in 0..5_000_u64,
    ) {
        let round = admit(&policy, &tasks, capacity).unwrap();
        prop_assert!(round.spent_micros() <= capacity);
        prop_assert_eq!(round.admitted().len() + round.deferred().len(), tasks.len());
    }
}

#[test]
fn generated_values_reach_their_limits() {
    let mut runner = TestRunner::deterministic();
    let (mut tenants_most, mut slots_most, mut block_longest) = (0, 0, 0);
    for _ in 0..64 {
        let policy = policy_to_the_limits()
            .new_tree(&mut runner)
            .unwrap()
            .current();
        tenants_most = policy.tenants().len().max(tenants_most);
        slots_most = policy.cycle_length().max(slots_most);
        let count = reservation_count().new_tree(&mut runner).unwrap().current();
        block_longest = count.get().max(block_longest);
    }
    assert!(tenants_most > 900, "the most tenants were {tenants_most}");
    assert_eq!(slots_most, 4_096);
    assert_eq!(block_longest, ReservationCount::MAX.get());
}
