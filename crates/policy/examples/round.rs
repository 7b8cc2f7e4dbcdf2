//! Decides one round of admission: JSON on stdin, the round as JSON on stdout.
//!
//! ```console
//! $ echo '{"capacity_micros": 900, "policy": {"per_team_window": 4}, "tasks": [
//!       {"task_id": "t1", "tenant_id": "a", "team_id": "x", "value": "batch",
//!        "base_priority": 5, "wait_ticks": 3, "cost_micros": 400}]}' \
//!     | cargo run --quiet -p evenhand-policy --example round
//! ```
//!
//! `policy` may be left out, and so may any field of it. Bad input is answered with exit status 2
//! and one line on stderr.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;

use evenhand_policy::admission::{
    AdmissionOptions, AdmissionPolicy, Round, ScoringOptions, Share, Task, TaskId, ValueWeights,
    admit,
};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    capacity_micros: u64,
    #[serde(default)]
    policy: PolicyFields,
    tasks: Vec<Task>,
}

/// The flat form in which planners write an admission policy.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PolicyFields {
    value_weight: ValueWeights,
    aging_per_tick: u32,
    max_aging_ticks: u32,
    per_tenant_window: u32,
    per_team_window: u32,
    starvation_ticks: u32,
    max_forced: u32,
}

impl Default for PolicyFields {
    fn default() -> Self {
        let options = AdmissionOptions::default();
        Self {
            value_weight: options.scoring.value_weights,
            aging_per_tick: options.scoring.aging_per_tick,
            max_aging_ticks: options.scoring.max_aging_ticks,
            per_tenant_window: options.per_tenant_window,
            per_team_window: options.per_team_window,
            starvation_ticks: options.scoring.starvation_ticks,
            max_forced: options.max_forced_per_tenant,
        }
    }
}

impl From<PolicyFields> for AdmissionOptions {
    fn from(fields: PolicyFields) -> Self {
        Self {
            scoring: ScoringOptions {
                value_weights: fields.value_weight,
                aging_per_tick: fields.aging_per_tick,
                max_aging_ticks: fields.max_aging_ticks,
                starvation_ticks: fields.starvation_ticks,
            },
            per_tenant_window: fields.per_tenant_window,
            per_team_window: fields.per_team_window,
            max_forced_per_tenant: fields.max_forced,
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    ranked: Vec<Ranked<'a>>,
    admitted: &'a [TaskId],
    deferred: Vec<Deferred<'a>>,
    spent_micros: u64,
    by_tenant: BTreeMap<&'a str, Amount>,
    by_team: BTreeMap<&'a str, Amount>,
    max_tenant_deviation: u64,
}

#[derive(Serialize)]
struct Ranked<'a> {
    task_id: &'a TaskId,
    score: u64,
    forced: bool,
}

#[derive(Serialize)]
struct Deferred<'a> {
    task_id: &'a TaskId,
    reason: &'static str,
}

#[derive(Serialize)]
struct Amount {
    count: u32,
    micros: u64,
}

/// The answer to one input, or why the input is bad, in one line.
pub(crate) fn answer(input: &str) -> Result<String, String> {
    let question: Question = serde_json::from_str(input).map_err(one_line)?;
    let policy = AdmissionPolicy::new(question.policy.into()).map_err(one_line)?;
    let round = admit(&policy, &question.tasks, question.capacity_micros).map_err(one_line)?;
    serde_json::to_string(&describe(&round)).map_err(one_line)
}

fn describe(round: &Round) -> Answer<'_> {
    let ranked = round.ranked().iter().map(|task| Ranked {
        task_id: task.task_id(),
        score: task.score().get(),
        forced: task.is_forced(),
    });
    let deferred = round.deferred().iter().map(|task| Deferred {
        task_id: task.task_id(),
        reason: task.reason().as_str(),
    });
    Answer {
        ranked: ranked.collect(),
        admitted: round.admitted(),
        deferred: deferred.collect(),
        spent_micros: round.spent_micros(),
        by_tenant: amounts(round.by_tenant()),
        by_team: amounts(round.by_team()),
        max_tenant_deviation: round.max_tenant_deviation(),
    }
}

fn amounts<Id: AsRef<str>>(shares: &BTreeMap<Id, Share>) -> BTreeMap<&str, Amount> {
    let amount = |share: &Share| Amount {
        count: share.count(),
        micros: share.micros(),
    };
    shares
        .iter()
        .map(|(id, share)| (id.as_ref(), amount(share)))
        .collect()
}

/// Error texts can quote the input, which may hold control characters.
#[expect(
    clippy::needless_pass_by_value,
    reason = "so that it can be handed to map_err"
)]
fn one_line(error: impl ToString) -> String {
    error.to_string().replace(char::is_control, " ")
}

fn main() -> ExitCode {
    let answer = io::read_to_string(io::stdin())
        .map_err(one_line)
        .and_then(|input| answer(&input));
    match answer {
        // Nobody is left to tell if stdout is closed.
        Ok(answer) => {
            writeln!(io::stdout(), "{answer}").map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Err(reason) => {
            eprintln!("round: bad input: {reason}");
            ExitCode::from(2)
        }
    }
}
