//! Attempts: what is on record, and what clients saw of claims and ends.

use std::collections::{BTreeMap, HashMap};

use evenhand_store::{
    AttemptRecord, AttemptResult, Claim, ClaimRequest, Fence, Lease, Round, RoundRequest, RunId,
    SequenceOutcome,
};
use jiff::Timestamp;

use super::{Call, Ending, Evidence, Violation};

/// Every outcome belongs to a reserved sequence, every attempt to its tenant; fences grow; a run is completed once.
pub(super) fn check_records(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut by_run: HashMap<RunId, Vec<(Timestamp, Fence)>> = HashMap::new();
    let mut completed: HashMap<RunId, u32> = HashMap::new();
    let mut before = None;
    for record in &evidence.sequences {
        let sequence = record.sequence;
        if before.replace(sequence) == Some(sequence) {
            violations.push(Violation::SettledTwice { sequence });
        }
        if !is_reserved(evidence, sequence) {
            violations.push(Violation::NotReserved { sequence });
        }
        let Some(attempt) = attempt_of(&record.outcome) else {
            continue;
        };
        let expected = evidence.policy.tenant_for_sequence(sequence);
        if attempt.tenant != *expected {
            let (expected, found) = (expected.clone(), attempt.tenant.clone());
            violations.push(Violation::WrongTenant {
                sequence,
                expected,
                found,
            });
        }
        by_run
            .entry(attempt.run)
            .or_default()
            .push((attempt.claimed_at, attempt.fence));
        if matches!(attempt.ended, Some((AttemptResult::Completed, _))) {
            *completed.entry(attempt.run).or_default() += 1;
        }
    }
    for (run, mut attempts) in by_run {
        attempts.sort();
        for pair in attempts.windows(2) {
            let [(_, earlier), (_, later)] = *pair else {
                continue;
            };
            if later <= earlier {
                violations.push(Violation::FenceNotGrown {
                    run,
                    earlier,
                    later,
                });
            }
        }
    }
    let twice = completed.into_iter().filter(|(_, times)| *times > 1);
    violations.extend(twice.map(|(run, _)| Violation::CompletedTwice { run }));
}

/// What clients were told of a sequence is what is on record.
pub(super) fn check_claims(
    calls: &[Call<ClaimRequest, Claim>],
    evidence: &Evidence,
    violations: &mut Vec<Violation>,
) {
    let recorded = outcomes(evidence);
    for call in calls {
        let Some((_, Ok(claim))) = &call.answered else {
            continue;
        };
        let sequence = call.request.sequence;
        let answered = describe_claim(claim);
        let recorded = recorded
            .get(&sequence)
            .map_or_else(|| "nothing".to_owned(), |outcome| describe_outcome(outcome));
        if answered != recorded {
            violations.push(Violation::ClaimDiffers {
                sequence,
                answered,
                recorded,
            });
        }
    }
}

/// What clients were told of the sequences of a block is what is on record.
pub(super) fn check_rounds(
    calls: &[Call<RoundRequest, Round>],
    evidence: &Evidence,
    violations: &mut Vec<Violation>,
) {
    let recorded = outcomes(evidence);
    for call in calls {
        let Some((_, Ok(round))) = &call.answered else {
            continue;
        };
        let claimed: HashMap<u64, &Lease> = round
            .claimed
            .iter()
            .map(|claimed| (claimed.lease.sequence, &claimed.lease))
            .collect();
        for sequence in call.request.sequences() {
            let outcome = recorded.get(&sequence).copied();
            let attempt = outcome.and_then(attempt_of);
            let (answered, agrees) = if let Some(lease) = claimed.get(&sequence) {
                let is_recorded = |attempt: &AttemptRecord| {
                    (attempt.run, attempt.fence) == (lease.run, lease.fence)
                };
                let answered = describe_attempt(lease.run, lease.fence);
                (answered, attempt.is_some_and(is_recorded))
            } else if round.moved_on.contains(&sequence) {
                ("a run that moved on".to_owned(), attempt.is_some())
            } else if round.contended.contains(&sequence) {
                // A round that ran out of permits may have put the run back.
                let is_back = |attempt: &AttemptRecord| {
                    matches!(attempt.ended, Some((AttemptResult::Released, _)))
                };
                let agrees = attempt.map_or(outcome != Some(&SequenceOutcome::Idle), is_back);
                ("Contended".to_owned(), agrees && outcome.is_some())
            } else {
                let agrees = outcome == Some(&SequenceOutcome::Idle);
                ("Idle".to_owned(), agrees)
            };
            if !agrees {
                let recorded = outcome.map_or_else(|| "nothing".to_owned(), describe_outcome);
                violations.push(Violation::ClaimDiffers {
                    sequence,
                    answered,
                    recorded,
                });
            }
        }
    }
}

