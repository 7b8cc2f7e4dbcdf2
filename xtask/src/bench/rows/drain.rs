//! Draining no-op runs with two worker processes: how fast, in which shares, and who waits for whom.

use std::collections::BTreeMap;

use evenhand_policy::{TenantFairnessWeight, TenantId};

use super::{Measured, TURNS};
use crate::bench::Result;
use crate::bench::child::{Child, Role, Start};
use crate::bench::line::{Figure, Line, Target, Unit};
use crate::bench::noop::enqueue;
use crate::bench::samples::{Samples, number};
use crate::bench::scene::{Shard, equal_tenants};
use crate::bench::server::{Bench, Database, Regime};

const PROCESSES: usize = 2;
const TENANTS: usize = 8;
/// As many as peers fetch ahead in their fastest setting.
const PERMITS: usize = 100;

/// How many runs of one tenant are queued before those of the seven others, and how many each of these has.
const LARGE: usize = 10_000;
const SMALL: usize = 100;

/// Eight tenants of equal weight, and what they have queued.
struct Scene {
    database: Database,
    shard: Shard,
}

/// The tenants of all runs: by the sequences that they were claimed against, and as their handlers started.
struct Drained {
    by_sequence: Vec<String>,
    starts: Vec<Start>,
}

impl Scene {
    async fn start(bench: &Bench, name: &str, queued: [usize; TENANTS]) -> Result<Self> {
        bench.set(Regime::Native).await?;
        let database = bench.database(name).await?;
        let store = database.store(2).await?;
        let tenants = equal_tenants(u32::try_from(TENANTS)?, 1)?;
        let shard = Shard::register(&store, "drain", tenants).await?;
        let tenants = shard.policy.tenants().iter();
        for (tenant, runs) in tenants.map(TenantFairnessWeight::tenant).zip(queued) {
            enqueue(&shard, tenant, runs).await?;
        }
        Ok(Self { database, shard })
    }

    /// Lets two processes that are connected drain what is queued.
    async fn drain(&self) -> Result<Drained> {
        let mut children = Vec::new();
        for _ in 0..PROCESSES {
            children.push(Child::start(Role::Worker, &self.database, &self.shard, PERMITS).await?);
        }
        for child in &mut children {
            child.begin().await?;
        }
        self.database.wait_until_drained().await?;
        let mut starts = Vec::new();
        for child in children {
            starts.extend(child.starts().await?);
        }
        starts.sort();
        let by_sequence = include_str!("../sql/tenants_by_sequence.sql");
        Ok(Drained {
            by_sequence: self.database.texts(by_sequence).await?,
            starts,
        })
    }

    fn large(&self) -> &TenantId {
        self.shard.policy.tenants()[0].tenant()
    }
}

/// As many runs of each of eight tenants.
pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let runs_each = bench.pick(500, 2_500);
    let mut measured = Measured::default();
    for regime in Regime::BOTH {
        bench.say(&format!("{} runs, {}", runs_each * TENANTS, regime.name()));
        let (mut rates, mut unevenness) = (Samples::default(), Samples::default());
        for turn in 0..TURNS {
            let name = format!("drain_{turn}");
            let scene = Scene::start(bench, &name, [runs_each; TENANTS]).await?;
            bench.set(regime).await?;
            let drained = scene.drain().await?;
            rates.push(runs_per_second(&drained.starts));
            let half = &drained.by_sequence[..drained.by_sequence.len() / 2];
            unevenness.push(number(largest_difference(half)));
            bench.drop_databases().await?;
        }
        let lines = [
            Line::new(
                "no-op runs of 8 tenants, 2 processes",
                Figure::median(&rates, Unit::PerSecond),
            ),
            Line::new(
                "how far two tenants differ in the first half of the order",
                Figure::one(unevenness.max(), Unit::Count),
            )
            .target(Target::AtMost(0.0)),
        ];
        measured.lines.extend(lines.map(|line| line.regime(regime)));
    }
    Ok(measured)
}

