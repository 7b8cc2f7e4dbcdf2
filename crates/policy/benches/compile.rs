//! How long a policy takes to compile, beside the plain algorithm in which every tenant competes in
//! every step.
//!
//! `new` is all of `WeightedFairnessPolicy::new`: sort, compile, verify, bounds, digest. `plain` is
//! only the cycle.

#![expect(
    clippy::expect_used,
    reason = "a benchmark that cannot set itself up has failed"
)]

use core::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};

/// Weight sets at the limits: 4,096 slots or just below.
fn weight_sets() -> [(&'static str, Vec<u32>); 4] {
    let mixed = [1, 2, 3, 4, 6, 8].into_iter().cycle().take(1024);
    [
        ("1024 tenants, all of weight 4", vec![4; 1024]),
        ("1024 tenants, six weights", mixed.collect()),
        ("4 tenants of weight 1024", vec![1024; 4]),
        ("90 tenants, weights 1 to 90 (worst)", (1..=90).collect()),
    ]
}

fn tenants(weights: &[u32]) -> Vec<TenantFairnessWeight> {
    let tenant = |(number, weight): (usize, &u32)| {
        let id = TenantId::try_from(format!("tenant-{number:04}")).expect("the id is well-formed");
        TenantFairnessWeight::new(id, *weight).expect("the weight is in range")
    };
    weights.iter().enumerate().map(tenant).collect()
}

/// Smooth weighted round robin as its rule says it.
fn plain(weights: &[u32]) -> Vec<usize> {
    let weights: Vec<i64> = weights.iter().copied().map(i64::from).collect();
    let total: i64 = weights.iter().sum();
    let mut credits = vec![0; weights.len()];
    let step = |_| {
        let mut winner = 0;
        for tenant in 0..weights.len() {
            credits[tenant] += weights[tenant];
            if credits[tenant] > credits[winner] {
                winner = tenant;
            }
        }
        credits[winner] -= total;
        winner
    };
    (0..total).map(step).collect()
}

fn compile(criterion: &mut Criterion) {
    let shard = SchedulerShardId::try_from("primary-v1").expect("the id is well-formed");
    for (name, weights) in weight_sets() {
        let mut group = criterion.benchmark_group(name);
        let sorted = tenants(&weights);
        let mut scattered = sorted.clone();
        scattered.sort_by_key(|tenant| tenant.tenant().as_str().bytes().rev().collect::<Vec<_>>());
        for (order, tenants) in [("new", sorted), ("new, unsorted input", scattered)] {
            group.bench_function(order, |bencher| {
                let policy = |tenants| WeightedFairnessPolicy::new(shard.clone(), tenants);
                bencher.iter_batched(|| tenants.clone(), policy, BatchSize::SmallInput);
            });
        }
        group.bench_function("plain", |bencher| {
            bencher.iter(|| plain(black_box(&weights)));
        });
        group.finish();
    }
}

criterion_group!(benches, compile);
criterion_main!(benches);
