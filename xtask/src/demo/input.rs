//! What the demo is about: the policy and the runs, read from `examples/demo`.

use core::error::Error;
use core::fmt::Display;
use core::num::NonZeroU32;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use evenhand_policy::admission::{BasePriority, ValueClass};
use evenhand_policy::{TeamId, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::Job as _;
use evenhand_store::{CostMicros, NewRun};
use serde::Deserialize;

use super::checksum::{Checksum, RepositoryPath};

const TENANTS: &str = "examples/demo/tenants.toml";
const RUNS: &str = "examples/demo/runs.jsonl";

/// The policy, and the runs in the order of their lines.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) policy: WeightedFairnessPolicy,
    pub(super) runs: Vec<InputRun>,
}

/// One line of the file of runs.
#[derive(Debug)]
pub(super) struct InputRun {
    /// From 1, as editors count.
    pub(super) line: usize,
    pub(super) wave: Wave,
    pub(super) new_run: NewRun,
    pub(super) checksum: Checksum,
    /// The checksum as this process computed it, before any worker was started.
    pub(super) digest: String,
}

/// When a run is enqueued; 1 and 2 in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub(super) enum Wave {
    /// Before the workers start.
    #[default]
    First,
    /// When a share of all runs is done and the tenant has been idle.
    Second,
}

impl TryFrom<u32> for Wave {
    type Error = String;

    fn try_from(wave: u32) -> Result<Self, String> {
        match wave {
            1 => Ok(Self::First),
            2 => Ok(Self::Second),
            _ => Err(format!("a wave is 1 or 2, not {wave}")),
        }
    }
}

/// The shape of a line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    tenant: TenantId,
    team: TeamId,
    #[serde(default)]
    wave: Wave,
    value: ValueClass,
    #[serde(default)]
    base_priority: BasePriority,
    cost_micros: u64,
    path: RepositoryPath,
    rounds: NonZeroU32,
}

impl Input {
    /// Reads both files below `root`, the root of the repository, and computes every checksum.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or a line is not a run of a tenant of the policy; the error names file and line.
    pub(super) fn read(root: &Path) -> Result<Self, Box<dyn Error>> {
        let policy = parse_policy(&read(root, TENANTS)?)?;
        let mut digests: HashMap<Checksum, String> = HashMap::new();
        let mut runs = Vec::new();
        for (line, text) in (1..).zip(read(root, RUNS)?.lines()) {
            let at = |error: &dyn Display| format!("{RUNS}:{line}: {error}");
            let mut run = parse_run(&policy, line, text).map_err(|error| at(&error))?;
            run.digest = match digests.get(&run.checksum) {
                Some(digest) => digest.clone(),
                None => (run.checksum.compute(root))
                    .map_err(|error| at(&format!("{}: {error}", run.checksum.path)))?,
            };
            digests.insert(run.checksum.clone(), run.digest.clone());
            runs.push(run);
        }
        Ok(Self { policy, runs })
    }

    /// The runs of one wave.
    pub(super) fn of_wave(&self, wave: Wave) -> impl Iterator<Item = &InputRun> {
        self.runs.iter().filter(move |run| run.wave == wave)
    }
}

