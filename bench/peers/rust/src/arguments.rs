//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A peer of the benchmark.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    pub(crate) peer: PeerName,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PeerName {
    ApalisPostgres,
    #[value(name = "graphile_worker")]
    GraphileWorker,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the version and the settings.
    Describe,
    /// Install the peer's schema.
    Setup {
        #[command(flatten)]
        database: Database,
    },
    /// Print how many jobs wait or are in work.
    Remaining {
        #[command(flatten)]
        database: Database,
    },
    /// Enqueue jobs, tenant by tenant in the order given.
    Enqueue(EnqueueOptions),
    /// Enqueue as fast as it goes.
    EnqueueLoad(LoadOptions),
    /// Run jobs until all processes together have run as many as asked, or for ever.
    Work(WorkOptions),
    /// Enqueue one job at a time with an idle worker in this process.
    Latency(LatencyOptions),
}

#[derive(Debug, Args)]
pub(crate) struct Database {
    #[arg(long, env = "BENCH_DATABASE_URL", hide_env_values = true)]
    pub(crate) url: String,
}

#[derive(Debug, Args)]
pub(crate) struct EnqueueOptions {
    #[command(flatten)]
    pub(crate) database: Database,
    #[arg(long, value_name = "NAME=JOBS,..", value_delimiter = ',', required = true, value_parser = tenant)]
    pub(crate) tenants: Vec<(String, usize)>,
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: usize,
}

#[derive(Debug, Args)]
pub(crate) struct LoadOptions {
    #[command(flatten)]
    pub(crate) database: Database,
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) clients: u32,
    #[arg(long, value_name = "MS")]
    pub(crate) millis: u64,
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: usize,
    /// Begin when as many `work` processes have started.
    #[arg(long, value_name = "PROCESSES", default_value_t = 0)]
    pub(crate) busy: i64,
}

#[derive(Debug, Args)]
pub(crate) struct WorkOptions {
    #[command(flatten)]
    pub(crate) database: Database,
    /// How many jobs at a time, instead of what is fastest.
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<usize>,
    /// Begin when as many `work` processes have started.
    #[arg(long, value_name = "P", default_value_t = 1)]
    pub(crate) processes: i64,
    /// End when all processes together have run as many jobs.
    #[arg(long, value_name = "JOBS")]
    pub(crate) until: Option<i64>,
    /// How many jobs a fetch may bring, instead of what is fastest.
    #[arg(long, value_name = "N")]
    pub(crate) fetch: Option<usize>,
    /// Write each job's start, in microseconds of the wall clock, and its tenant.
    #[arg(long, value_name = "FILE")]
    pub(crate) order: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LatencyOptions {
    #[command(flatten)]
    pub(crate) database: Database,
    #[arg(long, value_name = "N")]
    pub(crate) samples: usize,
}

fn tenant(entry: &str) -> Result<(String, usize), String> {
    let (name, jobs) = entry.split_once('=').ok_or("not NAME=JOBS")?;
    let jobs = jobs.parse().map_err(|_| "not a number of jobs")?;
    Ok((name.to_owned(), jobs))
}
