//! Draining no-op runs with two worker processes: how fast, in which shares, and who waits for whom; beside peers.

use std::collections::BTreeMap;

use evenhand_policy::{TenantFairnessWeight, TenantId};

use super::{Measured, TURNS, peer_turns};
use crate::bench::Result;
use crate::bench::child::{Child, Role, Start};
use crate::bench::line::{Figure, Line, Target, Unit, readable};
use crate::bench::noop::enqueue;
use crate::bench::order::{before_the_last, before_the_last_first, runs_per_second, tenants};
use crate::bench::peers::{Contest, Load, Mode, Peer, or_alone};
use crate::bench::samples::{Samples, number};
use crate::bench::scene::{Shard, equal_tenants};
use crate::bench::server::{Bench, Database, Regime};

const PROCESSES: usize = 2;
const TENANTS: usize = 8;
/// Runs take no time here, so the more of them share a call the better. Peers fetch 500 at a time.
const PERMITS: usize = 256;

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
    let mut measured = Measured::default();
    for regime in Regime::BOTH {
        let lines = measure_in(bench, regime).await?.into_iter();
        measured.lines.extend(lines.map(|line| line.regime(regime)));
    }
    Ok(measured)
}

async fn measure_in(bench: &Bench, regime: Regime) -> Result<Vec<Line>> {
    let load = Load::of_eight(bench.pick(1_000, 2_500), PROCESSES);
    // Fair modes are slow.
    let fair_load = Load::of_eight(bench.pick(50, 250), PROCESSES);
    bench.say(&format!("{} runs, {}", load.jobs(), regime.name()));
    let (mut rates, mut unevenness) = (Samples::default(), Samples::default());
    let mut fastest = Contest::new(bench.peers(), Mode::Fastest);
    let mut fair = Contest::new(bench.peers(), Mode::Fair);
    for turn in 0..TURNS {
        let name = format!("drain_{turn}");
        let scene = Scene::start(bench, &name, [load.jobs() / TENANTS; TENANTS]).await?;
        bench.set(regime).await?;
        let drained = scene.drain().await?;
        rates.push(runs_per_second(&drained.starts));
        let half = &drained.by_sequence[..drained.by_sequence.len() / 2];
        unevenness.push(number(largest_difference(half)));
        bench.drop_databases().await?;
        if turn < peer_turns(bench) {
            let rate = async |peer: &Peer, mode, load| {
                let drained = peer.drain(bench, mode, load).await?;
                Ok(runs_per_second(&drained.starts))
            };
            fastest
                .turn(async |peer| rate(peer, Mode::Fastest, &load).await)
                .await;
            fair.turn(async |peer| rate(peer, Mode::Fair, &fair_load).await)
                .await;
        }
    }
    let median = |rates: &Samples| Figure::median(rates, Unit::PerSecond);
    let of_peer = |runs: &[f64]| median(&runs.iter().copied().collect());
    let ours = |jobs: usize| {
        let jobs = readable(number(jobs));
        let what = format!("{jobs} no-op runs of 8 tenants, 2 processes");
        Line::new(what, median(&rates))
    };
    let line = ours(load.jobs());
    let mut lines = against_the_fastest(line.clone(), fastest.lines(&line, of_peer));
    let fair_line = Line {
        what: format!("the same; the peer {} jobs only", fair_load.jobs()),
        ..line
    };
    lines.extend(fair.lines(&fair_line, of_peer));
    let evenness = Line::new(
        "how far two tenants differ in the first half of the order",
        Figure::one(unevenness.max(), Unit::Count),
    );
    lines.push(evenness.target(Target::AtMost(0.0)));
    Ok(lines)
}

