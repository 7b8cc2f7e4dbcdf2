//! Every violation is found in a history that has it, and none in a sound one.

use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{TenantFairnessWeight, TenantId};
use evenhand_store::{
    AttemptRecord, AttemptResult, Claim, ClaimRequest, ClaimedRun, Fence, Lease, LeaseDuration,
    NewRun, Payload, PolicyRegistration, Reservation, ReservationCount, ReservationId,
    ReserveRequest, Run, RunId, SequenceOutcome, Timestamp,
};
use futures::FutureExt;

use super::*;
use crate::broken::{BrokenStore, Fault};

fn clock() -> Timestamp {
    Timestamp::from_second(1_777_636_800).unwrap()
}

fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name).unwrap()
}

/// Its cycle is a a b a.
fn policy() -> WeightedFairnessPolicy {
    let weight = |name, weight| TenantFairnessWeight::new(tenant(name), weight).unwrap();
    WeightedFairnessPolicy::new("shard".parse().unwrap(), [weight("a", 3), weight("b", 1)]).unwrap()
}

/// The same id for the same number.
fn id(number: u8) -> ReservationId {
    let random = [number; 10];
    let uuid = uuid::Builder::from_unix_timestamp_millis(1_777_636_800_000, &random).into_uuid();
    ReservationId::try_from(uuid).unwrap()
}

fn run_id(number: u8) -> RunId {
    RunId::new(id(number).as_uuid())
}

fn row(number: u8, first_sequence: u64, count: u32) -> Reservation {
    let count = ReservationCount::new(count).unwrap();
    Reservation::new(id(number), first_sequence, count, clock(), clock())
}

fn reserve(
    row: Reservation,
    invoked: u64,
    answered: Option<u64>,
) -> Call<ReserveRequest, Reservation> {
    let request = ReserveRequest::new(&policy(), row.id, row.count);
    Call {
        request,
        invoked,
        answered: answered.map(|at| (at, Ok(row))),
    }
}

fn lease(sequence: u64, run: u8, fence: u64) -> Lease {
    let shard = policy().shard().clone();
    Lease::new(run_id(run), Fence::new(fence), shard, sequence, clock())
}

fn claim(sequence: u64, answer: Claim) -> Call<ClaimRequest, Claim> {
    let worker = "worker".parse().unwrap();
    let request = ClaimRequest::new(&policy(), sequence, worker, LeaseDuration::default());
    Call {
        request,
        invoked: 1,
        answered: Some((2, Ok(answer))),
    }
}

fn ran(sequence: u64, run: u8, fence: u64) -> Call<ClaimRequest, Claim> {
    let spec = NewRun::new(tenant("a"), "kind".parse().unwrap(), Payload::default());
    let queued = Run::queued(run_id(run), spec, clock(), clock());
    let claimed = ClaimedRun::new(queued, lease(sequence, run, fence));
    claim(sequence, Claim::Ran(Box::new(claimed)))
}

/// A round that claimed these runs, given as sequence, run and fence, and found that others moved on.
fn round(
    block: Reservation,
    claimed: &[(u64, u8, u64)],
    moved_on: &[u64],
) -> Call<RoundRequest, Round> {
    let (worker, lease_duration) = ("worker".parse().unwrap(), LeaseDuration::default());
    let claimed = claimed.iter().map(|(sequence, run, fence)| {
        let spec = NewRun::new(tenant("a"), "kind".parse().unwrap(), Payload::default());
        let queued = Run::queued(run_id(*run), spec, clock(), clock());
        ClaimedRun::new(queued, lease(*sequence, *run, *fence))
    });
    let answer = Round::new(claimed.collect(), Vec::new(), moved_on.to_vec());
    Call {
        request: RoundRequest::new(&policy(), &block, worker, lease_duration, 4),
        invoked: 1,
        answered: Some((2, Ok(answer))),
    }
}

fn ending(
    (sequence, run, fence): (u64, u8, u64),
    result: AttemptResult,
    answer: Result<(), StoreErrorKind>,
) -> Call<Ending, ()> {
    let request = Ending {
        lease: lease(sequence, run, fence),
        result,
    };
    Call {
        request,
        invoked: 1,
        answered: Some((2, answer)),
    }
}

