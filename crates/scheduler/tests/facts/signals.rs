//! What a worker's process does when it is asked to end. Each fact runs in a process of its own, which signals itself.
#![cfg(unix)]

use std::process::{Command, ExitStatus, Stdio};

use evenhand_scheduler::{BoxError, JobOutcome, RunContext, Worker, os_signals};

use crate::store::{Task, TestStore, policy};

/// Names the signals, to a process that is to be sent them.
const SIGNALS: &str = "EVENHAND_FACT_SIGNALS";

/// Runs the fact of this name in another process, with these signals to send to itself.
fn in_another_process(fact: &str, signals: &str) -> ExitStatus {
    let this = std::env::current_exe().expect("a test has a file");
    Command::new(this)
        .args([fact, "--exact", "--test-threads=1"])
        .env(SIGNALS, signals)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("started")
}

fn kill(signal: &str) -> Result<(), BoxError> {
    let kill = format!("kill -{signal} {}", std::process::id());
    let status = Command::new("sh").args(["-c", &kill]).status()?;
    if status.success() {
        Ok(())
    } else {
        Err("cannot send a signal".into())
    }
}

/// A worker whose handler sends the first signal, heeds it, sends the second if there is one, and then ends.
async fn worker_that_is_signalled(signals: &str) {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    let signals: Vec<String> = signals.split(' ').map(str::to_owned).collect();
    let handler = move |_: Task, context: RunContext| {
        let signals = signals.clone();
        async move {
            kill(&signals[0])?;
            context.cancellation().cancelled().await;
            if let Some(second) = signals.get(1) {
                kill(second)?;
                core::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(JobOutcome::Done)
        }
    };
    let worker = Worker::builder(store, policy).on::<Task>(handler).build();
    let caught = os_signals().expect("caught");
    let report = worker.run_until(caught).await.expect("ended well");
    assert_eq!(report.completed, 1);
}

#[tokio::test]
async fn first_signal_begins_the_drain() {
    if let Ok(signals) = std::env::var(SIGNALS) {
        return worker_that_is_signalled(&signals).await;
    }
    for signal in ["TERM", "INT"] {
        let status = in_another_process("signals::first_signal_begins_the_drain", signal);
        assert_eq!(status.code(), Some(0), "{signal}");
    }
}

#[tokio::test]
async fn second_signal_ends_the_process_at_once() {
    if let Ok(signals) = std::env::var(SIGNALS) {
        return worker_that_is_signalled(&signals).await;
    }
    for (signals, code) in [("TERM TERM", 143), ("INT INT", 130), ("TERM INT", 130)] {
        let status = in_another_process("signals::second_signal_ends_the_process_at_once", signals);
        assert_eq!(status.code(), Some(code), "{signals}");
    }
}