/// The fastest peer first, which ours should not be slower than, and then the others.
fn against_the_fastest(ours: Line, mut beside: Vec<Line>) -> Vec<Line> {
    let rate = |line: &Line| {
        let beside = line.beside.as_ref();
        beside.map_or(f64::NEG_INFINITY, |(_, figure)| figure.value)
    };
    beside.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    if let Some(fastest) = beside.first_mut().filter(|line| line.beside.is_some()) {
        fastest.target = Target::RatioAtLeast(1.0);
    }
    or_alone(ours, beside)
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
    let mut contests = [Mode::Fastest, Mode::Fair].map(|mode| Contest::new(bench.peers(), mode));
    for turn in 0..TURNS {
        let scene = Scene::start(bench, &format!("noisy_{turn}"), queued).await?;
        let drained = scene.drain().await?;
        let large = scene.large().as_str();
        let in_order = || drained.by_sequence.iter().map(String::as_str);
        figures[0].push(before_the_last_first(in_order(), large));
        figures[1].push(before_the_last_first(tenants(&drained.starts), large));
        figures[2].push(before_the_last(in_order(), large));
        figures[3].push(before_the_last(tenants(&drained.starts), large));
        bench.drop_databases().await?;
        if turn < peer_turns(bench) {
            let [fastest, fair] = &mut contests;
            fastest
                .turn(async |peer| noisy_peer(bench, peer, Mode::Fastest, queued).await)
                .await;
            fair.turn(async |peer| noisy_peer(bench, peer, Mode::Fair, queued).await)
                .await;
        }
    }
    Ok(Measured {
        lines: noisy_lines(&figures, &contests),
        plots: Vec::new(),
    })
}

/// What the small tenants waited for: before the last first of one, and before the last of all.
type Waited = [f64; 2];

async fn noisy_peer(
    bench: &Bench,
    peer: &Peer,
    mode: Mode,
    queued: [usize; TENANTS],
) -> Result<Waited> {
    let load = Load::of_each(queued, PROCESSES);
    let large = load.tenants[0].0.as_str();
    let starts = peer.drain(bench, mode, &load).await?.starts;
    Ok([
        before_the_last_first(tenants(&starts), large),
        before_the_last(tenants(&starts), large),
    ])
}

fn noisy_lines(figures: &[Samples; 4], contests: &[Contest<'_, Waited>; 2]) -> Vec<Line> {
    let [first, first_started, last, last_started] = figures
        .each_ref()
        .map(|runs| Figure::median(runs, Unit::Count));
    // With equal weights a cycle has one slot of each tenant.
    let bound = number(TENANTS);
    let mut lines = Vec::new();
    for (which, by_sequence, started, limit, at) in [
        ("first", first, first_started, bound, 0),
        ("last", last, last_started, bound * number(SMALL), 1),
    ] {
        let what = format!("runs before the last small tenant's {which}");
        lines.push(
            Line::new(format!("{what}, by sequence"), by_sequence).target(Target::Below(limit)),
        );
        let ours = Line::new(format!("{what}, as handlers started"), started);
        let of_peer = |runs: &[Waited]| {
            let runs = runs.iter().map(|waited| waited[at]).collect();
            Figure::median(&runs, Unit::Count)
        };
        let beside: Vec<Line> = contests
            .iter()
            .flat_map(|contest| contest.lines(&ours, of_peer))
            .collect();
        lines.extend(or_alone(ours, beside));
    }
    let native = |line: Line| line.regime(Regime::Native);
    lines.into_iter().map(native).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_without_a_run_counts_as_none() {
        let all: Vec<String> = (0..TENANTS).map(|tenant| tenant.to_string()).collect();
        assert_eq!(largest_difference(&all), 0);
        assert_eq!(largest_difference(&all[1..]), 1);
        assert_eq!(largest_difference(&[]), 0);
    }

    #[test]
    fn the_fastest_peer_comes_first_and_has_the_target() {
        let ours = Line::new("runs", Figure::one(9.0, Unit::PerSecond));
        let beside = |name: &str, rate| {
            let figure = Figure::one(rate, Unit::PerSecond);
            ours.clone().beside(name, figure)
        };
        let missing = Line::not_measured("runs, beside c", "no npm");
        let peers = vec![missing.clone(), beside("a", 5.0), beside("b", 10.0)];
        let lines = against_the_fastest(ours.clone(), peers);
        let names: Vec<_> = lines.iter().map(|line| line.beside.as_ref()).collect();
        assert_eq!(names[0].unwrap().0, "b");
        assert_eq!((lines[0].is_met(), lines[1].is_met()), (Some(false), None));
        assert!(names[2].is_none() && lines.len() == 3);
        let alone = against_the_fastest(ours, vec![missing]);
        assert_eq!((alone.len(), &*alone[0].what), (2, "runs"));
    }
}