fn attempt(sequence: u64, run: u8, fence: u64, ended: Option<AttemptResult>) -> SequenceRecord {
    let claimed_at = clock() + Duration::from_secs(sequence);
    let worker = "worker".parse().unwrap();
    let (run, fence) = (run_id(run), Fence::new(fence));
    let mut attempt = AttemptRecord::running(run, tenant("a"), fence, worker, clock(), claimed_at);
    attempt.ended = ended.map(|result| (result, claimed_at));
    SequenceRecord::new(sequence, SequenceOutcome::Ran(attempt), claimed_at)
}

/// A history with a lost answer, a call whose outcome stays unknown, a failed attempt and a late completion.
fn sound() -> (History, Evidence) {
    let rows = vec![row(1, 0, 4), row(2, 4, 4), row(3, 8, 2)];
    let records = vec![
        attempt(0, 1, 1, Some(AttemptResult::Failed)),
        attempt(1, 1, 2, Some(AttemptResult::Completed)),
        SequenceRecord::new(2, SequenceOutcome::Idle, clock()),
        attempt(4, 2, 1, None),
        attempt(8, 3, 1, None),
        SequenceRecord::new(9, SequenceOutcome::Idle, clock()),
    ];
    let calls = Calls {
        clock: 100,
        reserves: vec![
            reserve(rows[0], 1, Some(2)),
            reserve(rows[1], 3, None),
            reserve(rows[1], 4, Some(5)),
            reserve(rows[2], 6, Some(7)),
            reserve(row(4, 0, 1), 8, None),
        ],
        claims: vec![ran(0, 1, 1), ran(1, 1, 2), claim(2, Claim::Idle)],
        rounds: vec![round(rows[2], &[(8, 3, 1)], &[])],
        endings: vec![
            ending((0, 1, 1), AttemptResult::Failed, Ok(())),
            ending(
                (0, 1, 1),
                AttemptResult::Completed,
                Err(StoreErrorKind::LeaseLost),
            ),
            ending((1, 1, 2), AttemptResult::Completed, Ok(())),
        ],
    };
    (
        History {
            calls: Mutex::new(calls),
        },
        Evidence::new(policy(), rows, records),
    )
}

/// What is found after the sound history was changed.
fn found(change: impl FnOnce(&mut Calls, &mut Evidence)) -> Vec<Violation> {
    let (mut history, mut evidence) = sound();
    change(history.calls.get_mut().unwrap(), &mut evidence);
    check(&history, &evidence).err().unwrap_or_default()
}

fn attempt_in(evidence: &mut Evidence, record: usize) -> &mut AttemptRecord {
    let outcome = &mut evidence.sequences[record].outcome;
    let SequenceOutcome::Ran(attempt) = outcome else {
        panic!("record {record} is {outcome:?}")
    };
    attempt
}

#[test]
fn a_sound_history_has_no_violation() {
    assert_eq!(found(|_, _| {}), []);
    let (history, _) = sound();
    assert_eq!((history.calls_len(), history.unknown_len()), (12, 2));
}

#[test]
fn a_missing_row_is_a_gap_and_a_loss_and_breaks_selections() {
    let found = found(|_, evidence| {
        evidence.reservations.remove(1);
    });
    let a = || tenant("a");
    for expected in [
        Violation::Gap {
            id: id(3),
            from: 4,
            to: 8,
        },
        Violation::ReservationLost {
            id: id(2),
            first_sequence: 4,
        },
        Violation::NotReserved { sequence: 4 },
        Violation::SelectionGap {
            tenant: a(),
            from: 3,
            to: 8,
            bound: 2,
        },
        Violation::CycleCount {
            tenant: a(),
            cycle: 1,
            slots: 0,
            weight: 3,
        },
        Violation::CycleCount {
            tenant: tenant("b"),
            cycle: 1,
            slots: 0,
            weight: 1,
        },
    ] {
        assert!(
            found.contains(&expected),
            "{expected:?} is missing in {found:?}"
        );
    }
    assert_eq!(found.len(), 6, "{found:?}");
}

#[test]
fn rows_that_share_sequences_overlap() {
    let found = found(|_, evidence| evidence.reservations[2].first_sequence = 7);
    let overlap = Violation::Overlap {
        id: id(3),
        first_sequence: 7,
        expected: 8,
    };
    assert!(found.contains(&overlap), "{found:?}");
    let twice = Violation::CycleCount {
        tenant: tenant("a"),
        cycle: 1,
        slots: 4,
        weight: 3,
    };
    assert!(found.contains(&twice), "{found:?}");
}

