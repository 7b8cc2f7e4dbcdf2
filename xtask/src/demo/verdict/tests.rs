//! Evidence of a good demo, and each verdict over evidence that is broken.

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    Fence, NewRun, Payload, Reservation, ReservationCount, ReservationId, RunKind, SequenceOutcome,
    SequenceRecord, Timestamp, WorkerName,
};

use super::super::evidence::{Expected, WorkersDone};
use super::*;

/// Half a second each, so that one second of settling is easy to see.
fn at(halves: i64) -> Timestamp {
    Timestamp::from_millisecond(1_000_000_000 + 500 * halves).unwrap()
}

fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name).unwrap()
}

fn worker(name: &str) -> WorkerName {
    WorkerName::try_from(name).unwrap()
}

/// The cycle is `a b a`.
fn policy() -> WeightedFairnessPolicy {
    let weights = [("a", 2), ("b", 1)]
        .map(|(name, weight)| TenantFairnessWeight::new(tenant(name), weight).unwrap());
    WeightedFairnessPolicy::new(SchedulerShardId::try_from("s").unwrap(), weights).unwrap()
}

fn id(number: u128) -> RunId {
    RunId::new(uuid::Uuid::from_u128(number))
}

fn run(number: u128, name: &str) -> Run {
    let kind = RunKind::try_from("k").unwrap();
    let spec = NewRun::new(tenant(name), kind, Payload::default());
    let mut run = Run::queued(id(number), spec, at(-20), at(-20));
    run.state = RunState::Done;
    run
}

fn attempt(
    run: &mut Run,
    name: &str,
    claimed: i64,
    ended: i64,
    result: AttemptResult,
) -> AttemptRecord {
    run.fence = Fence::new(run.fence.get() + 1);
    let mut attempt = AttemptRecord::running(
        run.id,
        run.spec.tenant.clone(),
        run.fence,
        worker(name),
        run.ready_at,
        at(claimed),
    );
    attempt.ended = Some((result, at(ended)));
    attempt
}

/// One sequence a second: tenant `a` has 8 runs and `b` has 4. The first run of `a` is claimed by the worker that is
/// killed, and again when `a` has no other; then the tenants are idle, and the last slot is lost.
fn good() -> Evidence {
    let policy = policy();
    let mut runs: Vec<Run> = (0..8)
        .map(|n| run(n, "a"))
        .chain((8..12).map(|n| run(n, "b")))
        .collect();
    let mut reservations = Vec::new();
    let mut sequences = Vec::new();
    let mut queues = [vec![0, 7, 6, 5, 4, 3, 2, 1, 0], vec![11, 10, 9, 8]];
    for sequence in 0..16_u64 {
        let time = 2 * i64::try_from(sequence).unwrap();
        let name = ReservationId::mint(at(time));
        reservations.push(Reservation::new(
            name,
            sequence,
            ReservationCount::ONE,
            at(time),
            at(time),
        ));
        let queue = usize::from(policy.tenant_for_sequence(sequence) == &tenant("b"));
        let outcome = match (sequence, queues[queue].pop()) {
            (0, Some(next)) => {
                let claimed = attempt(&mut runs[next], "killed", 0, 9, AttemptResult::Expired);
                SequenceOutcome::Ran(claimed)
            }
            (_, Some(next)) => {
                let claimed = attempt(
                    &mut runs[next],
                    "other",
                    time,
                    time + 1,
                    AttemptResult::Completed,
                );
                SequenceOutcome::Ran(claimed)
            }
            (15, None) => continue,
            (_, None) => SequenceOutcome::Idle,
        };
        sequences.push(SequenceRecord::new(sequence, outcome, at(time)));
    }
    let results = runs.iter().map(|run| ResultRow {
        run: run.id,
        fence: run.fence,
        digest: run.id.to_string(),
    });
    let expected = runs.iter().zip(1..).map(|(run, line)| {
        let digest = run.id.to_string();
        (
            run.id,
            Expected {
                line,
                file: "x".to_owned(),
                digest,
                committed_by: at(-10),
            },
        )
    });
    Evidence {
        results: results.collect(),
        expected: expected.collect(),
        next_sequence: Some(16),
        order: history::Evidence::new(policy, reservations, sequences),
        runs: runs.into_iter().map(|run| (run.id, run)).collect(),
        workers: WorkersDone {
            started: 1,
            concurrency: 1,
            killed: worker("killed"),
            replacement: worker("other"),
        },
    }
}

