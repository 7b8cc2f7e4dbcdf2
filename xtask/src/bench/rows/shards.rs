//! What more shards give: each has an order, and so a lock and a flush, of its own.

use core::time::Duration;

use super::{Measured, TURNS};
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::plot::{Axis, Plot};
use crate::bench::samples::{Samples, number};
use crate::bench::scene::{Shard, reserve_by, tenant};
use crate::bench::server::{Bench, Regime};

const SHARDS: [usize; 4] = [1, 2, 4, 8];
const CALLERS: usize = 32;

/// Rates over 1, 2, 4 and 8 shards.
type Curve = [Samples; SHARDS.len()];

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let database = bench.database("shards").await?;
    let store = database.store(CALLERS).await?;
    let mut shards = Vec::new();
    for number in 0..SHARDS[SHARDS.len() - 1] {
        let weights = vec![tenant("a", 3)?, tenant("b", 1)?];
        shards.push(Shard::register(&store, &format!("shard-{number}"), weights).await?);
    }
    let length = bench.pick(Duration::from_millis(150), Duration::from_secs(1));
    let mut measured = Measured::default();
    let mut plot = Plot::new(
        "shards",
        "Reservations over several shards",
        Axis::doubling("shards"),
        Axis::log("reservations in a second"),
    );
    for regime in Regime::BOTH {
        bench.set(regime).await?;
        bench.say(&format!("1 to 8 shards, {}", regime.name()));
        let (mut one_each, mut many) = (Curve::default(), Curve::default());
        for _ in 0..TURNS {
            for (at, count) in SHARDS.into_iter().enumerate() {
                let shards = &shards[..count];
                one_each[at].push(reserve_by(shards, count, length).await?.per_second);
                many[at].push(reserve_by(shards, CALLERS, length).await?.per_second);
            }
        }
        measured.lines.extend(lines(&one_each, regime));
        measured.lines.push(combined(&many, regime));
        plot = plot
            .curve(
                format!("1 caller a shard, {}", regime.name()),
                points(&one_each),
            )
            .curve(format!("32 callers, {}", regime.name()), points(&many));
    }
    measured.plots.push(plot);
    Ok(measured)
}

fn lines(one_each: &Curve, regime: Regime) -> Vec<Line> {
    let [one, more @ ..] = one_each;
    let one = Figure::median(one, Unit::PerSecond);
    let lines = more.iter().zip(&SHARDS[1..]).map(|(rates, shards)| {
        // Natively the two cores are used up before the shards are.
        let target = match (*shards, regime) {
            (8, Regime::OneMillisecond) => Target::RatioAtLeast(4.0),
            _ => Target::Stated,
        };
        let what = format!("{shards} shards, 1 caller each");
        Line::new(what, Figure::median(rates, Unit::PerSecond))
            .regime(regime)
            .beside("1 shard, 1 caller", one.clone())
            .target(target)
    });
    lines.collect()
}

fn combined(many: &Curve, regime: Regime) -> Line {
    let [one, .., most] = many;
    Line::new(
        "8 shards, 32 callers",
        Figure::median(most, Unit::PerSecond),
    )
    .regime(regime)
    .beside("1 shard, 32 callers", Figure::median(one, Unit::PerSecond))
}

fn points(curve: &Curve) -> Vec<(f64, f64)> {
    let rates = SHARDS.into_iter().zip(curve);
    rates
        .map(|(shards, rates)| (number(shards), rates.median()))
        .collect()
}
