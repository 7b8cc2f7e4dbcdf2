//! Whether a demo kept every promise: pure functions over its evidence.

use std::collections::{HashMap, HashSet};

use evenhand_store::{AttemptRecord, AttemptResult, Run, RunId, RunState};
use evenhand_testkit::history::{self, History, Violation};

use super::cycles::{TenantCycle, whole_cycles};
use super::evidence::{Evidence, Expected, ResultRow, count};
use super::measure::{TenantMeasures, measure};

/// Everything that is to be said about a demo.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) tenants: Vec<TenantMeasures>,
    pub(super) verdicts: Vec<Verdict>,
}

/// Whether one promise was kept.
#[derive(Debug)]
pub(super) struct Verdict {
    /// The promise, in a word.
    pub(super) promise: &'static str,
    /// What was found, in a sentence.
    pub(super) finding: String,
    /// The numbers of the sentence.
    pub(super) numbers: Vec<(&'static str, u64)>,
    /// What is wrong; nothing if the promise was kept.
    pub(super) faults: Vec<String>,
}

impl Verdict {
    pub(super) fn passed(&self) -> bool {
        self.faults.is_empty()
    }
}

impl Judgement {
    pub(super) fn passed(&self) -> bool {
        self.verdicts.iter().all(Verdict::passed)
    }
}

/// Judges a demo whose workers have all ended.
pub(super) fn judge(evidence: &Evidence) -> Judgement {
    let cycles = whole_cycles(evidence);
    let tenants = measure(evidence, &cycles);
    let mut violations = Violations::of(evidence);
    let verdicts = vec![
        order(evidence, violations.take(Promise::Order)),
        selections(evidence, violations.take(Promise::Selections)),
        outcomes(&tenants, violations.take(Promise::Outcomes)),
        shares(&cycles),
        bounds(&tenants, violations.take(Promise::Bounds)),
        runs(evidence, violations.take(Promise::Runs)),
        kill(evidence, &tenants),
    ];
    Judgement { tenants, verdicts }
}

/// A promise whose breach the history checker can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    Order,
    Selections,
    Outcomes,
    Bounds,
    Runs,
}

/// What the history checker found.
struct Violations(Vec<Violation>);

impl Violations {
    fn of(evidence: &Evidence) -> Self {
        Self(
            history::check(&History::new(), &evidence.order)
                .err()
                .unwrap_or_default(),
        )
    }

    /// Those that break this promise, as text.
    fn take(&mut self, promise: Promise) -> Vec<String> {
        let taken = self
            .0
            .extract_if(.., |violation| promise_of(violation) == promise);
        taken.map(|violation| violation.to_string()).collect()
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other violations are about rows and answers, and what a later checker finds must not be lost either"
)]
fn promise_of(violation: &Violation) -> Promise {
    match violation {
        Violation::WrongTenant { .. } => Promise::Selections,
        Violation::NotReserved { .. } | Violation::SettledTwice { .. } => Promise::Outcomes,
        Violation::SelectionGap { .. } | Violation::CycleCount { .. } => Promise::Bounds,
        Violation::FenceNotGrown { .. } | Violation::CompletedTwice { .. } => Promise::Runs,
        _ => Promise::Order,
    }
}

/// Sequences are contiguous and disjoint.
fn order(evidence: &Evidence, mut faults: Vec<String>) -> Verdict {
    let reservations = count(evidence.order.reservations.iter());
    let sequences = count(evidence.reserved().into_keys());
    let end = evidence
        .reserved()
        .into_keys()
        .next_back()
        .map_or(0, |last| last + 1);
    if evidence.next_sequence != Some(end) {
        let next = evidence.next_sequence;
        faults.push(format!(
            "the order ends before {end}, but its cursor says {next:?}"
        ));
    }
    if sequences == 0 {
        faults.push("nothing was reserved".to_owned());
    }
    Verdict {
        promise: "order",
        finding: format!("{sequences} sequences, contiguous from 0, none taken twice"),
        numbers: vec![("reservations", reservations), ("sequences", sequences)],
        faults,
    }
}