#[test]
fn an_id_with_two_rows_is_found() {
    let found = found(|calls, evidence| {
        evidence.reservations[1].id = id(1);
        calls.reserves.clear();
    });
    assert_eq!(found, [Violation::RepeatedId { id: id(1) }]);
}

#[test]
fn an_answer_that_is_not_the_record_is_found() {
    let found = found(|calls, _| {
        calls.reserves.push(reserve(row(3, 9, 2), 9, Some(10)));
    });
    let differ = Violation::AnswersDiffer {
        id: id(3),
        answered: 9,
        answered_count: 2,
        recorded: 8,
        recorded_count: 2,
    };
    assert_eq!(found, [differ]);
}

#[test]
fn an_order_against_real_time_is_found() {
    let found = found(|calls, evidence| {
        evidence.reservations = vec![row(2, 0, 4), row(1, 4, 4), row(3, 8, 2)];
        calls.reserves = vec![
            reserve(row(1, 4, 4), 1, Some(2)),
            reserve(row(2, 0, 4), 3, Some(4)),
            reserve(row(3, 8, 2), 5, Some(6)),
        ];
    });
    assert_eq!(
        found,
        [Violation::OutOfOrder {
            earlier: id(1),
            later: id(2)
        }]
    );
}

#[test]
fn an_order_of_overlapping_calls_is_free() {
    let found = found(|calls, evidence| {
        evidence.reservations = vec![row(2, 0, 4), row(1, 4, 4), row(3, 8, 2)];
        calls.reserves = vec![
            reserve(row(1, 4, 4), 1, Some(3)),
            // Asked for before the first was answered, and answered much later by a repetition.
            reserve(row(2, 0, 4), 2, None),
            reserve(row(2, 0, 4), 4, Some(5)),
        ];
    });
    assert_eq!(found, []);
}

#[test]
fn a_refused_call_that_consumed_is_found() {
    let kind = StoreErrorKind::Unavailable;
    let found = found(|calls, _| calls.reserves[0].answered = Some((2, Err(kind))));
    assert_eq!(found, [Violation::RefusedButReserved { id: id(1), kind }]);
}

#[test]
fn an_outcome_without_reservation_and_a_second_outcome_are_found() {
    let idle = |sequence| SequenceRecord::new(sequence, SequenceOutcome::Idle, clock());
    let found = found(|_, evidence| evidence.sequences.extend([idle(9), idle(10)]));
    assert_eq!(
        found,
        [
            Violation::SettledTwice { sequence: 9 },
            Violation::NotReserved { sequence: 10 }
        ]
    );
}

#[test]
fn a_run_of_another_tenant_is_found() {
    let found = found(|_, evidence| attempt_in(evidence, 3).tenant = tenant("b"));
    let wrong = Violation::WrongTenant {
        sequence: 4,
        expected: tenant("a"),
        found: tenant("b"),
    };
    assert_eq!(found, [wrong]);
}

#[test]
fn a_fence_that_does_not_grow_is_found() {
    let found = found(|calls, evidence| {
        attempt_in(evidence, 3).run = run_id(1);
        calls.claims.clear();
        calls.endings.clear();
    });
    let (run, earlier, later) = (run_id(1), Fence::new(2), Fence::new(1));
    assert_eq!(
        found,
        [Violation::FenceNotGrown {
            run,
            earlier,
            later
        }]
    );
}

