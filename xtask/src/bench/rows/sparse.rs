//! One busy tenant among 1,023 idle ones: all slots but one of a cycle of 4,096 find nobody.

use core::time::Duration;

use evenhand_policy::TenantFairnessWeight;

use super::{Measured, TURNS};
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::noop::{drain, enqueue};
use crate::bench::samples::Samples;
use crate::bench::scene::{Shard, tenant};
use crate::bench::server::{Bench, Regime};

const CONCURRENCY: usize = 16;

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let database = bench.database("sparse").await?;
    let store = database.store(CONCURRENCY + 2).await?;
    let busy = tenant("busy", 1)?;
    let sparse = Shard::register(&store, "sparse", among_idle(&busy)?).await?;
    let alone = Shard::register(&store, "alone", vec![busy.clone()]).await?;
    let runs = bench.pick(5_000, 20_000);
    let longest = bench.pick(Duration::from_millis(500), Duration::from_secs(4));
    for shard in [&sparse, &alone] {
        enqueue(shard, busy.tenant(), usize::try_from(runs)?).await?;
    }
    let mut measured = Measured::default();
    for regime in Regime::BOTH {
        bench.set(regime).await?;
        bench.say(&format!("one busy tenant, {}", regime.name()));
        let (mut among, mut single) = (Samples::default(), Samples::default());
        for _ in 0..TURNS {
            for (shard, rates) in [(&sparse, &mut among), (&alone, &mut single)] {
                let drained = drain(shard, CONCURRENCY, runs, longest).await?;
                rates.push(drained.per_second());
                enqueue(shard, busy.tenant(), usize::try_from(drained.runs)?).await?;
            }
        }
        let line = Line::new(
            "runs of one tenant of weight 1 among 1,023 idle, cycle 4,096",
            Figure::median(&among, Unit::PerSecond),
        );
        measured.lines.push(
            line.regime(regime)
                .beside(
                    "a shard of that tenant alone",
                    Figure::median(&single, Unit::PerSecond),
                )
                .target(Target::RatioAtLeast(0.5)),
        );
    }
    Ok(measured)
}

/// 1,023 idle tenants with 4,095 slots, and the busy one with the last.
fn among_idle(busy: &TenantFairnessWeight) -> Result<Vec<TenantFairnessWeight>> {
    let idle = (0..1_023).map(|number| {
        let weight = if number < 3 { 5 } else { 4 };
        tenant(&format!("idle-{number:04}"), weight)
    });
    idle.chain([Ok(busy.clone())]).collect()
}