fn read(root: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

fn parse_policy(text: &str) -> Result<WeightedFairnessPolicy, String> {
    // TOML's own error shows line and column.
    toml::from_str(text).map_err(|error| format!("{TENANTS}: {error}"))
}

fn parse_run(
    policy: &WeightedFairnessPolicy,
    line: usize,
    text: &str,
) -> Result<InputRun, Box<dyn Error>> {
    let fields: Line = serde_json::from_str(text).map_err(|error| without_line(&error))?;
    if !policy.contains(&fields.tenant) {
        return Err(format!("tenant {} is not in {TENANTS}", fields.tenant).into());
    }
    let checksum = Checksum {
        path: fields.path,
        rounds: fields.rounds.get(),
    };
    let mut new_run = checksum.new_run(fields.tenant)?;
    new_run.team = fields.team;
    new_run.value_class = fields.value;
    new_run.base_priority = fields.base_priority;
    new_run.cost_micros = CostMicros::new(fields.cost_micros)?;
    // Enqueueing again after a lost answer gives the same run.
    new_run.idempotency_key = Some(format!("{RUNS}:{line}").try_into()?);
    Ok(InputRun {
        line,
        wave: fields.wave,
        new_run,
        checksum,
        digest: String::new(),
    })
}

/// The parser counts lines from the one that it is given, which would contradict ours.
fn without_line(error: &serde_json::Error) -> String {
    let (text, column) = (error.to_string(), error.column());
    let place = format!(" at line {} column {column}", error.line());
    format!(
        "{} (column {column})",
        text.strip_suffix(&place).unwrap_or(&text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> WeightedFairnessPolicy {
        parse_policy("shard = 's'\n[[tenants]]\ntenant_id = 'a'\nweight = 2\n").unwrap()
    }

    fn refusal(text: &str) -> String {
        parse_run(&policy(), 7, text).unwrap_err().to_string()
    }

    const GOOD: &str =
        r#"{"tenant":"a","team":"t","value":"batch","cost_micros":5,"path":"x","rounds":3}"#;

    #[test]
    fn a_line_is_a_run() {
        let run = parse_run(&policy(), 7, GOOD).unwrap();
        assert_eq!(
            (run.line, run.wave, run.checksum.rounds),
            (7, Wave::First, 3)
        );
        assert_eq!(run.new_run.value_class, ValueClass::Batch);
        assert_eq!(run.new_run.team.as_str(), "t");
        let second = GOOD.replace(r#""team""#, r#""wave":2,"team""#);
        assert_eq!(parse_run(&policy(), 7, &second).unwrap().wave, Wave::Second);
    }

    #[test]
    fn a_line_that_is_no_run_is_refused() {
        for (from, to, says) in [
            (
                r#""rounds":3"#,
                r#""rounds":3,"colour":1"#,
                "unknown field `colour`",
            ),
            (r#""rounds":3"#, r#""rounds":0"#, "nonzero"),
            (r#""a""#, r#""b""#, "tenant b is not in"),
            (r#""x""#, r#""../x""#, "no path inside the repository"),
            (r#""batch""#, r#""cheap""#, "unknown variant `cheap`"),
            (r#""team""#, r#""wave":3,"team""#, "a wave is 1 or 2, not 3"),
        ] {
            let error = refusal(&GOOD.replace(from, to));
            assert!(error.contains(says), "{error}");
        }
        assert!(parse_policy("shard = 's'\ntenants = []\n").is_err());
    }

    #[test]
    fn the_files_of_this_repository_make_a_demo() {
        let input = Input::read(&crate::cargo::workspace()).unwrap();
        let tenants = input.policy.tenants();
        assert!(tenants.len() >= 5);
        assert!(
            tenants
                .windows(2)
                .any(|pair| pair[0].weight() != pair[1].weight())
        );
        assert!(input.runs.len() >= 2_000);
        assert!(input.of_wave(Wave::Second).next().is_some());
        for class in ValueClass::ALL {
            assert!(
                input
                    .runs
                    .iter()
                    .any(|run| run.new_run.value_class == class)
            );
        }
    }

    #[test]
    fn an_error_names_file_and_line() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("examples/demo")).unwrap();
        let tenants = "shard = 's'\n[[tenants]]\ntenant_id = 'a'\nweight = 2\n";
        fs::write(root.path().join(TENANTS), tenants).unwrap();
        fs::write(root.path().join("x"), "abc").unwrap();
        let absent = GOOD.replace(r#""x""#, r#""y""#);
        fs::write(root.path().join(RUNS), format!("{GOOD}\n{absent}\n")).unwrap();
        let error = Input::read(root.path()).unwrap_err().to_string();
        assert!(
            error.starts_with("examples/demo/runs.jsonl:2: y: "),
            "{error}"
        );
    }
}
