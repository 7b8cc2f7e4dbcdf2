//! `enqueue` and `enqueue-load`.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::arguments::{EnqueueOptions, LoadOptions};
use crate::gate;
use crate::peer::{Outcome, Peer, Queue as _};
use crate::pool;

const WARM_UP: usize = 3;
const LOAD_TENANTS: usize = 8;

/// The jobs of one tenant after those of another, in the order given.
pub(crate) async fn enqueue<P: Peer>(options: EnqueueOptions) -> Outcome<Value> {
    let queue = P::queue(&pool(&options.database.url, 1).await?);
    let start = Instant::now();
    let mut total = 0;
    for (tenant, jobs) in options.tenants {
        total += jobs;
        let mut left = jobs;
        while left > 0 {
            let batch = left.min(options.batch.max(1));
            queue.add(vec![tenant.clone(); batch]).await?;
            left -= batch;
        }
    }
    Ok(json!({"jobs": total, "seconds": start.elapsed().as_secs_f64()}))
}

/// As fast as the clients can, each with a connection of its own and one call at a time.
pub(crate) async fn load<P: Peer>(options: LoadOptions) -> Outcome<Value> {
    let pool = pool(&options.database.url, options.clients).await?;
    gate::wait_for_workers(&options.database.url, options.busy).await?;
    // The first calls also prepare statements, on each connection.
    for _ in 0..WARM_UP {
        try_join_all((0..options.clients).map(|_| {
            let (queue, batch) = (P::queue(&pool), options.batch);
            tokio::spawn(async move { queue.add(vec!["tenant-0".to_owned(); batch]).await })
        }))
        .await?
        .into_iter()
        .collect::<Outcome<()>>()?;
    }
    let start = Instant::now();
    let end = start + Duration::from_millis(options.millis);
    let clients = (0..options.clients).map(|client| {
        let queue = P::queue(&pool);
        let batch = options.batch;
        tokio::spawn(async move {
            let mut turn = usize::try_from(client)?;
            let mut jobs = 0_u32;
            while Instant::now() < end {
                let tenant = format!("tenant-{}", turn % LOAD_TENANTS);
                queue.add(vec![tenant; batch]).await?;
                jobs += u32::try_from(batch)?;
                turn += 1;
            }
            Outcome::Ok(jobs)
        })
    });
    let counts: Vec<u32> = try_join_all(clients)
        .await?
        .into_iter()
        .collect::<Outcome<_>>()?;
    let seconds = start.elapsed().as_secs_f64();
    let jobs: u32 = counts.into_iter().sum();
    Ok(json!({"jobs": jobs, "seconds": seconds, "per_second": f64::from(jobs) / seconds}))
}
