//! What is measured of a peer, each time in a database of its own.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use futures::future::try_join_all;
use serde::Deserialize;

use super::program::{Scratch, answer_of};
use super::{Mode, Peer};
use crate::bench::Result;
use crate::bench::child::Start;
use crate::bench::samples::{Samples, number};
use crate::bench::server::{Bench, Database};

/// The database of a measurement.
const DATABASE: &str = "peer";

/// How many jobs a call enqueues where enqueueing is not what is measured.
const BATCH: u32 = 1_000;

/// What is to be drained, and by how many processes.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The tenants and their jobs, in the order in which they are enqueued.
    pub(crate) tenants: Vec<(String, usize)>,
    pub(crate) processes: usize,
}

/// How a queue was drained, by workers that began together.
#[derive(Debug)]
pub(crate) struct Drained {
    /// Every job's start, in order, over all processes.
    pub(crate) starts: Vec<Start>,
    /// The most memory that one of the processes held, in MiB.
    pub(crate) memory_peak_mib: f64,
    /// What all processes computed, from when their code was loaded.
    pub(crate) cpu: Duration,
}

/// How enqueueing is measured: by so many clients, while one worker process drains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnqueueLoad {
    pub(crate) clients: usize,
    pub(crate) batch: usize,
    pub(crate) length: Duration,
}

impl Peer {
    /// Lets processes that begin together drain what was enqueued before.
    ///
    /// # Errors
    ///
    /// When the peer is missing, fails, or does not run every job exactly once.
    ///
    /// # Cancel safety
    ///
    /// The peer's processes are ended.
    pub(crate) async fn drain(&self, bench: &Bench, mode: Mode, load: &Load) -> Result<Drained> {
        let database = self.database(bench).await?;
        let drained = self.drain_in(&database, mode, load).await;
        bench.drop_database(database).await?;
        drained
    }

    /// How many jobs in a second the clients enqueue together.
    ///
    /// # Errors
    ///
    /// When the peer is missing or fails.
    ///
    /// # Cancel safety
    ///
    /// As [`Peer::drain`].
    pub(crate) async fn enqueue(&self, bench: &Bench, load: EnqueueLoad) -> Result<f64> {
        let database = self.database(bench).await?;
        let rate = self.enqueue_in(&database, load).await;
        bench.drop_database(database).await?;
        rate
    }

    /// The milliseconds from the call that enqueues a job to its start, one job at a time, with one idle worker in the
    /// same process that is woken as fast as the peer can.
    ///
    /// # Errors
    ///
    /// When the peer is missing or fails.
    ///
    /// # Cancel safety
    ///
    /// As [`Peer::drain`].
    pub(crate) async fn latency(&self, bench: &Bench, samples: usize) -> Result<Samples> {
        let database = self.database(bench).await?;
        let arguments = ["latency".to_owned(), format!("--samples={samples}")];
        let program = self.program()?;
        let waited = program
            .answer::<Waited>(Some(database.url()), arguments)
            .await;
        bench.drop_database(database).await?;
        let micros = waited?.from_call_micros.into_iter();
        Ok(micros.map(|micros| micros / 1e3).collect())
    }

    /// A new database with the peer's schema.
    async fn database(&self, bench: &Bench) -> Result<Database> {
        let set_up = async || {
            let template = bench.template(&self.template_name).await?;
            self.program()?.run(template.url(), ["setup"]).await?;
            Result::Ok(template)
        };
        let template = self.template.get_or_try_init(set_up).await?;
        bench.copy_of(template, DATABASE).await
    }

    async fn drain_in(&self, database: &Database, mode: Mode, load: &Load) -> Result<Drained> {
        let program = self.program()?;
        let url = database.url();
        let mut enqueue = vec![
            "enqueue".to_owned(),
            format!("--tenants={}", load.list()),
            format!("--batch={BATCH}"),
        ];
        let mut work = vec![
            "work".to_owned(),
            format!("--processes={}", load.processes),
            format!("--until={}", load.jobs()),
        ];
        if mode == Mode::Fair {
            enqueue.push("--fair".to_owned());
            work.push("--fair".to_owned());
        }
        program.run(url, &enqueue).await?;
        let scratch = Scratch::new()?;
        let works = (0..load.processes).map(|process| {
            let file = scratch.file(process);
            let mut command = program.command(Some(url), &work);
            command.arg("--order").arg(&file);
            async move {
                let worked: Worked = answer_of(command).await?;
                Result::Ok((worked, read_order(&file)?))
            }
        });
        let works = try_join_all(works).await?;
        let left: Remaining = program.answer(Some(url), ["remaining"]).await?;
        let drained = Drained::of(works);
        load.check(&drained.starts, left.remaining)?;
        Ok(drained)
    }

    async fn enqueue_in(&self, database: &Database, load: EnqueueLoad) -> Result<f64> {
        let program = self.program()?;
        let arguments = [
            "enqueue-load".to_owned(),
            "--busy=1".to_owned(),
            format!("--clients={}", load.clients),
            format!("--batch={}", load.batch),
            format!("--millis={}", load.length.as_millis()),
        ];
        let enqueueing = program.answer::<Enqueued>(Some(database.url()), arguments);
        let working = program.run(database.url(), ["work"]);
        // A worker that is told no number of jobs works until it is dropped.
        tokio::select! {
            enqueued = enqueueing => Ok(enqueued?.per_second),
            ended = working => {
                ended?;
                Err("the worker ended before the clients".into())
            }
        }
    }
}

