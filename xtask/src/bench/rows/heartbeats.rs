//! Renewing many leases while somebody holds a snapshot, which keeps every dead row version alive.

use core::time::Duration;
use std::time::Instant;

use evenhand_store::{Lease, LeaseDuration, Renewal, RoundRequest, RunQueue as _, WorkerName};
use sqlx::Executor as _;

use super::Measured;
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::noop;
use crate::bench::samples::Samples;
use crate::bench::scene::{Shard, tenant};
use crate::bench::server::{Bench, Database, Regime};

const LEASES: u32 = 500;
const RENEWALS: u32 = 200;
const CHUNKS: u32 = 10;

/// A database with 500 running runs.
struct Side {
    database: Database,
    shard: Shard,
    leases: Vec<Lease>,
    bytes: f64,
    /// Renewals of all leases in a second.
    rates: Samples,
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.set(Regime::Native).await?;
    bench.say(&format!("claiming {LEASES} runs twice"));
    let mut held = Side::start(bench, "heartbeats_held").await?;
    let mut free = Side::start(bench, "heartbeats_none").await?;
    let mut holder = held.database.connect().await?;
    holder
        .execute(include_str!("../sql/hold_snapshot.sql"))
        .await?;
    bench.say(&format!("{RENEWALS} renewals of each"));
    for _ in 0..CHUNKS {
        held.renew().await?;
        free.renew().await?;
    }
    let lines = lines(&held, &free).await?;
    drop(holder);
    Ok(Measured {
        lines,
        plots: Vec::new(),
    })
}

impl Side {
    async fn start(bench: &Bench, name: &str) -> Result<Self> {
        let database = bench.database(name).await?;
        let store = database.store(1).await?;
        let weights = vec![tenant("a", 1)?];
        let busy = weights[0].tenant().clone();
        let mut shard = Shard::register(&store, "heartbeats", weights).await?;
        noop::enqueue(&shard, &busy, usize::try_from(LEASES)?).await?;
        let block = shard.reserve(LEASES).await?;
        let worker = WorkerName::try_from("bench")?;
        let request = RoundRequest::new(&shard.policy, &block, worker, lease()?, LEASES);
        let round = shard.store.claim_round(&request).await?;
        let leases: Vec<Lease> = round.claimed.into_iter().map(|run| run.lease).collect();
        if leases.len() != usize::try_from(LEASES)? {
            return Err(format!("{} of {LEASES} runs were claimed", leases.len()).into());
        }
        Ok(Self {
            bytes: bytes(&database).await?,
            database,
            shard,
            leases,
            rates: Samples::default(),
        })
    }

    async fn renew(&mut self) -> Result<()> {
        let start = Instant::now();
        for _ in 0..RENEWALS / CHUNKS {
            let renewals = self.shard.store.renew(&self.leases, lease()?).await?;
            if renewals.contains(&Renewal::Lost) {
                return Err("a lease was lost".into());
            }
        }
        let renewals = f64::from(RENEWALS / CHUNKS);
        self.rates.push(renewals / start.elapsed().as_secs_f64());
        Ok(())
    }
}

fn lease() -> Result<LeaseDuration> {
    Ok(LeaseDuration::new(Duration::from_mins(30))?)
}

async fn bytes(database: &Database) -> Result<f64> {
    let leases = include_str!("../sql/size_of_leases.sql");
    let runs = include_str!("../sql/size_of_runs.sql");
    Ok(database.number(leases).await? + database.number(runs).await?)
}

async fn lines(held: &Side, free: &Side) -> Result<Vec<Line>> {
    let rate = |side: &Side| Figure::median(&side.rates.last_half(), Unit::PerSecond);
    let grown = async |side: &Side| {
        let grown = bytes(&side.database).await? - side.bytes;
        Result::Ok(Figure::one(grown / 1_024.0, Unit::Kibibytes))
    };
    let lines = [
        Line::new("renewals of 500 leases, snapshot held", rate(held))
            .beside("no snapshot", rate(free))
            .target(Target::RatioAtLeast(0.9)),
        Line::new(
            "growth of leases and runs in 200 renewals, snapshot held",
            grown(held).await?,
        )
        .beside("no snapshot", grown(free).await?),
    ];
    Ok(lines.map(|line| line.regime(Regime::Native)).into())
}
