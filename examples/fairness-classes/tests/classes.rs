//! Customers are spread evenly and for ever, and a noisy one is felt in its own bucket only.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use core::time::Duration;

use std::collections::{BTreeMap, BTreeSet};

use evenhand_policy::{PoolId, WeightedFairnessPolicy};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{LimitSubject, RunQueue as _, RunsMax};
use fairness_classes::{BUCKETS, Customer, Demand, FairnessClass, Turn, policy, serve};

fn customer(name: &str, class: FairnessClass) -> Customer {
    Customer::new(name.parse().unwrap(), class)
}

fn shard_policy() -> WeightedFairnessPolicy {
    policy("classes-v1".parse().unwrap()).unwrap()
}

fn store() -> MemoryStore {
    MemoryStore::new("2026-05-01T12:00:00Z".parse().unwrap())
}

#[test]
fn a_customer_stays_in_its_bucket_across_releases() {
    for (name, bucket) in [
        ("acme", 6),
        ("bolt", 2),
        ("customer-000001", 6),
        ("noisy", 8),
    ] {
        for class in FairnessClass::ALL {
            assert_eq!(customer(name, class).bucket(), bucket, "{name}");
        }
    }
}

#[test]
fn buckets_are_filled_evenly_by_names_that_look_alike() {
    let mut filled: BTreeMap<u8, u32> = BTreeMap::new();
    for number in 0..16_000 {
        let bucket = customer(&format!("customer-{number}"), FairnessClass::Free).bucket();
        *filled.entry(bucket).or_default() += 1;
    }
    assert_eq!(filled.len(), usize::from(BUCKETS));
    for (bucket, customers) in filled {
        assert!(
            (850..1_150).contains(&customers),
            "bucket {bucket}: {customers}"
        );
    }
}

#[test]
fn the_policy_serves_every_customer_there_can_be() {
    let policy = shard_policy();
    assert_eq!(policy.tenants().len(), 48);
    assert_eq!(policy.cycle_length(), 160);
    for class in FairnessClass::ALL {
        for number in 0..200 {
            let tenant = customer(&format!("{number}"), class).tenant().unwrap();
            assert_eq!(policy.weight_of(&tenant), Some(class.weight()));
        }
    }
}

/// A noisy customer that comes first with many runs, and customers of all classes with a few each.
fn demands(noisy: &Customer) -> Vec<Demand> {
    let mut demands = vec![Demand::new(noisy.clone(), 300)];
    for class in FairnessClass::ALL {
        for number in 0..60 {
            demands.push(Demand::new(customer(&format!("c-{number}"), class), 2));
        }
    }
    demands
}

/// The sequences of the turns of each tenant, in order.
fn by_tenant(turns: &[Turn]) -> BTreeMap<&str, Vec<u64>> {
    let mut sequences: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for turn in turns {
        let of_tenant = sequences.entry(turn.tenant.as_str()).or_default();
        of_tenant.push(turn.sequence);
    }
    sequences
}

/// A day on which each export takes a second.
async fn day(demands: &[Demand], exports: usize) -> Vec<Turn> {
    let served = serve(&store(), demands, Duration::from_secs(1), exports).await;
    served.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_noisy_customer_does_not_starve_other_buckets() {
    let (policy, noisy) = (shard_policy(), customer("noisy", FairnessClass::Free));
    let demands = demands(&noisy);
    let turns = day(&demands, 400).await;
    // All runs wait from the start, so a bucket's n-th run has to be taken before n times its bound has passed.
    for (tenant, sequences) in by_tenant(&turns) {
        let bound = policy.starvation_bound(&tenant.parse().unwrap()).unwrap();
        let bound = u64::from(bound.maximum_reservations_until_selection());
        for (n, sequence) in (1..).zip(sequences) {
            assert!(sequence < n * bound, "{tenant}: {n}. run at {sequence}");
        }
    }
    // Everybody outside of its bucket is done, while most of the noisy customer's runs still wait.
    let bucket = noisy.tenant().unwrap();
    let outside = |demand: &&Demand| demand.customer.tenant().unwrap() != bucket;
    let runs: u32 = demands
        .iter()
        .filter(outside)
        .map(|demand| demand.runs)
        .sum();
    let done = turns.iter().filter(|turn| turn.tenant != bucket).count();
    assert_eq!(done, usize::try_from(runs).unwrap());
    assert!(turns.len() - done < 100);
}

#[tokio::test(start_paused = true)]
async fn while_all_buckets_have_work_each_class_gets_its_weight() {
    let mut demands = Vec::new();
    let mut filled = BTreeSet::new();
    for class in FairnessClass::ALL {
        // One customer for each bucket, with two cycles' worth of work.
        for number in 0..1_000 {
            let customer = customer(&format!("c-{number}"), class);
            if filled.insert(customer.tenant().unwrap()) {
                demands.push(Demand::new(customer, 2 * class.weight()));
            }
        }
    }
    let turns = day(&demands, 320).await;
    for cycle in [0..160, 160..320] {
        let within = |turn: &&Turn| cycle.contains(&turn.sequence);
        let turns: Vec<Turn> = turns.iter().filter(within).cloned().collect();
        assert_eq!(turns.len(), 160);
        for (tenant, sequences) in by_tenant(&turns) {
            let weight = shard_policy().weight_of(&tenant.parse().unwrap()).unwrap();
            assert_eq!(
                sequences.len(),
                usize::try_from(weight).unwrap(),
                "{tenant}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_day_is_served_in_the_same_order() {
    let demands = demands(&customer("noisy", FairnessClass::Team));
    fastrand::seed(7);
    let first = day(&demands, 200).await;
    fastrand::seed(7);
    assert_eq!(day(&demands, 200).await, first);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_its_team_caps_one_customer() {
    let noisy = customer("noisy", FairnessClass::Enterprise);
    let demands = [Demand::new(noisy.clone(), 20)];
    let seconds = async |store: &MemoryStore| {
        let started = tokio::time::Instant::now();
        let served = serve(store, &demands, Duration::from_secs(1), 20).await;
        assert_eq!(served.unwrap().len(), 20);
        started.elapsed().as_secs()
    };
    // Eight at a time need three seconds, and some for looking again.
    assert!(seconds(&store()).await < 10);

    let store = store();
    let (pool, subject) = (PoolId::default(), LimitSubject::Team(noisy.name().clone()));
    let limit = RunsMax::new(1).unwrap();
    store.set_limit(&pool, &subject, Some(limit)).await.unwrap();
    // One at a time: as many seconds as runs.
    assert!(seconds(&store).await >= 20);
}
