//! `cargo xtask bench`: how fast everything is, beside a limit or a peer that is measured in the same run.

pub(crate) mod child;
mod limit;
mod line;
mod noop;
mod order;
mod peers;
mod plot;
mod publish;
mod report;
mod rows;
mod samples;
mod scene;
mod server;
mod usage;

use core::time::Duration;
use std::env;

use clap::ValueEnum as _;
use evenhand_testkit::postgres::{Installation, Major, find_all};

use self::peers::Peers;
use self::report::{Ended, Report};
use self::rows::Row;
use self::server::Bench;
use crate::progress::Progress;
use crate::{Outcome, Verdict, cargo, pg, process};

/// Errors here also end tasks of their own.
type Result<T> = core::result::Result<T, Box<dyn core::error::Error + Send + Sync>>;

/// A row that hangs must not keep the others.
const ROW_DEADLINE: Duration = Duration::from_mins(20);

/// Measure how fast everything is, on a private server with flushes on.
///
/// Each line of the table is a median of several short runs. Where two things are compared they were measured in turns, in
/// the same process and on the same server, so the ratio means something on a noisy machine; the figures alone do not.
/// Rows that depend on how long a flush takes are measured twice: `native`, with the disk as it is, and `1 ms`, with
/// commit_delay=1000 and commit_siblings=0, which imitates a cloud disk. A row that cannot run says why.
///
/// The table goes to the standard output, and as Markdown and JSON with the plots to target/bench/.
/// docs/performance.md explains each row. A full run takes about forty minutes, --quick at most five minutes, and building
/// the peers some more the first time.
#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
#[command(after_help = "Examples:\n  \
    cargo xtask bench --quick                        all rows, rough figures\n  \
    cargo xtask bench --only reserve --only callers  two rows\n  \
    cargo xtask bench --publish                      all rows, into docs/performance.md\n\n\
    A debug build builds itself again in release mode first; nothing is measured before that is done.")]
pub(crate) struct Args {
    /// Measure this row only; may be given more than once.
    #[arg(long, value_name = "ROW")]
    only: Vec<Row>,
    /// Shorter runs and smaller tables, and so rougher figures.
    #[arg(long)]
    quick: bool,
    /// Leave out the other job queues that some rows measure beside ours; their lines say so.
    #[arg(long)]
    without_peers: bool,
    /// Put the table and the plots into docs/performance.md and docs/performance/.
    #[arg(long, conflicts_with = "only")]
    publish: bool,
    /// The major to measure on; the newest that is found by default.
    #[arg(long, value_name = "N")]
    major: Option<Major>,
    /// Use only what is installed or was downloaded before; ask npm and cargo's registry for nothing.
    #[arg(long)]
    no_download: bool,
}

pub(crate) async fn run(args: Args) -> Outcome {
    if cfg!(debug_assertions) {
        return run_in_release_mode().await;
    }
    let progress = Progress::start();
    measure(args, progress)
        .await
        .map_err(|error| -> Box<dyn core::error::Error> { error })?;
    Ok(Verdict::Passed)
}

/// The same command once more, from a build that is worth measuring.
async fn run_in_release_mode() -> Outcome {
    Progress::start().step("building in release mode");
    let mut command = cargo::command();
    command
        .args(["run", "--quiet", "--release", "--package", "xtask", "--"])
        .args(env::args_os().skip(1));
    let status = process::run(command).await?;
    Ok(if status.success() {
        Verdict::Passed
    } else {
        Verdict::Failed
    })
}

async fn measure(args: Args, progress: Progress) -> Result<()> {
    let installation = installation(&args, progress).await?;
    let wanted = |row: &&Row| args.only.is_empty() || args.only.contains(row);
    let rows: Vec<Row> = Row::value_variants()
        .iter()
        .filter(wanted)
        .copied()
        .collect();
    let with_peers = rows.iter().any(|row| row.has_peers());
    let peers = if with_peers && !args.without_peers {
        peers::prepare(progress, !args.no_download).await
    } else {
        Peers::LeftOut
    };
    progress.step(&format!(
        "starting a private PostgreSQL {} ({})",
        installation.version(),
        installation.source()
    ));
    let bench = Bench::start(&installation, args.quick, progress, peers).await?;
    let mut report = Report::new(&installation, args.quick);
    report.peers = with_peers.then(|| bench.peers().sentence());
    for (at, row) in rows.iter().enumerate() {
        progress.step(&format!("[{}/{}] {}", at + 1, rows.len(), row.name()));
        report.rows.push(measure_row(*row, &bench, progress).await);
        bench.drop_databases().await?;
    }
    print!("{}", report.text());
    let folder = pg::target_folder().join("bench");
    report.write_to(&folder)?;
    progress.step(&format!("wrote {}", folder.display()));
    if args.publish {
        publish::publish(&report, &cargo::workspace())?;
        progress.step("wrote docs/performance.md and docs/performance/");
    }
    Ok(())
}

/// An error costs the row, never the run.
async fn measure_row(row: Row, bench: &Bench, progress: Progress) -> Ended {
    let measured = match tokio::time::timeout(ROW_DEADLINE, row.measure(bench)).await {
        Ok(Ok(measured)) => Ok(measured),
        Ok(Err(error)) => Err(crate::with_causes(error.as_ref())),
        Err(_) => Err(format!("it did not end in {ROW_DEADLINE:?}")),
    };
    if let Err(why) = &measured {
        progress.step(&format!("  did not run: {why}"));
    }
    Ended {
        row: row.name(),
        measured,
    }
}

async fn installation(args: &Args, progress: Progress) -> Result<Installation> {
    let options = pg::find_options(progress).allow_download(!args.no_download);
    let found = find_all(&options).await;
    let wanted = found
        .into_iter()
        .filter(|(major, _)| args.major.is_none_or(|wanted| wanted == *major));
    // Majors come in order, so the last that is there is the newest.
    let newest = wanted.filter_map(|(_, result)| result.ok()).last();
    newest.ok_or_else(|| "no such PostgreSQL; `cargo xtask pg` says what to install".into())
}
