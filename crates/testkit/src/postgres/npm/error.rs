use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use super::DOWNLOAD_DEADLINE;

/// A package could not be brought, trusted or unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NpmError {
    /// There is no npm to ask.
    #[error("npm is not installed")]
    NotInstalled,
    /// npm failed.
    #[error("`npm pack {package}` failed with {status}; it printed:\n{printed}")]
    Failed {
        /// The package.
        package: String,
        /// How npm ended.
        status: ExitStatus,
        /// What it printed.
        printed: String,
    },
    /// npm did not come to an end.
    #[error("`npm pack {package}` took longer than {DOWNLOAD_DEADLINE:?}")]
    TooSlow {
        /// The package.
        package: String,
    },
    /// The archive is not the pinned one.
    #[error("the archive of {package} is not the pinned one: its hash is {found}, not {pinned}")]
    Integrity {
        /// The package.
        package: String,
        /// The pinned hash.
        pinned: &'static str,
        /// The hash of what npm brought.
        found: String,
    },
    /// `tar` failed.
    #[error("tar cannot unpack the archive of {package}; it printed:\n{printed}")]
    Unpack {
        /// The package.
        package: String,
        /// What tar printed.
        printed: String,
    },
    /// The package's list of links is not as expected.
    #[error("the package lists a link that it must not make, {link}")]
    Link {
        /// The link.
        link: String,
    },
    /// The shared folder under the folder for temporary files belongs to somebody else.
    #[error(
        "{} was not made by this user, or others can write to it: remove it, or set TMPDIR",
        folder.display()
    )]
    Untrusted {
        /// The folder.
        folder: PathBuf,
    },
    /// A file or a program could not be used.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

pub(super) fn io_error(action: &'static str) -> impl FnOnce(io::Error) -> NpmError {
    move |source| NpmError::Io { action, source }
}
