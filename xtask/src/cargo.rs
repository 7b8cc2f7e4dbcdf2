//! Cargo, called by a command that cargo itself has started.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{self, Path, PathBuf};
use std::process::Stdio;

use cargo_metadata::{Metadata, MetadataCommand};
use tokio::process::Command;

use crate::process;

/// Which packages, features and dependencies every step builds.
///
/// All steps name the same, so that each dependency is built once for all of them.
pub(crate) const EVERYTHING: [&str; 2] = ["--workspace", "--all-features"];

/// What `cargo run` tells the program about the package that it runs. Build scripts that watch these variables would
/// run again each time that cargo is called from here instead of from a shell.
const OF_THE_RUNNING_PACKAGE: [&str; 8] = [
    "CARGO_BIN_NAME",
    "CARGO_CRATE_NAME",
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_MANIFEST_PATH",
    "CARGO_PKG_",
    "CARGO_PRIMARY_PACKAGE",
    "OUT_DIR",
];

/// A command that runs cargo in the workspace, with the environment of the shell that cargo was called from.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    for (name, _) in env::vars_os().filter(|(name, _)| is_of_the_running_package(name)) {
        command.env_remove(name);
    }
    if let Some(folder) = target_variable().and_then(|folder| path::absolute(folder).ok()) {
        command.env("CARGO_TARGET_DIR", folder);
    }
    command
}

/// What cargo says about the workspace's own packages.
pub(crate) async fn metadata() -> Result<Metadata, Box<dyn core::error::Error>> {
    let mut command = command();
    command
        .args(["metadata", "--format-version=1", "--no-deps"])
        .stderr(Stdio::inherit());
    let output = process::output(command).await?;
    if !output.status.success() {
        return Err("cargo cannot read the workspace".into());
    }
    let text = core::str::from_utf8(&output.stdout)?;
    Ok(MetadataCommand::parse(text)?)
}

/// The folder of the workspace, in which relative paths of cargo's output begin.
pub(crate) fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}

fn target_variable() -> Option<OsString> {
    env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty())
}

fn is_of_the_running_package(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        OF_THE_RUNNING_PACKAGE
            .iter()
            .any(|known| name == *known || known.ends_with('_') && name.starts_with(known))
    })
}