/// Every attempt belongs to the tenant that the cycle names for its sequence.
fn selections(evidence: &Evidence, mut faults: Vec<String>) -> Verdict {
    for (sequence, attempt) in evidence.attempts() {
        let owner = evidence.runs.get(&attempt.run).map(|run| &run.spec.tenant);
        if owner != Some(&attempt.tenant) {
            let (run, tenant) = (attempt.run, &attempt.tenant);
            faults.push(format!(
                "sequence {sequence} ran run {run}, which is not {tenant}'s"
            ));
        }
    }
    let attempts = count(evidence.attempts());
    Verdict {
        promise: "selections",
        finding: format!("{attempts} attempts, each of the tenant that the cycle names"),
        numbers: vec![("attempts", attempts)],
        faults,
    }
}

/// The outcomes of each tenant add up to its slots.
fn outcomes(tenants: &[TenantMeasures], mut faults: Vec<String>) -> Verdict {
    let wrong = tenants
        .iter()
        .filter(|row| row.slots.accounted() != row.slots.reserved);
    faults.extend(wrong.map(|row| {
        let (known, slots) = (row.slots.accounted(), row.slots.reserved);
        format!("{} has {known} outcomes for {slots} slots", row.tenant)
    }));
    let total = |of: fn(&TenantMeasures) -> u64| tenants.iter().map(of).sum();
    let numbers = vec![
        ("slots", total(|row| row.slots.reserved)),
        ("ran", total(|row| row.slots.ran)),
        ("idle", total(|row| row.slots.idle)),
        ("contended", total(|row| row.slots.contended)),
        ("failed", total(|row| row.slots.failed)),
        ("lost", total(|row| row.slots.lost)),
    ];
    let parts: Vec<String> = (numbers.iter().skip(1))
        .map(|(name, number)| format!("{number} {name}"))
        .collect();
    Verdict {
        promise: "outcomes",
        finding: format!("each tenant's add up to its slots: {}", parts.join(", ")),
        numbers,
        faults,
    }
}

/// In every cycle in which a tenant was ready throughout and lost no slot, its runs equal its weight.
fn shares(cycles: &[Vec<TenantCycle>]) -> Verdict {
    let undisturbed = || {
        cycles
            .iter()
            .flatten()
            .filter(|cycle| cycle.is_undisturbed())
    };
    let wrong = undisturbed().filter(|cycle| cycle.ran != cycle.weight);
    let mut faults: Vec<String> = wrong
        .map(|wrong| {
            let TenantCycle {
                cycle,
                tenant,
                weight,
                ran,
                ..
            } = wrong;
            format!("{tenant} ran {ran} in cycle {cycle}, its weight is {weight}")
        })
        .collect();
    let tenant_cycles = count(undisturbed());
    if tenant_cycles == 0 {
        faults.push("no tenant was ready throughout any cycle, so nothing is proven".to_owned());
    }
    Verdict {
        promise: "shares",
        finding: format!(
            "{tenant_cycles} times a tenant was ready for a whole cycle, and ran its weight"
        ),
        numbers: vec![
            ("cycles", count(cycles.iter())),
            ("tenant_cycles", tenant_cycles),
        ],
        faults,
    }
}

/// Every bound was kept.
fn bounds(tenants: &[TenantMeasures], mut faults: Vec<String>) -> Verdict {
    let broken = tenants.iter().filter(|row| row.gap_largest > row.bound);
    faults.extend(broken.map(|row| {
        let (tenant, gap, bound) = (&row.tenant, row.gap_largest, row.bound);
        format!("{tenant} was not selected for {gap} sequences, its bound is {bound}")
    }));
    let gaps: Vec<String> = (tenants.iter())
        .map(|row| format!("{} {} of {}", row.tenant, row.gap_largest, row.bound))
        .collect();
    Verdict {
        promise: "bounds",
        finding: format!("largest selection gaps: {}", gaps.join(", ")),
        numbers: vec![("tenants", count(tenants.iter()))],
        faults,
    }
}

