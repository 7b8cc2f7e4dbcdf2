//! Runs that somebody cancels.

use core::time::Duration;

use evenhand_scheduler::{BoxError, Handler, JobOutcome, RunContext, Worker, WorkerReport};
use evenhand_store::{Cancellation, Run, RunQueue, RunState};
use tokio::time::{Instant, sleep};

use crate::store::{Task, TestStore, policy};

/// Cancels a run five seconds after its handler began, and works on for two minutes.
async fn cancelled(handler: impl Handler<Task>) -> (WorkerReport, Run) {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    let worker = Worker::builder(store.clone(), policy.clone())
        .on::<Task>(handler)
        .build();
    let cancel = async {
        sleep(Duration::from_secs(5)).await;
        let answer = store.cancel(run).await.expect("answered");
        assert_eq!(answer, Cancellation::Requested);
    };
    let (report, ()) = tokio::join!(worker.run_until(sleep(Duration::from_mins(2))), cancel);
    (report.expect("ended well"), store.get(run).await)
}

/// How long the run was there before it ended.
fn took(run: &Run) -> Duration {
    let finished_at = run.finished_at.expect("it ended");
    let took = finished_at.duration_since(run.enqueued_at);
    Duration::try_from(took).expect("it ended later than it began")
}

#[tokio::test(start_paused = true)]
async fn running_handler_is_asked_to_stop_with_the_next_renewal() {
    for outcome in [
        JobOutcome::Release,
        JobOutcome::RetryAfter(Duration::ZERO),
        JobOutcome::GiveUp("stopped".into()),
    ] {
        let started = Instant::now();
        let handler = {
            let outcome = outcome.clone();
            move |_: Task, context: RunContext| {
                let outcome = outcome.clone();
                async move {
                    context.cancellation().cancelled().await;
                    let asked = started.elapsed().as_secs();
                    assert!(
                        (5..=10).contains(&asked),
                        "a renewal is due every ten seconds"
                    );
                    Ok::<_, BoxError>(outcome)
                }
            }
        };
        let (report, run) = cancelled(handler).await;
        assert_eq!((report.ran, report.cancelled), (1, 1), "{outcome:?}");
        assert_eq!(run.state, RunState::Cancelled, "{outcome:?}");
        // It was heeded, long before the grace period was over.
        assert!(took(&run) <= Duration::from_secs(11), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn handler_that_fails_after_it_was_asked_to_stop_is_not_tried_again() {
    let handler = |_: Task, context: RunContext| async move {
        context.cancellation().cancelled().await;
        Err::<JobOutcome, _>("interrupted")
    };
    let (report, run) = cancelled(handler).await;
    assert_eq!((report.ran, report.cancelled, report.failed), (1, 1, 0));
    assert_eq!(run.state, RunState::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn handler_that_ignores_the_request_is_dropped_after_the_grace_period() {
    let handler = |_: Task, _: RunContext| core::future::pending::<Result<JobOutcome, BoxError>>();
    let (report, run) = cancelled(handler).await;
    assert_eq!((report.ran, report.cancelled, report.released), (1, 1, 0));
    assert_eq!(run.state, RunState::Cancelled);
    // A renewal after ten seconds, and fifteen of grace.
    let took = took(&run).as_secs();
    assert!((24..=26).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn handler_that_is_done_all_the_same_completes() {
    let handler = |_: Task, context: RunContext| async move {
        context.cancellation().cancelled().await;
        Ok::<_, BoxError>(JobOutcome::Done)
    };
    let (report, run) = cancelled(handler).await;
    assert_eq!((report.completed, report.cancelled), (1, 0));
    assert_eq!(run.state, RunState::Done);
}

#[tokio::test(start_paused = true)]
async fn queued_run_that_is_cancelled_is_never_handled() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let run = store.add("a", 1).await[0];
    assert_eq!(
        store.cancel(run).await.expect("answered"),
        Cancellation::Cancelled
    );
    let handler = |_: Task, _: RunContext| async { Ok::<_, BoxError>(JobOutcome::Done) };
    let worker = Worker::builder(store.clone(), policy)
        .on::<Task>(handler)
        .build();
    assert_eq!(worker.run_until_idle().await.expect("ended well").ran, 0);
}
