use std::io;
use std::process::ExitStatus;

use super::super::user::UserError;
use super::{START_DEADLINE, STOP_DEADLINE};

/// A server could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// There is no user to run it as.
    #[error("cannot choose the user that PostgreSQL runs as")]
    User(#[from] UserError),
    /// Its folder, its processes or its port could not be set up or controlled.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("initdb failed with {status}; it printed:\n{output}")]
    InitDb {
        /// How it ended.
        status: ExitStatus,
        /// All that it printed.
        output: String,
    },
    /// The server ended instead of accepting connections.
    #[error("PostgreSQL ended with {status} while starting; the end of its log:\n{log}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The server accepted no connection before the deadline.
    #[error(
        "PostgreSQL accepted no connection within {START_DEADLINE:?}; the end of its log:\n{log}"
    )]
    NotReady {
        /// The last lines of its log.
        log: String,
    },
    /// The server did not stop before the deadline.
    #[error("PostgreSQL did not stop within {STOP_DEADLINE:?}; the end of its log:\n{log}")]
    NotStopped {
        /// The last lines of its log.
        log: String,
    },
}

pub(super) fn io_error(action: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError::Io { action, source }
}
