//! One reservation of one caller, beside the limit of any mutable cursor.

use core::error::Error;
use core::time::Duration;
use std::time::Instant;

use evenhand_testkit::postgres::Server;

use super::{HotRow, Regime, Row, median, reserve_one, shard};

const RUNS: usize = 5;

pub(super) async fn measure(
    server: &Server,
    regime: Regime,
    quick: bool,
) -> Result<Row, Box<dyn Error>> {
    let length = if quick {
        Duration::from_millis(500)
    } else {
        Duration::from_secs(2)
    };
    let (store, policy) = shard(server, "reserve").await?;
    let mut hot = HotRow::connect(server).await?;
    let (mut reserved, mut updated) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        reserved.push(rate(length, async || reserve_one(&store, &policy).await).await?);
        updated.push(rate(length, async || Ok(hot.update().await?)).await?);
    }
    let target = match regime {
        Regime::Native => "at least 0.5",
        Regime::OneMillisecond => "at least 0.85",
    };
    let name = format!("one reservation, one caller, {}", regime.name());
    Ok(Row::new(
        &name,
        median(reserved),
        "UPDATE of one hot row",
        median(updated),
        target,
    ))
}

async fn rate(
    length: Duration,
    mut call: impl AsyncFnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let mut calls = 0_u32;
    while start.elapsed() < length {
        call().await?;
        calls += 1;
    }
    Ok(f64::from(calls) / start.elapsed().as_secs_f64())
}
