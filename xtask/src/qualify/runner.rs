//! Runs tests, each in a process of its own, a few at a time.

use core::time::Duration;

use std::process::Stdio;
use std::thread;
use std::time::Instant;

use evenhand_testkit::postgres::Major;
use futures::StreamExt as _;
use futures::stream;

use super::programs::TestCase;
use crate::process::ProcessGroup;
use crate::progress::Progress;

/// How long one test may take; the longest needs about a minute on a small machine.
const TEST_DURATION_MAX: Duration = Duration::from_mins(10);

/// How often the command says how far it has come.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// What libtest prints when it ran the one test that it was asked for, and nothing else.
const ONE_PASSED: &str = "test result: ok. 1 passed; 0 failed; 0 ignored;";

/// One test that ran on one major.
#[derive(Clone, Debug)]
pub(super) struct TestRun {
    /// Its [full name](TestCase::full_name).
    pub(super) name: String,
    pub(super) ending: Ending,
    pub(super) took: Duration,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Passed,
    Failed {
        /// What it printed, or why it did not run.
        output: String,
    },
}

/// Runs all of `tests` with these variables, and says how far it is and what failed while it does.
pub(super) async fn run_all(
    major: Major,
    tests: &[TestCase],
    variables: &[(&str, String)],
    progress: Progress,
) -> Vec<TestRun> {
    let at_once = thread::available_parallelism().map_or(2, |count| count.get() + 1);
    let mut running = stream::iter(tests)
        .map(|test| run_test(test, variables))
        .buffer_unordered(at_once);
    let mut say_how_far = tokio::time::interval(PROGRESS_INTERVAL);
    let mut runs: Vec<TestRun> = Vec::with_capacity(tests.len());
    let mut failed = 0_usize;
    loop {
        tokio::select! {
            next = running.next() => {
                let Some(run) = next else { break };
                if let Ending::Failed { output } = &run.ending {
                    failed += 1;
                    progress.step(&format!("PostgreSQL {major}: {} FAILED", run.name));
                    eprintln!("{}\n", indented(output));
                }
                runs.push(run);
            }
            _ = say_how_far.tick() => progress.step(&how_far(major, runs.len(), tests.len(), failed)),
        }
    }
    progress.step(&how_far(major, runs.len(), tests.len(), failed));
    runs.sort_by(|one, other| one.name.cmp(&other.name));
    runs
}

fn how_far(major: Major, done: usize, all: usize, failed: usize) -> String {
    format!("PostgreSQL {major}: {done} of {all} tests done, {failed} failed")
}

async fn run_test(test: &TestCase, variables: &[(&str, String)]) -> TestRun {
    let start = Instant::now();
    let ending = if test.ignored {
        Ending::Failed {
            output: "it is marked as ignored, so it proves nothing".to_owned(),
        }
    } else {
        run_process(test, variables).await
    };
    TestRun {
        name: test.full_name(),
        ending,
        took: start.elapsed(),
    }
}

async fn run_process(test: &TestCase, variables: &[(&str, String)]) -> Ending {
    let mut command = test.program.command();
    command
        .args([&test.name, "--exact", "--nocapture", "--color=never"])
        .envs(variables.iter().cloned())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    // Dropped with the future, and so at the deadline, together with whatever the test has started.
    let running = async {
        let mut process = ProcessGroup::spawn(command)?;
        process.wait_and_read(&mut stdout, &mut stderr).await
    };
    let problem = match tokio::time::timeout(TEST_DURATION_MAX, running).await {
        Ok(Ok(status)) if status.success() => None,
        Ok(Ok(status)) => Some(status.to_string()),
        Ok(Err(error)) => Some(format!("it cannot be run: {error}")),
        Err(_) => Some(format!(
            "it did not end within {} s",
            TEST_DURATION_MAX.as_secs()
        )),
    };
    let stdout = String::from_utf8_lossy(&stdout);
    let problem = match problem {
        None if stdout.contains(ONE_PASSED) => return Ending::Passed,
        None => "the program did not run exactly this test".to_owned(),
        Some(problem) => problem,
    };
    let stderr = String::from_utf8_lossy(&stderr);
    let output = format!("{}\n{}\n{problem}", stdout.trim(), stderr.trim());
    Ending::Failed {
        output: output.trim().to_owned(),
    }
}

fn indented(text: &str) -> String {
    let lines = text.lines().map(|line| format!("    {line}"));
    lines.collect::<Vec<_>>().join("\n")
}