/// Every run was completed exactly once, by its newest attempt, with the right result.
fn runs(evidence: &Evidence, mut faults: Vec<String>) -> Verdict {
    let attempts = evidence.attempts_by_run();
    let results = results_by_run(evidence, &mut faults);
    for (id, expected) in &evidence.expected {
        let attempts = attempts.get(id).map_or(&[][..], Vec::as_slice);
        let result = results.get(id).copied();
        let fault = fault_of(evidence.runs.get(id), attempts, result, expected);
        faults.extend(fault.map(|fault| format!("run {id} (line {}) {fault}", expected.line)));
    }
    let strange = evidence
        .runs
        .keys()
        .filter(|id| !evidence.expected.contains_key(id));
    faults.extend(strange.map(|id| format!("run {id} was enqueued by nobody")));
    let done = count(
        evidence
            .runs
            .values()
            .filter(|run| run.state == RunState::Done),
    );
    let expected = count(evidence.expected.keys());
    Verdict {
        promise: "runs",
        finding: format!(
            "{done} of {expected} done, each once and with the right checksum; no stale completion"
        ),
        numbers: vec![
            ("expected", expected),
            ("done", done),
            ("results", count(results.keys())),
        ],
        faults,
    }
}

fn results_by_run<'a>(
    evidence: &'a Evidence,
    faults: &mut Vec<String>,
) -> HashMap<RunId, &'a ResultRow> {
    let mut results = HashMap::new();
    for row in &evidence.results {
        if !evidence.expected.contains_key(&row.run) {
            faults.push(format!(
                "a result names run {}, which nobody enqueued",
                row.run
            ));
        }
        if results.insert(row.run, row).is_some() {
            faults.push(format!("run {} has more than one result", row.run));
        }
    }
    results
}

/// What is wrong with one run, if anything is.
fn fault_of(
    run: Option<&Run>,
    attempts: &[&AttemptRecord],
    result: Option<&ResultRow>,
    expected: &Expected,
) -> Option<String> {
    let Some(run) = run else {
        return Some("is gone".to_owned());
    };
    if run.state != RunState::Done {
        return Some(format!("is {}", run.state.as_str()));
    }
    if !attempts
        .iter()
        .map(|attempt| attempt.fence.get())
        .eq(1..=run.fence.get())
    {
        return Some(format!(
            "has {} attempts on record for fences up to {}",
            attempts.len(),
            run.fence.get()
        ));
    }
    if attempts.iter().any(|attempt| attempt.ended.is_none()) {
        return Some("has an attempt that has not ended".to_owned());
    }
    let completed: Vec<_> = attempts
        .iter()
        .filter(|attempt| matches!(attempt.ended, Some((AttemptResult::Completed, _))))
        .collect();
    let [completion] = completed.as_slice() else {
        return Some(format!("was completed {} times", completed.len()));
    };
    if completion.fence != run.fence {
        return Some("was completed by a stale attempt".to_owned());
    }
    match result {
        None => Some("has no result".to_owned()),
        Some(result) if result.fence != run.fence => {
            Some("has the result of a stale attempt".to_owned())
        }
        Some(result) if result.digest != expected.digest => Some(format!(
            "has a wrong result, or {} was changed while the demo ran",
            expected.file
        )),
        Some(_) => None,
    }
}

/// The kill really cost something, and no more than one worker can hold.
fn kill(evidence: &Evidence, tenants: &[TenantMeasures]) -> Verdict {
    let workers = &evidence.workers;
    let attempts = || evidence.attempts().map(|(_, attempt)| attempt);
    let expired =
        || attempts().filter(|attempt| matches!(attempt.ended, Some((AttemptResult::Expired, _))));
    let cost = count(expired().filter(|attempt| attempt.worker == workers.killed));
    let others = count(expired()) - cost;
    let replacement = count(attempts().filter(|attempt| attempt.worker == workers.replacement));
    let names: HashSet<_> = attempts().map(|attempt| &attempt.worker).collect();
    let lost: u64 = tenants.iter().map(|row| row.slots.lost).sum();
    let mut faults = Vec::new();
    if cost == 0 {
        faults.push(format!("{} held no run when it was killed", workers.killed));
    }
    if lost > u64::from(workers.concurrency) {
        let most = workers.concurrency;
        faults.push(format!(
            "{lost} slots were lost, and the killed worker had at most {most} under way"
        ));
    }
    Verdict {
        promise: "kill",
        finding: format!(
            "attempts of {} that expired and ran again: {cost}; slots lost: {lost}; {} took its place and made \
             {replacement} attempts",
            workers.killed, workers.replacement
        ),
        numbers: vec![
            ("attempts_expired", cost),
            ("attempts_expired_elsewhere", others),
            ("slots_lost", lost),
            ("attempts_of_replacement", replacement),
            ("workers", count(names.into_iter())),
        ],
        faults,
    }
}

#[cfg(test)]
mod tests;
