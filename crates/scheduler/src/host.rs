//! What a process knows of where it runs: a name for its worker, and the signals that ask it to stop.

use core::future::Future;

use std::io;

use evenhand_store::WorkerName;

/// A future that resolves when the operating system asks the process to end: SIGTERM or SIGINT on Unix, Ctrl-C elsewhere.
///
/// The signals are caught from the call on, not only from the first poll. Meant for
/// [`Worker::run_until`](crate::Worker::run_until), which then drains.
///
/// A second signal, of either kind, ends the process at once, without waiting for anything: its exit code is 128 and the
/// signal's number, 143 for SIGTERM and 130 for SIGINT. That holds for the rest of the process, as long as the runtime
/// is there.
///
/// # Errors
///
/// When the operating system refuses to have its signals caught.
///
/// # Panics
///
/// Outside of a tokio runtime with its I/O driver enabled.
///
/// # Examples
///
/// ```no_run
/// # async fn example<S>(worker: evenhand_scheduler::Worker<S>) -> Result<(), Box<dyn core::error::Error>>
/// # where S: evenhand_store::ReservationStore + evenhand_store::RunQueue + 'static {
/// let report = worker.run_until(evenhand_scheduler::os_signals()?).await?;
/// println!("{} runs", report.ran);
/// # Ok(())
/// # }
/// ```
#[cfg(unix)]
pub fn os_signals() -> io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let first = either(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = first.as_raw_value(), "asked to end");
        tokio::spawn(async move {
            let second = either(&mut terminate, &mut interrupt).await;
            tracing::warn!(signal = second.as_raw_value(), "asked to end at once");
            std::process::exit(128 + second.as_raw_value());
        });
    })
}

#[cfg(unix)]
async fn either(
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) -> tokio::signal::unix::SignalKind {
    use tokio::signal::unix::SignalKind;

    tokio::select! {
        biased;
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    }
}

/// A future that resolves when the operating system asks the process to end: SIGTERM or SIGINT on Unix, Ctrl-C elsewhere.
///
/// Meant for [`Worker::run_until`](crate::Worker::run_until), which then drains. A second Ctrl-C ends the process at
/// once, with exit code 130.
///
/// # Errors
///
/// Never on this platform.
#[cfg(not(unix))]
pub fn os_signals() -> io::Result<impl Future<Output = ()> + Send> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            // Nobody can ask this process to stop; that is no reason to stop.
            core::future::pending::<()>().await;
        }
        tokio::spawn(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(130);
            }
        });
    })
}

/// Host, process and a random number, so that two workers of one process differ too.
#[expect(
    clippy::expect_used,
    reason = "the host's part is cut to what a name may hold, and the rest is digits"
)]
pub(crate) fn worker_name() -> WorkerName {
    let host = std::env::var("HOSTNAME")
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"))
        .unwrap_or_default();
    let host: String = host
        .chars()
        .filter(char::is_ascii_graphic)
        .take(64)
        .collect();
    let host = if host.is_empty() { "worker" } else { &host };
    let (process, random) = (std::process::id(), fastrand::u32(..));
    WorkerName::try_from(format!("{host}-{process}-{random:08x}"))
        .expect("at most 84 graphic bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workers_of_one_process_have_different_names() {
        assert_ne!(worker_name(), worker_name());
    }
}
