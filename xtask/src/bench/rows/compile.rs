//! How long a policy takes to compile, beside the plain algorithm in which every tenant competes for every slot.

use core::hint::black_box;
use std::time::Instant;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, WeightedFairnessPolicy};

use super::Measured;
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::plot::{Axis, Plot};
use crate::bench::samples::{Samples, number};
use crate::bench::scene::{equal_tenants, tenant};
use crate::bench::server::Bench;

const TENANTS: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024];

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let turns = bench.pick(21, 101);
    // Off the runtime's threads, as any longer computation.
    tokio::task::spawn_blocking(move || all(turns)).await?
}

fn all(turns: usize) -> Result<Measured> {
    let mut measured = Measured::default();
    for (name, weights, target) in weight_sets()? {
        let both = in_turns(&weights, turns)?;
        let line = Line::new(
            format!("compile {name}"),
            Figure::median(&both.new, Unit::Millis),
        );
        measured.lines.push(
            line.beside(
                "the plain algorithm, the cycle only",
                Figure::median(&both.plain, Unit::Millis),
            )
            .target(target),
        );
    }
    let (mut new, mut plain) = (Vec::new(), Vec::new());
    for tenants in TENANTS {
        let both = in_turns(&equal_tenants(tenants, 4)?, turns)?;
        new.push((number(tenants), both.new.median()));
        plain.push((number(tenants), both.plain.median()));
    }
    let plot = Plot::new(
        "compile",
        "Compiling a policy, every tenant of weight 4",
        Axis::doubling("tenants"),
        Axis::log("ms"),
    );
    measured.plots.push(
        plot.curve("Evenhand, everything", new)
            .curve("plain algorithm, cycle only", plain),
    );
    Ok(measured)
}

type WeightSet = (&'static str, Vec<TenantFairnessWeight>, Target);

/// Weights at the limits: 4,096 slots or just below.
fn weight_sets() -> Result<[WeightSet; 4]> {
    let mixed = [1, 2, 3, 4, 6, 8].into_iter().cycle().take(1_024);
    let common = Target::Below(0.1);
    Ok([
        ("1,024 tenants of weight 4", weighted([4; 1_024])?, common),
        ("1,024 tenants of six weights", weighted(mixed)?, common),
        ("4 tenants of weight 1,024", weighted([1_024; 4])?, common),
        (
            "90 tenants, weights 1 to 90 (the worst)",
            weighted(1..=90)?,
            Target::Below(0.4),
        ),
    ])
}

fn weighted(weights: impl IntoIterator<Item = u32>) -> Result<Vec<TenantFairnessWeight>> {
    let named = |(number, weight)| tenant(&format!("tenant-{number:04}"), weight);
    weights.into_iter().enumerate().map(named).collect()
}

/// Milliseconds of one compilation each.
struct Both {
    new: Samples,
    plain: Samples,
}

fn in_turns(tenants: &[TenantFairnessWeight], turns: usize) -> Result<Both> {
    let shard = SchedulerShardId::try_from("compile")?;
    let weights: Vec<i64> = tenants
        .iter()
        .map(|tenant| tenant.weight().into())
        .collect();
    let (mut new, mut plain) = (Samples::default(), Samples::default());
    for _ in 0..turns {
        let (shard, tenants) = (shard.clone(), tenants.to_vec());
        let start = Instant::now();
        let policy = black_box(WeightedFairnessPolicy::new(shard, tenants)?);
        new.push(start.elapsed().as_secs_f64() * 1_000.0);
        let start = Instant::now();
        let cycle = black_box(plain_cycle(black_box(&weights)));
        plain.push(start.elapsed().as_secs_f64() * 1_000.0);
        if !policy
            .cycle_length()
            .try_into()
            .is_ok_and(|length: usize| length == cycle.len())
        {
            return Err("the two algorithms do not agree".into());
        }
    }
    Ok(Both { new, plain })
}

/// Smooth weighted round robin as its rule says it.
fn plain_cycle(weights: &[i64]) -> Vec<usize> {
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
