//! `cargo xtask no-std`: the policy crate needs no operating system.

use core::error::Error;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::progress::Progress;
use crate::{Outcome, Verdict, cargo, process};

/// Prove that evenhand-policy, and all that it depends on, compiles without std.
///
/// It is checked against a folder that looks like the compiler's own libraries but holds core and alloc only, so no
/// other target has to be installed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

const PACKAGE: &str = "evenhand-policy";

/// What a crate is compiled against when there is no std.
const WITHOUT_STD: [&str; 3] = ["core", "alloc", "compiler_builtins"];

pub(crate) async fn run(Args {}: Args) -> Outcome {
    check_policy(Progress::start()).await
}

/// Checks the policy crate without features, and with the one feature that needs no std.
pub(crate) async fn check_policy(progress: Progress) -> Outcome {
    let metadata = cargo::metadata().await?;
    let folder = metadata.target_directory.join("no-std").into_std_path_buf();
    let manifest = metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == PACKAGE)
        .map(|package| package.manifest_path.clone().into_std_path_buf())
        .ok_or_else(|| format!("the workspace has no {PACKAGE}"))?;
    let bare = BareSysroot::create(&folder).await?;
    for features in ["", "serde"] {
        progress.step(&match features {
            "" => format!("{PACKAGE} without std and features"),
            some => format!("{PACKAGE} without std, with feature {some}"),
        });
        let mut check = bare.check(&manifest);
        check.args(["--no-default-features", "--features", features]);
        if !process::run(check).await?.success() {
            eprintln!("error: {PACKAGE} does not compile without std");
            return Ok(Verdict::Failed);
        }
    }
    println!("{PACKAGE} needs core and alloc only");
    Ok(Verdict::Passed)
}

/// A folder shaped like the compiler's libraries, without std.
#[derive(Debug)]
struct BareSysroot {
    folder: PathBuf,
    host: String,
}

impl BareSysroot {
    /// Makes it in `folder`, anew each time, because the compiler may be another than last time.
    async fn create(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let host = rustc(&["-vV"])
            .await?
            .lines()
            .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
            .ok_or("`rustc -vV` names no host")?;
        let below = Path::new("lib/rustlib").join(&host).join("lib");
        let real = Path::new(rustc(&["--print", "sysroot"]).await?.trim()).join(&below);
        let bare = folder.join("sysroot").join(&below);
        if folder.join("sysroot").exists() {
            fs::remove_dir_all(folder.join("sysroot"))?;
        }
        fs::create_dir_all(&bare)?;
        let mut linked = [false; WITHOUT_STD.len()];
        for entry in fs::read_dir(&real)? {
            let entry = entry?;
            let library = library_of(&entry.file_name().to_string_lossy());
            let known = WITHOUT_STD
                .iter()
                .position(|name| Some(*name) == library.as_deref());
            if let Some(known) = known {
                symlink(entry.path(), bare.join(entry.file_name()))?;
                linked[known] = true;
            }
        }
        for (name, linked) in WITHOUT_STD.iter().zip(linked) {
            if !linked {
                return Err(format!("there is no library {name} in {}", real.display()).into());
            }
        }
        let folder = folder.to_owned();
        Ok(Self { folder, host })
    }

    /// `cargo check` of the package `manifest` against these libraries.
    ///
    /// It builds in a folder of its own: the fingerprints of an ordinary build do not know what its libraries were.
    fn check(&self, manifest: &Path) -> Command {
        let mut flags = OsString::from("--sysroot=");
        flags.push(self.folder.join("sysroot"));
        let mut command = cargo::command();
        command
            .arg("check")
            .arg("--manifest-path")
            .arg(manifest)
            // With a target named, build scripts and macros are compiled for the host with the real libraries.
            .args(["--target", &self.host])
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            .env("CARGO_TARGET_DIR", self.folder.join("target"));
        command
    }
}

/// `alloc` for `liballoc-6e6df4ffe0af4d15.rlib` and the `.rmeta` beside it.
fn library_of(file_name: &str) -> Option<String> {
    let stem = file_name
        .strip_suffix(".rlib")
        .or_else(|| file_name.strip_suffix(".rmeta"))?;
    let (name, _hash) = stem.strip_prefix("lib")?.rsplit_once('-')?;
    Some(name.to_owned())
}

async fn rustc(arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(arguments).stderr(Stdio::inherit());
    let output = process::output(command).await?;
    if !output.status.success() {
        return Err(format!("`rustc {}` failed", arguments.join(" ")).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH_ALLOC: &str =
        "#![no_std]\nextern crate alloc;\npub type Text = alloc::string::String;\n";
    const WITH_STD: &str = "pub type Text = std::string::String;\n";
    const WITH_STD_IN_A_NO_STD_CRATE: &str =
        "#![no_std]\nextern crate std;\npub type Text = std::string::String;\n";
    const WITH_DEPENDENCY: &str = "#![no_std]\npub type Text = below::Text;\n";

    fn write_crate(folder: &Path, name: &str, source: &str, dependencies: &str) -> PathBuf {
        let package = folder.join(name);
        let manifest = package.join("Cargo.toml");
        fs::create_dir_all(package.join("src")).unwrap();
        fs::write(package.join("src/lib.rs"), source).unwrap();
        let text = format!(
            "[package]\nname = \"{name}\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n{dependencies}"
        );
        fs::write(&manifest, text).unwrap();
        manifest
    }

    /// Whether the crate passes the check, and what the compiler says.
    async fn accepts(bare: &BareSysroot, manifest: &Path) -> (bool, String) {
        let mut check = bare.check(manifest);
        check.arg("--offline").stderr(Stdio::piped());
        let output = process::output(check).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    }

    #[tokio::test]
    async fn a_crate_that_uses_std_is_refused_and_one_that_does_not_is_accepted() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path();
        let bare = BareSysroot::create(&folder.join("bare")).await.unwrap();
        for (name, source, expected) in [
            ("uses-alloc", WITH_ALLOC, true),
            ("uses-std", WITH_STD, false),
            ("pretends", WITH_STD_IN_A_NO_STD_CRATE, false),
        ] {
            let manifest = write_crate(folder, name, source, "");
            let (accepted, said) = accepts(&bare, &manifest).await;
            assert_eq!(accepted, expected, "{name}: {said}");
            assert_eq!(
                said.contains("can't find crate for `std`"),
                !expected,
                "{said}"
            );
        }
    }

    #[tokio::test]
    async fn std_in_a_dependency_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let bare = BareSysroot::create(&temp.path().join("bare"))
            .await
            .unwrap();
        let on_below = "below = { path = \"../below\" }\n";
        for (name, source, expected) in [("good", WITH_ALLOC, true), ("bad", WITH_STD, false)] {
            let folder = temp.path().join(name);
            write_crate(&folder, "below", source, "");
            let above = write_crate(&folder, "above", WITH_DEPENDENCY, on_below);
            let (accepted, said) = accepts(&bare, &above).await;
            assert_eq!(accepted, expected, "{said}");
        }
    }

    #[test]
    fn libraries_are_known_by_their_whole_name() {
        assert_eq!(library_of("libcore-12.rlib").as_deref(), Some("core"));
        assert_eq!(
            library_of("libcompiler_builtins-2.rmeta").as_deref(),
            Some("compiler_builtins")
        );
        assert_eq!(
            library_of("librustc_std_workspace_core-7.rlib").as_deref(),
            Some("rustc_std_workspace_core")
        );
        assert_eq!(library_of("libstd-d1.so"), None);
    }
}
