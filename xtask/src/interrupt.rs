//! The signals by which people and CI stop a command.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGINT (Ctrl-C), SIGTERM or SIGHUP, and says which came.
pub(crate) async fn received() -> io::Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => "Ctrl-C",
        _ = terminate.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    })
}
