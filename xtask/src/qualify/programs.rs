//! The test programs that touch PostgreSQL, and the tests in them.

use core::error::Error;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use cargo_metadata::{Artifact, Message, TargetKind};
use tokio::process::Command;

use super::requirements::matches;
use crate::cargo::EVERYTHING;
use crate::{cargo, process};

/// Which integration tests touch PostgreSQL: a package, and the names of its test targets.
const TOUCHING_POSTGRES: [(&str, &str); 5] = [
    ("evenhand-store-postgres", "*"),
    ("evenhand-testkit", "postgres_*"),
    ("axum-service", "*"),
    ("foreign-queue", "*"),
    ("xtask", "*"),
];

/// One executable of tests.
#[derive(Debug)]
pub(super) struct Program {
    target: String,
    executable: PathBuf,
    /// The folder of its package, in which cargo would run it.
    folder: PathBuf,
}

impl Program {
    /// A command that runs it as cargo does.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// One test of one program.
#[derive(Clone, Debug)]
pub(super) struct TestCase {
    pub(super) program: Arc<Program>,
    /// Its name within the program.
    pub(super) name: String,
    /// Whether its author has switched it off.
    pub(super) ignored: bool,
}

impl TestCase {
    /// How reports and requirements name it: `program::module::test`.
    pub(super) fn full_name(&self) -> String {
        format!("{}::{}", self.program.target, self.name)
    }
}

/// Builds the tests as `cargo xtask test` does, and lists those that touch PostgreSQL.
pub(super) async fn build_and_list() -> Result<Vec<TestCase>, Box<dyn Error>> {
    let mut command = cargo::command();
    command
        .args([
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .args(EVERYTHING);
    let output = process::output(command).await?;
    if !output.status.success() {
        return Err("the tests do not build".into());
    }
    let mut tests = Vec::new();
    for (package, targets) in TOUCHING_POSTGRES {
        let before = tests.len();
        for message in Message::parse_stream(output.stdout.as_slice()) {
            if let Message::CompilerArtifact(artifact) = message?
                && let Some(program) = test_program(&artifact, package, targets)
            {
                tests.extend(tests_of(program).await?);
            }
        }
        if tests.len() == before {
            return Err(format!("{package} has no tests in targets named {targets}").into());
        }
    }
    Ok(tests)
}

/// The program that was built, if it is an integration test of `package` whose name is one of `targets`.
fn test_program(artifact: &Artifact, package: &str, targets: &str) -> Option<Program> {
    let manifest = artifact.manifest_path.as_std_path();
    let wanted = artifact.target.kind.contains(&TargetKind::Test)
        && matches(targets, &artifact.target.name)
        && is_package(artifact, package);
    let executable = artifact.executable.as_ref().filter(|_| wanted)?;
    Some(Program {
        target: artifact.target.name.clone(),
        executable: executable.clone().into_std_path_buf(),
        folder: manifest
            .parent()
            .unwrap_or_else(|| Path::new(""))
            .to_owned(),
    })
}

/// Whether the artifact's package id, such as `path+file:///clone/crates/store-postgres#evenhand-store-postgres@0.1.0`
/// or, where folder and name agree, `path+file:///clone/xtask#0.1.0`, names `package`.
fn is_package(artifact: &Artifact, package: &str) -> bool {
    let Some((url, named)) = artifact.package_id.repr.rsplit_once('#') else {
        return false;
    };
    match named.split_once('@') {
        Some((name, _)) => name == package,
        None => url.rsplit('/').next() == Some(package),
    }
}

async fn tests_of(program: Program) -> Result<Vec<TestCase>, Box<dyn Error>> {
    let all = list(&program, &[]).await?;
    let ignored = list(&program, &["--ignored"]).await?;
    let program = Arc::new(program);
    let case = |name: String| TestCase {
        program: Arc::clone(&program),
        ignored: ignored.contains(&name),
        name,
    };
    Ok(all.into_iter().map(case).collect())
}

async fn list(program: &Program, which: &[&str]) -> Result<Vec<String>, Box<dyn Error>> {
    let mut command = program.command();
    command
        .args(["--list", "--format", "terse"])
        .args(which)
        .stderr(Stdio::inherit());
    let output = process::output(command).await?;
    if !output.status.success() {
        return Err(format!("{} does not list its tests", program.target).into());
    }
    Ok(listed(&String::from_utf8(output.stdout)?))
}

/// The tests among lines such as `module::name: test`.
fn listed(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_are_not_tests() {
        assert_eq!(
            listed("a::b: test\nc: benchmark\n\nd: test\n"),
            ["a::b", "d"]
        );
    }
}