/// One tenant has queued many runs before seven others queue a few.
pub(super) async fn measure_noisy(bench: &Bench) -> Result<Measured> {
    let mut queued = [SMALL; TENANTS];
    queued[0] = bench.pick(LARGE / 5, LARGE);
    bench.say(&format!(
        "{} runs of one tenant, {SMALL} of each other",
        queued[0]
    ));
    let mut figures: [Samples; 4] = Default::default();
    for turn in 0..TURNS {
        let scene = Scene::start(bench, &format!("noisy_{turn}"), queued).await?;
        let drained = scene.drain().await?;
        let large = scene.large().as_str();
        let started = || drained.starts.iter().map(|start| start.tenant.as_str());
        let in_order = || drained.by_sequence.iter().map(String::as_str);
        figures[0].push(before_the_last_first(in_order(), large));
        figures[1].push(before_the_last_first(started(), large));
        figures[2].push(before_the_last(in_order(), large));
        figures[3].push(before_the_last(started(), large));
        bench.drop_databases().await?;
    }
    let [first, first_started, last, last_started] = figures
        .each_ref()
        .map(|runs| Figure::median(runs, Unit::Count));
    // With equal weights a cycle has one slot of each tenant.
    let bound = number(TENANTS);
    let lines = [
        Line::new(
            "runs before the last small tenant's first, by sequence",
            first,
        )
        .target(Target::Below(bound)),
        Line::new("the same, as their handlers started", first_started),
        Line::new(
            "runs before the last small tenant's last, by sequence",
            last,
        )
        .target(Target::Below(bound * number(SMALL))),
        Line::new("the same, as their handlers started", last_started),
    ];
    Ok(Measured {
        lines: lines.map(|line| line.regime(Regime::Native)).into(),
        plots: Vec::new(),
    })
}

/// From the first start to the last.
fn runs_per_second(starts: &[Start]) -> f64 {
    let ends = starts.first().zip(starts.last());
    ends.map_or(f64::NAN, |(first, last)| {
        number(starts.len()) / (number(last.micros - first.micros) / 1e6)
    })
}

/// The runs of the tenant with the most less those of the one with the fewest, of all eight.
fn largest_difference(tenants: &[String]) -> usize {
    let mut runs = BTreeMap::<&str, usize>::new();
    for tenant in tenants {
        *runs.entry(tenant).or_default() += 1;
    }
    let most = runs.values().max().copied().unwrap_or(0);
    let fewest = match runs.values().min() {
        Some(fewest) if runs.len() == TENANTS => *fewest,
        _ => 0,
    };
    most - fewest
}

/// How many runs came before the first run of the small tenant that was the last to have one.
fn before_the_last_first<'a>(tenants: impl Iterator<Item = &'a str>, large: &str) -> f64 {
    let mut first = BTreeMap::new();
    for (before, tenant) in tenants.enumerate() {
        first.entry(tenant).or_insert(before);
    }
    first.remove(large);
    first.into_values().max().map_or(f64::NAN, number)
}

/// How many runs came before the last run of any small tenant.
fn before_the_last<'a>(tenants: impl Iterator<Item = &'a str>, large: &str) -> f64 {
    let small = tenants.enumerate().filter(|(_, tenant)| *tenant != large);
    small.last().map_or(f64::NAN, |(before, _)| number(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: [&str; 7] = ["large", "a", "large", "b", "a", "b", "large"];

    #[test]
    fn waits_are_counted_in_runs_that_came_before() {
        let order = || ORDER.into_iter();
        assert_eq!(before_the_last_first(order(), "large").to_string(), "3");
        assert_eq!(before_the_last(order(), "large").to_string(), "5");
        assert!(before_the_last(["large"].into_iter(), "large").is_nan());
    }

    #[test]
    fn a_tenant_without_a_run_counts_as_none() {
        let all: Vec<String> = (0..TENANTS).map(|tenant| tenant.to_string()).collect();
        assert_eq!(largest_difference(&all), 0);
        assert_eq!(largest_difference(&all[1..]), 1);
        assert_eq!(largest_difference(&[]), 0);
    }

    #[test]
    fn the_rate_is_from_the_first_start_to_the_last() {
        let start = |micros| Start {
            micros,
            tenant: "a".to_owned(),
        };
        let starts = [start(1_000_000), start(1_500_000), start(3_000_000)];
        assert_eq!(runs_per_second(&starts).to_string(), "1.5");
    }
}
