//! What a worker process needs: memory with every tenant and many permits, and time of the processor for a run.

use evenhand_store::RunQueue as _;

use super::{Measured, TURNS, peer_turns};
use crate::bench::Result;
use crate::bench::child::{Child, Role};
use crate::bench::line::{Figure, Line, Unit};
use crate::bench::noop::new_run;
use crate::bench::peers::{Contest, Load, Mode, or_alone};
use crate::bench::samples::{Samples, number};
use crate::bench::scene::{Shard, equal_tenants};
use crate::bench::server::{Bench, Database, Regime};

const TENANTS: u32 = 1_024;
const PERMITS: usize = 256;

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.set(Regime::Native).await?;
    let database = bench.database("worker").await?;
    let store = database.store(2).await?;
    let shard = Shard::register(&store, "worker", equal_tenants(TENANTS, 4)?).await?;
    let runs_each = bench.pick(1, 4);
    let (mut memory, mut cpu) = (Samples::default(), Samples::default());
    bench.say(&format!(
        "{TURNS} processes with {PERMITS} permits, {} runs each",
        TENANTS * runs_each
    ));
    let load = Load::of_eight(usize::try_from(TENANTS * runs_each)? / 8, 1);
    let mut peers = Contest::new(bench.peers(), Mode::Fastest);
    for turn in 0..TURNS {
        let (peak, time) = one_process(&database, &shard, runs_each).await?;
        memory.push(peak);
        cpu.push(time);
        if turn < peer_turns(bench) {
            peers
                .turn(async |peer| {
                    let drained = peer.drain(bench, Mode::Fastest, &load).await?;
                    Ok((drained.memory_peak_mib, drained.cpu_micros_per_job()))
                })
                .await;
        }
    }
    let memory = Line::new(
        "peak memory of a worker, 1,024 tenants, 256 permits",
        Figure::median(&memory, Unit::Mebibytes),
    );
    let cpu = Line::new(
        "time of the processor for a no-op run, in the worker",
        Figure::median(&cpu, Unit::Micros),
    );
    let memory_beside = peers.lines(&memory, |runs| {
        let peaks = runs.iter().map(|(peak, _)| *peak).collect();
        Figure::median(&peaks, Unit::Mebibytes)
    });
    let cpu_beside = peers.lines(&cpu, |runs| {
        let times = runs.iter().map(|(_, time)| *time).collect();
        Figure::median(&times, Unit::Micros)
    });
    let lines = [or_alone(memory, memory_beside), or_alone(cpu, cpu_beside)];
    let native = |line: Line| line.regime(Regime::Native);
    Ok(Measured {
        lines: lines.into_iter().flatten().map(native).collect(),
        plots: Vec::new(),
    })
}

/// Lets a new process drain runs of every tenant; its peak in MiB, and the microseconds that it computed for a run.
async fn one_process(database: &Database, shard: &Shard, runs_each: u32) -> Result<(f64, f64)> {
    let mut runs = Vec::new();
    for tenant in shard.policy.tenants() {
        for _ in 0..runs_each {
            runs.push(new_run(shard, tenant.tenant())?);
        }
    }
    for batch in runs.chunks(1_024) {
        shard.store.enqueue_many(batch).await?;
    }
    let mut child = Child::start(Role::Worker, database, shard, PERMITS).await?;
    child.begin().await?;
    database.wait_until_drained().await?;
    let usage = child.usage()?;
    child.starts().await?;
    Ok((
        f64::from(usage.memory_peak_kib) / 1_024.0,
        usage.cpu.as_secs_f64() * 1e6 / number(runs.len()),
    ))
}