/// The promises that a demo broke whose good evidence was changed like this.
fn broken(change: impl FnOnce(&mut Evidence)) -> Vec<&'static str> {
    let mut evidence = good();
    change(&mut evidence);
    let verdicts = judge(&evidence).verdicts;
    let broken = verdicts.iter().filter(|verdict| !verdict.passed());
    broken.map(|verdict| verdict.promise).collect()
}

fn attempt_at(evidence: &mut Evidence, sequence: usize) -> &mut AttemptRecord {
    let SequenceOutcome::Ran(attempt) = &mut evidence.order.sequences[sequence].outcome else {
        panic!("sequence {sequence} did not run")
    };
    attempt
}

fn run_of(evidence: &mut Evidence, number: u128) -> &mut Run {
    evidence.runs.get_mut(&id(number)).unwrap()
}

#[test]
fn a_good_demo_keeps_every_promise() {
    let judgement = judge(&good());
    assert!(judgement.passed(), "{:#?}", judgement.verdicts);
    let numbers = |promise: &str| {
        let verdict = judgement
            .verdicts
            .iter()
            .find(|verdict| verdict.promise == promise);
        verdict.unwrap().numbers.clone()
    };
    assert_eq!(numbers("order"), [("reservations", 16), ("sequences", 16)]);
    assert_eq!(numbers("selections"), [("attempts", 13)]);
    // Tenant `a` in cycles 0 to 2, `b` in 0 and 1; after that too few of their runs wait to be sure.
    assert_eq!(numbers("shares"), [("cycles", 5), ("tenant_cycles", 5)]);
    let kill = numbers("kill");
    assert!(
        kill.contains(&("attempts_expired", 1)) && kill.contains(&("slots_lost", 1)),
        "{kill:?}"
    );
}

#[test]
fn the_table_has_what_each_tenant_got() {
    let judgement = judge(&good());
    let [a, b] = judgement.tenants.as_slice() else {
        panic!("two tenants")
    };
    assert_eq!(
        (a.slots.reserved, a.slots.ran, a.slots.idle, a.slots.lost),
        (11, 9, 1, 1)
    );
    assert_eq!(
        (b.slots.reserved, b.slots.ran, b.slots.idle, b.slots.lost),
        (5, 4, 1, 0)
    );
    assert_eq!((a.runs, b.runs), (8, 4));
    assert_eq!((a.contested_runs, b.contested_runs), (4, 2));
    assert_eq!((a.gap_largest, b.gap_largest), (2, 3));
    // Known to be ready from second -5 on, first served at second 0 and 1; the queue of `b` is served each 3 seconds.
    assert_eq!((a.service_lag.as_secs(), b.service_lag.as_secs()), (5, 6));
}

#[test]
fn an_order_with_a_gap_an_overlap_or_another_end_fails() {
    assert!(broken(|evidence| evidence.order.reservations.truncate(15)).contains(&"order"));
    assert!(broken(|evidence| drop(evidence.order.reservations.drain(..1))).contains(&"order"));
    let doubled = broken(|evidence| {
        let last = evidence.order.reservations[15];
        evidence.order.reservations.push(last);
    });
    assert_eq!(doubled, ["order"]);
    assert_eq!(
        broken(|evidence| evidence.next_sequence = Some(17)),
        ["order"]
    );
    assert_eq!(broken(|evidence| evidence.next_sequence = None), ["order"]);
}

