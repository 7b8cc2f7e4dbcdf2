//! The loop: give back, look, take turns.

use core::time::Duration;

use evenhand_scheduler::{BoxError, DurableFairScheduler, RunEnd, TickOutcome};
use evenhand_store::{ReservationStore, ReserveRequest};
use tokio_util::sync::CancellationToken;

use crate::outbox::{Mailer, Outbox};

/// How long to wait when nobody has mail, or when the database does not answer.
const PAUSE: Duration = Duration::from_millis(200);

/// How long sending a mail takes at most.
const SENDING_MAX: Duration = Duration::from_mins(10);

/// Gives turns to the customers until `cancel` is cancelled, and tells how many mails were sent.
///
/// # Cancel safety
///
/// Cancel the token instead of dropping the future: a mail that is being sent would be sent again.
pub async fn run<S: ReservationStore, M: Mailer>(
    scheduler: &DurableFairScheduler<S, &Outbox<M>>,
    outbox: &Outbox<M>,
    cancel: &CancellationToken,
) -> u64 {
    let cycle_length = scheduler.policy().cycle_length();
    let (mut sent, mut unsettled) = (0, None);
    while !cancel.is_cancelled() {
        if !is_there_work(scheduler, outbox).await {
            pause(cancel).await;
            continue;
        }
        // After a whole cycle without a mail it is time to look again.
        let mut without_mail = 0;
        while without_mail < cycle_length && !cancel.is_cancelled() {
            match turn(scheduler, &mut unsettled, cancel).await {
                Some(RunEnd::Completed) => (sent, without_mail) = (sent + 1, 0),
                Some(_) => without_mail = 0,
                None => without_mail += 1,
            }
        }
    }
    sent
}

async fn is_there_work<S: ReservationStore, M: Mailer>(
    scheduler: &DurableFairScheduler<S, &Outbox<M>>,
    outbox: &Outbox<M>,
) -> bool {
    let looked = async {
        outbox.give_back(SENDING_MAX).await?;
        outbox.is_anybody_waiting(scheduler.policy()).await
    };
    looked.await.unwrap_or_else(|error| {
        eprintln!("error: cannot look into the outbox: {error}");
        false
    })
}

/// One turn, and what became of its mail. A turn whose reservation was not answered comes first, so that none gets lost.
async fn turn<S: ReservationStore, M: Mailer>(
    scheduler: &DurableFairScheduler<S, &Outbox<M>>,
    unsettled: &mut Option<ReserveRequest>,
    cancel: &CancellationToken,
) -> Option<RunEnd> {
    let request = unsettled.take().unwrap_or_else(|| scheduler.mint_request());
    let error: BoxError = match scheduler.settle(request, cancel).await {
        Ok(tick) => {
            let outcome = tick?.outcome;
            if let TickOutcome::Ran(report) = outcome {
                return Some(report.end);
            }
            let TickOutcome::Failed(error) = outcome else {
                return None;
            };
            error
        }
        Err(error) => {
            if error.is_retryable() {
                *unsettled = Some(error.request().clone());
            }
            error.into()
        }
    };
    eprintln!("error: a turn failed: {error}");
    pause(cancel).await;
    None
}

async fn pause(cancel: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(PAUSE) => {}
        () = cancel.cancelled() => {}
    }
}
