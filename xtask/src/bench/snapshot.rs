//! Reservations while somebody else holds a snapshot open, which keeps every dead row version alive.

use core::error::Error;
use std::time::Instant;

use evenhand_testkit::postgres::Server;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{HotRow, Row, median, reserve_one, shard};
use crate::progress::Progress;

const CHUNKS: u32 = 10;

/// The same numbers of calls with and without a snapshot, in chunks: the last chunks show what has built up.
pub(super) async fn measure(
    server: &Server,
    quick: bool,
    progress: Progress,
) -> Result<Vec<Row>, Box<dyn Error>> {
    let calls = if quick { 10_000 } else { 50_000 };
    let mut free = Series::default();
    let mut held = Series::default();
    for turn in 0..2 {
        progress.step(&format!("snapshot: {calls} calls of each kind, without"));
        free.extend(series(server, &format!("free-{turn}"), calls).await?);
        progress.step(&format!(
            "snapshot: {calls} calls of each kind, with one held"
        ));
        let mut holder = PgConnection::connect(&server.url("postgres")).await?;
        holder
            .execute(
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_catalog.pg_class",
            )
            .await?;
        held.extend(series(server, &format!("held-{turn}"), calls).await?);
        holder.execute("COMMIT").await?;
    }
    let row = |name: &str, with: Vec<f64>, without: Vec<f64>, target: &str| {
        Row::new(
            &format!("{name}, the last half of {calls}, snapshot held"),
            median(with),
            "the same without",
            median(without),
            target,
        )
    };
    Ok(vec![
        row("reservations", held.reserved, free.reserved, "at least 0.9"),
        row(
            "UPDATEs of one hot row",
            held.updated,
            free.updated,
            "none: it shows that the snapshot hurts",
        ),
    ])
}

#[derive(Default)]
struct Series {
    reserved: Vec<f64>,
    updated: Vec<f64>,
}

impl Series {
    fn extend(&mut self, other: Self) {
        self.reserved.extend(other.reserved);
        self.updated.extend(other.updated);
    }
}

/// The rates of the later chunks of `calls` reservations and, in turns with them, as many updates.
async fn series(server: &Server, name: &str, calls: u32) -> Result<Series, Box<dyn Error>> {
    let (store, policy) = shard(server, name).await?;
    let mut hot = HotRow::connect(server).await?;
    let mut series = Series::default();
    for chunk in 0..CHUNKS {
        let reserved = rate(calls / CHUNKS, async || reserve_one(&store, &policy).await).await?;
        let updated = rate(calls / CHUNKS, async || Ok(hot.update().await?)).await?;
        if chunk >= CHUNKS / 2 {
            series.reserved.push(reserved);
            series.updated.push(updated);
        }
    }
    Ok(series)
}

async fn rate(
    calls: u32,
    mut call: impl AsyncFnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..calls {
        call().await?;
    }
    Ok(f64::from(calls) / start.elapsed().as_secs_f64())
}