#[test]
fn an_attempt_of_another_tenant_fails() {
    let both = broken(|evidence| {
        attempt_at(evidence, 1).tenant = tenant("a");
        run_of(evidence, 8).spec.tenant = tenant("a");
    });
    assert_eq!(both, ["selections"]);
    let of_another_run = broken(|evidence| run_of(evidence, 8).spec.tenant = tenant("a"));
    assert_eq!(of_another_run, ["selections"]);
}

#[test]
fn an_outcome_too_many_fails() {
    let twice = broken(|evidence| {
        let again = evidence.order.sequences[13].clone();
        evidence.order.sequences.insert(13, again);
    });
    assert_eq!(twice, ["outcomes"]);
    let unreserved = broken(|evidence| {
        let strange = SequenceRecord::new(16, SequenceOutcome::Idle, at(32));
        evidence.order.sequences.push(strange);
    });
    assert_eq!(unreserved, ["outcomes"]);
}

#[test]
fn a_ready_tenant_that_did_not_run_its_weight_fails() {
    for outcome in [
        SequenceOutcome::Idle,
        SequenceOutcome::Contended,
        SequenceOutcome::Failed,
    ] {
        let unserved = broken(|evidence| evidence.order.sequences[4].outcome = outcome);
        assert_eq!(unserved, ["shares", "runs"]);
    }
}

#[test]
fn a_demo_in_which_nobody_was_ready_for_a_cycle_proves_nothing() {
    assert_eq!(broken(|evidence| evidence.workers.started = 10), ["shares"]);
}

#[test]
fn a_slot_that_was_lost_is_nobodys_fault_but_the_killed_workers() {
    // The run of sequence 4 still waits then, and nothing else of its cycle is held against it.
    let lost = broken(|evidence| drop(evidence.order.sequences.remove(4)));
    assert_eq!(lost, ["runs", "kill"]);
}

#[test]
fn a_selection_gap_above_the_bound_fails() {
    // Without sequences 4 to 6 tenant `b` is selected at 1 and then at 7.
    let late = broken(|evidence| drop(evidence.order.reservations.drain(4..=6)));
    assert!(late.contains(&"bounds"), "{late:?}");
}

#[test]
fn a_run_that_is_not_done_exactly_once_with_the_right_result_fails() {
    let changes: [fn(&mut Evidence); 12] = [
        |evidence| run_of(evidence, 3).state = RunState::Queued,
        |evidence| run_of(evidence, 3).state = RunState::Dead,
        |evidence| drop(evidence.runs.remove(&id(3))),
        |evidence| drop(evidence.expected.remove(&id(3))),
        |evidence| drop(evidence.results.pop()),
        |evidence| evidence.results.push(evidence.results[0].clone()),
        |evidence| evidence.results[3].run = id(99),
        |evidence| evidence.results[3].digest = "another".to_owned(),
        // The result of the attempt that expired.
        |evidence| evidence.results[0].fence = Fence::new(1),
        // A claim that left no attempt.
        |evidence| run_of(evidence, 3).fence = Fence::new(2),
        |evidence| attempt_at(evidence, 2).ended = None,
        |evidence| attempt_at(evidence, 2).ended = Some((AttemptResult::Failed, at(5))),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert!(broken(change).contains(&"runs"), "change {number}");
    }
}

#[test]
fn a_completion_by_a_stale_attempt_fails() {
    let completed = Some((AttemptResult::Completed, at(9)));
    let twice = broken(|evidence| attempt_at(evidence, 0).ended = completed);
    assert_eq!(twice, ["runs", "kill"]);
    let stale = broken(|evidence| {
        attempt_at(evidence, 0).ended = completed;
        attempt_at(evidence, 12).ended = Some((AttemptResult::Failed, at(25)));
    });
    assert_eq!(stale, ["runs", "kill"]);
}

#[test]
fn a_kill_that_cost_nothing_or_too_much_fails() {
    assert_eq!(
        broken(|evidence| evidence.workers.killed = worker("nobody")),
        ["kill"]
    );
    let lost = broken(|evidence| drop(evidence.order.sequences.remove(13)));
    assert_eq!(lost, ["kill"]);
}