#[test]
fn a_stale_completion_that_counted_is_found() {
    let found = found(|_, evidence| {
        attempt_in(evidence, 0).ended = Some((AttemptResult::Completed, clock()));
    });
    let (run, fence) = (run_id(1), Fence::new(1));
    let expected = [
        Violation::CompletedTwice { run },
        Violation::EndingLost {
            run,
            fence,
            result: AttemptResult::Failed,
        },
        Violation::RefusedButEnded {
            run,
            fence,
            result: AttemptResult::Completed,
        },
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_completion_that_was_lost_is_found() {
    let found = found(|_, evidence| attempt_in(evidence, 1).ended = None);
    let (run, fence, result) = (run_id(1), Fence::new(2), AttemptResult::Completed);
    assert_eq!(found, [Violation::EndingLost { run, fence, result }]);
}

#[test]
fn a_claim_that_is_not_on_record_is_found() {
    let found = found(|calls, evidence| {
        evidence.sequences[2].outcome = SequenceOutcome::Failed;
        calls.claims.push(ran(4, 2, 7));
        calls.claims.push(claim(5, Claim::Idle));
    });
    let differs = |sequence, answered: &str, recorded: &str| Violation::ClaimDiffers {
        sequence,
        answered: answered.to_owned(),
        recorded: recorded.to_owned(),
    };
    let run = run_id(2);
    let expected = [
        differs(2, "Idle", "Failed"),
        differs(
            4,
            &format!("run {run} with fence 7"),
            &format!("run {run} with fence 1"),
        ),
        differs(5, "Idle", "nothing"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_round_that_is_not_on_record_is_found() {
    let found = found(|calls, evidence| {
        calls.rounds = vec![
            round(row(1, 0, 4), &[], &[0, 1, 2]),
            round(row(3, 8, 2), &[(9, 3, 1)], &[]),
        ];
        evidence.sequences[5].outcome = SequenceOutcome::Contended;
    });
    let differs = |sequence, answered: &str, recorded: &str| Violation::ClaimDiffers {
        sequence,
        answered: answered.to_owned(),
        recorded: recorded.to_owned(),
    };
    let held = format!("run {} with fence 1", run_id(3));
    let expected = [
        differs(2, "a run that moved on", "Idle"),
        differs(3, "Idle", "nothing"),
        differs(8, "Idle", &held),
        differs(9, &held, "Contended"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_cancelled_attempt_may_have_been_asked_to_end_otherwise() {
    let cancelled = Some((AttemptResult::Cancelled, clock()));
    assert_eq!(
        found(|_, evidence| attempt_in(evidence, 0).ended = cancelled),
        []
    );
    let found = found(|_, evidence| attempt_in(evidence, 1).ended = cancelled);
    let (run, fence, result) = (run_id(1), Fence::new(2), AttemptResult::Completed);
    assert_eq!(found, [Violation::EndingLost { run, fence, result }]);
}

/// What is found after a storm of rounds over a store with this fault.
async fn storm_of_rounds(fault: Option<Fault>) -> Result<(), Vec<Violation>> {
    let store = Arc::new(BrokenStore::new(fault, clock()));
    let registration = PolicyRegistration::new(policy());
    store.register_policy(&registration).await.unwrap();
    let run = |name| NewRun::new(tenant(name), "kind".parse().unwrap(), Payload::default());
    let backlog: Vec<_> = (0..120).map(|number| run(["a", "b"][number % 2])).collect();
    store.enqueue_many(&backlog).await.unwrap();
    let options = StormOptions {
        rounds: true,
        ..StormOptions::default()
    };
    let history = storm(&[Arc::clone(&store), store.clone()], &policy(), &options).await;
    let evidence = Evidence::read(&*store, policy().shard()).await.unwrap();
    let ran = |record: &&SequenceRecord| matches!(record.outcome, SequenceOutcome::Ran(_));
    assert!(evidence.sequences.iter().filter(ran).count() > 50);
    check(&history, &evidence)
}

#[tokio::test]
async fn a_storm_of_rounds_leaves_sound_evidence() {
    assert_eq!(storm_of_rounds(None).await, Ok(()));
}

#[tokio::test]
async fn a_storm_of_rounds_shows_runs_that_were_given_away() {
    let violations = storm_of_rounds(Some(Fault::IdleSlotsGivenAway)).await;
    let differs = |violation: &Violation| matches!(violation, Violation::ClaimDiffers { .. });
    assert!(violations.is_err_and(|violations| violations.iter().any(differs)));
}

#[tokio::test]
async fn a_dropped_call_stays_on_record_as_unknown() {
    let store = BrokenStore::new(None, clock());
    store
        .register_policy(&PolicyRegistration::new(policy()))
        .await
        .unwrap();
    let request = ReserveRequest::new(&policy(), id(1), ReservationCount::ONE);
    let history = History::new();
    // This store pauses between its steps, so the first poll does not answer.
    assert!(history.reserve(&store, &request).now_or_never().is_none());
    assert_eq!((history.calls_len(), history.unknown_len()), (1, 1));
    history.reserve(&store, &request).await.unwrap();
    assert_eq!((history.calls_len(), history.unknown_len()), (2, 1));
    let evidence = Evidence::read(&store, policy().shard()).await.unwrap();
    assert_eq!(check(&history, &evidence), Ok(()));
}
