//! What it costs to enqueue that sleeping workers are woken, while workers are busy.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use evenhand_store::{NewRun, RunQueue as _};
use evenhand_store_postgres::PostgresStore;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Measured, TURNS, peer_turns};
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::noop::{self, Handled};
use crate::bench::peers::{Contest, EnqueueLoad, Mode};
use crate::bench::samples::{Samples, number};
use crate::bench::scene::{Shard, tenant};
use crate::bench::server::{Bench, Regime};

const CLIENTS: usize = 16;
const CONCURRENCY: usize = 8;

/// Others need longer than we do to be as fast as they can be, and are measured once only.
const PEER_LENGTH_QUICK: Duration = Duration::from_secs(1);

/// A database, with notification on or off.
struct Side {
    clients: PostgresStore,
    worker: Shard,
    run: NewRun,
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let on = Side::start(bench, "enqueue_on", true).await?;
    let off = Side::start(bench, "enqueue_off", false).await?;
    let length = bench.pick(Duration::from_millis(300), Duration::from_secs(2));
    let mut measured = Measured::default();
    for regime in Regime::BOTH {
        bench.set(regime).await?;
        for (batch, how) in [(1, "one by one"), (100, "in batches of 100")] {
            bench.say(&format!("{CLIENTS} clients {how}, {}", regime.name()));
            let (mut with, mut without) = (Samples::default(), Samples::default());
            let mut peers = Contest::new(bench.peers(), Mode::Fastest);
            let load = EnqueueLoad {
                clients: CLIENTS,
                batch,
                length: bench.pick(PEER_LENGTH_QUICK, length),
            };
            for turn in 0..TURNS {
                with.push(on.enqueue_for(length, batch).await?);
                without.push(off.enqueue_for(length, batch).await?);
                if turn < peer_turns_in(bench, regime) {
                    peers
                        .turn(async |peer| peer.enqueue(bench, load).await)
                        .await;
                }
            }
            let line = Line::new(
                format!("runs enqueued {how} by {CLIENTS} clients, workers busy"),
                Figure::median(&with, Unit::PerSecond),
            )
            .regime(regime);
            let beside = peers.lines(&line, |rates| {
                Figure::median(&rates.iter().copied().collect(), Unit::PerSecond)
            });
            measured.lines.push(
                line.beside(
                    "notification off",
                    Figure::median(&without, Unit::PerSecond),
                )
                .target(Target::RatioAtLeast(0.9)),
            );
            if peer_turns_in(bench, regime) > 0 {
                measured.lines.extend(beside);
            }
        }
    }
    Ok(measured)
}

/// A quick run has no time to measure peers in both.
fn peer_turns_in(bench: &Bench, regime: Regime) -> usize {
    match regime {
        Regime::Native => peer_turns(bench),
        Regime::OneMillisecond => bench.pick(0, peer_turns(bench)),
    }
}

impl Side {
    async fn start(bench: &Bench, name: &str, notify: bool) -> Result<Self> {
        let database = bench.database(name).await?;
        if !notify {
            database
                .run(include_str!("../sql/notification_off.sql"))
                .await?;
        }
        let weights = vec![tenant("a", 1)?];
        let busy = weights[0].tenant().clone();
        let store = database.store(CONCURRENCY + 2).await?;
        let worker = Shard::register(&store, "enqueue", weights).await?;
        // Never an empty queue, so that the worker does not sleep.
        noop::enqueue(&worker, &busy, 2_000).await?;
        Ok(Self {
            clients: database.store(CLIENTS).await?,
            run: noop::new_run(&worker, &busy)?,
            worker,
        })
    }

    /// How many runs in a second the clients enqueue together, while a worker drains.
    async fn enqueue_for(&self, length: Duration, batch: usize) -> Result<f64> {
        let handled = Arc::new(Handled::default());
        let worker = noop::counting_worker(&self.worker, &handled)?
            .concurrency(CONCURRENCY)
            .build();
        let (stop, stopped) = oneshot::channel::<()>();
        let enqueueing = async {
            handled.reached(1).await;
            let rate = self.enqueue_by_all(length, batch).await;
            drop(stop);
            rate
        };
        let (worked, rate) = tokio::join!(worker.run_until(stopped), enqueueing);
        worked?;
        rate
    }

    async fn enqueue_by_all(&self, length: Duration, batch: usize) -> Result<f64> {
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..CLIENTS {
            let (store, runs) = (self.clients.clone(), vec![self.run.clone(); batch]);
            tasks.spawn(async move {
                let mut enqueued = 0;
                while start.elapsed() < length {
                    enqueued += store.enqueue_many(&runs).await?.len();
                }
                Result::Ok(enqueued)
            });
        }
        let mut enqueued = 0;
        while let Some(ended) = tasks.join_next().await {
            enqueued += ended??;
        }
        Ok(number(enqueued) / start.elapsed().as_secs_f64())
    }
}
