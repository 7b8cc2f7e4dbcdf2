//! The conformance suite catches every broken store, and lets the same store pass without its fault.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::marker::PhantomData;
use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::SchedulerShardId;
use evenhand_store::Timestamp;
use evenhand_testkit::broken::{BrokenStore, Fault};
use evenhand_testkit::conformance::{StoreUnderTest, check};

/// A store with the fault that its parameter names.
struct Broken<F> {
    store: BrokenStore,
    fault: PhantomData<F>,
}

trait Injected: Send + Sync + 'static {
    const FAULT: Option<Fault>;
}

/// No fault: whatever the broken stores are caught for, it is not the steps and pauses that all of them have.
struct Sound;

impl Injected for Sound {
    const FAULT: Option<Fault> = None;
}

#[async_trait]
impl<F: Injected> StoreUnderTest for Broken<F> {
    type Store = BrokenStore;

    async fn start() -> Self {
        let clock = Timestamp::from_second(1_777_636_800).unwrap();
        Self {
            store: BrokenStore::new(F::FAULT, clock),
            fault: PhantomData,
        }
    }

    async fn open(&self) -> BrokenStore {
        self.store.clone()
    }

    async fn advance_clock(&self, by: Duration) {
        self.store.memory().advance(by);
    }

    async fn set_clock_back(&self, by: Duration) {
        let memory = self.store.memory();
        memory.set_clock(memory.clock() - by);
    }

    async fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) {
        self.store.skip_to(shard, next_sequence).unwrap();
    }
}

mod sound {
    use super::*;

    evenhand_testkit::conformance_suite!(Broken<Sound>);
}

macro_rules! caught {
    ($($name:ident: $fault:ident by $fact:literal,)+) => {
        $(
            struct $fault;

            impl Injected for $fault {
                const FAULT: Option<Fault> = Some(Fault::$fault);
            }

            #[test]
            fn $name() {
                assert_caught::<$fault>($fact);
            }
        )+

        #[test]
        fn every_fault_is_tried() {
            let tried = [$(Fault::$fault),+];
            for fault in Fault::ALL {
                assert!(tried.contains(&fault), "{fault:?} is not tried");
            }
        }
    };
}

caught! {
    lookup_before_lock_is_caught: LookupBeforeLock by "identity::concurrent_calls_with_one_id_agree",
    cursor_before_lock_is_caught: CursorBeforeLock by "contiguity::concurrent_reservations_are_contiguous_and_disjoint",
    mark_before_lookup_is_caught: MarkBeforeLookup by "retention::a_retry_that_races_with_pruning_never_gets_a_second_sequence",
    a_second_answer_is_caught: SecondAnswer by "identity::the_same_id_gives_the_same_answer",
    a_gap_on_failure_is_caught: GapOnFailure by "refusals::refused_calls_consume_nothing",
    a_gap_on_drop_is_caught: GapOnDrop by "cancellation::a_dropped_reserve_leaves_no_gap_and_no_lock",
    overlapping_blocks_are_caught: OverlappingBlocks by "contiguity::sequences_begin_at_zero_and_follow_each_other",
    a_lost_acknowledgement_is_caught: LostAcknowledgement by "acknowledged::acknowledged_calls_are_on_record_in_the_order_of_real_time",
    pruning_the_newest_is_caught: PrunesNewest by "retention::pruning_keeps_the_newest_reservation_and_the_cursor",
    pruning_newest_first_is_caught: PrunesNewestFirst by "retention::pruning_goes_oldest_first_over_all_shards",
    a_mark_at_the_cutoff_is_caught: MarksTheCutoff by "retention::only_ids_that_were_really_pruned_move_the_mark",
    a_clients_clock_is_caught: ClientClock by "clocks::an_unknown_id_too_far_ahead_is_clock_skew",
    an_overwritten_policy_is_caught: RegisterOverwrites by "registration::register_refuses_another_policy",
    completion_without_fence_is_caught: CompletionWithoutFence by "leases::a_stale_fence_changes_nothing",
    a_refused_repetition_is_caught: RepetitionRefused by "attempts::a_repeated_completion_succeeds",
    a_claim_for_any_tenant_is_caught: AnyTenant by "claims::only_the_tenant_of_a_reserved_sequence_is_claimed_for",
    a_claim_answered_to_anybody_is_caught: ClaimAnswersAnybody by "claims::a_claim_is_answered_to_its_worker_and_to_who_takes_over",
    a_claim_that_nobody_can_take_over_is_caught: ClaimTakesOverNothing by "claims::a_claim_is_answered_to_its_worker_and_to_who_takes_over",
    enqueueing_one_by_one_is_caught: EnqueueOneByOne by "enqueue::other_content_under_a_key_is_refused_whole",
    renewing_a_lost_lease_is_caught: RenewsLostLeases by "leases::a_stale_fence_changes_nothing",
    giving_idle_slots_away_is_caught: IdleSlotsGivenAway by "rounds::every_sequence_of_a_block_ends",
    ignoring_runs_max_is_caught: RunsMaxIgnored by "rounds::a_round_claims_no_more_than_its_runs_max",
    ignoring_the_team_window_is_caught: TeamWindowIgnored by "round_choice::random_rounds_claim_what_is_admitted",
    claiming_anew_is_caught: RoundClaimsAnew by "rounds::asking_again_gives_the_same_round",
    sharing_a_lost_block_is_caught: LostBlocksShared by "lost_blocks::the_late_owner_of_a_lost_block_gets_nothing",
    forgetting_half_settled_blocks_is_caught: HalfSettledBlocksForgotten by "lost_blocks::a_lost_block_is_found_after_a_lease_length",
    a_limit_without_the_running_ones_is_caught: LimitWithoutRunning by "limits::limits_are_exact_under_concurrency",
    a_limit_that_is_checked_too_early_is_caught: LimitCheckedTooEarly by "limits::limits_are_exact_under_concurrency",
    reserving_in_a_retired_shard_is_caught: ReservesWhenRetired by "retired::a_retired_shard_reserves_nothing_new",
    retiring_without_the_lock_is_caught: RetiresWithoutLock by "succession::nothing_is_reserved_after_the_retirement",
    a_cancellation_that_takes_the_lease_is_caught: CancelTakesTheLease by "control::a_running_run_goes_on_until_its_attempt_ends",
    sleeping_through_work_is_caught: SleepsThrough by "waiting::nobody_waits_for_work_that_is_there",
    pruning_covered_history_is_caught: CoveredHistoryPruned by "history::pruning_keeps_what_a_reservation_covers",
    one_refusal_for_all_completions_is_caught: OneRefusalRefusesAll by "completions::a_refused_completion_fails_nobody_else",
    sorted_completions_are_caught: CompletionsSorted by "completions::completions_are_answered_in_their_order",
}

fn assert_caught<F: Injected>(fact: &str) {
    if let Err(broken) = check::<Broken<Sound>>(fact) {
        panic!("the fact must hold without the fault: {broken}");
    }
    match check::<Broken<F>>(fact) {
        Err(broken) => assert_eq!(broken.fact, fact),
        Ok(()) => panic!("{fact} does not notice {:?}", F::FAULT),
    }
}
