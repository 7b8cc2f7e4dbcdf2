//! Compiles a policy: JSON on stdin, the cycle and what follows from it as JSON on stdout.
//!
//! ```console
//! $ echo '{"shard": "primary-v1", "tenants": [{"tenant_id": "a", "weight": 3}, {"tenant_id": "b", "weight": 1}]}' \
//!     | cargo run --quiet -p evenhand-policy --example cycle
//! ```
//!
//! Bad input is answered with exit status 2 and one line on stderr.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;

use evenhand_policy::{TenantId, WeightedFairnessPolicy};
use serde::Serialize;

#[derive(Serialize)]
struct Answer<'a> {
    cycle: Vec<&'a TenantId>,
    bounds: BTreeMap<&'a TenantId, u32>,
    cycle_length: u32,
    digest: String,
    canonical: String,
}

/// The answer to one input, or why the input is bad, in one line.
pub(crate) fn answer(input: &str) -> Result<String, String> {
    let policy: WeightedFairnessPolicy = serde_json::from_str(input).map_err(one_line)?;
    let bound = |tenant| {
        let bound = policy.starvation_bound(tenant)?;
        Some((tenant, bound.maximum_reservations_until_selection()))
    };
    let answer = Answer {
        cycle: policy.cycle().iter().collect(),
        bounds: policy
            .tenants()
            .iter()
            .filter_map(|entry| bound(entry.tenant()))
            .collect(),
        cycle_length: policy.cycle_length(),
        digest: policy.digest().to_string(),
        canonical: String::from_utf8(policy.canonical_bytes()).map_err(one_line)?,
    };
    serde_json::to_string(&answer).map_err(one_line)
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
            eprintln!("cycle: bad input: {reason}");
            ExitCode::from(2)
        }
    }
}
