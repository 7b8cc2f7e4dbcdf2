//! `cargo xtask qualify`: everything that touches PostgreSQL, on every major that is supported.

mod programs;
mod report;
mod requirements;
mod runner;

use core::error::Error;

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use evenhand_testkit::postgres::{FindError, Installation, Major, TestServer, find};

use self::programs::TestCase;
use self::report::{MajorReport, Report};
use crate::progress::Progress;
use crate::{Outcome, Verdict, cargo, pg, with_causes};

/// Run everything that touches PostgreSQL on 15, 16, 17 and 18.
///
/// A major that is missing is a failure, and so is a required property that no test proves. The report is written to
/// qualify/report.md and qualify/report.json below the target folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run on this major only; may be given more than once. The report then says that it is partial.
    #[arg(long, value_name = "N")]
    major: Vec<Major>,
    /// Print the report as JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Use only what is installed or was downloaded before; ask npm for nothing.
    #[arg(long)]
    no_download: bool,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let progress = Progress::start();
    let folder = cargo::metadata().await?.target_directory;
    let folder = folder.join("qualify").into_std_path_buf();
    // Whatever happens below, nobody takes an older report for this one.
    remove_report(&folder)?;
    let options = pg::find_options(progress).allow_download(!args.no_download);
    let mut found = Vec::new();
    for major in chosen(&args.major) {
        found.push((major, find(major, &options).await));
    }
    progress.step("building the tests");
    let mut tests = programs::build_and_list().await?;
    let mut majors = Vec::new();
    for (major, installation) in found {
        let report = on_major(major, installation, &tests, progress).await;
        // The longest come first from now on, so that none of them is left over at the end.
        report.sort_slowest_first(&mut tests);
        majors.push(report);
    }
    let report = Report::new(majors, !args.major.is_empty());
    write_report(&folder, &report)?;
    if args.json {
        println!("{}", report.to_json()?);
    } else {
        print!("{}", report.to_text());
        println!("\nreport: {}", folder.join("report.md").display());
    }
    Ok(if report.passed() {
        Verdict::Passed
    } else {
        Verdict::Failed
    })
}

fn chosen(wanted: &[Major]) -> Vec<Major> {
    Major::ALL
        .into_iter()
        .filter(|major| wanted.is_empty() || wanted.contains(major))
        .collect()
}

/// Runs all tests on one major; one that is missing or does not start is reported as such.
async fn on_major(
    major: Major,
    installation: Result<Installation, FindError>,
    tests: &[TestCase],
    progress: Progress,
) -> MajorReport {
    let unusable = |error: &dyn Error| {
        let reason = with_causes(error);
        eprintln!("error: PostgreSQL {major}: {reason}");
        MajorReport::missing(major, reason)
    };
    let installation = match installation {
        Ok(installation) => installation,
        Err(error) => return unusable(&error),
    };
    progress.step(&format!(
        "PostgreSQL {} ({}): {} tests",
        installation.version(),
        installation.source(),
        tests.len()
    ));
    match TestServer::start(&installation).await {
        Ok(server) => {
            let start = Instant::now();
            let runs = runner::run_all(major, tests, &server.env(), progress).await;
            MajorReport::tested(&installation, runs, start.elapsed())
        }
        Err(error) => unusable(&error),
    }
}

fn remove_report(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn write_report(folder: &Path, report: &Report) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("report.md"), report.to_markdown())?;
    fs::write(folder.join("report.json"), report.to_json()?)?;
    Ok(())
}
