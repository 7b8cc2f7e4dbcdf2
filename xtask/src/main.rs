//! `cargo xtask`: what developers and CI do with this workspace beyond plain cargo.

mod bench;
mod cargo;
mod demo;
mod interrupt;
mod layers;
mod no_std;
mod pg;
mod process;
mod progress;
mod qualify;
mod serve;
mod table;
mod test;
mod tick;

use core::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Evenhand's development commands.
///
/// Each one says on stderr what it is doing while that takes long, and cleans up after itself on Ctrl-C.
#[derive(Debug, Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    after_help = "Exit codes: 0 all well, 1 something failed or was interrupted, 2 wrong usage.\n\
                  `cargo xtask <command> --help` explains one command."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    #[command(hide = true)]
    DemoWorker(demo::worker::Args),
    Test(test::Args),
    Qualify(qualify::Args),
    Bench(bench::Args),
    #[command(hide = true)]
    BenchChild(bench::child::Args),
    Pg(pg::Args),
    Layers(layers::Args),
    NoStd(no_std::Args),
    #[command(hide = true)]
    Serve(serve::Args),
    #[command(hide = true)]
    Tick(tick::Args),
}

/// How a command ended that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything is as it should be.
    Passed,
    /// Something is not, and the command has said what.
    Failed,
}

/// What a command answers; an error means that it could not do its work.
pub(crate) type Outcome = Result<Verdict, Box<dyn Error>>;

fn main() -> ExitCode {
    // Wrong usage ends here, with exit code 2.
    let cli = Cli::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run_until_interrupted(cli.command)));
    match outcome {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", with_causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn run_until_interrupted(command: Command) -> Outcome {
    tokio::select! {
        outcome = run(command) => outcome,
        // The command's future is dropped, and with it its servers, child processes and half-made folders.
        signal = interrupt::received() => Err(format!("interrupted by {}", signal?).into()),
    }
}

async fn run(command: Command) -> Outcome {
    match command {
        Command::Demo(args) => demo::run(args).await,
        Command::DemoWorker(args) => demo::worker::run(args).await,
        Command::Test(args) => test::run(args).await,
        Command::Qualify(args) => qualify::run(args).await,
        Command::Bench(args) => bench::run(args).await,
        Command::BenchChild(args) => bench::child::run(args).await,
        Command::Pg(args) => pg::run(args).await,
        Command::Layers(args) => layers::run(args).await,
        Command::NoStd(args) => no_std::run(args).await,
        Command::Serve(args) => serve::run(args).await,
        Command::Tick(args) => tick::run(args).await,
    }
}

/// The error and everything that caused it, on one line.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
