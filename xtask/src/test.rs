//! `cargo xtask test`: everything that has to hold before a change is good, on one PostgreSQL.

use core::error::Error;
use core::time::Duration;
use std::env;
use std::ffi::OsString;
use std::process::Stdio;
use std::time::Instant;

use clap::ValueEnum;
use evenhand_testkit::postgres::{FindOptions, Installation, Major, TestServer, find};
use tokio::process::Command;

use crate::cargo::EVERYTHING;
use crate::progress::Progress;
use crate::{Outcome, Verdict, cargo, layers, no_std, pg, process, table, with_causes};

/// Format, lints, docs, layers, no_std, all tests and doctests.
///
/// The tests run on PostgreSQL 17, or on the newest other major that is found; `cargo xtask qualify` runs them on all.
/// Every step runs, also after one that failed; a table at the end says how each ended.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the tests on this major only.
    #[arg(long, value_name = "N")]
    major: Option<Major>,
    /// Run this step only; may be given more than once.
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,
    /// Use only a PostgreSQL that is installed or was downloaded before; ask npm for nothing.
    #[arg(long)]
    no_download: bool,
    /// Handed to the programs of tests and doctests: a part of a test's name, or `--nocapture`.
    #[arg(last = true, value_name = "TEST ARGUMENT")]
    test_arguments: Vec<OsString>,
}

/// The steps, in the order in which they run: those that fail soonest come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Step {
    /// rustfmt would change nothing.
    Format,
    /// clippy warns of nothing.
    Lints,
    /// rustdoc warns of nothing.
    Docs,
    /// Dependencies between our packages point down.
    Layers,
    /// The policy crate compiles without std.
    NoStd,
    /// Tests of every package pass, and the examples build.
    Tests,
    /// Examples in the documentation compile and run.
    Doctests,
}

/// The major that tests run on unless somebody wants another, then those to take where it is missing.
const MAJORS_BY_PREFERENCE: [u16; 4] = [17, 18, 16, 15];

/// How one step ended.
#[derive(Debug)]
struct Ended {
    step: Step,
    /// Why it failed, as far as that can be said in one line.
    failure: Option<String>,
    took: Duration,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let progress = Progress::start();
    let mut ended = Vec::new();
    for step in steps(&args.only) {
        progress.step(step.title());
        let start = Instant::now();
        let failure = match run_step(step, &args, progress).await {
            Ok(Verdict::Passed) => None,
            Ok(Verdict::Failed) => Some("see above".to_owned()),
            Err(error) => Some(with_causes(error.as_ref())),
        };
        let took = start.elapsed();
        let how = match &failure {
            None => "passed".to_owned(),
            Some(reason) => format!("FAILED: {reason}"),
        };
        progress.step(&format!(
            "{}: {how} ({:.1} s)",
            step.name(),
            took.as_secs_f64()
        ));
        ended.push(Ended {
            step,
            failure,
            took,
        });
    }
    Ok(summarize(&ended))
}

fn steps(only: &[Step]) -> Vec<Step> {
    Step::value_variants()
        .iter()
        .copied()
        .filter(|step| only.is_empty() || only.contains(step))
        .collect()
}

impl Step {
    /// Its name on the command line.
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    fn title(self) -> &'static str {
        match self {
            Self::Format => "format: would rustfmt change anything?",
            Self::Lints => "lints: clippy over every target",
            Self::Docs => "docs: rustdoc over every package",
            Self::Layers => "layers: which package depends on which",
            Self::NoStd => "no-std: the policy crate against core and alloc",
            Self::Tests => "tests of every package",
            Self::Doctests => "doctests of every package",
        }
    }
}

async fn run_step(step: Step, args: &Args, progress: Progress) -> Outcome {
    match step {
        Step::Format => {
            require_component("fmt", "rustfmt").await?;
            run_cargo(&["fmt", "--all", "--check"], &[], &[]).await
        }
        Step::Lints => {
            require_component("clippy", "clippy").await?;
            let clippy = [&["clippy", "--all-targets"], &EVERYTHING[..]].concat();
            run_cargo(&clippy, &["-D".into(), "warnings".into()], &[]).await
        }
        Step::Docs => {
            let docs = [&["doc", "--no-deps"], &EVERYTHING[..]].concat();
            run_cargo(&docs, &[], &[("RUSTDOCFLAGS", deny_doc_warnings())]).await
        }
        Step::Layers => layers::run(layers::Args {}).await,
        Step::NoStd => no_std::check_policy(progress).await,
        Step::Tests => run_tests(args, progress).await,
        Step::Doctests => {
            let doctests = [&["test", "--doc", "--no-fail-fast"], &EVERYTHING[..]].concat();
            run_cargo(&doctests, &args.test_arguments, &[]).await
        }
    }
}

