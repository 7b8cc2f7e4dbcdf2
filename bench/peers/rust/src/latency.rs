//! `latency`: one job at a time, with one idle worker in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::arguments::LatencyOptions;
use crate::peer::{Outcome, Peer, Purpose, Queue as _};
use crate::pool;

const WARM_UP: usize = 10;
/// Long enough for the worker to be idle again, and random so that no timer of the peer is always hit at the same point.
const PAUSE_MILLIS: std::ops::Range<u64> = 20..40;

pub(crate) async fn latency<P: Peer>(options: LatencyOptions) -> Outcome<Value> {
    let worker_pool = pool(&options.database.url, 3).await?;
    let queue = P::queue(&pool(&options.database.url, 1).await?);
    let (started, mut starts) = mpsc::unbounded_channel();
    let on_job = Arc::new(move |_tenant| {
        // Nobody listens any more once the samples are complete.
        let _ = started.send(Instant::now());
    });
    let stop = CancellationToken::new();
    let worker = P::work(worker_pool, Purpose::Idle, on_job, stop.clone());
    let sampler = async {
        let (mut from_call, mut from_commit) = (Vec::new(), Vec::new());
        for sample in 0..WARM_UP + options.samples {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(PAUSE_MILLIS))).await;
            let called = Instant::now();
            queue.add(vec!["tenant-0".to_owned()]).await?;
            let committed = Instant::now();
            let start = starts.recv().await.ok_or("the worker has ended")?;
            if sample >= WARM_UP {
                from_call.push(micros(start.saturating_duration_since(called)));
                // The handler can start before the enqueuer has read the server's answer; that counts as zero.
                from_commit.push(micros(start.saturating_duration_since(committed)));
            }
        }
        stop.cancel();
        Ok((from_call, from_commit))
    };
    let ((), (from_call, from_commit)) = tokio::try_join!(worker, sampler)?;
    Ok(json!({"from_call_micros": from_call, "from_commit_micros": from_commit}))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
