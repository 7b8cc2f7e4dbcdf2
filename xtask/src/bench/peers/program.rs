//! A peer's program: one process for each command, which answers with one line of JSON.

use core::time::Duration;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use serde::de::DeserializeOwned;
use tokio::process::Command;

use super::build;
use crate::bench::Result;
use crate::process;

/// Passes the database's URL where other users of the machine cannot read it.
const URL_VARIABLE: &str = "BENCH_DATABASE_URL";

/// Builds take minutes, and fair modes are slow.
const DEADLINE: Duration = Duration::from_mins(10);

/// How much of what a failed program printed is worth telling.
const TOLD_LINES: usize = 5;

/// A program, with the arguments that come first in each of its calls.
#[derive(Clone, Debug)]
pub(super) struct Program {
    file: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    pub(super) fn new(file: PathBuf) -> Self {
        Self {
            file,
            arguments: Vec::new(),
        }
    }

    pub(super) fn with_argument(&self, argument: impl Into<OsString>) -> Self {
        let mut program = self.clone();
        program.arguments.push(argument.into());
        program
    }

    pub(super) fn command(
        &self,
        url: Option<&str>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Command {
        let mut command = Command::new(&self.file);
        command
            .args(&self.arguments)
            .args(arguments.into_iter().map(Into::into));
        if let Some(url) = url {
            command.env(URL_VARIABLE, url);
        }
        command
    }

    /// Runs a command that answers nothing of interest.
    pub(super) async fn run(
        &self,
        url: &str,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<()> {
        printed(self.command(Some(url), arguments)).await?;
        Ok(())
    }

    pub(super) async fn answer<T: DeserializeOwned>(
        &self,
        url: Option<&str>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<T> {
        answer_of(self.command(url, arguments)).await
    }
}

/// Runs a command and reads its answer.
pub(super) async fn answer_of<T: DeserializeOwned>(command: Command) -> Result<T> {
    Ok(serde_json::from_slice(&printed(command).await?)?)
}

/// What a command prints on stdout. When it fails, the error says what it printed on stderr.
pub(super) async fn printed(mut command: Command) -> Result<Vec<u8>> {
    command.stderr(Stdio::piped());
    let name = command.as_std().get_program().to_owned();
    let name = name.display();
    let running = process::output(command);
    let output = match tokio::time::timeout(DEADLINE, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("cannot run {name}: {error}").into()),
        Err(_) => return Err(format!("{name} did not end in {DEADLINE:?}").into()),
    };
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines = stderr.lines().filter(|line| !line.trim().is_empty());
    let told: Vec<_> = lines.take(TOLD_LINES).map(str::trim).collect();
    Err(format!("{name} failed: {}: {}", output.status, told.join("; ")).into())
}

/// A folder for the files of one run, which are removed with it.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    pub(super) fn new() -> Result<Self> {
        let folder = build::folder()?.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    pub(super) fn file(&self, process: usize) -> PathBuf {
        self.folder.join(format!("order-{process}"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind does no harm: the next run overwrites it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::new("sh".into())
            .with_argument("-c")
            .with_argument(script)
    }

    #[tokio::test]
    async fn an_answer_is_what_the_program_prints_as_json() {
        let program = shell(r#"echo "[\"$BENCH_DATABASE_URL\", \"$0\"]""#);
        let answer: (String, String) = program.answer(Some("url"), ["argument"]).await.unwrap();
        assert_eq!(answer, ("url".to_owned(), "argument".to_owned()));
    }

    #[tokio::test]
    async fn a_failed_program_says_why() {
        let error = shell("echo first >&2; echo; echo second >&2; exit 3")
            .run("url", [""; 0])
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3: first; second"), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let program = Program::new("/nowhere/peer".into());
        let error = program.run("url", [""; 0]).await.unwrap_err().to_string();
        assert!(error.starts_with("cannot run /nowhere/peer: "), "{error}");
    }
}
