//! Reserving while somebody holds a snapshot, which keeps every dead row version alive.
//!
//! A snapshot holds back the clean-up of its own database alone. So two databases of one server can be measured in turns,
//! one in which a snapshot is held and one in which none is.

use core::time::Duration;
use std::time::Instant;

use evenhand_store::{ReservationStore as _, SchedulerFairnessRetentionPolicy};
use sqlx::{Executor as _, PgConnection};

use super::Measured;
use crate::bench::Result;
use crate::bench::limit::{HotClient, HotRow};
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::plot::{Axis, Plot};
use crate::bench::samples::{Samples, number};
use crate::bench::scene::{Shard, rate, rate_of, tenant};
use crate::bench::server::{Bench, Database, Regime};

/// One database and what was measured in it.
struct Side {
    database: Database,
    shard: Shard,
    hot_row: HotClient,
    reserved: Samples,
    updated: Samples,
}

/// How much is measured.
struct Plan {
    chunks: usize,
    calls: u32,
    update_for: Duration,
    held_for: Duration,
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.set(Regime::Native).await?;
    let plan = Plan {
        chunks: bench.pick(10, 40),
        calls: bench.pick(500, 5_000),
        update_for: Duration::from_millis(bench.pick(50, 250)),
        held_for: Duration::from_secs(bench.pick(1, 60)),
    };
    let mut held = Side::start(bench, "snapshot_held").await?;
    let mut free = Side::start(bench, "snapshot_none").await?;
    let holder = hold_snapshot(&held.database).await?;
    bench.say(&format!(
        "{} reservations with a snapshot held, and as many without",
        number(plan.chunks) * f64::from(plan.calls)
    ));
    let start = Instant::now();
    while held.reserved.len() < plan.chunks || start.elapsed() < plan.held_for {
        measure_in_turns(&mut held, &mut free, &plan).await?;
    }
    let mut measured = Measured {
        lines: lines(&held, &free, "held"),
        plots: vec![plot(&held, &free, plan.calls)],
    };
    bench.say("pruning, and the same again");
    for side in [&mut held, &mut free] {
        side.prune().await?;
    }
    for _ in 0..10 {
        measure_in_turns(&mut held, &mut free, &plan).await?;
    }
    measured
        .lines
        .extend(lines(&held, &free, "held, most of them pruned"));
    drop(holder);
    Ok(measured)
}

impl Side {
    async fn start(bench: &Bench, name: &str) -> Result<Self> {
        let database = bench.database(name).await?;
        // What is reserved now can then be pruned in this same run.
        database
            .run(include_str!("../sql/clock_two_hours_back.sql"))
            .await?;
        let hot_row = HotRow::create(bench, &database).await?.client().await?;
        Ok(Self {
            shard: register(&database).await?,
            database,
            hot_row,
            reserved: Samples::default(),
            updated: Samples::default(),
        })
    }

    async fn measure(&mut self, plan: &Plan) -> Result<()> {
        let reserve = async || self.shard.reserve(1).await.map(drop);
        self.reserved.push(rate_of(plan.calls, reserve).await?);
        let update = async || self.hot_row.update().await;
        self.updated.push(rate(plan.update_for, update).await?);
        Ok(())
    }

    /// Prunes all that may be, and begins to measure anew.
    async fn prune(&mut self) -> Result<()> {
        self.database
            .run(include_str!("../sql/clock_now.sql"))
            .await?;
        let retention = SchedulerFairnessRetentionPolicy::new(
            SchedulerFairnessRetentionPolicy::WINDOW_MIN,
            SchedulerFairnessRetentionPolicy::BATCH_MAX,
        )?;
        let store = &self.shard.store;
        while store
            .prune_scheduler_fairness_reservations(retention)
            .await?
            .more
        {}
        self.shard = register(&self.database).await?;
        self.reserved = Samples::default();
        self.updated = Samples::default();
        Ok(())
    }
}

async fn register(database: &Database) -> Result<Shard> {
    let store = database.store(1).await?;
    Shard::register(&store, "snapshot", vec![tenant("a", 3)?, tenant("b", 1)?]).await
}

/// Holds a snapshot for as long as the connection is kept.
async fn hold_snapshot(database: &Database) -> Result<PgConnection> {
    let mut holder = database.connect().await?;
    holder
        .execute(include_str!("../sql/hold_snapshot.sql"))
        .await?;
    Ok(holder)
}

async fn measure_in_turns(held: &mut Side, free: &mut Side, plan: &Plan) -> Result<()> {
    held.measure(plan).await?;
    free.measure(plan).await
}

/// The last half of all turns, in which whatever builds up shows.
fn lines(held: &Side, free: &Side, when: &str) -> Vec<Line> {
    let figure = |rates: &Samples| Figure::median(&rates.last_half(), Unit::PerSecond);
    let reserved = Line::new(
        format!("reservations, snapshot {when}"),
        figure(&held.reserved),
    );
    let updated = Line::new(
        format!("UPDATE of one hot row, snapshot {when}"),
        figure(&held.updated),
    );
    let lines = [
        reserved
            .beside("no snapshot", figure(&free.reserved))
            .target(Target::RatioAtLeast(0.9)),
        updated.beside("no snapshot", figure(&free.updated)),
    ];
    lines.map(|line| line.regime(Regime::Native)).into()
}

fn plot(held: &Side, free: &Side, calls: u32) -> Plot {
    let curve = |rates: &Samples| -> Vec<(f64, f64)> {
        let rates = rates.values().iter().enumerate();
        rates
            .map(|(turn, rate)| (number(turn + 1) * f64::from(calls), *rate))
            .collect()
    };
    Plot::new(
        "snapshot",
        "One caller while a snapshot is held, and while none is",
        Axis::linear("reservations so far"),
        Axis::linear("calls in a second"),
    )
    .curve("reserve, held", curve(&held.reserved))
    .curve("reserve, none", curve(&free.reserved))
    .curve("hot UPDATE, held", curve(&held.updated))
    .curve("hot UPDATE, none", curve(&free.updated))
}