impl Load {
    /// As many jobs of each of eight tenants.
    pub(crate) fn of_eight(jobs_each: usize, processes: usize) -> Self {
        Self::of_each([jobs_each; 8], processes)
    }

    /// So many jobs of each tenant, one tenant after the other.
    pub(crate) fn of_each(jobs: impl IntoIterator<Item = usize>, processes: usize) -> Self {
        let jobs = jobs.into_iter().enumerate();
        let tenants = jobs.map(|(tenant, jobs)| (format!("tenant-{tenant}"), jobs));
        Self {
            tenants: tenants.collect(),
            processes,
        }
    }

    pub(crate) fn jobs(&self) -> usize {
        self.tenants.iter().map(|(_, jobs)| jobs).sum()
    }

    /// `a=10,b=5`, as `enqueue` takes it.
    fn list(&self) -> String {
        let entries = self
            .tenants
            .iter()
            .map(|(tenant, jobs)| format!("{tenant}={jobs}"));
        entries.collect::<Vec<_>>().join(",")
    }

    /// Jobs that are no longer in the queue were run, so that as many starts as jobs are one for each.
    fn check(&self, starts: &[Start], left: u64) -> Result<()> {
        let mut run = BTreeMap::<&str, usize>::new();
        for start in starts {
            *run.entry(&start.tenant).or_default() += 1;
        }
        let wanted = self.tenants.iter();
        let wanted = wanted.map(|(tenant, jobs)| (tenant.as_str(), *jobs));
        if left == 0 && run == wanted.collect() {
            return Ok(());
        }
        Err(format!(
            "not every job was run once: {} starts of {} jobs, {left} left",
            starts.len(),
            self.jobs(),
        )
        .into())
    }
}

impl Drained {
    fn of(works: Vec<(Worked, Vec<Start>)>) -> Self {
        let (worked, starts): (Vec<_>, Vec<_>) = works.into_iter().unzip();
        let mut starts: Vec<Start> = starts.into_iter().flatten().collect();
        starts.sort();
        let peaks: Samples = worked
            .iter()
            .map(|worked| number(worked.rss_max_bytes / 1_024) / 1_024.0)
            .collect();
        Self {
            starts,
            memory_peak_mib: peaks.max(),
            cpu: Duration::from_secs_f64(worked.iter().map(|worked| worked.cpu_seconds).sum()),
        }
    }

    /// The time of the processor for a job, in microseconds.
    pub(crate) fn cpu_micros_per_job(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / number(self.starts.len())
    }
}

/// What `work` answers.
#[derive(Debug, Deserialize)]
struct Worked {
    rss_max_bytes: u64,
    cpu_seconds: f64,
}

/// What `remaining` answers.
#[derive(Debug, Deserialize)]
struct Remaining {
    remaining: u64,
}

/// What `enqueue-load` answers.
#[derive(Debug, Deserialize)]
struct Enqueued {
    per_second: f64,
}

/// What `latency` answers.
#[derive(Debug, Deserialize)]
struct Waited {
    from_call_micros: Vec<f64>,
}

/// Reads what a worker wrote: a line for each job, with the microseconds of its start and its tenant.
fn read_order(file: &Path) -> Result<Vec<Start>> {
    fs::read_to_string(file)?.lines().map(start).collect()
}

fn start(line: &str) -> Result<Start> {
    let (micros, tenant) = line.split_once(' ').ok_or("a start has no tenant")?;
    Ok(Start {
        micros: micros.parse()?,
        tenant: tenant.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_time_and_a_tenant() {
        let start = start("1796087288623769 small-1").unwrap();
        assert_eq!(
            (start.micros, &*start.tenant),
            (1_796_087_288_623_769, "small-1")
        );
        assert!(super::start("1796087288623769").is_err());
        assert!(super::start("soon small-1").is_err());
    }

    #[test]
    fn jobs_that_were_lost_repeated_or_left_are_noticed() {
        let load = Load {
            tenants: vec![("a".to_owned(), 2), ("b".to_owned(), 1)],
            processes: 1,
        };
        assert_eq!((load.list().as_str(), load.jobs()), ("a=2,b=1", 3));
        let starts = |tenants: &[&str]| -> Vec<Start> {
            let lines = tenants.iter().map(|tenant| format!("1 {tenant}"));
            lines.map(|line| start(&line).unwrap()).collect()
        };
        assert!(load.check(&starts(&["a", "b", "a"]), 0).is_ok());
        assert!(load.check(&starts(&["a", "b", "a"]), 1).is_err());
        assert!(load.check(&starts(&["a", "b"]), 0).is_err());
        assert!(load.check(&starts(&["a", "b", "b"]), 0).is_err());
        assert!(load.check(&starts(&["a", "a", "a", "b"]), 0).is_err());
    }

    #[test]
    fn processes_are_taken_together() {
        let worked = |rss_max_bytes, cpu_seconds| Worked {
            rss_max_bytes,
            cpu_seconds,
        };
        let drained = Drained::of(vec![
            (worked(3 << 20, 1.5), vec![start("5 a").unwrap()]),
            (worked(2 << 20, 0.5), vec![start("4 b").unwrap()]),
        ]);
        assert_eq!(drained.starts[0].tenant, "b");
        assert_eq!(drained.memory_peak_mib.to_string(), "3");
        assert_eq!(drained.cpu_micros_per_job().to_string(), "1000000");
    }
}
