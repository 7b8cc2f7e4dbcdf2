//! What a reservation costs in bytes: on disk with its indexes, and in the write-ahead log.

use evenhand_store::{LeaseDuration, Reservation, RoundRequest, RunQueue as _, WorkerName};

use super::Measured;
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::scene::{Shard, tenant};
use crate::bench::server::{Bench, Database, Regime};

const BLOCK: u32 = 64;

/// How large things are at one moment.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    reservations: f64,
    outcomes: f64,
    log: f64,
}

impl Sizes {
    async fn of(database: &Database) -> Result<Self> {
        Ok(Self {
            reservations: database
                .number(include_str!("../sql/size_of_reservations.sql"))
                .await?,
            outcomes: database
                .number(include_str!("../sql/size_of_outcomes.sql"))
                .await?,
            log: database
                .number(include_str!("../sql/log_position.sql"))
                .await?,
        })
    }

    /// What has been added since, for each of `things`.
    async fn grown(self, database: &Database, things: u32) -> Result<Self> {
        let now = Self::of(database).await?;
        let each = |now, then| (now - then) / f64::from(things);
        Ok(Self {
            reservations: each(now.reservations, self.reservations),
            outcomes: each(now.outcomes, self.outcomes),
            log: each(now.log, self.log),
        })
    }
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.set(Regime::Native).await?;
    let single = bench.database("bytes_single").await?;
    let calls = bench.pick(10_000, 50_000);
    bench.say(&format!("{calls} single reservations"));
    let (mut shard, start) = begin(&single).await?;
    for _ in 0..calls {
        shard.reserve(1).await?;
    }
    let reservation = start.grown(&single, calls).await?;

    let blocks = bench.database("bytes_blocks").await?;
    let count = bench.pick(2_000, 10_000);
    bench.say(&format!(
        "{count} blocks of {BLOCK}, and rounds without a run over them"
    ));
    let (mut shard, start) = begin(&blocks).await?;
    let mut reserved = Vec::new();
    for _ in 0..count {
        reserved.push(shard.reserve(BLOCK).await?);
    }
    let slot = start.grown(&blocks, count * BLOCK).await?;
    let start = Sizes::of(&blocks).await?;
    for block in &reserved {
        settle(&shard, block).await?;
    }
    let round = start.grown(&blocks, count * BLOCK).await?;
    Ok(Measured {
        lines: lines(reservation, slot, round),
        plots: Vec::new(),
    })
}

async fn begin(database: &Database) -> Result<(Shard, Sizes)> {
    let store = database.store(1).await?;
    let shard = Shard::register(&store, "bytes", vec![tenant("a", 3)?, tenant("b", 1)?]).await?;
    Ok((shard, Sizes::of(database).await?))
}

/// Records that a block found nobody.
async fn settle(shard: &Shard, block: &Reservation) -> Result<()> {
    let worker = WorkerName::try_from("bench")?;
    let lease = LeaseDuration::default();
    let request = RoundRequest::new(&shard.policy, block, worker, lease, BLOCK);
    shard.store.claim_round(&request).await?;
    Ok(())
}

fn lines(reservation: Sizes, slot: Sizes, round: Sizes) -> Vec<Line> {
    let line =
        |what: &str, bytes, target| Line::new(what, Figure::one(bytes, Unit::Bytes)).target(target);
    let with_outcome = slot.reservations + round.outcomes;
    vec![
        line(
            "a reservation on disk, indexes included",
            reservation.reservations,
            Target::AtMost(150.0),
        ),
        line("a reservation in the log", reservation.log, Target::Stated),
        line(
            "a slot of a block of 64 on disk",
            slot.reservations,
            Target::AtMost(4.0),
        ),
        line(
            "a slot of a block of 64 in the log",
            slot.log,
            Target::Stated,
        ),
        line(
            "a slot on disk with its share of the block's outcome (idle)",
            with_outcome,
            Target::Stated,
        ),
        line(
            "the block's outcome in the log, a slot's share",
            round.log,
            Target::Stated,
        ),
    ]
}
