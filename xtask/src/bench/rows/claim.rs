//! Claiming a tenant's best run while ever more of its runs wait.
//!
//! Three tenants of 1,024 have long queues. The runs of `mixed` lie in all bands of waiting, those that are forced among
//! them; `young` has the same ranks but none that waits long enough to be forced, so that its claims probe one tick
//! after the other; `worst` has one rank of forced runs below 302 others, each of which has to be looked at.

use core::time::Duration;
use std::time::Instant;

use evenhand_policy::TenantFairnessWeight;
use evenhand_policy::admission::Scoring;
use evenhand_store::{Claim, ClaimRequest, LeaseDuration, PoolScoring, RunQueue as _, WorkerName};

use super::{Measured, TURNS};
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::plot::{Axis, Plot};
use crate::bench::samples::{Samples, millis, number};
use crate::bench::scene::{Shard, tenant};
use crate::bench::server::{Bench, Database, Regime};

const LONG_QUEUES: [&str; 3] = ["mixed", "young", "worst"];

/// So long that no run changes its band while it is measured.
const WAIT_TICK: Duration = Duration::from_hours(1);

/// One length of the queues: a database of its own, in which they are that long.
struct Backlog {
    runs: i32,
    shard: Shard,
    /// Where the next claim looks for a sequence, and where the reservation ends.
    next_sequence: u64,
    end: u64,
    /// Milliseconds of a claim, for each of the three.
    millis: [Samples; LONG_QUEUES.len()],
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.set(Regime::Native).await?;
    let lengths: &[i32] = bench.pick(
        &[1_000, 10_000, 100_000],
        &[1_000, 10_000, 100_000, 1_000_000],
    );
    let mut backlogs = Vec::new();
    for runs in lengths {
        bench.say(&format!(
            "filling the queues of two tenants with {runs} runs each"
        ));
        backlogs.push(Backlog::fill(bench, *runs).await?);
    }
    bench.say("claiming");
    let claims = bench.pick(30, 60);
    for backlog in &mut backlogs {
        backlog.warm_up().await?;
    }
    for _ in 0..TURNS {
        for backlog in &mut backlogs {
            backlog.measure(claims).await?;
        }
    }
    Ok(Measured {
        lines: lines(&backlogs),
        plots: vec![plot(&backlogs)],
    })
}

impl Backlog {
    async fn fill(bench: &Bench, runs: i32) -> Result<Self> {
        let database = bench.database(&format!("claim_{runs}")).await?;
        let store = database.store(1).await?;
        let scoring = PoolScoring::new(Scoring::default(), WAIT_TICK)?;
        let mut shard = Shard::scored_by(&store, "claim", weights()?, scoring).await?;
        fill(&database, runs).await?;
        let reservation = shard.reserve(2 * shard.policy.cycle_length()).await?;
        Ok(Self {
            runs,
            next_sequence: reservation.first_sequence,
            end: reservation.first_sequence + u64::from(reservation.count.get()),
            shard,
            millis: Default::default(),
        })
    }

    /// The first call of a session also prepares its statement and compiles the function.
    async fn warm_up(&mut self) -> Result<()> {
        for tenant in LONG_QUEUES {
            for _ in 0..5 {
                self.claim(tenant).await?;
            }
        }
        Ok(())
    }

    async fn measure(&mut self, claims: u32) -> Result<()> {
        for (at, tenant) in LONG_QUEUES.into_iter().enumerate() {
            let mut calls = Samples::default();
            for _ in 0..claims {
                calls.push(self.claim(tenant).await?);
            }
            self.millis[at].push(calls.median());
        }
        Ok(())
    }

    /// Claims the tenant's best run against its next sequence; answers with the milliseconds that took.
    async fn claim(&mut self, tenant: &str) -> Result<f64> {
        let policy = &self.shard.policy;
        let mut ahead = self.next_sequence..self.end;
        let sequence = ahead
            .find(|sequence| policy.tenant_for_sequence(*sequence).as_str() == tenant)
            .ok_or("the reservation is used up")?;
        self.next_sequence = sequence + 1;
        let worker = WorkerName::try_from("bench")?;
        let request = ClaimRequest::new(policy, sequence, worker, LeaseDuration::default());
        let start = Instant::now();
        match self.shard.store.claim(&request).await? {
            Claim::Ran(_) => Ok(millis(start.elapsed())),
            Claim::Idle | Claim::Contended | _ => Err(format!("{tenant} has no run left").into()),
        }
    }
}

/// Three tenants that are claimed for, and 1,021 that make the table as wide as it can be.
fn weights() -> Result<Vec<TenantFairnessWeight>> {
    let long = LONG_QUEUES.into_iter().map(|name| tenant(name, 512));
    let others = (0..1_021).map(|number| tenant(&format!("other-{number:04}"), 1));
    long.chain(others).collect()
}

async fn fill(database: &Database, runs: i32) -> Result<()> {
    let mut connection = database.connect().await?;
    // `mixed` waits 0 to 400 ticks, `young` 0 to 8, of which 12 would be forced.
    for (tenant, ticks) in [("mixed", 401), ("young", 9)] {
        sqlx::query(include_str!("../sql/fill_queue.sql"))
            .bind(runs)
            .bind(tenant)
            .bind(ticks)
            .execute(&mut connection)
            .await?;
    }
    for file in [
        include_str!("../sql/fill_worst_queue.sql"),
        include_str!("../sql/fill_other_queues.sql"),
        "VACUUM (ANALYZE) evenhand.runs",
    ] {
        sqlx::raw_sql(file).execute(&mut connection).await?;
    }
    Ok(())
}

fn lines(backlogs: &[Backlog]) -> Vec<Line> {
    let Some((shortest, longer)) = backlogs.split_first() else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for (at, who) in [(0, "runs of all bands"), (1, "no run is forced")] {
        for backlog in longer {
            let what = format!("claim of 1 among {} queued, {who}", grouped(backlog.runs));
            let line = Line::new(what, Figure::median(&backlog.millis[at], Unit::Millis));
            lines.push(
                line.regime(Regime::Native)
                    .beside(
                        format!("{} queued", grouped(shortest.runs)),
                        Figure::median(&shortest.millis[at], Unit::Millis),
                    )
                    .target(Target::RatioAtMost(2.0)),
            );
        }
    }
    let worst: Samples = backlogs
        .iter()
        .flat_map(|backlog| backlog.millis[2].values().iter().copied())
        .collect();
    let what = "the worst case: a forced run under 302 other ranks";
    lines.push(Line::new(what, Figure::median(&worst, Unit::Millis)).regime(Regime::Native));
    lines
}

fn grouped(runs: i32) -> String {
    crate::bench::line::readable(f64::from(runs))
}

fn plot(backlogs: &[Backlog]) -> Plot {
    let curve = |at: usize| -> Vec<(f64, f64)> {
        let point = |backlog: &Backlog| (number(backlog.runs), backlog.millis[at].median());
        backlogs.iter().map(point).collect()
    };
    Plot::new(
        "claim",
        "One claim, flush included, while a tenant's queue grows",
        Axis::log("queued runs of the tenant"),
        Axis::linear("ms"),
    )
    .curve("all bands", curve(0))
    .curve("no run forced", curve(1))
    .curve("worst case (queue of fixed length)", curve(2))
}
