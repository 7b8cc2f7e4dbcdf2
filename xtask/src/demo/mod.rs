//! `cargo xtask demo`: the main job from end to end, and a verdict on every promise.

mod checksum;
mod cycles;
mod database;
mod evidence;
mod input;
mod measure;
mod processes;
mod progress;
mod readiness;
mod report;
mod scene;
mod verdict;
pub(crate) mod worker;

use evenhand_testkit::postgres::Major;

use self::database::{Database, Place};
use self::evidence::Evidence;
use self::input::Input;
use self::report::Report;
use self::scene::{Scene, SceneOptions};
use crate::progress::Progress;
use crate::{Outcome, Verdict, cargo};

/// Drain the runs of five tenants with worker processes, kill one, and check every promise.
///
/// Starts a private PostgreSQL, registers the weights of examples/demo/tenants.toml, enqueues the runs of
/// examples/demo/runs.jsonl (checksums over files of this repository), and starts the workers, each a process of its
/// own. One is killed with SIGKILL while it holds runs, and another is started in its place. One tenant falls idle, and
/// comes back when half of all runs are done.
///
/// In the end the record is read back and judged: a table of what each tenant got, and PASS or FAIL for each promise.
/// The exit code is 0 only if all hold. Takes about half a minute.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this server instead of a private one, in a new database that is dropped in the end.
    ///
    /// The user needs CREATEDB, and CREATEROLE or, where Evenhand's roles are there already, membership in
    /// evenhand_owner. Roles belong to the whole server: evenhand_owner, evenhand_migrator, evenhand_app,
    /// evenhand_retention and evenhand_observer stay there.
    #[arg(long, value_name = "URL", conflicts_with_all = ["major", "no_download"])]
    database_url: Option<String>,
    /// Leave that database behind, to look around in it.
    #[arg(long, requires = "database_url")]
    keep: bool,
    /// Run on this major of PostgreSQL, not on the newest that is found.
    #[arg(long, value_name = "N")]
    major: Option<Major>,
    /// Use only what is installed or was downloaded before; ask npm for nothing.
    #[arg(long)]
    no_download: bool,
    /// How many workers there are at a time, 3 to 8.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=8))]
    workers: u32,
    /// How many runs each worker works on at a time, 1 to 8.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=8))]
    concurrency: u32,
    /// Kill a worker when this much of all runs is done, 1 to 75 percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=75))]
    kill_after: u64,
    /// Print JSON: the same numbers, durations in milliseconds, shares in thousandths.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let progress = Progress::start();
    let input = Input::read(&cargo::workspace())?;
    let place = match &args.database_url {
        Some(url) => Place::Server {
            url,
            keep: args.keep,
        },
        None => Place::Private {
            major: args.major,
            allow_download: !args.no_download,
        },
    };
    let database = Database::open(&place, progress).await?;
    let options = SceneOptions {
        workers: args.workers,
        concurrency: args.concurrency,
        kill_after_percent: args.kill_after,
    };
    let scene = Scene::play(&input, database.url(), &options, progress).await?;
    let judgement = verdict::judge(&scene.evidence);
    let report = Report {
        postgres: database.version(),
        shard: input.policy.shard().as_str(),
        cycle_length: input.policy.cycle_length(),
        workers: args.workers,
        concurrency: args.concurrency,
        drained_in: scene.drained_in,
        judgement: &judgement,
    };
    if args.json {
        println!("{:#}", report.json());
    } else {
        print!("{}", report.text());
    }
    if let Some(name) = database.kept() {
        progress.step(&format!("the database {name} stays on the server"));
    }
    database.close().await?;
    Ok(if judgement.passed() {
        Verdict::Passed
    } else {
        Verdict::Failed
    })
}
