//! `work`: runs no-op jobs until all processes together have run as many as asked, or for ever.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::arguments::WorkOptions;
use crate::gate::Gate;
use crate::peer::{Outcome, Peer, Purpose};
use crate::pool;
use crate::record::{Runs, cpu, rss_max_bytes, usage};

const REPORT_PAUSE: Duration = Duration::from_millis(20);

pub(crate) async fn work<P: Peer>(options: WorkOptions) -> Outcome<Value> {
    let runs = Arc::new(Runs::new(options.order.is_some()));
    // Beside the handlers' connections, those of the fetches and of the listener.
    let concurrency = options.concurrency.unwrap_or(P::CONCURRENCY);
    let connections = u32::try_from(concurrency)? + 2;
    let pool = pool(&options.database.url, connections).await?;
    let mut gate = Gate::join(&options.database.url, options.processes).await?;
    let before = cpu(&usage()?)?;

    let purpose = Purpose::Drain {
        concurrency,
        fetch: options.fetch.unwrap_or(P::FETCH),
    };
    let stop = CancellationToken::new();
    let noting = runs.clone();
    let on_job = Arc::new(move |tenant| noting.note(tenant));
    let worker = P::work(pool, purpose, on_job, stop.clone());
    let watcher = async {
        while options.until.is_none_or(|until| runs.jobs() < until) {
            let total = gate.report(runs.jobs()).await?;
            if options.until.is_some_and(|until| total >= until) {
                break;
            }
            tokio::time::sleep(REPORT_PAUSE).await;
        }
        gate.report(runs.jobs()).await?;
        stop.cancel();
        Ok(())
    };
    // Completions that the peer has batched belong to the work.
    tokio::try_join!(worker, watcher)?;

    let used = usage()?;
    if let Some(file) = options.order {
        fs::write(file, runs.lines()?)?;
    }
    let (first, last) = runs.span();
    let span = first
        .zip(last)
        .map_or(0, |(first, last)| last.saturating_sub(first));
    Ok(json!({
        "jobs": runs.jobs(),
        "seconds": Duration::from_micros(span).as_secs_f64(),
        "first_start_micros": first,
        "last_end_micros": last,
        "rss_max_bytes": rss_max_bytes(&used),
        "cpu_seconds": cpu(&used)?.saturating_sub(before).as_secs_f64(),
    }))
}