/// An acknowledged end is on record, and a refused one is not.
pub(super) fn check_endings(
    calls: &[Call<Ending, ()>],
    evidence: &Evidence,
    violations: &mut Vec<Violation>,
) {
    let ended: HashMap<(RunId, Fence), Option<AttemptResult>> = evidence
        .sequences
        .iter()
        .filter_map(|record| attempt_of(&record.outcome))
        .map(|attempt| {
            (
                (attempt.run, attempt.fence),
                attempt.ended.map(|(result, _)| result),
            )
        })
        .collect();
    // The same end may be asked for again and again; it was refused only if no call may have made it.
    let mut may_have_ended: BTreeMap<(RunId, Fence, &str), (AttemptResult, bool)> = BTreeMap::new();
    for call in calls {
        let Ending { lease, result } = &call.request;
        let is_refused = matches!(&call.answered, Some((_, Err(_))));
        let (_, may) = may_have_ended
            .entry((lease.run, lease.fence, result.as_str()))
            .or_insert((*result, false));
        *may |= !is_refused;
        let is_acknowledged = matches!(&call.answered, Some((_, Ok(()))));
        let recorded = ended.get(&(lease.run, lease.fence)).copied().flatten();
        let agrees = recorded == Some(*result)
            || (recorded == Some(AttemptResult::Cancelled) && *result != AttemptResult::Completed);
        if is_acknowledged && !agrees {
            let (run, fence) = (lease.run, lease.fence);
            violations.push(Violation::EndingLost {
                run,
                fence,
                result: *result,
            });
        }
    }
    for ((run, fence, _), (result, may_have_ended)) in may_have_ended {
        if !may_have_ended && ended.get(&(run, fence)).copied().flatten() == Some(result) {
            violations.push(Violation::RefusedButEnded { run, fence, result });
        }
    }
}

/// Whether a reservation covers the sequence; the rows are in order, but may be wrong in other ways.
fn is_reserved(evidence: &Evidence, sequence: u64) -> bool {
    let after = evidence
        .reservations
        .partition_point(|row| row.first_sequence <= sequence);
    let before = after
        .checked_sub(1)
        .and_then(|index| evidence.reservations.get(index));
    before.is_some_and(|row| row.sequences().contains(&sequence))
}

fn outcomes(evidence: &Evidence) -> HashMap<u64, &SequenceOutcome> {
    let records = evidence.sequences.iter();
    records
        .map(|record| (record.sequence, &record.outcome))
        .collect()
}

fn attempt_of(outcome: &SequenceOutcome) -> Option<&AttemptRecord> {
    if let SequenceOutcome::Ran(attempt) = outcome {
        Some(attempt)
    } else {
        None
    }
}

fn describe_claim(claim: &Claim) -> String {
    if let Claim::Ran(claimed) = claim {
        describe_attempt(claimed.lease.run, claimed.lease.fence)
    } else {
        format!("{claim:?}")
    }
}

fn describe_outcome(outcome: &SequenceOutcome) -> String {
    match attempt_of(outcome) {
        Some(attempt) => describe_attempt(attempt.run, attempt.fence),
        None => format!("{outcome:?}"),
    }
}

fn describe_attempt(run: RunId, fence: Fence) -> String {
    format!("run {run} with fence {}", fence.get())
}
