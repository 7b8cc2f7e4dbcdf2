//! How long a run waits on an idle system, from the call that enqueues it to the start of its handler.

use core::time::Duration;
use std::time::Instant;

use evenhand_store::{NewRun, RunQueue as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{Measured, peer_turns};
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Unit};
use crate::bench::noop;
use crate::bench::peers::{Contest, Mode};
use crate::bench::plot::{Axis, Plot};
use crate::bench::samples::{Samples, millis, number};
use crate::bench::scene::{Shard, tenant};
use crate::bench::server::{Bench, Regime};

const POLL_INTERVAL: Duration = Duration::from_millis(200);
const DEADLINE: Duration = Duration::from_secs(10);

/// A database with one idle worker.
struct Side {
    shard: Shard,
    run: NewRun,
    starts: mpsc::UnboundedReceiver<Instant>,
    stop: oneshot::Sender<()>,
    working: JoinHandle<Result<()>>,
    millis: Samples,
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.set(Regime::Native).await?;
    let mut notified = Side::start(bench, "latency_notify", true).await?;
    let mut polled = Side::start(bench, "latency_poll", false).await?;
    let (turns, runs) = (peer_turns(bench), bench.pick(20, 40));
    bench.say(&format!(
        "{} runs, one at a time, as many without notification, and as many of each peer",
        turns * runs
    ));
    let mut peers = Contest::new(bench.peers(), Mode::Fastest);
    for side in [&mut notified, &mut polled] {
        // The first one also opens connections and prepares statements.
        side.wait_for_one().await?;
    }
    for _ in 0..turns {
        for _ in 0..runs {
            for side in [&mut notified, &mut polled] {
                let waited = side.wait_for_one().await?;
                side.millis.push(waited);
            }
        }
        peers
            .turn(async |peer| peer.latency(bench, runs).await)
            .await;
    }
    let measured = Measured {
        lines: lines(&notified.millis, &polled.millis, &peers),
        plots: vec![plot(&notified.millis, &polled.millis)],
    };
    notified.end().await?;
    polled.end().await?;
    Ok(measured)
}

impl Side {
    async fn start(bench: &Bench, name: &str, notify: bool) -> Result<Self> {
        let database = bench.database(name).await?;
        if !notify {
            database
                .run(include_str!("../sql/notification_off.sql"))
                .await?;
        }
        let busy = tenant("a", 1)?;
        let store = database.store(4).await?;
        let shard = Shard::register(&store, "latency", vec![busy.clone()]).await?;
        let (started, starts) = mpsc::unbounded_channel();
        let working_shard = shard.by(&database.store(4).await?);
        let worker = noop::worker(&working_shard, move |_| {
            // Nobody listens any more once the measurement is over.
            let _ = started.send(Instant::now());
        })?
        .poll_interval(POLL_INTERVAL)
        .build();
        let (stop, stopped) = oneshot::channel();
        let working = tokio::spawn(async move {
            worker.run_until(stopped).await?;
            Ok(())
        });
        Ok(Self {
            run: noop::new_run(&shard, busy.tenant())?,
            shard,
            starts,
            stop,
            working,
            millis: Samples::default(),
        })
    }

    /// Enqueues a run at some moment of the worker's sleep; answers with the milliseconds until its handler began.
    async fn wait_for_one(&mut self) -> Result<f64> {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(60..160))).await;
        let enqueued = Instant::now();
        self.shard.store.enqueue(&self.run).await?;
        let started = tokio::time::timeout(DEADLINE, self.starts.recv()).await?;
        let started = started.ok_or("the worker has ended")?;
        Ok(millis(started.duration_since(enqueued)))
    }

    async fn end(self) -> Result<()> {
        let _ = self.stop.send(());
        self.working.await?
    }
}

fn lines(notified: &Samples, polled: &Samples, peers: &Contest<'_, Samples>) -> Vec<Line> {
    let figure = |millis: &Samples, percent| {
        let value = millis.percentile(percent);
        Figure {
            runs: millis.clone(),
            ..Figure::one(value, Unit::Millis)
        }
    };
    let mut lines = Vec::new();
    for percent in [50, 99] {
        let what = format!("enqueue to handler start, p{percent}, NOTIFY");
        let ours = Line::new(what, figure(notified, percent)).regime(Regime::Native);
        let of_peer = |turns: &[Samples]| figure(&Samples::concat(turns), percent);
        let polling = format!("polling every {} ms", POLL_INTERVAL.as_millis());
        let beside = peers.lines(&ours, of_peer);
        lines.push(ours.beside(polling, figure(polled, percent)));
        lines.extend(beside);
    }
    lines
}

fn plot(notified: &Samples, polled: &Samples) -> Plot {
    let curve = |millis: &Samples| -> Vec<(f64, f64)> {
        let percents = (1_u8..=99).map(|percent| (percent, millis.percentile(percent.into())));
        percents
            .map(|(percent, millis)| (number(percent), millis))
            .collect()
    };
    Plot::new(
        "latency",
        "From enqueue to the start of the handler, on an idle system",
        Axis::linear("percent of runs that waited no longer"),
        Axis::log("ms"),
    )
    .curve("NOTIFY", curve(notified))
    .curve("polling", curve(polled))
}
