//! What a call costs in round trips, counted on the wire and told by the time that a longer wire adds.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use evenhand_store_postgres::{ConnectOptions, PostgresStore};
use evenhand_testkit::postgres::{Direction, Proxy};
use sqlx::PgConnection;

use super::{Measured, TURNS};
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::noop::{Handled, counting_worker, enqueue};
use crate::bench::samples::{Samples, millis, number};
use crate::bench::scene::{Shard, tenant};
use crate::bench::server::{Bench, Database, Regime, connect};

const DEADLINE: Duration = Duration::from_mins(1);

/// Runs before the count begins: by then the worker's connections have prepared their statements, each at the price of a
/// round trip.
const BEFORE: u64 = 10;

/// There and back together.
const ADDED: Duration = Duration::from_millis(2);

/// The same shard by way of a longer wire.
struct Far {
    proxy: Proxy,
    shard: Shard,
    empty: PgConnection,
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.set(Regime::Native).await?;
    let database = bench.database("round_trips").await?;
    let busy = tenant("a", 1)?;
    let shard = Shard::register(&database.store(4).await?, "far", vec![busy.clone()]).await?;
    let mut far = Far::start(&database, &shard).await?;
    bench.say("reservations over a longer wire");
    let mut measured = Measured {
        lines: far
            .reserve(&database, shard.clone(), bench.pick(40, 200))
            .await?,
        plots: Vec::new(),
    };
    let runs = bench.pick(100, 400);
    for (permits, target) in [(1, Target::AtMost(3.0)), (16, Target::AtMost(3.0))] {
        bench.say(&format!(
            "{runs} runs with {permits} permits over a longer wire"
        ));
        enqueue(&shard, busy.tenant(), runs).await?;
        let round_trips = far.drain(permits, u64::try_from(runs)?).await?;
        let what = format!("an executed run, worker of {permits} permits");
        measured
            .lines
            .push(Line::new(what, round_trips).target(target));
    }
    Ok(measured)
}

impl Far {
    async fn start(database: &Database, shard: &Shard) -> Result<Self> {
        let proxy = Proxy::start(database.url()).await?;
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.set_delay(direction, ADDED / 2);
        }
        let options = ConnectOptions::parse(proxy.url())?.connections_max(18);
        let store = PostgresStore::connect(options).await?;
        let mut empty = connect(proxy.url()).await?;
        answer_nothing(&mut empty).await?;
        Ok(Self {
            shard: shard.by(&store),
            proxy,
            empty,
        })
    }

    /// One reservation, by count and by time.
    async fn reserve(
        &mut self,
        database: &Database,
        mut near: Shard,
        calls: u32,
    ) -> Result<Vec<Line>> {
        let mut near_empty = database.connect().await?;
        near.reserve(1).await?;
        self.shard.reserve(1).await?;
        let (mut by_count, mut by_time) = (Samples::default(), Samples::default());
        for _ in 0..TURNS {
            self.proxy.reset_counts();
            let far = median_millis(calls, async || self.shard.reserve(1).await.map(drop)).await?;
            by_count.push(number(self.proxy.counts().round_trips) / f64::from(calls));
            let near = median_millis(calls, async || near.reserve(1).await.map(drop)).await?;
            // What one round trip adds in truth: timers are coarser than the delay.
            let wire = median_millis(calls, async || answer_nothing(&mut self.empty).await).await?
                - median_millis(calls, async || answer_nothing(&mut near_empty).await).await?;
            by_time.push((far - near) / wire);
        }
        let line = |what: &str, round_trips| {
            Line::new(what, Figure::median(round_trips, Unit::RoundTrips))
        };
        Ok(vec![
            line("a reservation, counted", &by_count).target(Target::AtMost(1.0)),
            line(
                "a reservation, by the time that 2 ms more of wire add",
                &by_time,
            ),
        ])
    }

    /// How many round trips a worker makes for each of `runs` runs that are queued, between the first few that it handles
    /// and the last.
    async fn drain(&self, permits: usize, runs: u64) -> Result<Figure> {
        let handled = Arc::new(Handled::default());
        let worker = counting_worker(&self.shard, &handled)?
            .concurrency(permits)
            .build();
        // Not a number meets no target: that is what a worker gets that does not come to its end.
        let mut made = f64::NAN;
        let end = async {
            handled.reached(BEFORE).await;
            self.proxy.reset_counts();
            let first = handled.count();
            handled.reached(runs).await;
            let round_trips = number(self.proxy.counts().round_trips);
            made = round_trips / number(runs - first);
        };
        worker
            .run_until(tokio::time::timeout(DEADLINE, end))
            .await?;
        Ok(Figure::one(made, Unit::RoundTrips))
    }
}

async fn median_millis(calls: u32, mut call: impl AsyncFnMut() -> Result<()>) -> Result<f64> {
    let mut times = Samples::default();
    for _ in 0..calls {
        let start = Instant::now();
        call().await?;
        times.push(millis(start.elapsed()));
    }
    Ok(times.median())
}

/// The least that a statement can be, in one round trip.
async fn answer_nothing(connection: &mut PgConnection) -> Result<()> {
    sqlx::query("SELECT 1").execute(connection).await?;
    Ok(())
}