async fn run_tests(args: &Args, progress: Progress) -> Outcome {
    let options = pg::find_options(progress).allow_download(!args.no_download);
    let installation = installation(args.major, &options).await?;
    // Without target options cargo also builds the examples, which no test target does.
    let build = [&["test", "--no-run"], &EVERYTHING[..]].concat();
    if run_cargo(&build, &[], &[]).await? == Verdict::Failed {
        return Err("they do not build".into());
    }
    progress.step(&format!(
        "tests on PostgreSQL {} ({})",
        installation.version(),
        installation.source()
    ));
    let server = TestServer::start(&installation).await?;
    let targets = ["--lib", "--bins", "--tests"];
    let tests = [&["test", "--no-fail-fast"], &targets[..], &EVERYTHING].concat();
    run_cargo(&tests, &args.test_arguments, &server.env()).await
}

/// The major that was asked for; else the preferred one, or the newest of the others.
async fn installation(
    major: Option<Major>,
    options: &FindOptions,
) -> Result<Installation, Box<dyn Error>> {
    if let Some(major) = major {
        return Ok(find(major, options).await?);
    }
    let mut first_error = None;
    for number in MAJORS_BY_PREFERENCE {
        match find(Major::try_from(number)?, options).await {
            Ok(found) => return Ok(found),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    Err(first_error.map_or_else(|| "no major is supported".into(), Into::into))
}

/// Runs cargo with its output on ours; `after` comes behind `--`.
async fn run_cargo(
    arguments: &[&str],
    after: &[OsString],
    variables: &[(&str, String)],
) -> Outcome {
    let mut command = cargo::command();
    command.args(arguments).envs(variables.iter().cloned());
    if !after.is_empty() {
        command.arg("--").args(after);
    }
    Ok(if process::run(command).await?.success() {
        Verdict::Passed
    } else {
        Verdict::Failed
    })
}

/// An error that says how to install a part of the toolchain, if it is missing.
async fn require_component(subcommand: &str, component: &str) -> Result<(), Box<dyn Error>> {
    let mut command: Command = cargo::command();
    command
        .args([subcommand, "--version"])
        .stderr(Stdio::null());
    if process::output(command).await?.status.success() {
        return Ok(());
    }
    Err(format!("{component} is not installed: run \"rustup component add {component}\"").into())
}

fn deny_doc_warnings() -> String {
    let given = env::var("RUSTDOCFLAGS").unwrap_or_default();
    format!("{given} -D warnings").trim().to_owned()
}

fn summarize(ended: &[Ended]) -> Verdict {
    let rows: Vec<Vec<String>> = ended
        .iter()
        .map(|ended| {
            let how = ended
                .failure
                .as_ref()
                .map_or_else(|| "passed".to_owned(), |reason| format!("FAILED: {reason}"));
            vec![
                ended.step.name(),
                format!("{:6.1} s", ended.took.as_secs_f64()),
                how,
            ]
        })
        .collect();
    let failed = ended.iter().filter(|ended| ended.failure.is_some()).count();
    println!("\n{}", table::aligned(&rows));
    if failed == 0 {
        println!("all {} steps passed", ended.len());
        Verdict::Passed
    } else {
        println!("{failed} of {} steps failed", ended.len());
        Verdict::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(step: Step, failure: Option<&str>) -> Ended {
        Ended {
            step,
            failure: failure.map(str::to_owned),
            took: Duration::from_secs(1),
        }
    }

    #[test]
    fn one_failed_step_fails_the_whole() {
        let passed = ended(Step::Format, None);
        let failed = ended(Step::Lints, Some("see above"));
        assert_eq!(summarize(&[passed]), Verdict::Passed);
        assert_eq!(
            summarize(&[failed, ended(Step::Docs, None)]),
            Verdict::Failed
        );
    }

    #[test]
    fn chosen_steps_run_in_their_fixed_order() {
        assert_eq!(
            steps(&[Step::Tests, Step::Format]),
            [Step::Format, Step::Tests]
        );
        assert_eq!(steps(&[]).len(), 7);
    }

    #[tokio::test]
    async fn a_missing_component_is_named_with_the_command_that_adds_it() {
        let error = require_component("no-such-subcommand", "clippy")
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("rustup component add clippy"), "{error}");
    }
}
