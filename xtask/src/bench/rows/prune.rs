//! Pruning a long history in batches, with and without a snapshot that keeps the deleted rows.

use std::time::Instant;

use evenhand_store::{ReservationStore as _, SchedulerFairnessRetentionPolicy};
use evenhand_store_postgres::PostgresStore;
use sqlx::Executor as _;

use super::Measured;
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit, readable};
use crate::bench::plot::{Axis, Plot};
use crate::bench::samples::{Samples, millis, number};
use crate::bench::scene::{Shard, tenant};
use crate::bench::server::{Bench, Database, Regime};

struct Side {
    database: Database,
    store: PostgresStore,
    deleted: u32,
    /// Milliseconds of each batch.
    batches: Samples,
    more: bool,
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.set(Regime::Native).await?;
    let rows: i64 = bench.pick(100_000, 1_000_000);
    bench.say(&format!("{rows} reservations of two hours ago"));
    let history = bench.database("prune_history").await?;
    fill(&history, rows).await?;
    let mut held = Side::copy(bench, &history, "prune_held").await?;
    let mut free = Side::copy(bench, &history, "prune_none").await?;
    let mut holder = held.database.connect().await?;
    holder
        .execute(include_str!("../sql/hold_snapshot.sql"))
        .await?;
    bench.say("pruning");
    while held.more || free.more {
        free.prune_batch().await?;
        held.prune_batch().await?;
    }
    drop(holder);
    let mut measured = Measured::default();
    for (side, when) in [(&free, "no snapshot"), (&held, "snapshot held")] {
        measured.lines.extend(side.lines(when).await?);
    }
    let plot = Plot::new(
        "prune",
        format!(
            "Pruning {} reservations, batch by batch",
            readable(f64::from(free.deleted))
        ),
        Axis::linear("batches of 10,000"),
        Axis::linear("ms"),
    );
    let curve = |side: &Side| -> Vec<(f64, f64)> {
        let batches = side.batches.values().iter().enumerate();
        batches
            .map(|(at, millis)| (number(at + 1), *millis))
            .collect()
    };
    measured.plots.push(
        plot.curve("no snapshot", curve(&free))
            .curve("snapshot held", curve(&held)),
    );
    Ok(measured)
}

impl Side {
    async fn copy(bench: &Bench, history: &Database, name: &str) -> Result<Self> {
        let database = bench.copy_of(history, name).await?;
        Ok(Self {
            store: database.store(1).await?,
            database,
            deleted: 0,
            batches: Samples::default(),
            more: true,
        })
    }

    async fn prune_batch(&mut self) -> Result<()> {
        let retention = SchedulerFairnessRetentionPolicy::new(
            SchedulerFairnessRetentionPolicy::WINDOW_MIN,
            SchedulerFairnessRetentionPolicy::BATCH_MAX,
        )?;
        let start = Instant::now();
        let report = self
            .store
            .prune_scheduler_fairness_reservations(retention)
            .await?;
        if report.deleted > 0 {
            self.batches.push(millis(start.elapsed()));
        }
        self.deleted += report.deleted;
        self.more = report.more;
        Ok(())
    }

    async fn lines(&self, when: &str) -> Result<[Line; 3]> {
        let per_second = f64::from(self.deleted) / (self.batches.sum() / 1_000.0);
        let scans = include_str!("../sql/sequential_scans_of_reservations.sql");
        let scans = self.database.number(scans).await?;
        let lines = [
            Line::new(
                format!("rows pruned, {when}"),
                Figure::one(per_second, Unit::PerSecond),
            )
            .target(Target::AtLeast(100_000.0)),
            Line::new(
                format!("the longest batch, {when}"),
                Figure::one(self.batches.max(), Unit::Millis),
            )
            .target(Target::AtMost(250.0)),
            Line::new(
                format!("sequential scans, {when}"),
                Figure::one(scans, Unit::Count),
            )
            .target(Target::AtMost(0.0)),
        ];
        Ok(lines.map(|line| line.regime(Regime::Native)))
    }
}

/// Reserves `rows` sequences two hours ago, past the functions but not past the guards.
async fn fill(database: &Database, rows: i64) -> Result<()> {
    let store = database.store(1).await?;
    Shard::register(&store, "prune", vec![tenant("a", 3)?, tenant("b", 1)?]).await?;
    store.close();
    let mut connection = database.connect().await?;
    connection
        .execute(include_str!("../sql/index_scans_only.sql"))
        .await?;
    sqlx::query(include_str!("../sql/fill_reservations.sql"))
        .bind(rows)
        .execute(&mut connection)
        .await?;
    connection
        .execute("VACUUM (ANALYZE) evenhand.reservations")
        .await?;
    Ok(())
}
