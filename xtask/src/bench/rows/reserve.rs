//! Reserving one sequence at a time, beside the limit of any mutable cursor.

use core::time::Duration;

use super::{Measured, TURNS};
use crate::bench::Result;
use crate::bench::child::{Child, Role};
use crate::bench::limit::HotRow;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::samples::Samples;
use crate::bench::scene::{Shard, reserve_by, tenant};
use crate::bench::server::{Bench, Database, Regime};

const CALLERS: u32 = 32;
const PROCESSES: u32 = 4;

struct Scene {
    database: Database,
    hot_row: HotRow,
    shard: Shard,
    length: Duration,
}

impl Scene {
    async fn start(bench: &Bench) -> Result<Self> {
        let database = bench.database("reserve").await?;
        let store = database.store(32).await?;
        let weights = vec![tenant("a", 3)?, tenant("b", 1)?];
        let mut shard = Shard::register(&store, "reserve", weights).await?;
        shard.reserve(1).await?;
        Ok(Self {
            hot_row: HotRow::create(bench, &database).await?,
            database,
            shard,
            length: bench.pick(Duration::from_millis(400), Duration::from_secs(3)),
        })
    }
}

/// One caller.
pub(super) async fn measure_one(bench: &Bench) -> Result<Measured> {
    let scene = Scene::start(bench).await?;
    let shard = core::slice::from_ref(&scene.shard);
    let mut measured = Measured::default();
    for (regime, least) in [(Regime::Native, 0.5), (Regime::OneMillisecond, 0.85)] {
        bench.set(regime).await?;
        bench.say(&format!("one caller, {}", regime.name()));
        let (mut reserved, mut updated) = (Samples::default(), Samples::default());
        for _ in 0..TURNS {
            // On a task of its own, as in a service: the command's own thread does not wait for sockets itself, and each
            // answer would have to wake it first.
            let calls = reserve_by(shard, 1, scene.length).await?;
            reserved.push(calls.per_second);
            updated.push(scene.hot_row.rate(1, scene.length).await?);
        }
        let line = Line::new(
            "one reservation, 1 caller",
            Figure::median(&reserved, Unit::PerSecond),
        );
        measured.lines.push(
            line.regime(regime)
                .beside(
                    scene.hot_row.name(1),
                    Figure::median(&updated, Unit::PerSecond),
                )
                .target(Target::RatioAtLeast(least)),
        );
    }
    Ok(measured)
}

/// What 32 callers reach, in one process and in four.
#[derive(Default)]
struct Many {
    together: Samples,
    p50: Samples,
    p99: Samples,
    apart: Samples,
    updated: Samples,
}

/// Many callers: 32 in one process, and 8 in each of four.
pub(super) async fn measure_many(bench: &Bench) -> Result<Measured> {
    let scene = Scene::start(bench).await?;
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        let callers = usize::try_from(CALLERS / PROCESSES)?;
        children.push(Child::start(Role::Callers, &scene.database, &scene.shard, callers).await?);
    }
    let mut measured = Measured::default();
    for regime in Regime::BOTH {
        bench.set(regime).await?;
        bench.say(&format!("{CALLERS} callers, {}", regime.name()));
        let mut many = Many::default();
        for _ in 0..TURNS {
            many.measure(&scene, &mut children).await?;
        }
        measured.lines.extend(many.lines(&scene, regime));
    }
    for child in children {
        child.end().await?;
    }
    Ok(measured)
}

impl Many {
    async fn measure(&mut self, scene: &Scene, children: &mut [Child]) -> Result<()> {
        let shards = core::slice::from_ref(&scene.shard);
        let callers = usize::try_from(CALLERS)?;
        let calls = reserve_by(shards, callers, scene.length).await?;
        self.together.push(calls.per_second);
        self.p50.push(calls.millis.percentile(50));
        self.p99.push(calls.millis.percentile(99));
        let all = children
            .iter_mut()
            .map(|child| child.reserve_for(scene.length));
        let rates = futures::future::try_join_all(all).await?;
        self.apart.push(rates.iter().sum());
        self.updated
            .push(scene.hot_row.rate(CALLERS, scene.length).await?);
        Ok(())
    }

    fn lines(&self, scene: &Scene, regime: Regime) -> [Line; 4] {
        let updated = Figure::median(&self.updated, Unit::PerSecond);
        let target = |target| match regime {
            Regime::Native => Target::Stated,
            Regime::OneMillisecond => target,
        };
        let rate = |what: &str, rates, least| {
            Line::new(what, Figure::median(rates, Unit::PerSecond))
                .beside(scene.hot_row.name(CALLERS), updated.clone())
                .target(target(Target::RatioAtLeast(least)))
        };
        let time = |what: &str, times| Line::new(what, Figure::median(times, Unit::Millis));
        [
            rate("32 callers in one process", &self.together, 20.0),
            time("the same, p50 of a call", &self.p50),
            time("the same, p99 of a call", &self.p99).target(target(Target::Below(5.0))),
            rate("4 processes of 8 callers", &self.apart, 10.0),
        ]
        .map(|line| line.regime(regime))
    }
}
